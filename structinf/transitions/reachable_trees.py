"""The least loss of projective trees over the nodes of a parser's state, by Eisner's algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["least_loss", "remaining_nodes"]


def remaining_nodes(stack: Tensor, depth: Tensor, front: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes on the stack and then in the buffer, (N, m) int64, and their number (N,); 0 in the padding."""
    counts = depth + (lengths - front + 1).clamp(min=0)
    place = torch.arange(int(counts.max()) if len(counts) else 1, device=stack.device)
    on_stack = place < depth[:, None]
    nodes = torch.where(
        on_stack, stack[:, place.clamp(max=stack.shape[1] - 1)], front[:, None] + place - depth[:, None]
    )
    return torch.where(place < counts[:, None], nodes, 0), counts


def least_loss(arc_loss: Tensor, counts: Tensor, below_top: Tensor, single_root: bool) -> Tensor:
    """Return the least sum of arc losses of a projective tree over the first ``counts`` nodes, (N,).

    Node 0 is the root. +inf forbids an arc.

    Parameters
    ----------
    arc_loss : (N, m, m) Tensor
        The loss of the arc from the head (second dimension) to the dependent (third).
    counts : (N,) int64 Tensor
        The number of nodes.
    below_top : (N, m) bool Tensor
        Nodes below the top of a stack on which all arcs join the two nodes at the top. The descendants of such a node
        reach up to the top. With its head to its right, the node may also have no dependents.
    single_root : bool
        Whether the root has only one dependent.
    """
    count, m = arc_loss.shape[:2]
    # Complete spans: from the head i right to j, and from the head j left to i. Arcs over the span: i -> j; j -> i; and
    # j -> i for a node i that can have dependents.
    right, left, to_right, to_left, to_parent = (arc_loss.new_full((count, m, m), torch.inf) for _ in range(5))
    diagonal = torch.arange(m, device=arc_loss.device)
    right[:, diagonal, diagonal] = 0
    left[:, diagonal, diagonal] = 0
    for width in range(1, m):
        i = torch.arange(m - width, device=arc_loss.device)
        j, offset = i + width, torch.arange(width, device=arc_loss.device)
        split = i[:, None] + offset
        joined = right[:, i[:, None], split] + left[:, split + 1, j[:, None]]
        alone, best = joined[:, :, 0], joined.amin(2)
        # The descendants of a node below the top reach up to the top, or there are none.
        with_dependents = joined.masked_fill(below_top[:, i, None] & below_top[:, split], torch.inf).amin(2)
        to_right[:, i, j] = (torch.where(i == 0, alone, best) if single_root else best) + arc_loss[:, i, j]
        to_left[:, i, j] = torch.minimum(alone, with_dependents) + arc_loss[:, j, i]
        to_parent[:, i, j] = with_dependents + arc_loss[:, j, i]
        outer = torch.where(offset > 0, to_parent[:, split, j[:, None]], to_left[:, split, j[:, None]])
        left[:, i, j] = (left[:, i[:, None], split] + outer).amin(2)
        ends = split + 1
        spans = to_right[:, i[:, None], ends] + right[:, ends, j[:, None]]
        right[:, i, j] = spans.masked_fill(below_top[:, ends] & below_top[:, j, None], torch.inf).amin(2)
    return right[:, 0].gather(1, counts[:, None] - 1)[:, 0]
