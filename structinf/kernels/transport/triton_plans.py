"""Entropic optimal transport on a GPU: the whole solution in one launch, and its derivative in one more.

The algorithm is that of `structinf.solvers.sinkhorn_torch.solve`: sweeps, then Newton's method with decreasing
temperatures. A program handles an instance, in float64. The potentials g of the columns and the Laplacian are in
registers, so that at most MAX_COLUMNS columns are served. Scores are read from global memory in blocks of rows.

``shares`` (B, C, C) holds the rows of the elimination of a Laplacian, for C columns with padding. The barriers around
``shares`` and the plan are there because threads read numbers that other threads of the program have stored.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch
from ..gpu.triton_smooth_max import finite, log_of_positive
from .tolerances import (
    CANCELLATION,
    COARSE_TOLERANCE,
    EXACT,
    MAX_COARSE_STEPS,
    MAX_STEP,
    NEGLIGIBLE,
    ROUNDING,
    SMALLEST,
    TEMPERATURE_RATIO,
)

__all__ = ["MAX_COLUMNS", "distance_below", "eliminate", "eliminated_entry", "inverse_of", "solve", "tangent"]

MAX_COLUMNS = 64

_SWEEPS = 32
_HALVINGS = 40

_CANCELLATION, _COARSE_TOLERANCE, _MAX_COARSE_STEPS, _MAX_STEP, _NEGLIGIBLE, _ROUNDING, _SMALLEST = (
    tl.constexpr(number)
    for number in (CANCELLATION, COARSE_TOLERANCE, MAX_COARSE_STEPS, MAX_STEP, NEGLIGIBLE, ROUNDING, SMALLEST)
)
_MAX_SWEEPS, _MAX_HALVINGS = tl.constexpr(_SWEEPS), tl.constexpr(_HALVINGS)
# Kinds of updates, and phases of the solver.
_NONE, _SWEEP, _NEWTON, _LAST, _DONE = (tl.constexpr(number) for number in range(5))
_LOG_RATIO = tl.constexpr(math.log(TEMPERATURE_RATIO))


@triton.jit
def inverse_of(total):
    """Return 1 / ``total``, or 0 for totals of 0."""
    return tl.where(total > _SMALLEST, 1.0 / tl.where(total > _SMALLEST, total, 1.0), 0.0)


@triton.jit
def _log_sum_exp(x):
    """Return log Σ exp of the rows of ``x``, with 0 for rows of −inf."""
    top = finite(tl.max(x, 1))
    return finite(top + log_of_positive(tl.sum(tl.exp(x - top[:, None]), 1)))


@triton.jit
def _load_block(scores, i, n, m, COLS: tl.constexpr):
    """Return the scores of the rows i, −inf in the padding."""
    j = tl.arange(0, COLS)
    inside = (i < n)[:, None] & (j < m)[None, :]
    return tl.load(scores + i[:, None] * m + j[None, :], mask=inside, other=float("-inf"))


@triton.jit
def _column_sums(scores, rows, g, t, largest, plan, n, m, STORE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return the sums of the columns of the plan of g, and the size of scores and potentials where there is transport.

    With ``STORE``, write the plan.
    """
    j = tl.arange(0, COLS)
    sums = tl.zeros([COLS], tl.float64)
    size = tl.zeros([], tl.float64)
    for first in range(0, n, ROWS):
        i = first + tl.arange(0, ROWS)
        s = _load_block(scores, i, n, m, COLS)
        x = (s + g[None, :]) / t
        z = tl.exp(x - finite(tl.max(x, 1))[:, None])
        p = z * (tl.load(rows + i, mask=i < n, other=0.0) * inverse_of(tl.sum(z, 1)))[:, None]
        sums += tl.sum(p, 0)
        used = p > _NEGLIGIBLE * largest
        terms = tl.abs(tl.where(used, s, 0.0)) + tl.abs(tl.where(used, tl.zeros_like(s) + g[None, :], 0.0))
        size = tl.maximum(size, tl.max(tl.max(terms, 1), 0))
        if STORE:
            tl.store(plan + i[:, None] * m + j[None, :], p, mask=(i < n)[:, None] & (j < m)[None, :])
    return sums, size


