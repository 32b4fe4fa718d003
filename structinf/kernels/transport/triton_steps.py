"""Steps of Sinkhorn's algorithm on a GPU for matrices of any number of rows: one launch for each step.

The kernels serve more columns than :mod:`.triton_plans`. The programs of a step share the rows or the columns of an
instance in blocks, so that one instance can use the whole GPU. All numbers are in float64.

The elimination of a Laplacian has one program for each instance. Its barriers are there because a program reads, in
each step, numbers that other threads have stored in the step before.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch
from ..gpu.triton_smooth_max import finite, log_of_positive
from .tolerances import NEGLIGIBLE, ROUNDING
from .triton_plans import distance_below, eliminated_entry, inverse_of

__all__ = ["MAX_COLUMNS", "ColumnPass", "column_pass", "laplacian_solution", "residuals", "row_sums"]

MAX_COLUMNS = 1024
"""The largest number of columns of an elimination, which keeps numbers of all columns in registers."""

_TILE = 32

_NEGLIGIBLE, _ROUNDING = tl.constexpr(NEGLIGIBLE), tl.constexpr(ROUNDING)


@triton.jit
def _add_to_sum(top, total, x, AXIS: tl.constexpr):
    """Return the largest entry and the scaled total of exp, after the entries of ``x`` along an axis."""
    new = tl.maximum(top, tl.max(x, AXIS))
    shift = finite(new)
    return new, total * tl.exp(distance_below(top, shift)) + tl.sum(tl.exp(x - tl.expand_dims(shift, AXIS)), AXIS)


@triton.jit
def _row_sums(scores, g, temperature, sums, n, m, ROWS: tl.constexpr, COLS: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    scores += b * n * m
    t = tl.load(temperature + b)
    top = tl.full([ROWS], float("-inf"), tl.float64)
    total = tl.zeros([ROWS], tl.float64)
    for first in range(0, m, COLS):
        j = first + tl.arange(0, COLS)
        inside = (i < n)[:, None] & (j < m)[None, :]
        s = tl.load(scores + i[:, None] * m + j[None, :], mask=inside, other=float("-inf"))
        x = (s + tl.load(g + b * m + j, mask=j < m, other=0.0)[None, :]) / t
        top, total = _add_to_sum(top, total, x, 1)
    tl.store(sums + b * n + i, finite(finite(top) + log_of_positive(total)), mask=i < n)


@triton.jit
def _column_pass(
    scores, g, temperature, row_sums, rows, columns, largest, sums, sizes, ahead, plan, n, m, rows_stride,
    columns_stride, STORE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    j = block * COLS + tl.arange(0, COLS)
    scores += b * n * m
    t = tl.load(temperature + b)
    least = _NEGLIGIBLE * tl.load(largest + b)
    own = tl.load(g + b * m + j, mask=j < m, other=0.0)
    sum_of_plan = tl.zeros([COLS], tl.float64)
    size = tl.zeros([], tl.float64)
    top = tl.full([COLS], float("-inf"), tl.float64)
    total = tl.zeros([COLS], tl.float64)
    for first in range(0, n, ROWS):
        i = first + tl.arange(0, ROWS)
        inside = (i < n)[:, None] & (j < m)[None, :]
        s = tl.load(scores + i[:, None] * m + j[None, :], mask=inside, other=float("-inf"))
        a = tl.load(rows + b * rows_stride + i, mask=i < n, other=0.0)
        lse = tl.load(row_sums + b * n + i, mask=i < n, other=0.0)
        p = tl.exp((s + own[None, :]) / t - lse[:, None]) * a[:, None]
        sum_of_plan += tl.sum(p, 0)
        used = p > least
        terms = tl.abs(tl.where(used, s, 0.0)) + tl.abs(tl.where(used, tl.zeros_like(s) + own[None, :], 0.0))
        size = tl.maximum(size, tl.max(tl.max(terms, 1), 0))
        if STORE:
            tl.store(plan + b * n * m + i[:, None] * m + j[None, :], p, mask=inside)
        else:
            # The sums over rows of exp((s + f) / t), for the potentials f of the rows.
            x = s / t + (log_of_positive(a) - lse)[:, None]
            top, total = _add_to_sum(top, total, x, 0)
    tl.store(sums + b * m + j, sum_of_plan, mask=j < m)
    tl.store(sizes + b * tl.num_programs(1) + block, size)
    if not STORE:
        c = tl.load(columns + b * columns_stride + j, mask=j < m, other=0.0)
        lse = finite(finite(top) + log_of_positive(total))
        new_g = tl.where(c > 0, t * (log_of_positive(c) - tl.where(c > 0, lse, 0.0)), float("-inf"))
        tl.store(ahead + b * m + j, new_g, mask=j < m)


@triton.jit
def _residuals(
    sums, columns, sizes, largest, spread, temperature, error, rounding, m, blocks, columns_stride,
    COLS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    farthest = tl.zeros([], tl.float64)
    size = tl.zeros([], tl.float64)
    for first in range(0, m, COLS):
        j = first + tl.arange(0, COLS)
        found = tl.load(sums + b * m + j, mask=j < m, other=0.0)
        farthest = tl.maximum(
            farthest, tl.max(tl.abs(found - tl.load(columns + b * columns_stride + j, mask=j < m, other=0.0)), 0)
        )
        size = tl.maximum(size, tl.max(tl.load(sizes + b * blocks + j, mask=j < blocks, other=0.0), 0))
    bound = tl.minimum(size, tl.load(spread + b)) / tl.load(temperature + b)
    tl.store(error + b, farthest / tl.load(largest + b))
    tl.store(rounding + b, (1.0 + bound) * _ROUNDING)


@triton.jit
def _laplacian_weights(plan, row_totals, weights, n, m, TILE: tl.constexpr):
    """Write Pᵀ diag(P 1)⁻¹ P, in tiles."""
    b = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * TILE + tl.arange(0, TILE)
    k = tl.program_id(2) * TILE + tl.arange(0, TILE)
    plan += b * n * m
    total = tl.zeros([TILE, TILE], tl.float64)
    for i in range(n):
        inverse = inverse_of(tl.load(row_totals + b * n + i))
        p = tl.load(plan + i * m + j, mask=j < m, other=0.0)
        share = tl.load(plan + i * m + k, mask=k < m, other=0.0) * inverse
        total += p[:, None] * share[None, :]
    place = weights + b * m * m + j[:, None] * m + k[None, :]
    tl.store(place, total, mask=(j < m)[:, None] & (k < m)[None, :])


@triton.jit
def _eliminate(weights, right, size, y, m, FARTHEST: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Solve as `structinf.solvers.sinkhorn_torch.laplacian` does; shares of column k replace row k of ``weights``."""
    b = tl.program_id(0).to(tl.int64)
    weights += b * m * m
    j = tl.arange(0, COLS)
    x = tl.load(right + b * m + j, mask=j < m, other=0.0)
    z = tl.load(size + b * m + j, mask=j < m, other=0.0)
    own = tl.zeros([COLS], tl.float64)
    for back in range(m - 1):
        k = m - 1 - back
        row = tl.load(weights + k * m + j, mask=j < k, other=0.0)
        inverse = inverse_of(tl.sum(row, 0))
        share = row * inverse
        last, last_size, value = eliminated_entry(x, z, j == k, inverse, FARTHEST)
        own = tl.where(j == k, value, own)
        x += last * share
        z += last_size * share
        for first in range(0, k, ROWS):
            i = first + tl.arange(0, ROWS)
            factor = tl.load(weights + k * m + i, mask=i < k, other=0.0)
            place, inside = weights + i[:, None] * m + j[None, :], (i < k)[:, None] & (j < k)[None, :]
            tl.store(place, tl.load(place, mask=inside, other=0.0) + factor[:, None] * share[None, :], mask=inside)
        tl.debug_barrier()
        tl.store(weights + k * m + j, share, mask=j < k)
    tl.debug_barrier()
    solution = tl.zeros([COLS], tl.float64)
    for k in range(1, m):
        share = tl.load(weights + k * m + j, mask=j < k, other=0.0)
        value = tl.sum(tl.where(j == k, own, 0.0), 0) + tl.sum(share * solution, 0)
        solution = tl.where(j == k, value, solution)
    tl.store(y + b * m + j, solution, mask=j < m)


