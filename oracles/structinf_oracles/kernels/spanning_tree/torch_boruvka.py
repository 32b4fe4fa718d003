"""Borůvka's algorithm in torch operations, for long lists of edges on a GPU; ties as in :func:`.argmax.boruvka`.

The number of rounds depends on the number of nodes alone, so that nothing waits for the device. In a round, each tree
takes its best outgoing edge; ranks of edges are unique. Trees joined by chosen edges become one tree. Two trees may
choose the same edge and point to each other: the lower one becomes the root. Path doubling finds the root of all other
trees in ⌈log₂ n⌉ steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["boruvka"]


def boruvka(theta: Tensor, ends: Tensor, nodes: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best trees (B, E), and whether each instance has a tree, (B,).

    Parameters
    ----------
    theta : (B, E) Tensor
        Scores of the edges, with E of at least 1.
    ends : (B | 1, E, 2) int64 Tensor
        The nodes joined by each edge.
    nodes : int
        n, the largest number of nodes.
    lengths : (B,) int64 Tensor
        The numbers of nodes. No edge above −inf joins other nodes.
    """
    batch, edges = theta.shape
    one, other = (t.expand(batch, edges) for t in ends.unbind(2))
    # The sum makes −0.0 equal to 0.0, which a sort by bits may not.
    order = (theta + 0.0).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(edges, device=theta.device).expand(batch, edges))
    # An unusable edge has the rank E, and column E of ``taken`` belongs to no edge.
    rank = rank.masked_fill_(~(theta > -torch.inf), edges)
    taken = theta.new_zeros(batch, edges + 1)
    tree = torch.arange(nodes, device=theta.device).expand(batch, nodes)
    label, doublings = tree, max(nodes - 1, 0).bit_length()
    for _ in range(doublings):
        first, second = label.gather(1, one), label.gather(1, other)
        usable = rank.masked_fill(first == second, edges)
        best = torch.full_like(tree, edges)
        best.scatter_reduce_(1, first, usable, "amin").scatter_reduce_(1, second, usable, "amin")
        grows = best < edges
        edge = order.gather(1, best.clamp(max=edges - 1))
        taken.scatter_(1, edge.masked_fill(~grows, edges), 1.0)
        neighbour = first.gather(1, edge) + second.gather(1, edge) - tree
        parent = torch.where(grows, neighbour, tree)
        is_root = (parent.gather(1, parent) == tree) & (tree < parent)
        parent = torch.where(is_root, tree, parent)
        for _ in range(doublings):
            parent = parent.gather(1, parent)
        label = parent.gather(1, label)
    is_joined = (label == label[:, :1]) | (tree >= lengths.unsqueeze(1))
    return taken[:, :-1].contiguous(), is_joined.all(1)
