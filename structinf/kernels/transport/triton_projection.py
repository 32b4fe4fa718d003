"""Euclidean projections onto transport polytopes on a GPU: the whole solution in one launch.

The algorithm, its weights and its tolerances are those of :mod:`.projection`. A program handles an instance, in
float64. Vectors over columns are in registers, with the ground in front and the slack column in the end, and so is the
Laplacian, so that at most MAX_COLUMNS columns are served. Cells and vectors over rows are in global memory, and are
processed in blocks of rows.

The scratch memory is ``shares`` (B, C, C) for C columns with padding, with the rows of the elimination of a Laplacian,
and ``per_row`` (B, 4, n): f, the room below the bound, the change of f, and the room after the change. A barrier
follows each store of these arrays and of the cells, because other threads of the program read them. The next store to
the same place comes after a barrier that follows the last reader.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch
from .tolerances import (
    BAND,
    EXACT_PATTERN,
    FARTHEST,
    INCREMENTAL,
    INFINITE_WEIGHT,
    MAX_FIXED,
    MAX_RESIDUAL,
    NEGLIGIBLE_CELL,
    ROUNDING,
)
from .triton_plans import eliminate, inverse_of

__all__ = ["MAX_COLUMNS", "project"]

MAX_COLUMNS = 62

_BAND, _EXACT_PATTERN, _FARTHEST, _INCREMENTAL, _INFINITE_WEIGHT, _MAX_RESIDUAL, _NEGLIGIBLE_CELL, _ROUNDING = (
    tl.constexpr(number)
    for number in (
        *(BAND, EXACT_PATTERN, FARTHEST, INCREMENTAL, INFINITE_WEIGHT, MAX_RESIDUAL, NEGLIGIBLE_CELL, ROUNDING),
    )
)
_MAX_FIXED = tl.constexpr(MAX_FIXED)
_MAX_CUTS = tl.constexpr(60)


@triton.jit
def _cells(matrix, i, n, m, COLS: tl.constexpr):
    """Return the numbers of ``matrix`` (n, m) in the rows i, −inf in the padding, the ground and the slack column."""
    j = tl.arange(0, COLS)
    inside = (i < n)[:, None] & (j >= 1)[None, :] & (j <= m)[None, :]
    return tl.load(matrix + i[:, None] * m + (j - 1)[None, :], mask=inside, other=float("-inf"))


@triton.jit
def _store_cells(matrix, i, cells, n, m, COLS: tl.constexpr):
    j = tl.arange(0, COLS)
    inside = (i < n)[:, None] & (j >= 1)[None, :] & (j <= m)[None, :]
    tl.store(matrix + i[:, None] * m + (j - 1)[None, :], cells, mask=inside)


@triton.jit
def _entry(vector, place, COLS: tl.constexpr):
    """Return the number at ``place``."""
    return tl.sum(tl.where(tl.arange(0, COLS) == place, vector, 0.0), 0)


@triton.jit
def _match_rows(reduced, rows, per_row, step, slack_step, n, m, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Find the changes of f and the new room after the ``step`` of g; return the column sums and the largest error.

    The row sums equal the margins, or are smaller if the room is 0. The last sum is the total of the rests of the rows.
    """
    j = tl.arange(0, COLS)
    sums, error = tl.zeros([COLS], tl.float64), tl.zeros([], tl.float64)
    rests = tl.zeros([], tl.float64)
    for first in range(0, n, ROWS):
        i = first + tl.arange(0, ROWS)
        a = tl.load(rows + i, mask=i < n, other=0.0)
        bound = tl.load(per_row + n + i, mask=i < n, other=float("inf")) - slack_step
        values = _cells(reduced, i, n, m, COLS) + step[None, :]
        top = tl.max(values, 1)
        has_cells = top > float("-inf")
        number = tl.sum((values > 0).to(tl.float64), 1)
        total = tl.sum(tl.maximum(values, 0.0), 1)
        shift = tl.where(number > 0, (a - total) / tl.maximum(number, 1.0), a - tl.where(has_cells, top, 0.0))
        # Newton's method for the threshold: after the first step, the number of positive cells only decreases.
        moves, trial = (a > 0) & has_cells, 0
        left = tl.max(moves.to(tl.int32), 0)
        while left > 0:
            is_positive = values + shift[:, None] > 0
            now = tl.sum(is_positive.to(tl.float64), 1)
            total = tl.sum(tl.where(is_positive, values, 0.0), 1)
            has_risen = (now > number) & (number * 0.0 + trial > 0)
            moves = moves & (now != number) & (now != 0) & (has_risen == 0)
            number = tl.where(moves, now, number)
            shift = tl.where(moves, (a - total) / tl.maximum(now, 1.0), shift)
            trial += 1
            left = tl.where(trial <= m, tl.max(moves.to(tl.int32), 0), 0)
        shift = tl.where(has_cells, tl.minimum(shift, bound), bound)
        used, fails = a > 0, (has_cells == 0) & (bound == float("inf"))
        error = tl.maximum(error, tl.max(tl.where(used & fails, float("inf"), 0.0), 0))
        shift = tl.where(fails, 0.0, shift)
        cells = tl.where((used & (fails == 0))[:, None], tl.maximum(values + shift[:, None], 0.0), 0.0)
        sums += tl.sum(cells, 0)
        rest, is_free = a - tl.sum(cells, 1), used & (fails == 0)
        rests += tl.sum(tl.where(is_free & (shift == bound), rest, 0.0), 0)
        error = tl.maximum(error, tl.max(tl.where(is_free & (shift != bound), tl.abs(rest), 0.0), 0))
        tl.store(per_row + 2 * n + i, tl.where(is_free, shift, tl.where(used, float("-inf"), 0.0)), mask=i < n)
        tl.store(per_row + 3 * n + i, tl.where(is_free, bound - shift, float("inf")), mask=i < n)
    tl.debug_barrier()
    return tl.where(j == m + 1, rests, sums), error


