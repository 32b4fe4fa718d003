"""α-entmax and smoothed maxima of rows of scores, in one launch. Importing this module imports triton.

The formulas are those of `structinf.kernels.simplex.torch_backend.entmax_dual`. With d = x − max x and a = α − 1,
Newton's method finds ℓ, minus the log-probability of the largest entry, in

    q = r e^(−ℓ),    r = max(1 + a d e^(aℓ), 0)^(1/a),    log Σ r = ℓ.

For α = 1.5 and 2, the unknown is c = e^(aℓ), so that a step needs no logarithm:

    c ← c / (1 + (c S^(1−a) − S) / Σ r^(1−a)),    S = Σ r.

For α > 2, see `structinf.kernels.simplex.triton_above_2`. The computation is in the dtype of x, for α > 2 in float64.

A row of up to 8,192 numbers stays in the registers of a program, so the kernel reads x once and writes q once. (The
limit halves in float64, and for α other than 1, 1.5 and 2.) For longer rows, each Newton step reads the row again. For
α > 2 and tensors α, rows longer than 2,048 use torch operations. The kernel allocates no memory, and needs no barrier,
since programs read nothing that is written.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float
from ..gpu import launch
from ..gpu.triton_exp_log import exp_minus_1, log_1_plus
from ..gpu.triton_smooth_max import finite
from . import torch_backend
from .triton_above_2 import entmax_above_2
from .triton_rows import (
    ABOVE_2,
    ANY,
    LINEAR,
    SOFTMAX,
    SQUARE,
    Rows,
    alpha_arguments,
    alpha_of,
    load_tile,
    row_starts,
    rows_of,
    store_tile,
)

__all__ = ["entmax", "smooth_max"]

_MOST_STEPS = tl.constexpr(64)


def entmax(x: Float[Tensor, "*rows n"], alpha: float | Tensor) -> Float[Tensor, "*rows n"]:
    """Return α-entmax along the last dimension, for ``alpha`` a number or (..., 1), in float32 or float64.

    The result has the strides of ``x`` if x has no gaps. Rows of −inf give 0, and rows with NaN or +inf give NaN.
    """
    arguments, case, level = alpha_arguments(alpha)
    rows = rows_of(x, level)
    if level == 2 and not rows.fits:
        return torch_backend.entmax(x, alpha)
    out = rows.empty()
    _launch(rows, out, arguments, case, values=False)
    return out


def smooth_max(x: Float[Tensor, "*rows n"], alpha: float) -> Float[Tensor, "*rows"]:
    """Return max ⟨x, q⟩ − (Σ q^α − 1) / (α (α − 1)) over probabilities q, for an ``alpha`` of 1, 1.5 or 2.

    Rows of −inf give −inf.
    """
    arguments, case, _ = alpha_arguments(alpha)
    rows = rows_of(x)
    out = x.new_empty(x.shape[:-1])
    _launch(rows, out, arguments, case, values=True)
    return out


def _launch(rows: Rows, out: Tensor, arguments: tuple[Tensor | None, int, int], case: Any, *, values: bool) -> None:
    grid, constants = rows.blocks()
    epsilon = torch.finfo(rows.tensor.dtype).eps
    constants |= {"CASE": case, "VALUES": values, "FITS": rows.fits}
    constants |= {"TOLERANCE": 16 * epsilon, "ABOVE_MINUS_1": -1 + epsilon / 2}
    launch(_entmax, grid, rows.tensor, out, *arguments, rows.count, rows.n, *rows.strides, **constants)


@triton.jit
def _distances(x, top):
    """Return d, with 0 for the largest scores, also in a row of −inf."""
    return tl.where(x == top[:, None], 0.0, x - finite(top)[:, None])


@triton.jit
def _scale(state, a, CASE: tl.constexpr):
    """Return a e^(aℓ). The ``state`` of Newton's method is e^(aℓ) for α = 1.5 and 2, and ℓ otherwise."""
    scale = state
    if CASE == SQUARE:
        scale = 0.5 * state
    elif CASE != LINEAR:
        scale = a * tl.exp(a * state)
    return scale


