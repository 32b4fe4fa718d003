"""The k highest numbers of each row, without sorting. Importing this module imports numba.

A number that exactly k of a row reach is found between bounds that more and fewer than k reach, by turns of the secant
through the logarithms of the bounds' counts and of bisection. That takes some eight passes over most rows, and at most
twice as many as a number has bits: floating-point numbers have the order of their bits read as integers, those of
negative numbers turned around. If there is no such number, the last integer is that of equal ones at the k-th place.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.extrema import maximum, minimum
from structinf.kernels.jit import jit

__all__ = ["highest"]

_EXACT = 1 << 24  # counts up to this are exact in float32, whose sums are vector code


@jit
def _mark(row, threshold, chosen):
    """``chosen`` is 1 where ``row`` reaches the threshold, and 0 elsewhere; returns how often it does."""
    one, zero = row.dtype.type(1), row.dtype.type(0)
    if row.size > _EXACT:
        total = 0
        for i in range(row.size):
            chosen[i] = one if row[i] >= threshold else zero
            total += row[i] >= threshold
        return total
    count = zero
    for i in range(row.size):
        chosen[i] = one if row[i] >= threshold else zero
        count += chosen[i]
    return int(count)


@jit
def _choose(row, k, floor, number, integer, chosen):
    """As :func:`highest`, for one row; ``number`` and ``integer``, (1,), are one place in memory."""
    real = row.dtype.type
    lowest, top = real(np.inf), real(-np.inf)
    for x in row:
        lowest = minimum(lowest, x if x > floor else real(np.inf))
        top = maximum(top, x)
    at_low, at_high = _mark(row, lowest, chosen), 0
    if at_low <= k or k == 0:
        if k == 0 or top <= floor:  # nothing is above the floor, though +inf may be reached
            chosen[:] = 0
        return
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
        count = _mark(row, threshold, chosen)
        if count == k:
            return
        if count > k:
            low, lowest, at_low = middle, threshold, count
        else:
            high, top, at_high = middle, threshold, count
        is_secant = not is_secant
    # ``lowest`` is the number at the k-th place.
    spare = k
    for x in row:
        spare -= x > lowest
    for i in range(row.size):
        is_spare = row[i] == lowest and spare > 0
        chosen[i] = row[i] > lowest or is_spare
        spare -= is_spare


@jit
def highest(start, stop, scores, integers, k, floor, taken):
    """Set ``taken`` (B, d) to 1 for the k highest scores (B, d), and to 0 elsewhere.

    Scores must be above ``floor``, and all of them are taken if they are fewer than k; of equal ones the first are.
    ``integers`` is an array of integers as wide as a score.
    """
    number = np.empty(1, scores.dtype)
    integer = number.view(integers.dtype)
    for b in range(start, stop):
        _choose(scores[b], k, scores.dtype.type(floor), number, integer, taken[b])
