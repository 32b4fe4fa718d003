"""Smoothed maxima of many columns of scores at once, for use inside kernels. Importing this module imports numba.

Regularizers are known by their α (`structinf.regularizers.Regularizer.alpha`): 1 is the negative entropy, 1 < α ≤ 2
Tsallis', infinity none. With a = α − 1 and p = 1 / a the probabilities are functions of a score x and of one number τ
that their column shares,

    α = 1   q = exp(x − τ),                and τ = max_Ω(x);
    α > 1   q = max(a (x − τ), 0)^p,       where τ makes them sum to 1,

so that a recursion keeps two numbers a node and recomputes q wherever it is needed. The Hessian of max_Ω is
diag(s) − s sᵀ / Σ s with s = q^(2 − α), that is q (α = 1) or max(a (x − τ), 0)^(p − 1).

A column is a lane, and arguments are addresses of rows (`structinf.kernels.lane_rows`). Scores are float64, and so are
τ and max_Ω; probabilities are of the dtype of ``kind``, functions of differences taken in float64. For α near 1 the
relative error of q is that of its dtype times p: below α = 1.25 callers take float64.
"""

from __future__ import annotations

import numpy as np

from .jit import jit
from .lane_rows import cast, is_zero, row, set_row, zero
from .lanes import maximum, where_less
from .lanes_elementary import exp, log

__all__ = ["curved", "probability", "smooth_max"]

MOST_STEPS = 100


@jit
def smooth_max(x, count, top, alpha, kind):
    """max_Ω of the first ``count`` rows of ``x``, whose maximum is ``top``, and its τ; rows of ``kind`` are scratch.

    Where all scores are −inf, so is max_Ω, and τ is such that q = 0. Where α is infinity, τ is the first of the best
    rows.
    """
    # No difference from it is −inf − (−inf).
    anchor = where_less(-np.inf, top, top, 0.0)
    if alpha == np.inf:
        first = anchor
        for k in range(count - 1, -1, -1):
            first = where_less(row(x, k), top, first, k)
        return top, first
    if count == 1:
        return top, anchor - (0.0 if alpha == 1 else 1.0 / (alpha - 1.0))
    if alpha == 1:
        return _negentropy(x, count, anchor, kind)
    return _tsallis(x, count, top, anchor, alpha, kind)


@jit(inline=True)
def _negentropy(x, count, anchor, kind):
    total = zero(kind)
    for k in range(count):
        total += exp(cast(row(x, k) - anchor, kind))
    value = anchor + cast(log(total), x)
    return value, where_less(-np.inf, value, value, 0.0)


@jit
def _tsallis(x, count, top, anchor, alpha, kind):
    """Newton's method for u = a (max x − τ), so that q = r^p with r = max(u + a (x − max x), 0).

    From u = 1, where the best row alone has q = 1, it only falls: Σ q is convex in u and rises. Each lane moves until
    rounding stops it, whatever the others do.
    """
    a = alpha - 1.0
    power = 1.0 / a
    for k in range(count):
        set_row(kind, k, cast(row(x, k) - anchor, kind) * a)
    u = zero(kind) + 1.0
    extent = u
    for _ in range(MOST_STEPS):
        total, slope, extent = _sums(kind, count, alpha, u)
        # dΣq/du = p Σ s. Where nothing is finite, all sums are 0 and u stays.
        lower = u - maximum((total - 1.0) / (maximum(slope, 1e-30) * power), 0.0)
        if is_zero(lower - u):
            break
        u = lower
    # max_Ω = max x + (1 − 1/α) Σ q (x − max x) + (1 − u) / (α a), where a Σ q (x − max x) = Σ q r − u.
    gain = (extent - u) / alpha + (1.0 - u) / (alpha * a)
    return top + cast(gain, x), anchor - cast(u, x) * power


@jit(inline=True)
def _sums(scaled, count, alpha, u):
    """Σ q, Σ s and Σ q r."""
    total, slope, extent = zero(scaled), zero(scaled), zero(scaled)
    for k in range(count):
        r = maximum(row(scaled, k) + u, 0.0)
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
def curved(x, tau, alpha, kind):
    """q and s of a row of scores ``x``; α is finite."""
    difference = cast(x - tau, kind)
    if alpha == 1:
        q = exp(difference)
        return q, q
    return _powers(maximum(difference * (alpha - 1.0), 0.0), alpha)


@jit(inline=True)
def probability(x, tau, alpha, kind):
    """q alone."""
    return curved(x, tau, alpha, kind)[0]
