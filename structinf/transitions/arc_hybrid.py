"""The arc-hybrid transition system for projective dependency trees, with a dynamic oracle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .dependency_state import DependencyParser, ParserState
from .reachable_trees import least_loss, remaining_nodes

__all__ = ["ArcHybrid"]


@dataclass(frozen=True)
class ArcHybrid(DependencyParser):
    """Projective dependency trees: a word gets its head when it leaves the stack.

    Let s0 be the top of the stack, s1 the node below, and b the first word of the buffer. The root is at the bottom
    of the stack. "Shift" (action 0) moves b to the stack. "Left" removes s0, with the head b. "Right" removes s0, with
    the head s1. With L labels, the actions 1 to L are "left" with a label, and L + 1 to 2L "right" with a label. A
    sequence has 2n actions, and a tree can have several sequences.

    Inputs: a tensor (B, n + 1, ...), or a tuple of the tensor and lengths (B,). Row 0 is the root. Structures: as for
    the oracle ``projective_tree``, (B, n + 1, n + 1), or (B, n + 1, n + 1, L) with labels.

    The method ``costs`` is a dynamic oracle: how many gold arcs each action loses, in any state.

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
    Kuhlmann, Gómez-Rodríguez & Satta 2011, Dynamic Programming Algorithms for Transition-Based Dependency Parsers.
    Goldberg & Nivre 2013, Training Deterministic Parsers with Non-Deterministic Oracles, §4.2 (costs).

    Examples
    --------
    >>> import structinf as si
    >>> heads = torch.tensor([[2, 0, 2, 3]])
    >>> parser = ArcHybrid()
    >>> actions = parser.gold_actions(torch.zeros(1, 5, 5), heads)
    >>> actions.tolist()
    [[0, 1, 0, 0, 0, 2, 2, 2]]
    >>> log_p = si.sequence_log_prob(parser, torch.zeros(1, 5, 5), actions)
    """

    def arcs(self, state: ParserState) -> Tensor:
        top, below, first = state.top(0), state.top(1), state.first()
        return torch.stack([torch.stack([first, top], 1), torch.stack([below, top], 1)], 1)

    def allowed(self, state: ParserState) -> Tensor:
        has_buffer, has_word = state.front <= state.lengths, state.depth >= 2
        right = has_word & ~has_buffer | (state.depth > 2) if self.single_root else has_word
        return torch.stack([has_buffer, has_word & has_buffer, right], 1)

    def without(self, state: ParserState, is_left: Tensor) -> tuple[Tensor, Tensor]:
        return state.stack, state.depth - 1

    def future_loss(self, state: ParserState, wrong: Tensor) -> Tensor:
        nodes, counts = remaining_nodes(state.stack, state.depth, state.front, state.lengths)
        rows = torch.arange(len(nodes), device=nodes.device)[:, None, None]
        loss = wrong[rows, nodes[:, :, None], nodes[:, None]]
        # A node on the stack gets no dependent from further down, and none from above except its neighbour.
        place = torch.arange(nodes.shape[1], device=nodes.device)
        head_on_stack = place[:, None] < state.depth[:, None, None]
        dependent_on_stack = place < state.depth[:, None, None]
        is_neighbour = place[:, None] == place - 1
        loss = loss.masked_fill(head_on_stack & dependent_on_stack & ~is_neighbour, torch.inf)
        return least_loss(loss, counts, torch.zeros_like(nodes, dtype=torch.bool), self.single_root)

    @torch.no_grad()
    def costs(self, state: ParserState, heads: Tensor, labels: Tensor | None = None) -> Tensor:
        if self.single_root:
            return super().costs(state, heads, labels)
        gold = self._gold(state, heads, "heads", state.heads.shape[1])
        size = gold.shape[1]
        node = torch.arange(size, device=gold.device)
        place = node[None] < state.depth[:, None]
        # Which nodes are on the stack. Empty places count for no node.
        on_stack = torch.zeros(len(gold), size + 1, dtype=torch.bool, device=gold.device)
        on_stack = on_stack.scatter(1, torch.where(place, state.stack, size), True)[:, :size]
        in_buffer = (node >= state.front[:, None]) & (node <= state.lengths[:, None])
        top, below, first = state.top(0), state.top(1), state.first()
        head_of_top, head_of_first = (gold.gather(1, word[:, None])[:, 0] for word in (top, first))
        dependents = ((gold == top[:, None]) & in_buffer).sum(1)
        head_in_buffer = in_buffer.gather(1, head_of_top.clamp(min=0)[:, None])[:, 0] & (head_of_top > 0)
        left = dependents + ((head_of_top == below) | (head_in_buffer & (head_of_top != first)))
        right = dependents + head_in_buffer
        below_top = on_stack & (node != top[:, None])
        shift = ((gold == first[:, None]) & on_stack).sum(1)
        shift = shift + (below_top.gather(1, head_of_first.clamp(min=0)[:, None])[:, 0] & (head_of_first >= 0))
        found = torch.stack([shift, left, right], 1).double().masked_fill(~self.allowed(state), torch.inf)
        return self._per_action(found) + self._label_costs(state, self.arcs(state), gold, labels)