@triton.jit
def _powers(d, scale, a, CASE: tl.constexpr, ABOVE_MINUS_1: tl.constexpr):
    """Return r and r^(1 − a)."""
    if CASE == SOFTMAX:
        r = tl.exp(d)
        s = r
    elif CASE == LINEAR:
        r = tl.maximum(1.0 + d * scale[:, None], 0.0)
        s = tl.where(r > 0, 1.0, 0.0).to(d.dtype)
    elif CASE == SQUARE:
        s = tl.maximum(1.0 + d * scale[:, None], 0.0)
        r = s * s
    else:
        # For a = 0, r is exp d.
        is_power = (a > 0)[:, None]
        u = d * tl.where(a > 0, scale, 1.0)[:, None]
        inside = (u > -1) | (is_power == 0)
        log_power = log_1_plus(tl.where(is_power, tl.maximum(u, ABOVE_MINUS_1), 0.0)) / tl.where(a > 0, a, 1.0)[:, None]
        log_r = tl.where(is_power, log_power, d)
        s = tl.where(inside, tl.exp(log_r * (1.0 - a)[:, None]), 0.0)
        r = tl.where(inside, tl.exp(log_r), 0.0)
    return r, s


@triton.jit
def _next_state(state, total, steepness, a, CASE: tl.constexpr, TOLERANCE: tl.constexpr):
    """Return the state after a Newton step, and whether the step is above rounding."""
    if CASE == LINEAR:
        w = (state - total) / steepness
        ahead, moving = state / (1.0 + w), tl.abs(w) > TOLERANCE
    elif CASE == SQUARE:
        w = (state * tl.sqrt(total) - total) / steepness
        ahead, moving = state / (1.0 + w), tl.abs(w) > TOLERANCE
    else:
        w = total / steepness * exp_minus_1(a * (state - tl.log(total)))
        ahead, moving = state - log_1_plus(w) / tl.where(a > 0, a, 1.0), tl.abs(w) > TOLERANCE * a * (1.0 + state)
    return ahead, moving


@triton.jit
def _totals(
    x, first, top, scale, a, start, item, n, inside,
    CASE: tl.constexpr, SIZE: tl.constexpr, FITS: tl.constexpr, ABOVE_MINUS_1: tl.constexpr,
):  # fmt: skip
    """Return Σ r and Σ r^(1 − a) of each row, whose first tile is ``first``."""
    r, s = _powers(_distances(first, top), scale, a, CASE, ABOVE_MINUS_1)
    if not FITS:
        for begin in range(SIZE, n, SIZE):
            tile = _load_scores(x, start, item, begin, n, inside, SIZE)
            more_r, more_s = _powers(_distances(tile, top), scale, a, CASE, ABOVE_MINUS_1)
            r += more_r
            s += more_s
    return tl.sum(r, 1), tl.sum(s, 1)


@triton.jit
def _load_scores(x, start, item, begin, n, inside, SIZE: tl.constexpr):
    """Return a tile with −inf in place of NaN and +inf."""
    tile = load_tile(x, start, item, begin, n, inside, float("-inf"), SIZE)
    return tl.where(tile < float("inf"), tile, float("-inf"))


@triton.jit
def _has_invalid(tile):
    return tl.max(tl.where(tile < float("inf"), 0, 1), 1)


@triton.jit
def _probabilities(
    tile, top, scale, a, inverse, excess, invalid, CASE: tl.constexpr, ABOVE_MINUS_1: tl.constexpr
):  # fmt: skip
    # Removing the excess of Σ q over 1 along r^(1 − a), the derivative in the threshold, corrects rounding errors.
    r, s = _powers(_distances(tile, top), scale, a, CASE, ABOVE_MINUS_1)
    q = tl.maximum(r * inverse[:, None] - s * excess[:, None], 0.0)
    q = tl.where((top == float("-inf"))[:, None], 0.0, q)
    return tl.where((invalid > 0)[:, None], float("nan"), q)