@triton.jit
def _sweep(scores, rows, columns, g, t, n, m, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return the potentials of the columns after a sweep over rows and columns."""
    top = tl.full([COLS], float("-inf"), tl.float64)
    total = tl.zeros([COLS], tl.float64)
    for first in range(0, n, ROWS):
        i = first + tl.arange(0, ROWS)
        s = _load_block(scores, i, n, m, COLS)
        a = tl.load(rows + i, mask=i < n, other=0.0)
        # f / t of the rows; −inf where the margin is 0.
        f = log_of_positive(a) - _log_sum_exp((s + g[None, :]) / t)
        x = s / t + f[:, None]
        new = tl.maximum(top, tl.max(x, 0))
        shift = finite(new)
        total = total * tl.exp(distance_below(top, shift)) + tl.sum(tl.exp(x - shift[None, :]), 0)
        top = new
    lse = finite(finite(top) + log_of_positive(total))
    positive = columns > 0
    return tl.where(positive, t * (log_of_positive(columns) - tl.where(positive, lse, 0.0)), float("-inf"))


@triton.jit
def distance_below(top, shift):
    """Return ``top`` − ``shift`` for shift ≥ top, −inf if ``top`` is −inf."""
    return tl.where(top == float("-inf"), float("-inf"), finite(top) - shift)


@triton.jit
def eliminated_entry(right, size, is_place, inverse, farthest):
    """Return the entries of ``right`` and ``size`` at a place, and the first times ``inverse``, at most ``farthest``.

    The product is 0 if the entry is below the rounding error of its terms, of magnitude ``size``.
    """
    last = tl.sum(tl.where(is_place, right, 0.0), 0)
    last_size = tl.sum(tl.where(is_place, size, 0.0), 0)
    value = tl.where(tl.abs(last) < _CANCELLATION * last_size, 0.0, last * inverse)
    return last, last_size, tl.minimum(tl.maximum(value, -farthest), farthest)


@triton.jit
def eliminate(weights, shares, right, size, farthest, last, COLS: tl.constexpr):
    """Return y with (diag(W 1) − W) y = ``right`` and y of place 0 equal to 0, for symmetric W.

    Places are eliminated from the ``last`` one on, as in :func:`.laplacian.eliminate`.
    """
    j = tl.arange(0, COLS)
    own = tl.zeros([COLS], tl.float64)
    for back in range(last):
        k = last - back
        before = j < k
        row = tl.where(before, tl.sum(tl.where((j == k)[:, None], weights, 0.0), 0), 0.0)
        column = tl.where(before, tl.sum(tl.where((j == k)[None, :], weights, 0.0), 1), 0.0)
        inverse = inverse_of(tl.sum(row, 0))
        share = row * inverse
        weights += column[:, None] * share[None, :]
        tl.store(shares + k * COLS + j, share)
        entry, entry_size, value = eliminated_entry(right, size, j == k, inverse, farthest)
        own = tl.where(j == k, value, own)
        right += entry * share
        size += entry_size * share
    tl.debug_barrier()
    y = tl.zeros([COLS], tl.float64)
    for k in range(1, last + 1):
        share = tl.load(shares + k * COLS + j)
        value = tl.sum(tl.where(j == k, own, 0.0), 0) + tl.sum(share * y, 0)
        y = tl.where(j == k, value, y)
    tl.debug_barrier()
    return y


@triton.jit
def _laplacian_solution(plan, shares, right, size, farthest, n, m, COLS: tl.constexpr):
    """Return y with (diag(Pᵀ 1) − Pᵀ diag(P 1)⁻¹ P) y = ``right`` and y of column 0 equal to 0.

    Columns are eliminated from the last on, as in `structinf.solvers.sinkhorn_torch.laplacian`.
    """
    j = tl.arange(0, COLS)
    weights = tl.zeros([COLS, COLS], tl.float64)
    for i in range(n):
        p = tl.load(plan + i * m + j, mask=j < m, other=0.0)
        share = p * inverse_of(tl.sum(p, 0))
        weights += p[:, None] * share[None, :]
    return eliminate(weights, shares, right, size, farthest, m - 1, COLS)


@triton.jit
def _newton_step(
    scores, rows, columns, g, t, largest, plan, sums, shares, n, m, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """Return g after one Newton step from the stored ``plan`` with the given ``sums`` of the columns."""
    step = _laplacian_solution(plan, shares, columns - sums, columns + sums, _MAX_STEP, n, m, COLS)
    farthest = tl.max(tl.abs(step), 0)
    step = step * tl.where(farthest > 100.0, 100.0 / tl.where(farthest > 100.0, farthest, 1.0), 1.0)
    slope = tl.abs(tl.sum(step * (columns - sums), 0))
    part = t
    halvings = tl.zeros([], tl.int32)
    while halvings < _MAX_HALVINGS:
        ahead, _ = _column_sums(scores, rows, g + part * step, t, largest, plan, n, m, False, ROWS, COLS)
        too_far = tl.sum(step * (columns - ahead), 0) < -0.5 * slope
        part = tl.where(too_far, part / 2, part)
        halvings = tl.where(too_far, halvings + 1, _MAX_HALVINGS)
    return g + part * step


@triton.jit
def _solve(
    scores, rows, columns, settings, plan, f, g, residual, target_residual, iterations, shares,
    n, m, rows_stride, columns_stride, max_iter, EXACT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    scores += b * n * m
    plan += b * n * m
    rows += b * rows_stride
    columns += b * columns_stride
    f += b * n
    g += b * m
    shares += b * COLS * COLS
    temperature = tl.load(settings)
    first_temperature = tl.load(settings + 1)
    tolerance = tl.load(settings + 2)
    j = tl.arange(0, COLS)
    c = tl.load(columns + j, mask=j < m, other=0.0)
    largest = tl.maximum(tl.max(c, 0), 2.2250738585072014e-308)
    low = tl.full([], float("inf"), tl.float64)
    high = tl.full([], float("-inf"), tl.float64)
    for first in range(0, n, ROWS):
        i = first + tl.arange(0, ROWS)
        s = _load_block(scores, i, n, m, COLS)
        high = tl.maximum(high, tl.max(tl.max(s, 1), 0))
        low = tl.minimum(low, tl.min(tl.min(tl.where(s == float("-inf"), float("inf"), s), 1), 0))
        largest = tl.maximum(largest, tl.max(tl.load(rows + i, mask=i < n, other=0.0), 0))
    spread = tl.where(high == float("-inf"), 0.0, finite(high) - tl.where(high == float("-inf"), 0.0, low))
    start = tl.where(c > 0, 0.0, float("-inf")).to(tl.float64)
    hot = tl.maximum(spread / 8, tl.maximum(temperature, first_temperature))
    levels = tl.maximum(tl.ceil(tl.log(hot / temperature) / _LOG_RATIO), 0.0)
    aim = tolerance
    if EXACT:
        aim = 0.01 * tolerance
    most_sweeps = tl.where(first_temperature <= temperature, tl.minimum(_MAX_SWEEPS, max_iter), 0)
    # One loop for sweeps, for Newton steps at each level of the temperature, and for a last Newton step: the compiled
    # code has each of them once.
    v, t = start, temperature
    sums = tl.zeros([COLS], tl.float64)
    error = tl.zeros([], tl.float64)
    rounding = tl.zeros([], tl.float64)
    level = tl.zeros([], tl.float64)
    count, steps = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    phase = tl.zeros([], tl.int32) + _SWEEP
    update = tl.zeros([], tl.int32) + _NONE
    while phase != _DONE:
        if update == _SWEEP:
            v = _sweep(scores, rows, c, v, t, n, m, ROWS, COLS)
        elif update == _NEWTON:
            v = _newton_step(scores, rows, c, v, t, largest, plan, sums, shares, n, m, ROWS, COLS)
        tl.debug_barrier()
        sums, size = _column_sums(scores, rows, v, t, largest, plan, n, m, True, ROWS, COLS)
        tl.debug_barrier()
        error = tl.max(tl.abs(sums - c), 0) / largest
        rounding = _ROUNDING * (1.0 + tl.minimum(size, spread) / t)
        update = update * 0 + _NONE
        if phase == _SWEEP:
            if (count < most_sweeps) & (error > tl.maximum(0.01 * rounding, aim)):
                update = update + (_SWEEP - _NONE)
            elif error > tl.maximum(rounding, tolerance):
                phase = phase * 0 + _NEWTON
                v = tl.where(hot > temperature, start, v)
                level = levels
                t = tl.where(level == 0, temperature, hot)
                steps = steps * 0
            else:
                phase = phase * 0 + _LAST
        elif phase == _NEWTON:
            within = tl.where(level == 0, tolerance, _COARSE_TOLERANCE)
            most = tl.where(level == 0, max_iter, _MAX_COARSE_STEPS)
            if (error > tl.maximum(rounding, within)) & (count < max_iter) & (steps < most):
                update = update + (_NEWTON - _NONE)
                steps += 1
            elif level > 0:
                level -= 1.0
                ratio = tl.exp(tl.log(hot / temperature) * (level / tl.maximum(levels, 1.0)))
                t = tl.where(level == 0, temperature, temperature * ratio)
                steps = steps * 0
            else:
                phase = phase * 0 + _LAST
        if phase == _LAST:
            phase = phase * 0 + _DONE
            if EXACT:  # noqa: SIM102 - a constant of the compilation
                if (error > 0.01 * tl.maximum(rounding, tolerance)) & (count < max_iter) & (steps >= 0):
                    phase = phase * 0 + _LAST
                    update = update + (_NEWTON - _NONE)
                    steps = steps * 0 - 1
        count += tl.where(update != _NONE, 1, 0)
    for first in range(0, n, ROWS):
        i = first + tl.arange(0, ROWS)
        s = _load_block(scores, i, n, m, COLS)
        a = tl.load(rows + i, mask=i < n, other=0.0)
        lse = _log_sum_exp((s + v[None, :]) / temperature)
        potential = temperature * (log_of_positive(a) - tl.where(a > 0, lse, 0.0))
        tl.store(f + i, potential, mask=i < n)
    tl.store(g + j, v, mask=j < m)
    tl.store(residual + b, error)
    tl.store(target_residual + b, tl.maximum(rounding, tolerance))
    tl.store(iterations + b, count.to(tl.int64))


@triton.jit
def _tangent(plan, direction, rows, columns, settings, change, x, y, shares, n, m, COLS: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    plan += b * n * m
    direction += b * n * m
    change += b * n * m
    rows += b * n
    columns += b * m
    x += b * n
    y += b * m
    shares += b * COLS * COLS
    temperature = tl.load(settings)
    j = tl.arange(0, COLS)
    right = tl.load(columns + j, mask=j < m, other=0.0)
    size = tl.abs(right)
    for i in range(n):
        p = tl.load(plan + i * m + j, mask=j < m, other=0.0)
        d = p * tl.load(direction + i * m + j, mask=j < m, other=0.0) / temperature
        inverse = inverse_of(tl.sum(p, 0))
        r = tl.load(rows + i)
        own = (r - tl.sum(d, 0)) * inverse
        right += -d - p * own
        size += tl.abs(d) + p * ((tl.abs(r) + tl.sum(tl.abs(d), 0)) * inverse)
    solution = _laplacian_solution(plan, shares, right, size, float("inf"), n, m, COLS)
    for i in range(n):
        p = tl.load(plan + i * m + j, mask=j < m, other=0.0)
        d = p * tl.load(direction + i * m + j, mask=j < m, other=0.0) / temperature
        inverse = inverse_of(tl.sum(p, 0))
        own = (tl.load(rows + i) - tl.sum(d, 0)) * inverse - tl.sum(p * solution, 0) * inverse
        tl.store(change + i * m + j, d + p * (own + solution), mask=j < m)
        tl.store(x + i, own)
    tl.store(y + j, solution, mask=j < m)


def solve(
    scores: Tensor,
    rows: Tensor,
    columns: Tensor,
    temperature: float,
    first_temperature: float,
    tolerance: float,
    max_iter: int,
) -> tuple[Tensor, ...]:
    """Return the fields of `structinf.solvers.sinkhorn_torch.SinkhornResult`, for the same arguments.

    ``scores`` are (B, n, m) float64, with n and m above 0, and m at most MAX_COLUMNS.
    """
    size, n, m = scores.shape
    scores, rows, columns = scores.contiguous(), rows.contiguous(), columns.contiguous()
    plan, f, g = torch.empty_like(scores), scores.new_empty(size, n), scores.new_empty(size, m)
    residual, target_residual = scores.new_empty(2, size)
    iterations = torch.empty(size, dtype=torch.int64, device=scores.device)
    block = triton.next_power_of_2(m)
    shares = scores.new_empty(size, block, block)
    settings = _settings(scores, temperature, first_temperature, tolerance)
    arrays = scores, rows, columns, settings, plan, f, g, residual, target_residual, iterations, shares
    strides = (0 if len(margins) == 1 else margins.shape[1] for margins in (rows, columns))
    launch(
        _solve, (size,), *arrays, n, m, *strides, max_iter, warps=8 if block > 32 else 4, EXACT=tolerance <= EXACT,
        ROWS=max(1, min(triton.next_power_of_2(n), 512 // block)), COLS=block,
    )  # fmt: skip
    return plan, f, g, residual, target_residual, iterations


def tangent(
    plan: Tensor, direction: Tensor, rows: Tensor, columns: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result of `structinf.solvers.sinkhorn_torch.tangent`, for the same arguments.

    Parameters
    ----------
    plan, direction : (B, n, m) Tensor
        The plan, and the change of the scores, in float64; m is at most MAX_COLUMNS.
    rows, columns : (B, n) and (B, m) Tensor
        The changes of the margins.
    temperature : float
        T.
    """
    size, n, m = plan.shape
    plan, direction, rows, columns = (t.contiguous() for t in (plan, direction, rows, columns))
    change, x, y = torch.empty_like(plan), plan.new_empty(size, n), plan.new_empty(size, m)
    block = triton.next_power_of_2(m)
    shares = plan.new_empty(size, block, block)
    settings = _settings(plan, temperature)
    arrays = plan, direction, rows, columns, settings, change, x, y, shares
    launch(_tangent, (size,), *arrays, n, m, warps=4, COLS=block)
    return change, x, y


def _settings(like: Tensor, *numbers: float) -> Tensor:
    """Return ``numbers`` on the device in float64: triton passes Python floats in float32, and an upload would wait."""
    settings = like.new_empty(len(numbers))
    for place, number in zip(settings, numbers, strict=True):
        place.fill_(number)
    return settings