# ----------------------------------------------------------------------------- launches


class ColumnPass(NamedTuple):
    """The results of a pass over the columns of the plan of the potentials g."""

    sums: Tensor
    """(B, m): the sums of the columns."""
    sizes: Tensor
    """(B, blocks): the size of scores and potentials where there is transport."""
    ahead: Tensor
    """(B, m): g after a sweep; not written if the plan is stored."""


def row_sums(scores: Tensor, g: Tensor, temperature: Tensor) -> Tensor:
    """Return log Σ_j exp((S + g) / T), (B, n); 0 for rows of −inf. Scores are (B, n, m), T is (B,)."""
    size, n, m = scores.shape
    sums = scores.new_empty(size, n)
    blocks = triton.cdiv(n, _TILE)
    launch(_row_sums, (size, blocks), scores, g, temperature, sums, n, m, warps=4, ROWS=_TILE, COLS=_TILE)
    return sums


def column_pass(
    scores: Tensor,
    g: Tensor,
    temperature: Tensor,
    sums_of_rows: Tensor,
    rows: Tensor,
    columns: Tensor,
    largest: Tensor,
    plan: Tensor | None = None,
) -> ColumnPass:
    """Return sums of the plan, whose rows :func:`row_sums` normalises, and the potentials after a sweep.

    Parameters
    ----------
    scores, g, temperature : (B, n, m), (B, m) and (B,) Tensor
        The arguments of :func:`row_sums`.
    sums_of_rows : (B, n) Tensor
        Their :func:`row_sums`.
    rows, columns : (B | 1, n) and (B | 1, m) Tensor
        The margins.
    largest : (B,) Tensor
        The largest margin.
    plan : (B, n, m) Tensor, optional
        Written: the plan. The potentials after a sweep are not computed then.
    """
    size, n, m = scores.shape
    blocks = triton.cdiv(m, _TILE)
    found = ColumnPass(scores.new_empty(size, m), scores.new_empty(size, blocks), torch.empty_like(g))
    strides = (0 if len(margins) == 1 else margins.shape[1] for margins in (rows, columns))
    launch(
        _column_pass, (size, blocks), scores, g, temperature, sums_of_rows, rows, columns, largest, *found, plan,
        n, m, *strides, warps=4, STORE=plan is not None, ROWS=_TILE, COLS=_TILE,
    )  # fmt: skip
    return found


