"""The arc-standard transition system for projective dependency trees, with a dynamic oracle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .dependency_state import DependencyParser, ParserState
from .reachable_trees import least_loss, remaining_nodes

__all__ = ["ArcStandard"]


@dataclass(frozen=True)
class ArcStandard(DependencyParser):
    """Projective dependency trees, bottom up: arcs join the two nodes at the top of the stack.

    Let s0 be the top of the stack, s1 the node below, and b the first word of the buffer. The root is at the bottom
    of the stack. "Shift" (action 0) moves b to the stack. "Left" removes s1, with the head s0. "Right" removes s0, with
    the head s1. With L labels, the actions 1 to L are "left" with a label, and L + 1 to 2L "right" with a label. A
    sequence has 2n actions, and a tree can have several sequences.

    Inputs: a tensor (B, n + 1, ...), or a tuple of the tensor and lengths (B,). Row 0 is the root. Structures: as for
    the oracle ``projective_tree``, (B, n + 1, n + 1), or (B, n + 1, n + 1, L) with labels.

    The method ``costs`` is a dynamic oracle: how many gold arcs each action loses, in any state. The arcs that a state
    can reach exclude each other, so that the costs have no closed form. They come from Eisner's algorithm over the
    nodes of the stack and of the buffer, O(n³) for each action. The new descendants of a node below the top of the
    stack include the top, or there are none and the head is to the right.

    Parameters
    ----------
    score : callable, optional
        Returns the scores of the actions, (N, 3) or (N, 1 + 2 L), given a
        :class:`structinf.transitions.ParserState`. The scores of actions that are not allowed are ignored. By
        default, the inputs are scores θ of arcs, as for ``projective_tree``; "shift" has score 0, and the other actions
        the score of their arc, so that the sum over a sequence is the score of the tree.
    labels : int, optional
        The number L of labels of arcs. By default, arcs have no labels.
    single_root : bool
        Whether exactly one word has the root as its head.

    References
    ----------
    Nivre 2004, Incrementality in Deterministic Dependency Parsing.
    Goldberg, Sartorio & Satta 2014, A Tabular Method for Dynamic Oracles in Transition-Based Parsing (the problem;
    another algorithm).

    Examples
    --------
    >>> heads = torch.tensor([[2, 0, 2, 3]])
    >>> ArcStandard().gold_actions(torch.zeros(1, 5, 5), heads).tolist()
    [[0, 0, 1, 0, 0, 2, 2, 2]]
    """

    def arcs(self, state: ParserState) -> Tensor:
        top, below = state.top(0), state.top(1)
        return torch.stack([torch.stack([top, below], 1), torch.stack([below, top], 1)], 1)

    def allowed(self, state: ParserState) -> Tensor:
        has_buffer = state.front <= state.lengths
        is_last = state.depth >= (3 if self.single_root else 2)
        right = is_last | (state.depth >= 2) & ~has_buffer
        return torch.stack([has_buffer, state.depth >= 3, right], 1)

    def without(self, state: ParserState, is_left: Tensor) -> tuple[Tensor, Tensor]:
        # "Left" moves the top of the stack down by one place.
        place = (state.depth - 2).clamp(min=0)[:, None]
        top = torch.where(is_left, state.top(0), state.top(1))
        return state.stack.scatter(1, place, top[:, None]), state.depth - 1

    def future_loss(self, state: ParserState, wrong: Tensor) -> Tensor:
        nodes, counts = remaining_nodes(state.stack, state.depth, state.front, state.lengths)
        rows = torch.arange(len(nodes), device=nodes.device)[:, None, None]
        loss = wrong[rows, nodes[:, :, None], nodes[:, None]]
        place = torch.arange(nodes.shape[1], device=nodes.device)
        return least_loss(loss, counts, place < state.depth[:, None] - 1, self.single_root)
