"""α-entmax for α > 2 without a sort, as a device function of Triton kernels. Importing this module imports triton.

The formulas are those of `structinf.kernels.simplex.entmax`: with a = α − 1 and w the smallest q > 0, of the score x_w,
the other q are (w^a + a (x − x_w))^(1/a). A score v is in the support if and only if

    F(v) = Σ max(a (x − v), 0)^(1/a) < 1,    where F decreases in v.

The compiled loops sort the scores to find x_w. Here, bisection over the floating-point numbers, by their bits, finds a
bracket of the boundary of the support without a score inside.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["entmax_above_2", "key_to_number", "number_to_key", "power_of"]

_MOST_STEPS = tl.constexpr(100)
_ROUNDING = tl.constexpr(4 * 2.0**-52)


@triton.jit
def number_to_key(x):
    """Return integers in the order of the numbers ``x``, in float32 or float64."""
    if x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    else:
        bits = x.to(tl.int64, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits)
    return key


@triton.jit
def key_to_number(key):
    """Invert :func:`number_to_key`."""
    if key.dtype == tl.int32:
        number = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)
    else:
        number = tl.where(key < 0, key ^ 0x7FFFFFFFFFFFFFFF, key).to(tl.float64, bitcast=True)
    return number


@triton.jit
def power_of(x, exponent):
    """Return x^exponent where x > 0, and 0 elsewhere."""
    return tl.where(x > 0, tl.exp(tl.log(tl.where(x > 0, x, 1.0)) * exponent), 0.0)


@triton.jit
def _norm(w, c, a):
    """Return (w^a + c)^(1/a) for c ≥ 0."""
    power = tl.exp(tl.log(w) * a)
    return tl.where(c > 0, power_of(tl.where(c > 0, power[:, None] + c, 1.0), (1.0 / a)[:, None]), w[:, None])


@triton.jit
def _has_scores_between(x, low, high):
    inside = (x > key_to_number(low)[:, None]) & (x < key_to_number(high)[:, None])
    return tl.max(inside.to(tl.int32), 1) > 0


@triton.jit
def entmax_above_2(x, top, a, active):
    """Return q of the rows ``active`` with the largest score ``top``, all in float64.

    Scores of other rows are below +inf, and their q are finite.
    """
    top = tl.where(active, top, 0.0)
    low, high = number_to_key(top - 1.0 / a) - 1, number_to_key(top)
    going = active & _has_scores_between(x, low, high)
    while tl.max(going.to(tl.int32), 0) > 0:
        middle = (low & high) + ((low ^ high) >> 1)
        apart = tl.where(x > key_to_number(middle)[:, None], x - key_to_number(middle)[:, None], 0.0)
        fits = tl.sum(power_of(a[:, None] * apart, (1.0 / a)[:, None]), 1) < 1.0
        high = tl.where(going & fits, middle, high)
        low = tl.where(going & (fits == 0), middle, low)
        going = going & _has_scores_between(x, low, high)
    support = x >= key_to_number(high)[:, None]
    least = tl.min(tl.where(support, x, float("inf")), 1)
    least = tl.where(least < float("inf"), least, 0.0)
    c = a[:, None] * tl.where(support, x - least[:, None], 0.0)
    w = 1.0 / tl.maximum(tl.sum(support.to(tl.int32), 1), 1).to(tl.float64)
    # Newton's method for Σ q = 1. The sum is convex in w, so the steps only decrease w.
    steps, moving = 0, active
    while (steps < _MOST_STEPS) & (tl.max(moving.to(tl.int32), 0) > 0):
        q = _norm(w, c, a)
        ratios = power_of(w[:, None] / q, (a - 1.0)[:, None])
        excess = tl.sum(tl.where(support, q, 0.0), 1) - 1.0
        step = excess / tl.maximum(tl.sum(tl.where(support, ratios, 0.0), 1), 1.0)
        moving = moving & (step > _ROUNDING * w) & (step < w)
        w = tl.where(moving, w - step, w)
        steps += 1
    return tl.where(support, _norm(w, c, a), 0.0)
