"""Projections of rows of scores onto the capped simplex. Importing this module imports numba.

    p = clip(x − τ, 0, 1)  for the τ with Σ p = k.

Σ p is piecewise linear and decreasing in τ. A Newton step from the linear piece of the root ends at the root, and a
bracket bounds the steps from other pieces. With j = ⌈k⌉, τ is at least the j-th highest score minus 1. So τ is also at
least the j-th highest block maximum minus 1, and scores below this bound have p = 0.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit import jit
from ..scalar.min_max import maximum, minimum
from .support import BLOCK, LOWEST, block_maxima, fill, select, sort

__all__ = ["project"]

_MAX_STEPS = 4000  # three for each halving of the bracket, whose ends may be the extremes of float64
_ROUNDING = 2.0**-52
_COARSE = 2.0**50  # above this, floats are so far apart that only the score next above τ is near τ


@jit
def project(start, stop, x, size, sums, out):
    """Write the projection of each row of ``size`` scores.

    Parameters
    ----------
    x : (B * size,) floats
        The scores.
    size : int
        The length of a row.
    sums : (B | 1,) float64
        The k of each row, between 0 and ``size``. If a row has at most k scores above −inf, each of them has p = 1.
    out : (B * size,) floats, initially zero, written
        The projection; NaN in a row with NaN or +inf.
    """
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    z = np.empty(size)
    for row in range(start, stop):
        begin, k = row * size, sums[row % sums.size]
        top = block_maxima(x, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
            continue
        count = select(x, begin, size, maxima, _lower_bound(maxima, k, z), index, z)
        if count <= k:
            for i in range(count):
                out[begin + index[i]] = 1.0
        elif k > 0:
            _clip(z, count, top, k)
            for i in range(count):
                out[begin + index[i]] = z[i]


@jit
def _lower_bound(maxima, k, ordered):
    """Return a lower bound of τ. ``ordered`` is scratch."""
    rank = math.ceil(k)
    return max(_ranked(maxima, maxima.size, rank, ordered) - 1.0, LOWEST) if 1 <= rank <= maxima.size else LOWEST


@jit
def _ranked(x, count, rank, ordered):
    """Return the number of rank ``rank``, 1 for the largest, of the first ``count``. ``ordered`` is scratch."""
    for i in range(count):
        ordered[i] = x[i]
    sort(ordered, count)
    return ordered[count - rank]


@jit
def _clip(z, count, top, k):
    """Replace the first ``count`` scores in ``z`` by their p, for ``count`` > ``k``. The largest score is ``top``."""
    bottom = top
    for i in range(count):
        bottom = minimum(bottom, z[i])
    anchor = _threshold(z, count, k, bottom - 1.5, top + 0.5)
    if abs(anchor) > _COARSE:
        anchor = _ranked(z, count, math.ceil(k), np.empty(count))
    for i in range(count):
        z[i] -= anchor
    t = _threshold(z, count, k, -1.0, 1.0)  # corrects the rounding of large numbers
    for i in range(count):
        z[i] = minimum(maximum(z[i] - t, 0.0), 1.0)


@jit
def _threshold(z, count, k, low, high):
    """Return the t between ``low`` and ``high`` with Σ clip(z − t, 0, 1) = ``k``."""
    t, width = 0.5 * low + 0.5 * high, np.inf
    for step in range(_MAX_STEPS):
        total, slope = -k, 0.0
        for i in range(count):
            p = z[i] - t
            total += minimum(maximum(p, 0.0), 1.0)
            slope += 1.0 if 0 < p < 1 else 0.0
        if total == 0:
            break
        low, high = (t, high) if total > 0 else (low, t)
        ahead = t + total / slope if slope > 0 else low
        is_slow = step % 3 == 2 and high - low > 0.5 * width
        width = high - low if step % 3 == 2 else width
        if is_slow or not low < ahead < high:
            ahead = 0.5 * low + 0.5 * high
        moved = abs(ahead - t)
        t = ahead
        if moved <= _ROUNDING * max(1.0, abs(t)):
            break
    return t
