"""α-entmax of rows of scores. Importing this module imports numba.

With d = x − max x and a = α − 1, the probabilities are

    α = 1   q = exp(d) / Σ exp(d);
    α > 1   q = max(a d − t, 0)^(1/a) for the t in [−1, 0) with Σ q = 1

(Peters, Niculae & Martins 2019, Sparse sequence-to-sequence models, §3), so only scores with d > −1 / a have q > 0. A
subset of the scores has a lower t, so the t of the block maxima is a tighter bound. Newton's method finds t from the
scores above the bound, in float64. Only α > 2 needs a sort.

For α = 2, Σ q is piecewise linear and convex in t, so the steps increase t, shrink the support, and end at the root
(Michelot 1986, A finite algorithm for finding the projection of a point onto the canonical simplex of ℝⁿ; Condat 2016,
Fast projection onto the simplex and the ℓ₁ ball, reviews further algorithms). For 1 < α < 2, the norm ‖q^a‖_{1/a} is
convex in t, and Newton's method takes longer steps for the equation ‖q^a‖_{1/a} = 1 than for Σ q = 1.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp, log, log1p
from ..scalar.min_max import maximum
from .support import BLOCK, LOWEST, block_maxima, fill, select, sort

__all__ = ["entmax", "entmax15", "entmax_above_2", "entmax_below_2", "sparsemax", "to_sparsemax"]

_MAX_STEPS = 100
_ROUNDING = 4 * 2.0**-52
_ABOVE_MINUS_1 = -1 + 2.0**-53  # the next number above −1


@jit
def sparsemax(start, stop, x, size, out):
    """Write α-entmax for α = 2. The parameters are those of :func:`entmax`."""
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q = np.empty(size)
    for row in range(start, stop):
        begin = row * size
        top = block_maxima(x, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
        elif top > -np.inf:
            for k in range(maxima.size):
                q[k] = maxima[k] - top
            low = _linear_threshold(q, maxima.size, -1.0)[0]
            count = select(x, begin, size, maxima, max(top + low, LOWEST), index, q)
            for i in range(count):
                q[i] -= top
            t, step = _linear_threshold(q, count, low)
            _subtract_threshold(q, count, t, step)
            for i in range(count):
                out[begin + index[i]] = q[i]


@jit
def entmax15(start, stop, x, size, out):
    """Write α-entmax for α = 1.5. The parameters are those of :func:`entmax`."""
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q = np.empty(size)
    for row in range(start, stop):
        begin = row * size
        top = block_maxima(x, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
        elif top > -np.inf:
            for k in range(maxima.size):
                q[k] = 0.5 * (maxima[k] - top)
            low = 2.0 * _square_threshold(q, maxima.size, -1.0)
            count = select(x, begin, size, maxima, max(top + low, LOWEST), index, q)
            _to_squares(q, count, top, low)
            for i in range(count):
                out[begin + index[i]] = q[i]


@jit
def entmax_below_2(start, stop, x, size, alphas, out):
    """Write α-entmax for 1 < α < 2. The parameters are those of :func:`entmax`."""
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q = np.empty(size)
    for row in range(start, stop):
        begin, a = row * size, alphas[row % alphas.size] - 1.0
        top = block_maxima(x, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
        elif top > -np.inf:
            for k in range(maxima.size):
                q[k] = maxima[k] - top
            low = -1.0 / _power_scale(q, maxima.size, a, 0.0)[0]
            count = select(x, begin, size, maxima, max(top + low, LOWEST), index, q)
            _below_2(q, count, top, a, low)
            for i in range(count):
                out[begin + index[i]] = q[i]


@jit
def entmax_above_2(start, stop, x, size, alphas, out):
    """Write α-entmax for α > 2. The parameters are those of :func:`entmax`."""
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q, ordered = np.empty(size), np.empty(size)
    for row in range(start, stop):
        begin, a = row * size, alphas[row % alphas.size] - 1.0
        top = block_maxima(x, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
        elif top > -np.inf:
            count = select(x, begin, size, maxima, max(top - 1.0 / a, LOWEST), index, q)
            for i in range(count):
                q[i] -= top
                ordered[i] = -q[i]
            sort(ordered, count)
            w, least = _smallest_probability(ordered, count, a)
            power = w**a
            for i in range(count):
                out[begin + index[i]] = _norm(w, power, a * (q[i] - least), a) if q[i] >= least else 0.0


@jit
def entmax(start, stop, x, size, alphas, out):
    """Write the probabilities of each row of ``size`` scores, for any α: each row may have its own.

    The other kernels of this module have one α, or one range of α, and take less time to compile.

    Parameters
    ----------
    x : (B * size,) floats
        The scores.
    size : int
        The length of a row.
    alphas : (B | 1,) float64
        At least 1.
    out : (B * size,) floats, initially zero, written
        The probabilities: 0 in a row of −inf, NaN in a row with NaN or +inf.
    """
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q = np.empty(size)
    for row in range(start, stop):
        alpha = alphas[row % alphas.size]
        if alpha == 2:
            sparsemax(row, row + 1, x, size, out)
            continue
        if alpha == 1.5:
            entmax15(row, row + 1, x, size, out)
            continue
        if 1 < alpha < 2:
            entmax_below_2(row, row + 1, x, size, alphas, out)
            continue
        if alpha > 2:
            entmax_above_2(row, row + 1, x, size, alphas, out)
            continue
        begin = row * size
        top = block_maxima(x, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
        elif top > -np.inf:
            count = select(x, begin, size, maxima, LOWEST, index, q)
            _softmax(q, count, top)
            for i in range(count):
                out[begin + index[i]] = q[i]


@jit
def _softmax(q, count, top):
    """Replace scores by probabilities for α = 1, given the largest score."""
    total = 0.0
    for i in range(count):
        q[i] = exp(q[i] - top)
        total += q[i]
    for i in range(count):
        q[i] /= total


@jit
def _linear_threshold(y, count, t):
    """Return the t with Σ max(y − t, 0) = 1, and a last step too small to change t.

    The iteration starts from a lower ``t``, and the largest y is 0.
    """
    step = 0.0
    for _ in range(_MAX_STEPS):
        total, many = 0.0, 0.0
        for begin in range(0, count, BLOCK):  # partial sums, so that long sums lose no digits
            part = 0.0
            for i in range(begin, min(begin + BLOCK, count)):
                part += maximum(y[i] - t, 0.0)
                many += 1.0 if y[i] > t else 0.0
            total += part
        step = (total - 1.0) / many
        if not step > -_ROUNDING * t:
            break
        t += step
    return t, step


@jit(fastmath=False)
def _subtract_threshold(q, count, t, step):
    """Replace ``q`` by max(q − t − step, 0). A step too small to add to t still changes the differences to t."""
    for i in range(count):
        r = q[i] - t
        q[i] = maximum(r - step, 0.0) if r > 0 else 0.0


@jit
def to_sparsemax(q, count, near):
    """Replace ``count`` scores, finite or −inf, by their α-entmax for α = 2. ``near`` (count,) float64 is scratch."""
    top = -np.inf
    for i in range(count):
        top = maximum(top, q[i])
    top = top if top > -np.inf else 0.0
    kept = 0
    for i in range(count):
        q[i] -= top
        near[kept] = q[i]
        kept += q[i] > -1
    if kept:  # else all scores are −inf
        t, step = _linear_threshold(near, kept, -1.0)
        _subtract_threshold(q, count, t, step)
    else:
        fill(q, 0, count, 0.0)


@jit
def _square_threshold(y, count, t):
    """Return the t with Σ max(y − t, 0)² = 1. The iteration starts from a lower ``t``, and the largest y is 0."""
    for _ in range(_MAX_STEPS):
        total, square = 0.0, 0.0
        for i in range(count):
            r = maximum(y[i] - t, 0.0)
            total += r
            square += r * r
        step = (square - math.sqrt(square)) / total
        t += step
        if not step > -_ROUNDING * t:
            break
    return t


@jit
def _to_squares(q, count, top, low):
    """Replace scores by probabilities for α = 1.5, given the largest score and a lower bound of d."""
    for i in range(count):
        q[i] = 0.5 * (q[i] - top)
    t = _square_threshold(q, count, 0.5 * low)
    for i in range(count):
        r = maximum(q[i] - t, 0.0)
        q[i] = r * r


# For 1 < α < 2, with e^(−ℓ) the largest q, q = r e^(−ℓ) for r = max(1 + a d e^(aℓ), 0)^(1/a), and log Σ r = ℓ. This
# form is accurate for α near 1 and for long rows: as α tends to 1, r tends to exp d, and ℓ to log Σ exp d.


@jit
def _power_scale(d, count, a, log_sum):
    """Return a e^(aℓ) and ℓ for a ≤ 1, and the rounding error of each q divided by r^(1 − a).

    The iteration starts from ``log_sum``, a lower bound of ℓ.
    """
    scale, before, total, steepness = a, log_sum, 1.0, 1.0
    for _ in range(_MAX_STEPS):
        scale = a * math.exp(a * log_sum)
        total, steepness = 0.0, 0.0
        for i in range(count):
            log_r = _log_ratio(d[i] * scale, a)
            total += exp(log_r)
            steepness += exp(log_r * (1.0 - a))
        step = -math.log1p(total / steepness * math.expm1(a * (log_sum - math.log(total)))) / a
        before, log_sum = log_sum, log_sum + step
        if not step > _ROUNDING * (1.0 + log_sum):
            break
    return scale, before, (total * math.exp(-before) - 1.0) / steepness


@jit
def _log_ratio(u, a):
    """Return log r for u = a d e^(aℓ)."""
    return log1p(maximum(u, _ABOVE_MINUS_1)) / a if u > -1 else -np.inf


@jit
def _below_2(q, count, top, a, low):
    """Replace scores by probabilities for 1 < α < 2, given the largest score and a lower bound of d."""
    for i in range(count):
        q[i] -= top
    scale, log_sum, excess = _power_scale(q, count, a, -math.log(-a * low) / a)
    factor = math.exp(-log_sum)
    for i in range(count):
        log_r = _log_ratio(q[i] * scale, a)
        q[i] = maximum(exp(log_r) * factor - exp(log_r * (1.0 - a)) * excess, 0.0)


# For α > 2 the form above loses digits, as (a d − t)^(1/a) is steepest at 0. With w the smallest q > 0 and x_w its
# score, the other q are (w^a + a (x − x_w))^(1/a): norms of two nonnegative numbers, convex in w.


@jit
def _smallest_probability(ordered, count, a):
    """Return the smallest q > 0, called w, and its d, given the −d in ascending order."""
    for i in range(count):
        ordered[i] = -ordered[i]
    first, beyond = 0, count  # rank ``first`` is in the support, rank ``beyond`` is not
    while beyond - first > 1:
        middle = (first + beyond) // 2
        total = 0.0
        for i in range(middle):
            total += _norm(0.0, 0.0, a * (ordered[i] - ordered[middle]), a)
        first, beyond = (middle, beyond) if total < 1 else (first, middle)
    least, w = ordered[first], 1.0 / beyond
    for _ in range(_MAX_STEPS):
        power, total, slope = w**a, -1.0, 0.0
        for i in range(beyond):
            r = _norm(w, power, a * (ordered[i] - least), a)
            total += r
            slope += (w / r) ** (a - 1.0)
        step = total / slope
        if not _ROUNDING * w < step < w:
            break
        w -= step
    return w, least


@jit
def _norm(w, power, c, a):
    """Return (w^a + c)^(1/a), given w and w^a."""
    return exp(log(power + c) / a) if c > 0 else w
