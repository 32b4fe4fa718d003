"""Device functions of smoothed maxima of three scores. Importing this module imports triton.

The formulas, and the form of packed probabilities, are those of :mod:`.smooth_max_of_three`. ``ALPHA`` is 1, 1.5, 2 or
infinity. Scores, probabilities and gains are float64; packed probabilities have the dtype ``KIND`` of θ, as do exp
and log.
"""

from __future__ import annotations

import triton
import triton.language as tl

from structinf.kernels.gpu.triton_smooth_max import finite

__all__ = ["curvature", "smooth_max", "unpack_probabilities"]


@triton.jit
def smooth_max(x0, x1, x2, ALPHA: tl.constexpr, KIND: tl.constexpr):
    """Return max_Ω(x), −inf if all scores are, and the packed probabilities.

    For α = infinity, the place 0, 1 or 2 of the first best score takes the place of both packed probabilities.
    """
    top = tl.maximum(tl.maximum(x0, x1), x2)
    base = finite(top)
    if float("inf") == ALPHA:
        a = tl.where(x0 == top, 0, tl.where(x1 == top, 1, 2)).to(tl.int8)
        b = a
        value = top
    else:
        d0 = x0 - base
        d1 = x1 - base
        d2 = x2 - base
        if ALPHA == 1:
            gain, a, b = _softmax(d0, d1, d2, KIND)
        else:
            if ALPHA == 2:
                p0, p1, p2, t = _sparsemax(d0, d1, d2)
            else:
                p0, p1, p2, t = _entmax_three_halves(d0, d1, d2)
            second = (d0 != 0) & (d1 == 0)
            third = (d0 != 0) & (d1 != 0)
            a = _mark(tl.where(d0 != 0, p0, p1).to(KIND), second)
            b = _mark(tl.where(third, p1, p2).to(KIND), third)
            gain = (1.0 - 1.0 / ALPHA) * (_product(p0, d0) + _product(p1, d1) + _product(p2, d2))
            gain += (t + 1.0) * (1.0 / (ALPHA * (ALPHA - 1.0)))
        value = top + gain
    return value, a, b


@triton.jit
def _product(p, d):
    return tl.where(p > 0, p * tl.where(p > 0, d, 0.0), 0.0)


@triton.jit
def _softmax(d0, d1, d2, KIND: tl.constexpr):
    x = d0.to(KIND)
    y = d1.to(KIND)
    second = (x != 0) & (y == 0)
    third = (x != 0) & (y != 0)
    u = tl.exp(tl.where(x != 0, x, y))
    w = tl.exp(tl.where(third, y, d2.to(KIND)))
    total = u + w + 1.0
    scale = 1.0 / total
    return tl.log(total).to(tl.float64), _mark(scale * u, second), _mark(scale * w, third)


@triton.jit
def _sparsemax(d0, d1, d2):
    large = tl.maximum(d0, d1)
    small = tl.minimum(d0, d1)
    middle = tl.maximum(small, tl.minimum(large, d2))
    low = tl.minimum(small, d2)
    t = tl.maximum(tl.maximum((middle - 1.0) * 0.5, -1.0), (middle + low - 1.0) / 3.0)
    return tl.maximum(d0 - t, 0.0), tl.maximum(d1 - t, 0.0), tl.maximum(d2 - t, 0.0), t


@triton.jit
def _entmax_three_halves(d0, d1, d2):
    large = tl.maximum(d0, d1)
    small = tl.minimum(d0, d1)
    middle = tl.maximum(tl.maximum(small, tl.minimum(large, d2)) * 0.5, -1.0)
    low = tl.maximum(tl.minimum(small, d2) * 0.5, -1.0)
    mean = (middle + low) / 3.0
    spread = (middle * middle + low * low) / 3.0 - mean * mean
    of_three = mean - tl.sqrt(tl.maximum(1.0 / 3.0 - spread, 0.0))
    of_two = (middle - tl.sqrt(2.0 - middle * middle)) * 0.5
    t = tl.where(of_three <= low, of_three, of_two)
    r0 = tl.maximum(d0 * 0.5 - t, 0.0)
    r1 = tl.maximum(d1 * 0.5 - t, 0.0)
    r2 = tl.maximum(d2 * 0.5 - t, 0.0)
    return r0 * r0, r1 * r1, r2 * r2, t


@triton.jit
def _mark(x, flag):
    """Set the sign bit of ``x`` ≥ 0 where ``flag`` is true. A product, since 0 − 0 would not be −0."""
    return tl.where(flag, x * -1.0, x)


@triton.jit
def _has_sign_bit(x):
    bits = x.to(tl.int64, bitcast=True) if x.dtype == tl.float64 else x.to(tl.int32, bitcast=True)
    return bits < 0


@triton.jit
def unpack_probabilities(a, b):
    """Return the three probabilities in float64; the last is 1 if no score is finite."""
    second = _has_sign_bit(a)
    third = _has_sign_bit(b)
    p = tl.abs(a).to(tl.float64)
    r = tl.abs(b).to(tl.float64)
    largest = 1.0 - p - r
    q0 = tl.where(second | third, p, largest)
    q1 = tl.where(second, largest, tl.where(third, r, p))
    return q0, q1, tl.where(third, largest, r)


@triton.jit
def curvature(q, ALPHA: tl.constexpr):
    """Return s = q^(2 − α), 0 where q is 0."""
    if ALPHA == 1:
        s = q
    elif ALPHA == 2:
        s = tl.where(q > 0, 1.0, 0.0).to(tl.float64)
    else:
        s = tl.sqrt(q)
    return s