@triton.jit
def _update(scores, reduced, per_row, g, step, is_incremental, n, m, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Apply the changes of f, and the steps of g to the reduced scores."""
    for first in range(0, n, ROWS):
        i = first + tl.arange(0, ROWS)
        change = tl.load(per_row + 2 * n + i, mask=i < n, other=0.0)
        f = tl.load(per_row + i, mask=i < n, other=0.0) + change
        tl.store(per_row + i, f, mask=i < n)
        tl.store(per_row + n + i, tl.load(per_row + 3 * n + i, mask=i < n, other=0.0), mask=i < n)
        moved = (_cells(reduced, i, n, m, COLS) + step[None, :]) + change[:, None]
        fresh = (_cells(scores, i, n, m, COLS) + f[:, None]) + g[None, :]
        _store_cells(reduced, i, tl.where(is_incremental, moved, fresh), n, m, COLS)
    tl.debug_barrier()


@triton.jit
def _weights(reduced, rows, per_row, band, slack_column, n, m, COLS: tl.constexpr):
    """Return the weights between columns, and the largest distance of a cell or row from 0."""
    j = tl.arange(0, COLS)
    weights, low = tl.zeros([COLS, COLS], tl.float64), tl.zeros([], tl.float64)
    is_column = (j >= 1) & (j <= m)
    for i in range(n):
        cell = tl.load(reduced + i * m + j - 1, mask=is_column, other=float("-inf"))
        p = tl.where(cell > 0, 1.0, band / (band + 1e-300 - tl.minimum(cell, 0.0)))
        low = tl.maximum(low, tl.max(tl.where(cell > float("-inf"), -cell, 0.0), 0))
        room = tl.load(per_row + n + i)
        is_bounded = (tl.load(rows + i) > 0) & (room < float("inf"))
        rest = tl.where(room == 0, _INFINITE_WEIGHT, band / tl.where(room > 0, room, 1.0))
        p = tl.where(is_column, p, 0.0)
        p = tl.where(j == slack_column, tl.where(is_bounded, rest, 0.0), p)
        low = tl.maximum(low, tl.where(is_bounded, room, 0.0))
        weights += p[:, None] * (p * inverse_of(tl.sum(p, 0)))[None, :]
    return weights, low


@triton.jit
def _bounded_step(weights, shares, off, size, g, band, bounded, farthest, rounds, m, COLS: tl.constexpr):
    """Return the Newton step with columns at their bounds fixed, in at most ``rounds`` solutions."""
    j = tl.arange(0, COLS)
    has_bounds = tl.max(bounded.to(tl.int32), 0)
    soft = tl.where(bounded & (g < 0) & (off >= 0), band / tl.where(g < 0, -g, 1.0), 0.0)
    fixed = bounded & (g == 0) & (off >= 0)
    step, left = tl.zeros([COLS], tl.float64), rounds
    while left > 0:
        to_ground = tl.where(fixed, _INFINITE_WEIGHT, soft)
        right = off - tl.where(fixed, _INFINITE_WEIGHT * tl.where(fixed, g, 0.0), 0.0)
        tied = weights + tl.where((j == 0)[None, :], to_ground[:, None], 0.0)
        step = eliminate(tied, shares, right, size, farthest, m + 1, COLS)
        step = tl.where(fixed, -g, step)
        above = tl.where(bounded & (fixed == 0), g + step, float("-inf"))
        highest = tl.max(above, 0)
        place = tl.min(tl.where(above == highest, j, COLS), 0)
        # The bounds would otherwise cut a step of a component whose potentials are determined up to a constant.
        left = tl.where((highest > 0) & (has_bounds > 0), left - 1, 0)
        fixed = fixed | ((above > 0) & (j == place))
    return step


@triton.jit
def _kept_within_bounds(step, off, g, bounded):
    """Return the step with g + step ≤ 0, as :func:`.projection._keep_bounds`."""
    is_over = bounded & (g + step > 0)
    cut = tl.where(is_over, -g, step)
    free = tl.where(bounded & (g == 0) & (step > 0), 0.0, step)
    goes_over = bounded & (g + free > 0)
    most = tl.min(tl.where(goes_over, -g / tl.where(goes_over, free, 1.0), 1.0), 0)
    stays_ascent = tl.sum(cut * off, 0) > 0.01 * tl.sum(step * off, 0)
    return tl.where(stays_ascent, cut, free), tl.where(stays_ascent, 1.0, most)


@triton.jit(do_not_specialize=["rows_stride", "columns_stride", "limit"])
def transport_projection(
    scores, rows, columns, slack, reduced, loose_rows, loose_columns, value, gap, residual, per_row, shares,
    n, m, rows_stride, columns_stride, limit, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write θ + f 1ᵀ + 1 gᵀ and the other results of :func:`.projection.project`."""
    k = tl.program_id(0).to(tl.int64)
    scores += k * n * m
    reduced += k * n * m
    rows += k * rows_stride
    columns += k * columns_stride
    per_row += k * 4 * n
    shares += k * COLS * COLS
    j = tl.arange(0, COLS)
    is_column = (j >= 1) & (j <= m)
    b = tl.load(columns + j - 1, mask=is_column, other=0.0)
    row_slack, column_slack = tl.load(slack + 2 * k), tl.load(slack + 2 * k + 1)
    bounded = is_column & (b > 0) & (b * 0.0 + column_slack > 0)
    rest = tl.where(column_slack > 0, row_slack, 0.0)
    has_rest = rest > 0
    slack_column = tl.where(has_rest, m + 1, 0)
    wanted = tl.where(j == m + 1, rest, b)
    largest = tl.max(b, 0)
    g = tl.where(is_column & (b == 0), float("-inf"), 0.0).to(tl.float64)
    step = tl.zeros([COLS], tl.float64)
    for first in range(0, n, ROWS):
        i = first + tl.arange(0, ROWS)
        a = tl.load(rows + i, mask=i < n, other=0.0)
        largest = tl.maximum(largest, tl.max(a, 0))
        f = tl.where(a > 0, 0.0, float("-inf")).to(tl.float64)
        room = a * 0.0 + tl.where(has_rest | (row_slack == 0), float("inf"), 0.0)
        tl.store(per_row + i, f, mask=i < n)
        tl.store(per_row + n + i, room, mask=i < n)
        _store_cells(reduced, i, (_cells(scores, i, n, m, COLS) + f[:, None]) + g[None, :], n, m, COLS)
    tl.debug_barrier()
    sums, row_error = _match_rows(reduced, rows, per_row, step, rest * 0.0, n, m, ROWS, COLS)
    if has_rest:
        top = tl.full([], float("-inf"), tl.float64)
        for first in range(0, n, ROWS):
            i = first + tl.arange(0, ROWS)
            a = tl.load(rows + i, mask=i < n, other=0.0)
            change = tl.load(per_row + 2 * n + i, mask=i < n, other=0.0)
            top = tl.maximum(top, tl.max(tl.where(a > 0, change, float("-inf")), 0))
        is_possible = top > float("-inf")
        g = tl.where(j == m + 1, -tl.where(is_possible, top, 0.0), g)
        for first in range(0, n, ROWS):
            i = first + tl.arange(0, ROWS)
            room = tl.zeros([ROWS], tl.float64) + tl.where(is_possible, top, float("inf"))
            tl.store(per_row + n + i, room, mask=i < n)
        tl.debug_barrier()
        sums, row_error = _match_rows(reduced, rows, per_row, step, rest * 0.0, n, m, ROWS, COLS)
        row_error = tl.where(is_possible, row_error, float("inf"))
    error, found = tl.full([], float("inf"), tl.float64), tl.full([], float("inf"), tl.float64)
    count, was_incremental, is_exact = tl.zeros([], tl.int32), tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    runs = tl.where(row_error < float("inf"), 1, 0)
    while runs > 0:
        before = error
        off = tl.where(is_column | ((j == m + 1) & (wanted > 0)), wanted - sums, 0.0)
        size = tl.where((j >= 1) & (j <= m + 1), wanted + tl.abs(sums), 0.0)
        off = tl.where(bounded & (g == 0) & (off > 0), 0.0, off)
        error = tl.maximum(row_error, tl.max(tl.abs(off), 0))
        is_settled = (was_incremental > 0) | (count == 0)
        is_incremental = (count > 0) & (error < _INCREMENTAL * largest)
        was_incremental = is_incremental.to(tl.int32)
        _update(scores, reduced, per_row, g, step, is_incremental, n, m, ROWS, COLS)
        is_stuck = (is_exact > 0) & is_settled & (error > 0.5 * before)
        is_found = (is_settled & (error <= _ROUNDING * largest)) | (is_stuck & (error < _MAX_RESIDUAL * largest))
        is_last = (count >= limit) | (error == float("inf")) | (error != error)
        found = tl.where(is_found | (is_last & is_settled), error, float("inf"))
        runs = tl.where(is_found | is_last, 0, 1)
        is_exact = ((is_stuck == 0) & (error < _EXACT_PATTERN * largest)).to(tl.int32)
        if runs > 0:
            band = tl.where(is_exact > 0, 0.0, _BAND * error)
            weights, farthest = _weights(reduced, rows, per_row, band, slack_column, n, m, COLS)
            farthest = tl.maximum(farthest, tl.max(tl.where(bounded, -g, 0.0), 0))
            terms = tl.where(is_exact > 0, 0.0, size)
            rounds, slope, most = tl.zeros([], tl.int32) + _MAX_FIXED, rest * 0.0, rest * 0.0 + 1.0
            has_bounds = tl.max(bounded.to(tl.int32), 0) > 0
            while rounds > 0:
                step = _bounded_step(weights, shares, off, terms, g, band, bounded, farthest + error, rounds, m, COLS)
                step, most = _kept_within_bounds(step, off, g, bounded)
                slope = tl.sum(step * off, 0)
                # Without fixed columns, the step is an ascent direction.
                rounds = tl.where((slope > 0) | (rounds == 1) | (has_bounds == 0), 0, 1)
            is_lost = (farthest < _FARTHEST) == 0
            ends = is_lost | ((slope > 0) == 0) & (is_exact == 0)
            found = tl.where(ends, tl.where(is_lost, float("inf"), error), found)
            runs = tl.where(ends, 0, 1)
            if runs > 0:
                part, cuts = most, tl.zeros([], tl.int32)
                while cuts < _MAX_CUTS:
                    sums, row_error = _match_rows(
                        reduced, rows, per_row, part * step, part * _entry(step, slack_column, COLS), n, m, ROWS, COLS
                    )
                    after = tl.sum(step * (wanted - sums), 0)
                    is_far = after < -0.1 * tl.abs(slope)
                    ratio = slope / tl.where(is_far, slope - after, 1.0)
                    cuts = tl.where(is_far, cuts + 1, _MAX_CUTS)
                    part = tl.where(is_far & (cuts < _MAX_CUTS), part * tl.maximum(0.1, tl.minimum(0.5, ratio)), part)
                step = part * step
                moved = g + step
                # A potential at its bound, up to rounding.
                g = tl.where(bounded & (moved > -_ROUNDING * tl.abs(tl.where(bounded, g, 0.0))), 0.0, moved)
                count += 1
    tl.store(residual + k, found / tl.where(largest > 0, largest, 1.0))
    _certificate(
        scores, rows, reduced, loose_rows + k * n, loose_columns + k * m, value + k, gap + k, per_row, g, b,
        column_slack, row_slack, n, m, ROWS, COLS,
    )  # fmt: skip


@triton.jit
def _certificate(
    scores, rows, reduced, loose_rows, loose_columns, value, gap, per_row, g, b, column_slack, row_slack, n, m,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Replace rounding errors in place of 0, and write the value and a bound of the duality gap."""
    j = tl.arange(0, COLS)
    is_column = (j >= 1) & (j <= m)
    sums = tl.zeros([COLS], tl.float64)
    best, bound, terms, rest = row_slack * 0.0, row_slack * 0.0, row_slack * 0.0, row_slack
    for first in range(0, n, ROWS):
        i = first + tl.arange(0, ROWS)
        a, f = tl.load(rows + i, mask=i < n, other=0.0), tl.load(per_row + i, mask=i < n, other=0.0)
        cells = _cells(reduced, i, n, m, COLS)
        least = _NEGLIGIBLE_CELL * tl.minimum(a[:, None], b[None, :])
        cells = tl.where((cells > 0) & (cells <= least), 0.0, cells)
        _store_cells(reduced, i, cells, n, m, COLS)
        plan = tl.maximum(cells, 0.0)
        score = tl.where(plan > 0, _cells(scores, i, n, m, COLS), 0.0)
        best += tl.sum(tl.sum(plan * (score - 0.5 * plan), 1), 0)
        terms += tl.sum(tl.sum(plan * (tl.abs(score) + 0.5 * plan), 1), 0)
        sums += tl.sum(plan, 0)
        left = a - tl.sum(plan, 1)
        is_loose = tl.load(per_row + n + i, mask=i < n, other=1.0) == 0
        tl.store(loose_rows + i, is_loose, mask=i < n)
        rest -= tl.sum(tl.where(is_loose, left, 0.0), 0)
        is_tight = (is_loose == 0) & (a > 0)
        bound += tl.sum(tl.where(is_tight, tl.abs(tl.where(is_tight, f, 0.0) * left), 0.0), 0)
    is_loose_column = is_column & (g == 0) & (b * 0.0 + column_slack > 0)
    tl.store(loose_columns + j - 1, is_loose_column, mask=is_column)
    is_tight_column = is_column & (b > 0) & (is_loose_column == 0)
    error = tl.where(is_tight_column, g, 0.0) * (sums - b)
    bound += tl.sum(tl.abs(error), 0) + tl.abs(_entry(tl.where(is_column, 0.0, g), m + 1, COLS) * rest)
    tl.store(value, best)
    tl.store(gap, bound + _ROUNDING * terms)


def project(
    scores: Tensor, rows: Tensor, columns: Tensor, slack: Tensor, max_iter: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of `structinf.solvers.transport_projection_torch.Projection`, for the same arguments.

    ``scores`` are (B, n, m) float64, with n and m above 0, and m at most MAX_COLUMNS.
    """
    size, n, m = scores.shape
    scores, rows, columns, slack = (t.contiguous() for t in (scores, rows, columns, slack))
    reduced = torch.empty_like(scores)
    loose_rows, loose_columns = (torch.empty(size, k, dtype=torch.bool, device=scores.device) for k in (n, m))
    value, gap, residual = (scores.new_empty(size) for _ in range(3))
    block = triton.next_power_of_2(m + 2)
    per_row, shares = scores.new_empty(size, 4, n), scores.new_empty(size, block, block)
    results = reduced, loose_rows, loose_columns, value, gap, residual
    strides = (0 if len(margins) == 1 else margins.shape[1] for margins in (rows, columns))
    launch(
        transport_projection, (size,), scores, rows, columns, slack, *results, per_row, shares, n, m, *strides,
        max_iter, warps=8 if block > 32 else 4, ROWS=max(1, min(triton.next_power_of_2(n), 512 // block)), COLS=block,
    )  # fmt: skip
    return results
