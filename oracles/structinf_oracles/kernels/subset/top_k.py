"""The k highest numbers of each row, without sorting. Importing this module imports numba.

The algorithm looks for a threshold reached by exactly k numbers of a row. It keeps a lower bound reached by more than
k numbers, and an upper bound reached by fewer. Secant steps through the logarithms of the counts alternate with
bisection. For most rows the search takes about eight passes. The maximum is twice the number of bits of a number.
Bisection works on the bits: floating-point numbers have the order of their bits read as integers, reversed for
negative numbers. If no threshold exists, the lower bound ends at the number at the k-th place, which occurs several
times.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.fast_builtins import reinterpret
from structinf.kernels.jit import jit
from structinf.kernels.simd.vector import LANES, largest, load, maximum, reduce_sum, where_less

__all__ = ["highest", "highest_indices"]

_BLOCK = 1 << 20  # counts within it are exact in float32


@jit
def _reaching(row, threshold):
    """Return how many numbers of ``row``, whose size is a multiple of LANES, are at least ``threshold``."""
    count = 0
    for first in range(0, row.size, _BLOCK):
        total = 0.0
        for i in range(first, min(first + _BLOCK, row.size), LANES):
            total += where_less(load(row, i), threshold, 0, 1)
        count += int(reduce_sum(total))
    return count


@jit
def _lowest(row, k, floor, number, integer):
    """Return a threshold, whether it is exact, and the number of entries above ``floor``.

    An exact threshold is reached by exactly k numbers of ``row``, or by all numbers above ``floor`` if they are at
    most k. An inexact threshold is the number at the k-th place. ``row`` is as in :func:`_reaching`. ``number`` and
    ``integer``, both (1,), share memory.
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
def highest_indices(start, stop, scores, integers, k, floor, taken, above):
    """Write the indices of the scores that :func:`highest` takes to ``taken`` (B, m), and −1 behind the last."""
    real, size, most = scores.dtype.type, scores.shape[1], taken.shape[1]
    number = np.empty(1, scores.dtype)
    integer = reinterpret(number, integers.dtype)
    row = np.full(-(-size // LANES) * LANES, -np.inf, scores.dtype)
    chosen = np.empty(size + 1, np.int32)
    for b in range(start, stop):
        for i in range(size):
            row[i] = scores[b, i]
        own, found = k[b % len(k)], 0
        lowest, is_exact, above[b] = _lowest(row, own, real(floor), number, integer)
        spare = own
        if not is_exact:
            for i in range(size):
                spare -= row[i] > lowest
        for i in range(size):  # without a branch, which the processor could not predict
            chosen[found] = i
            is_taken = row[i] >= lowest and (is_exact or row[i] > lowest or spare > 0)
            spare -= row[i] == lowest
            found += is_taken
        for i in range(most):
            taken[b, i] = chosen[i] if i < found else -1


@jit
def highest(start, stop, scores, integers, k, floor, taken, above):
    """Set ``taken`` (B, d) to 1 for the k highest scores (B, d), and to 0 elsewhere.

    ``k`` (B | 1,) holds the k of each row. Only scores above ``floor`` are taken, all of them if they are fewer than k.
    Of equal scores the first are taken. ``above`` (B,) is set to the number of scores above ``floor``. ``integers`` is
    an integer array whose dtype has the width of the scores.
    """
    real, size = scores.dtype.type, scores.shape[1]
    number = np.empty(1, scores.dtype)
    integer = reinterpret(number, integers.dtype)
    row = np.full(-(-size // LANES) * LANES, -np.inf, scores.dtype)
    for b in range(start, stop):
        for i in range(size):
            row[i] = scores[b, i]
        own = k[b % len(k)]
        lowest, is_exact, above[b] = _lowest(row, own, real(floor), number, integer)
        chosen = taken[b]
        for i in range(size):
            chosen[i] = real(1) if row[i] >= lowest else real(0)
        if not is_exact:  # ``lowest`` is the number at the k-th place
            spare = own
            for i in range(size):
                spare -= row[i] > lowest
            for i in range(size):
                if row[i] == lowest:
                    chosen[i] = spare > 0
                    spare -= 1