@triton.jit(do_not_specialize=["bits", "rows", "n", "inner", "outer_stride"])
def _entmax(
    x, out, alphas, alpha_stride, bits, rows, n, inner, outer_stride, inner_stride, item,
    CASE: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, FITS: tl.constexpr,
    TOLERANCE: tl.constexpr, ABOVE_MINUS_1: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    start = row_starts(row, inner, outer_stride, inner_stride)
    loaded = load_tile(x, start, item, 0, n, inside, float("-inf"), SIZE)
    invalid = _has_invalid(loaded)
    first = tl.where(loaded < float("inf"), loaded, float("-inf"))
    top = tl.max(first, 1)
    if not FITS:
        for begin in range(SIZE, n, SIZE):
            tile = load_tile(x, start, item, begin, n, inside, float("-inf"), SIZE)
            invalid = tl.maximum(invalid, _has_invalid(tile))
            top = tl.maximum(top, tl.max(tl.where(tile < float("inf"), tile, float("-inf")), 1))

    alpha = alpha_of(alphas, alpha_stride, bits, row, inside, CASE)
    if CASE == ABOVE_2:
        active = (top > float("-inf")) & (invalid == 0)
        q = entmax_above_2(first.to(tl.float64), top.to(tl.float64), alpha - 1.0, active).to(first.dtype)
        q = tl.where(active[:, None], q, tl.where((invalid > 0)[:, None], float("nan"), 0.0).to(first.dtype))
        store_tile(out, q, start, item, 0, n, inside, SIZE)
    else:
        a = tl.minimum(alpha - 1.0, 1.0).to(first.dtype)
        state = tl.zeros_like(a)
        if CASE == LINEAR or CASE == SQUARE:  # noqa: SIM109 (triton has no "in")
            state += 1.0
        scale, total, steepness = state, state, state
        ahead, moving, steps = state, inside, 0
        while (steps <= _MOST_STEPS) & (tl.max(moving.to(tl.int32), 0) > 0):
            state = tl.where(moving, ahead, state)
            scale = _scale(state, a, CASE)
            total, steepness = _totals(x, first, top, scale, a, start, item, n, inside, CASE, SIZE, FITS, ABOVE_MINUS_1)
            if CASE == SOFTMAX:
                moving = moving & (moving == 0)
            else:
                ahead, is_moving = _next_state(state, total, steepness, a, CASE, TOLERANCE)
                moving = moving & is_moving
            steps += 1
        if CASE == SOFTMAX:
            inverse = 1.0 / total
        elif CASE == LINEAR:
            inverse = 1.0 / state
        elif CASE == SQUARE:
            inverse = 1.0 / (state * state)
        else:
            inverse = tl.where(a > 0, tl.exp(-state), 1.0 / total)
        excess = (total * inverse - 1.0) / steepness
        if VALUES:
            # For α > 1, the dual objective max x + (1 − e^(−aℓ)) / a + (Σ q^α − 1) / α, stationary at the optimal ℓ.
            q = _probabilities(first, top, scale, a, inverse, excess, invalid, CASE, ABOVE_MINUS_1)
            if CASE == SOFTMAX:
                value = top + tl.log(total)
            else:
                power = _raised(q, CASE)
                if not FITS:
                    for begin in range(SIZE, n, SIZE):
                        tile = _load_scores(x, start, item, begin, n, inside, SIZE)
                        q = _probabilities(tile, top, scale, a, inverse, excess, invalid, CASE, ABOVE_MINUS_1)
                        power += _raised(q, CASE)
                if CASE == LINEAR:
                    value = top + ((1.0 - 1.0 / state) + 0.5 * (tl.sum(power, 1) - 1.0))
                else:
                    value = top + (2.0 * (1.0 - 1.0 / state) + (tl.sum(power, 1) - 1.0) / 1.5)
            tl.store(out + row, tl.where(invalid > 0, float("nan"), value), mask=inside)
        else:
            q = _probabilities(first, top, scale, a, inverse, excess, invalid, CASE, ABOVE_MINUS_1)
            if CASE == ANY:
                active = (alpha > 2) & (top > float("-inf")) & (invalid == 0)
                b = tl.where(active, alpha - 1.0, 1.0)
                far = entmax_above_2(first.to(tl.float64), top.to(tl.float64), b, active).to(first.dtype)
                q = tl.where(active[:, None], far, q)
            store_tile(out, q, start, item, 0, n, inside, SIZE)
            if not FITS:
                for begin in range(SIZE, n, SIZE):
                    tile = _load_scores(x, start, item, begin, n, inside, SIZE)
                    q = _probabilities(tile, top, scale, a, inverse, excess, invalid, CASE, ABOVE_MINUS_1)
                    store_tile(out, q, start, item, begin, n, inside, SIZE)


@triton.jit
def _raised(q, CASE: tl.constexpr):
    """Return q^α."""
    factor = q
    if CASE == SQUARE:
        factor = tl.sqrt(q)
    return q * factor
