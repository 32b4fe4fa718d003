"""α-entmax of rows of scores. Importing this module imports numba.

With d = x − max x and a = α − 1, the probabilities are

    α = 1   q = exp(d) / Σ exp(d);
    α > 1   q = max(a d − t, 0)^(1/a) for the t in [−1, 0) at which they sum to 1

(Peters, Niculae & Martins 2019, Sparse sequence-to-sequence models, §3), so that only scores of d > −1 / a can have
one. The t of fewer scores is lower: that of the largest number of each block tells more of those that cannot. There is
no sort but for α > 2: t is found by steps of Newton's method among the others, in float64.

For α = 2, Σ q is piecewise linear and convex, so that the steps rise to the t of ever smaller supports and end there
(Michelot 1986, A finite algorithm for finding the projection of a point onto the canonical simplex of ℝⁿ; Condat 2016,
Fast projection onto the simplex and the ℓ₁ ball, reviews this and others). For 1 < α < 2 the norm ‖q^a‖_{1/a} = 1 is
convex in t and makes longer steps than the sum does.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp, log, log1p
from ..scalar.min_max import maximum
from .support import BLOCK, LOWEST, block_maxima, select

__all__ = ["entmax"]

_MOST_STEPS = 100
_ROUNDING = 4 * 2.0**-52
_ABOVE = -1 + 2.0**-53  # the next number above −1


@jit
def entmax(start, stop, x, size, alphas, out):
    """Probabilities of each row of ``size`` scores.

    Parameters
    ----------
    x : (B * size,) floats
    size : int
    alphas : (B | 1,) float64
        At least 1.
    out : (B * size,) floats, 0 before, written
        Stays 0 in a row of −inf; NaN in one that has NaN or +inf.
    """
    tops, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q = np.empty(size)
    for row in range(start, stop):
        begin, alpha = row * size, alphas[row % alphas.size]
        top = block_maxima(x, begin, size, tops)
        if not top < np.inf:
            out[begin : begin + size] = np.nan
        elif top > -np.inf:
            for k in range(tops.size):
                q[k] = tops[k] - top
            low = _lower_bound(q, tops.size, alpha)
            count = select(x, begin, size, tops, max(top + low, LOWEST), index, q)
            _to_probabilities(q, count, top, alpha, low)
            for i in range(count):
                out[begin + index[i]] = q[i]


@jit
def _lower_bound(d, count, alpha):
    """A d that none with a probability is below, given some of them, the highest among these; what is left out adds."""
    if alpha == 1:
        return -np.inf
    if alpha == 2:
        return _linear_threshold(d, count, -1.0)[0]
    if alpha == 1.5:
        for i in range(count):
            d[i] *= 0.5
        return 2.0 * _square_threshold(d, count, -1.0)
    if alpha < 2:
        return -1.0 / _power_scale(d, count, alpha - 1.0, 0.0)[0]
    return -1.0 / (alpha - 1.0)


@jit
def _to_probabilities(q, count, top, alpha, low):
    """Turn the first ``count`` of ``q``, scores up to ``top``, into probabilities, those above ``low`` at most."""
    a = alpha - 1.0
    for i in range(count):
        q[i] = q[i] - top
    if alpha == 2:
        t, step = _linear_threshold(q, count, low)
        _above(q, count, t, step)
    elif alpha == 1.5:
        for i in range(count):
            q[i] *= 0.5
        t = _square_threshold(q, count, 0.5 * low)
        for i in range(count):
            r = maximum(q[i] - t, 0.0)
            q[i] = r * r
    elif alpha > 2:
        w, least = _anchor(q, count, a)
        power = w**a
        for i in range(count):
            q[i] = _norm(w, power, a * (q[i] - least), a) if q[i] >= least else 0.0
    elif alpha > 1:
        scale, log_sum, excess = _power_scale(q, count, a, -math.log(-a * low) / a)
        top = math.exp(-log_sum)
        for i in range(count):
            log_r = _log_ratio(q[i] * scale, a)
            q[i] = maximum(exp(log_r) * top - exp(log_r * (1.0 - a)) * excess, 0.0)
    else:
        total = 0.0
        for i in range(count):
            q[i] = exp(q[i])
            total += q[i]
        for i in range(count):
            q[i] /= total


@jit
def _linear_threshold(y, count, t):
    """The t at which Σ max(y − t, 0) is 1, from one below it, and what is too small to add; the largest y is 0."""
    step = 0.0
    for _ in range(_MOST_STEPS):
        total, many = 0.0, 0.0
        for begin in range(0, count, BLOCK):  # so that sums of many lose no digits
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
def _above(q, count, t, step):
    """Turn ``q`` into max(q − t − step, 0). A step too small for t counts beside the differences from it, if many."""
    for i in range(count):
        r = q[i] - t
        q[i] = maximum(r - step, 0.0) if r > 0 else 0.0


@jit
def _square_threshold(y, count, t):
    """The t at which Σ max(y − t, 0)² is 1, from one below it; the largest y is 0."""
    for _ in range(_MOST_STEPS):
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


# For 1 < α < 2, with q's largest entry e^(−ℓ), q = r e^(−ℓ) for r = max(1 + a d e^(aℓ), 0)^(1/a), and log Σ r = ℓ. No
# digits are lost where α is near 1 or the scores are many: r tends to exp d, and ℓ to log Σ exp d.


@jit
def _power_scale(d, count, a, log_sum):
    """a e^(aℓ) and ℓ for a ≤ 1, from a lower ℓ; and, in units of r^(1 − a), what rounding left too much in each q."""
    scale, before, total, steepness = a, log_sum, 1.0, 1.0
    for _ in range(_MOST_STEPS):
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
    """log r for u = a d e^(aℓ)."""
    return log1p(maximum(u, _ABOVE)) / a if u > -1 else -np.inf


# For α > 2 that would lose digits, as (a d − t)^(1/a) is steepest at 0. With w the least of the q that are above 0, the
# others are (w^a + a (x − x_w))^(1/a), of sums of positive numbers: norms of two numbers, convex in w.


@jit
def _anchor(d, count, a):
    """The w, and its d."""
    ordered = np.sort(d[:count])[::-1]
    first, beyond = 0, count  # whose q is above 0, and is not
    while beyond - first > 1:
        middle = (first + beyond) // 2
        total = 0.0
        for i in range(middle):
            total += _norm(0.0, 0.0, a * (ordered[i] - ordered[middle]), a)
        first, beyond = (middle, beyond) if total < 1 else (first, middle)
    least, w = ordered[first], 1.0 / beyond
    for _ in range(_MOST_STEPS):
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
    """(w^a + c)^(1/a), given w^a."""
    return exp(log(power + c) / a) if c > 0 else w