def residuals(
    found: ColumnPass, columns: Tensor, largest: Tensor, spread: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the largest error of a column sum relative to ``largest``, and its part explained by rounding, (B,)."""
    size, m = found.sums.shape
    error, rounding = torch.empty_like(largest), torch.empty_like(largest)
    arrays = found.sums, columns, found.sizes, largest, spread, temperature, error, rounding
    stride = 0 if len(columns) == 1 else m
    launch(_residuals, (size,), *arrays, m, found.sizes.shape[1], stride, warps=4, COLS=256)
    return error, rounding


def laplacian_solution(plan: Tensor, right: Tensor, size: Tensor, farthest: float) -> Tensor:
    """Return y with (diag(Pᵀ 1) − Pᵀ diag(P 1)⁻¹ P) y = ``right``, (B, m), and y of column 0 equal to 0.

    Parameters
    ----------
    plan : (B, n, m) Tensor
        P; m is at most MAX_COLUMNS.
    right, size : (B, m) Tensor
        The right-hand side, and the magnitude of the terms that it is a sum of.
    farthest : float
        The largest difference between an entry of y and the weighted mean of its neighbours.
    """
    batch, n, m = plan.shape
    weights, y = plan.new_empty(batch, m, m), torch.empty_like(right)
    tiles = triton.cdiv(m, _TILE)
    launch(_laplacian_weights, (batch, tiles, tiles), plan, plan.sum(2), weights, n, m, warps=4, TILE=_TILE)
    block = triton.next_power_of_2(m)
    launch(
        _eliminate, (batch,), weights, right.contiguous(), size.contiguous(), y, m,
        warps=8 if block > 128 else 4, FARTHEST=farthest, ROWS=max(1, min(32, 2048 // block)), COLS=block,
    )  # fmt: skip
    return y
