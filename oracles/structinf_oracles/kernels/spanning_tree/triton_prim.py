"""Prim's algorithm as a Triton kernel, one launch for a batch: the algorithm and the ties of :func:`.argmax.prim`.

For lists of edges, a launch before it writes matrices of the best edges of each pair of nodes, and the ties are those
of :func:`.argmax.boruvka`.

A program handles an instance. The best edge from the tree to each remaining node is in registers, so that a node costs
a read of its row and its column of scores, and two reductions. A program reads nothing that it writes, so that no
barrier is necessary. Scores of NaN are never chosen, so that a program ends for all scores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from structinf.kernels.gpu import launch

from .triton_sums import EdgeLists, best_of_pairs

__all__ = ["argmax", "argmax_of_edges"]

_NONE = tl.constexpr(2**31 - 1)


# A size of 1 stays a variable: as a constant it would not be a tensor, as the conditions below need.
@triton.jit(do_not_specialize=["n", "parts"])
def prim(theta, edges, lengths, y, feasible, n, parts, NODES: tl.constexpr):
    """Write 1 for the edges of the best trees of ``theta`` (B, n, n) to ``y``, 0 on entry, and whether they exist.

    The edge of nodes i < j has the number i n + j, or ``edges`` (B, n, n) holds the numbers. Of equal scores, the edge
    with the lowest number is taken.
    """
    b = tl.program_id(0).to(tl.int64)
    theta += b * n * n
    y += b * parts
    if edges is not None:
        edges += b * n * n
    size, v = tl.minimum(tl.load(lengths + b), n).to(tl.int32), tl.arange(0, NODES)
    best = tl.full([NODES], float("-inf"), theta.dtype.element_ty)
    edge = tl.full([NODES], _NONE, tl.int32)
    is_left, newest = (v > 0) & (v < size), size * 0
    is_feasible = size > 0
    for _ in range(1, size):
        row = tl.load(theta + newest * n + v, mask=is_left & (v > newest), other=float("-inf"))
        column = tl.load(theta + v * n + newest, mask=is_left & (v < newest), other=float("-inf"))
        score = tl.where(v > newest, row, column)
        number = tl.minimum(newest, v) * n + tl.maximum(newest, v)
        if edges is not None:
            number = tl.load(edges + newest * n + v, mask=is_left & (score > float("-inf")), other=_NONE)
        is_better = (score > best) | ((score == best) & (number < edge))
        best, edge = tl.where(is_better, score, best), tl.where(is_better, number, edge)
        top = tl.max(tl.where(is_left, best, float("-inf")), 0)
        is_best = is_left & (best == top) & (best > float("-inf"))
        choice = tl.min(tl.where(is_best, edge, _NONE), 0)
        is_found = choice < _NONE
        tl.store(y + tl.where(is_found, choice, 0), tl.full([], 1.0, y.dtype.element_ty), mask=is_found)
        newest = tl.max(tl.where(is_best & (edge == choice), v, 0), 0)
        is_left = is_left & (v != newest)
        is_feasible = is_feasible & is_found
    tl.store(feasible + b, is_feasible)


def argmax(theta: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best trees (B, n, n), and whether each instance has a tree, (B,).

    Parameters
    ----------
    theta : (B, n, n) Tensor
        Scores, read above the diagonal.
    lengths : (B,) int64 Tensor
        The numbers of nodes in use.
    """
    return _launch(theta, theta.contiguous(), None, lengths)


def argmax_of_edges(scores: Tensor, graphs: EdgeLists) -> tuple[Tensor, Tensor]:
    """Return the best trees (B, E) of lists of edges, and whether each instance has a tree, for ``scores`` (B, E)."""
    return _launch(scores, *best_of_pairs(scores, graphs))


def _launch(scores: Tensor, theta: Tensor, edges: Tensor | None, lengths: Tensor) -> tuple[Tensor, Tensor]:
    n, parts = theta.shape[1], scores.shape[1:].numel()
    y = torch.zeros(scores.shape, dtype=scores.dtype, device=scores.device)
    feasible = torch.empty(len(theta), dtype=torch.bool, device=theta.device)
    block = max(2, triton.next_power_of_2(n))
    arguments = theta, edges, lengths.contiguous(), y, feasible, n, parts
    launch(prim, (len(theta),), *arguments, NODES=block, warps=4 if block > 64 else 1)
    return y, feasible
