"""The points of the capped simplex nearest to rows of scores. Importing this module imports numba.

    p = clip(x − τ, 0, 1)  for the τ at which Σ p is the budget k.

Σ p falls in τ and is linear between bends, so that a step of Newton's method from between the right ones ends at the
root; bounds keep all steps near it. With j the whole number that k rounds up to, τ is at most 1 below the j-th highest
score, and so below the j-th highest of any of them: the largest of each block tell which scores have p = 0.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit import jit
from ..scalar.min_max import maximum, minimum
from .support import BLOCK, LOWEST, block_maxima, select

__all__ = ["nearest"]

_MOST_STEPS = 4000  # three for each halving of the bounds, however far apart the scores are
_ROUNDING = 2.0**-52
_COARSE = 2.0**50  # beyond, floats are so far apart that none need be near τ but the score that it is below


@jit
def nearest(start, stop, x, size, budgets, out):
    """The nearest point of each row of ``size`` scores.

    Parameters
    ----------
    x : (B * size,) floats
    size : int
    budgets : (B | 1,) float64
        Between 0 and ``size``. No more is given than there are scores above −inf.
    out : (B * size,) floats, 0 before, written
        NaN in a row that has NaN or +inf.
    """
    tops, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    z = np.empty(size)
    for row in range(start, stop):
        begin, budget = row * size, budgets[row % budgets.size]
        top = block_maxima(x, begin, size, tops)
        if not top < np.inf:
            out[begin : begin + size] = np.nan
            continue
        count = select(x, begin, size, tops, _lower_bound(tops, budget), index, z)
        if count <= budget:
            for i in range(count):
                out[begin + index[i]] = 1.0
        elif budget > 0:
            _share(z, count, top, budget)
            for i in range(count):
                out[begin + index[i]] = z[i]


@jit
def _lower_bound(tops, budget):
    """What τ is not below."""
    rank = math.ceil(budget)
    return max(np.sort(tops)[tops.size - rank] - 1.0, LOWEST) if 1 <= rank <= tops.size else LOWEST


@jit
def _share(z, count, top, budget):
    """The first ``count`` of ``z``, more than ``budget``, are scores up to ``top`` and become shares of it."""
    bottom = top
    for i in range(count):
        bottom = minimum(bottom, z[i])
    anchor = _threshold(z, count, budget, bottom - 1.5, top + 0.5)
    if abs(anchor) > _COARSE:
        anchor = np.sort(z[:count])[count - math.ceil(budget)]
    for i in range(count):
        z[i] -= anchor
    t = _threshold(z, count, budget, -1.0, 1.0)  # what the large numbers' rounding left
    for i in range(count):
        z[i] = minimum(maximum(z[i] - t, 0.0), 1.0)


@jit
def _threshold(z, count, budget, low, high):
    """The t at which Σ clip(z − t, 0, 1) is ``budget``, between ``low`` and ``high``."""
    t, width = 0.5 * low + 0.5 * high, np.inf
    for step in range(_MOST_STEPS):
        total, slope = -budget, 0.0
        for i in range(count):
            share = z[i] - t
            total += minimum(maximum(share, 0.0), 1.0)
            slope += 1.0 if 0 < share < 1 else 0.0
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
