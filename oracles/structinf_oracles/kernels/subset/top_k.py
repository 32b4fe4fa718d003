"""The k highest numbers of each row, without sorting. Importing this module imports numba.

A number that exactly k of a row reach is found between bounds that more and fewer than k reach, by turns of the secant
through the logarithms of the bounds' counts and of bisection. That takes some eight passes over most rows, and at most
twice as many as a number has bits: floating-point numbers have the order of their bits read as integers, those of
negative numbers turned around. If there is no such number, the last integer is that of equal ones at the k-th place.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.simd.vector import LANES, largest, load, maximum, reduce_sum, where_less

__all__ = ["highest"]

_BLOCK = 1 << 20  # counts within it are exact in float32


@jit
def _reaching(row, threshold):
    """How many numbers of ``row``, whose size is a multiple of LANES, are at least ``threshold``."""
    count = 0
    for first in range(0, row.size, _BLOCK):
        total = 0.0
        for i in range(first, min(first + _BLOCK, row.size), LANES):
            total += where_less(load(row, i), threshold, 0, 1)
        count += int(reduce_sum(total))
    return count


@jit
def _lowest(row, k, floor, number, integer):
    """A number that exactly k of ``row`` reach, or all that are above ``floor``; or the one at the k-th place, False.

    Last, how many are above ``floor``.
    ``row`` is as in :func:`_reaching`; ``number`` and ``integer``, (1,), are one place in memory.
    """
    real = row.dtype.type
    minus_lows, tops = -np.inf, -np.inf
    for i in range(0, row.size, LANES):
        x = load(row, i)
        minus_lows = maximum(minus_lows, where_less(floor, x, 0 - x, -np.inf))
        tops = maximum(tops, x)
    lowest, top = -largest(minus_lows), largest(tops)
    at_low, at_high = (_reaching(row, lowest) if top > floor else 0), 0
    if at_low <= k or k == 0:
        return (lowest if k > 0 else real(np.inf)), True, at_low
    above = at_low
    number[0] = abs(lowest)
    low = np.int64(integer[0]) if lowest >= 0 else -np.int64(integer[0])
    number[0] = abs(top)
    high = (np.int64(integer[0]) if top >= 0 else -np.int64(integer[0])) + 1
    is_secant = True
    while low + 1 < high:
        middle = low
        if is_secant:
            part = real(np.log(at_low / k) / np.log(at_low / (at_high + 0.5)))
            threshold = lowest + (top - lowest) * part
            number[0] = abs(threshold)
            middle = np.int64(integer[0]) if threshold >= 0 else -np.int64(integer[0])
        if not low < middle < high:
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
        integer[0] = abs(middle)
        threshold = number[0] if middle >= 0 else -number[0]
        count = _reaching(row, threshold)
        if count == k:
            return threshold, True, above
        if count > k:
            low, lowest, at_low = middle, threshold, count
        else:
            high, top, at_high = middle, threshold, count
        is_secant = not is_secant
    return lowest, False, above


@jit
def highest(start, stop, scores, integers, k, floor, taken, above):
    """Set ``taken`` (B, d) to 1 for the k highest scores (B, d), to 0 elsewhere; ``above`` (B,) to how many there are.

    Scores must be above ``floor``, and all of them are taken if they are fewer than k; of equal ones the first are.
    ``integers`` is an array of integers as wide as a score.
    """
    real, size = scores.dtype.type, scores.shape[1]
    number = np.empty(1, scores.dtype)
    integer = number.view(integers.dtype)
    row = np.full(-(-size // LANES) * LANES, -np.inf, scores.dtype)
    for b in range(start, stop):
        for i in range(size):
            row[i] = scores[b, i]
        lowest, is_exact, above[b] = _lowest(row, k, real(floor), number, integer)
        chosen = taken[b]
        for i in range(size):
            chosen[i] = real(1) if row[i] >= lowest else real(0)
        if not is_exact:  # ``lowest`` is the number at the k-th place
            spare = k
            for i in range(size):
                spare -= row[i] > lowest
            for i in range(size):
                if row[i] == lowest:
                    chosen[i] = spare > 0
                    spare -= 1
