"""Best assignments as a Triton kernel, one launch for a batch: the algorithm of :mod:`.shortest_augmenting_paths`.

A program handles an instance. The state of a search is in registers, one number for each column or row, and only costs
are read from memory. So no thread reads what another has stored, and no barrier is needed. All numbers and all choices
between equal numbers are those of the CPU, so that the structures are too.

Costs of NaN or infinity count as forbidden, so that searches end for all scores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from structinf.kernels.gpu import launch

from .rectangular import SCALE

__all__ = ["argmax"]

_NEGATED_SCALE = tl.constexpr(-SCALE)
_NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit
def _costs(theta, row, columns, row_stride, column_stride, usable):
    """Return the costs of the columns for ``row``, +inf where not ``usable``."""
    scores = tl.load(theta + row * row_stride + columns * column_stride, mask=usable, other=float("-inf"))
    is_allowed = (scores > float("-inf")) & (scores < float("inf"))
    return tl.where(is_allowed, tl.where(is_allowed, scores, 0.0).to(tl.float64) * _NEGATED_SCALE, float("inf"))


@triton.jit
def _entry(values, is_place):
    """Return the entry of ``values`` at the only place where ``is_place``."""
    return tl.sum(tl.where(is_place, values, 0), 0)


# Sizes of 1 stay variables: as constants they would not be tensors, as the conditions below need.
@triton.jit(do_not_specialize=["n", "m", "free", "sizes_stride"])
def best_assignment(
    theta, sizes, y, feasible, n, m, free, sizes_stride,
    WIDTH: tl.constexpr, HEIGHT: tl.constexpr, HAS_SIZES: tl.constexpr,
):  # fmt: skip
    """Match all rows, or all columns if there are fewer. θ (B, n, m + ``free``) has ``free`` columns that y lacks."""
    b = tl.program_id(0).to(tl.int64)
    theta += b * n * (m + free)
    y += b * n * m
    used_rows, used_columns = n, m
    if HAS_SIZES:
        used_rows = tl.minimum(tl.load(sizes + b * sizes_stride), n).to(tl.int32)
        used_columns = tl.minimum(tl.load(sizes + b * sizes_stride + 1), m).to(tl.int32)
    is_transposed = (used_rows > used_columns) & (free == 0)
    rows = tl.where(is_transposed, used_columns, used_rows)
    row_stride = tl.where(is_transposed, 1, m + free)
    column_stride = tl.where(is_transposed, m + free, 1)
    column, line = tl.arange(0, WIDTH), tl.arange(0, HEIGHT)
    columns = tl.where(is_transposed, used_rows, used_columns)
    usable = (column < columns) | ((column >= m) & (column < m + tl.minimum(free, used_rows)))

    # Rows bid for their cheapest columns.
    price = tl.zeros([WIDTH], tl.float64)
    holder = tl.full([WIDTH], -1, tl.int32)
    rank = column
    choice = tl.full([HEIGHT], -1, tl.int32)
    budget = 2 * rows
    for start in range(rows):
        row = start
        bids = row >= 0
        while bids:
            reduced = _costs(theta, row, column, row_stride, column_stride, usable) - price
            lowest = tl.min(reduced, 0)
            is_lowest = reduced == lowest
            at = tl.min(tl.where(is_lowest, rank, _NOWHERE), 0)
            second = tl.min(tl.where(is_lowest, float("inf"), reduced), 0)
            second = tl.where(tl.sum(is_lowest.to(tl.int32), 0) > 1, lowest, second)
            is_found = lowest < float("inf")
            is_open = at < WIDTH
            raises = is_found & (lowest < second) & (second < float("inf")) & (budget > 0)
            takes = is_found & (raises | is_open)
            target = tl.where(takes, tl.where(is_open, at, at - WIDTH), -1)
            here = column == target
            gap = tl.where(raises, second, 0.0) - tl.where(raises, lowest, 0.0)
            price = tl.where(here, price - gap, price)
            budget -= raises.to(tl.int32)
            bids = takes & (at >= WIDTH)
            loser = _entry(holder, here)
            holder = tl.where(here, row, holder)
            choice = tl.where(line == tl.where(takes, row, -1), target, choice)
            choice = tl.where(line == tl.where(bids, loser, -1), -1, choice)
            rank = tl.where(here, WIDTH + column, rank)
            row = tl.where(bids, loser, row)

    # Each other row takes a shortest path to an open column.
    is_feasible = rows >= 0
    for start in range(rows):
        if is_feasible & (_entry(choice, line == start) < 0):
            distance = tl.full([WIDTH], float("inf"), tl.float64)
            reach = tl.zeros([WIDTH], tl.float64)
            via = tl.full([WIDTH], -1, tl.int32)
            is_settled = column < 0
            row = start
            offset = tl.zeros([], tl.float64)
            nearest = tl.zeros([], tl.float64)
            at = tl.full([], _NOWHERE, tl.int32)
            searches = is_feasible
            while searches:
                length = (_costs(theta, row, column, row_stride, column_stride, usable) - price) + offset
                is_shorter = (length < distance) & ~is_settled
                via = tl.where(is_shorter, row, via)
                distance = tl.where(is_shorter, length, distance)
                nearest = tl.min(distance, 0)
                at = tl.min(tl.where(distance == nearest, rank, _NOWHERE), 0)
                at = tl.where(nearest < float("inf"), at, _NOWHERE)
                searches = (at >= WIDTH) & (at < _NOWHERE)
                here = column == tl.where(searches, at - WIDTH, -1)
                row = tl.where(searches, _entry(holder, here), row)
                costs = _costs(theta, row, column, row_stride, column_stride, usable & here)
                reduced = _entry(costs, here) - _entry(price, here)
                offset = tl.where(searches, nearest, 0.0) - reduced
                reach = tl.where(here, price + tl.where(searches, nearest, 0.0), reach)
                is_settled = is_settled | here
                distance = tl.where(here, float("inf"), distance)
            is_feasible = at < _NOWHERE
            if is_feasible:
                price = tl.where(is_settled, reach - nearest, price)
                rank = tl.where(column == at, WIDTH + column, rank)
                row = start - 1
                while row != start:
                    here = column == at
                    row = _entry(via, here)
                    holder = tl.where(here, row, holder)
                    is_row = line == row
                    before = _entry(choice, is_row)
                    choice = tl.where(is_row, at, choice)
                    at = before

    one = tl.where(is_transposed, choice, line)
    other = tl.where(is_transposed, line, choice)
    tl.store(y + one * m + other, 1.0, mask=(line < tl.where(is_feasible, rows, 0)) & (choice >= 0) & (other < m))
    tl.store(feasible + b, is_feasible)


def argmax(theta: Tensor, sizes: Tensor | None, free: int) -> tuple[Tensor, Tensor]:
    """Return a best structure of each instance, and whether there is one, (B,) bool; 0 in place of no structure.

    Parameters
    ----------
    theta : (B, n, m + free) Tensor
        Scores of the pairs.
    sizes : (B | 1, 2) int64 Tensor, optional
        The numbers of rows and columns in use. Default: n and m.
    free : int
        The number of last columns that leave a row without a partner, 0 or n; the structures (B, n, m) lack them. A
        structure matches all rows with columns, or all columns with rows if there are fewer and ``free`` is 0.
    """
    theta = theta.contiguous()
    batch, n, width = theta.shape
    m = width - free
    y = theta.new_zeros(batch, n, m)
    feasible = torch.empty(batch, dtype=torch.bool, device=theta.device)
    stride = 0 if sizes is None or len(sizes) == 1 else 2
    wide = triton.next_power_of_2(max(n, width, 1))
    launch(
        best_assignment,
        (batch,),
        *(theta, sizes if sizes is None else sizes.contiguous(), y, feasible, n, m, free, stride),
        WIDTH=wide,
        HEIGHT=triton.next_power_of_2(max(n if free else min(n, m), 1)),
        HAS_SIZES=sizes is not None,
        warps=1 if wide <= 128 else 2,
    )
    return y, feasible
