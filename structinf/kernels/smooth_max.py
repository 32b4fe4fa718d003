"""Smoothed maxima of many columns of scores at once, for use inside kernels. Importing this module imports numba.

Regularizers are known by their α (`structinf.regularizers.Regularizer.alpha`): 1 is the negative entropy, 1 < α ≤ 2
Tsallis', infinity none. With a = α − 1, p = 1 / a and d = x − max x, the probabilities are functions of d and of one
number t that their column shares,

    α = 1   q = exp(d − t),                and max_Ω(x) = max x + t;
    α > 1   q = max(a (d − t), 0)^p,       where t makes them sum to 1,

so that a recursion keeps max_Ω(x), max x and t of each node and recomputes q wherever it is needed. (In max x + t alone
t would be lost where scores are large.) The Hessian of max_Ω is diag(s) − s sᵀ / Σ s with s = q^(2 − α), that is q
(α = 1) or max(a (d − t), 0)^(p − 1).

A column is a lane, and arguments are addresses of rows (:mod:`.simd.memory`). Scores are float64, and so are
t and max_Ω; probabilities are of the dtype of ``kind``, functions of differences taken in float64. In float32, powers
other than those of α = 1.5 and 2 are off by several roundings, all to one side: callers take float64 for them.
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
    """max_Ω of the first ``count`` rows of ``x``, whose maximum is ``top``, and t; rows of ``kind`` are scratch.

    Where all scores are −inf, so is max_Ω. Where α is infinity, t is the first of the best rows.
    """
    anchor = finite(top)
    if alpha == np.inf:
        first = anchor
        for k in range(count - 1, -1, -1):
            first = where_less(row(x, k), top, first, k)
        return top, first
    if count == 1:
        return top, (anchor - anchor) - (0.0 if alpha == 1 else 1.0 / (alpha - 1.0))
    if alpha == 1:
        return _negentropy(x, count, anchor, kind)
    return _tsallis(x, count, top, anchor, alpha, kind)


@jit(inline=True)
def finite(top):
    """``top``, or 0 where it is −inf: no difference from it is −inf − (−inf)."""
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
    """Newton's method for Σ q = 1 from t = −p, where the best row alone has q = 1; Σ q is convex and falls in t.

    So t only rises, each lane until rounding stops it, whatever the others do. A last step, either way, in float64:
    else what rounding leaves of Σ q − 1, always of one sign, would add up over long recursions.
    """
    power = 1.0 / (alpha - 1.0)
    for k in range(count):
        store_row(kind, k, cast(row(x, k) - anchor, kind))
    below, none = zero(kind) - power, zero(kind)
    for _ in range(_MOST_STEPS):
        total, slope, _ = _sums(kind, count, alpha, none, below)
        # Where nothing is finite, all sums are 0 and t stays.
        higher = below + maximum((total - 1.0) / maximum(slope, 1e-30), 0.0)
        if is_zero(higher - below):
            break
        below = higher
    t = cast(below, x)
    total, slope, extent = _sums(x, count, alpha, anchor, t)
    # The dual of max_Ω, whose derivative 1 − Σ q is all but 0: t + Σ (q (d − t) − q^α / (α a)) + 1 / (α a).
    value = anchor + (t + (extent + power) / alpha)
    t = where_less(0.0, slope, t + (total - 1.0) / maximum(slope, 1e-30), t)
    return where_less(-np.inf, top, value, top), t


@jit(inline=True)
def _sums(x, count, alpha, anchor, t):
    """Σ q, Σ s and Σ q^α."""
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
    """r^p and r^(p − 1), where 0⁰ = 0."""
    if alpha == 2:
        return r, where_less(0.0, r, 1.0, r)
    if alpha == 1.5:
        return r * r, r
    s = exp(log(r) * ((2.0 - alpha) / (alpha - 1.0)))
    return s * r, s


@jit(inline=True)
def curved(x, top, t, alpha, kind):
    """q and s of a row of scores ``x``, whose maximum is ``top``; α is finite."""
    difference = cast((x - finite(top)) - t, kind)
    if alpha == 1:
        q = exp(difference)
        return q, q
    return _powers(maximum(difference * (alpha - 1.0), 0.0), alpha)


@jit(inline=True)
def probability(x, top, t, alpha, kind):
    """q alone."""
    return curved(x, top, t, alpha, kind)[0]
