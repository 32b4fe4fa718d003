"""Smoothed maxima of 16 columns of scores at once, for use inside kernels. Importing this module imports numba.

The number α (`structinf.regularizers.Regularizer.alpha`) determines the regularizer: the negative entropy for α = 1,
the negative Tsallis entropy for 1 < α ≤ 2, no regularizer for α = inf. Functions take None in place of α = 1, so that
numba compiles only the code for the negative entropy. With a = α − 1, p = 1 / a and d = x − max x, the probabilities q
of a column are functions of d and of one number t per column,

    α = 1   q = exp(d − t),                and max_Ω(x) = max x + t;
    α > 1   q = max(a (d − t), 0)^p,       where t makes q sum to 1.

A recursion therefore stores max_Ω(x), max x and t of each node, and recomputes q on demand. (The sum max x + t alone
would lose the digits of t where scores are large.) The Hessian of max_Ω is diag(s) − s sᵀ / Σ s with s = q^(2 − α), so
s is q for α = 1, and max(a (d − t), 0)^(p − 1) for α > 1.

Each lane of a vector is a column, and arguments are addresses of rows (:mod:`.simd.memory`). Scores, t and max_Ω are
float64. Probabilities have the dtype of ``kind``, and are computed from float64 differences. In float32, powers for
α other than 1.5 and 2 have errors of several roundings with a common sign, so callers use float64 for these α.
"""

from __future__ import annotations

import numpy as np

from .jit import jit
from .simd.exp_log import exp, log
from .simd.memory import cast, is_zero, row, store_row, zero
from .simd.vector import maximum, where_less

__all__ = ["curved", "finite", "probability", "smooth_max"]

_MOST_STEPS = 100


@jit
def smooth_max(x, count, top, alpha, kind):
    """Return max_Ω of the first ``count`` rows of ``x``, whose maximum is ``top``, and t.

    The rows of ``kind`` are scratch. If all scores of a column are −inf, max_Ω is −inf. For α = inf, t is the index of
    the first best row.
    """
    anchor = finite(top)
    if alpha is None:
        if count == 1:
            return top, anchor - anchor
        return _negentropy(x, count, anchor, kind)
    if alpha == np.inf:
        first = anchor
        for k in range(count - 1, -1, -1):
            first = where_less(row(x, k), top, first, k)
        return top, first
    if count == 1:
        return top, (anchor - anchor) - 1.0 / (alpha - 1.0)
    return _tsallis(x, count, top, anchor, alpha, kind)


@jit(inline=True)
def finite(top):
    """Return ``top`` with 0 in place of −inf, so that x − ``top`` is never −inf − (−inf)."""
    return where_less(-np.inf, top, top, 0.0)


@jit(inline=True)
def _negentropy(x, count, anchor, kind):
    total = zero(kind)
    for k in range(count):
        total += exp(cast(row(x, k) - anchor, kind))
    gain = cast(log(total), x)
    return anchor + gain, finite(gain)


@jit
def _tsallis(x, count, top, anchor, alpha, kind):
    """Return max_Ω and t for finite α > 1, by Newton's method for Σ q = 1.

    The start t = −p gives the best row q = 1. As Σ q is convex and decreasing in t, the steps only increase t. Each
    lane stops at rounding, independently of the other lanes. A last step in float64, of either sign, removes the
    rounding error of Σ q − 1. Without it, the errors would have one sign and add up over long recursions.
    """
    power = 1.0 / (alpha - 1.0)
    for k in range(count):
        store_row(kind, k, cast(row(x, k) - anchor, kind))
    below, none = zero(kind) - power, zero(kind)
    for _ in range(_MOST_STEPS):
        total, slope, _ = _sums(kind, count, alpha, none, below)
        # In a column of −inf, all sums are 0 and t stays unchanged.
        higher = below + maximum((total - 1.0) / maximum(slope, 1e-30), 0.0)
        if is_zero(higher - below):
            break
        below = higher
    t = cast(below, x)
    total, slope, extent = _sums(x, count, alpha, anchor, t)
    # The dual objective t + Σ (q (d − t) − q^α / (α a)) + 1 / (α a) of max_Ω. Its derivative 1 − Σ q is near 0.
    value = anchor + (t + (extent + power) / alpha)
    t = where_less(0.0, slope, t + (total - 1.0) / maximum(slope, 1e-30), t)
    return where_less(-np.inf, top, value, top), t


@jit(inline=True)
def _sums(x, count, alpha, anchor, t):
    """Return Σ q, Σ s and Σ q^α."""
    total, slope, extent = zero(x), zero(x), zero(x)
    for k in range(count):
        r = maximum(((row(x, k) - anchor) - t) * (alpha - 1.0), 0.0)
        q, s = _powers(r, alpha)
        total += q
        slope += s
        extent += q * r
    return total, slope, extent


@jit(inline=True)
def _powers(r, alpha):
    """Return r^p and r^(p − 1), where 0⁰ = 0."""
    if alpha == 2:
        return r, where_less(0.0, r, 1.0, r)
    if alpha == 1.5:
        return r * r, r
    s = exp(log(r) * ((2.0 - alpha) / (alpha - 1.0)))
    return s * r, s


@jit(inline=True)
def curved(x, top, t, alpha, kind):
    """Return q and s of a row of scores ``x``, for finite α, given the maximum ``top`` of each column."""
    difference = cast((x - finite(top)) - t, kind)
    if alpha is None:
        q = exp(difference)
        return q, q
    return _powers(maximum(difference * (alpha - 1.0), 0.0), alpha)


@jit(inline=True)
def probability(x, top, t, alpha, kind):
    """Return q of a row of scores ``x``, with the arguments of :func:`curved`."""
    return curved(x, top, t, alpha, kind)[0]
