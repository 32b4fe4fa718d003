"""Selection of the numbers of a row that may be in the support. Importing this module imports numba.

A score has a positive probability only if it is close enough to the largest score. The first pass over a row finds the
largest number of each block of 64. The second pass reads only the blocks whose largest number is close enough.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..simd.memory import address
from ..simd.vector import LANES, largest, load, maximum, where_less

__all__ = ["BLOCK", "LOWEST", "SMALLEST_POSITIVE", "block_maxima", "fill", "select", "sort"]

BLOCK = 4 * LANES

LOWEST = np.finfo(np.float64).min
"""The lowest finite number."""

SMALLEST_POSITIVE = 2.0**-1022
"""The smallest positive normal number. Negative powers of smaller numbers overflow."""


@jit
def fill(out, begin, size, value):
    """Write ``value`` to the ``size`` places from ``begin`` on."""
    for i in range(begin, begin + size):
        out[i] = value


@jit
def block_maxima(x, begin, size, maxima):
    """Return the largest of the ``size`` numbers from ``begin`` on; NaN if any is NaN or +inf, or if ``size`` is 0.

    Parameters
    ----------
    x : (m,) floats
    begin, size : int
        The first index, and the length, of the row.
    maxima : (⌈size / 64⌉,) float64, written
        The largest number of each block.
    """
    if size == 0:
        return np.nan
    top, is_valid, blocks = -np.inf, True, size // BLOCK
    for k in range(blocks):
        at = begin + k * BLOCK
        a, b = load(x, at), load(x, at + LANES)
        c, d = load(x, at + 2 * LANES), load(x, at + 3 * LANES)
        # NaN is not below infinity.
        is_invalid = where_less(a, np.inf, where_less(b, np.inf, 0.0, 1.0), 1.0)
        is_invalid = where_less(c, np.inf, where_less(d, np.inf, is_invalid, 1.0), 1.0)
        is_valid = is_valid and largest(is_invalid) == 0
        maxima[k] = largest(maximum(maximum(a, b), maximum(c, d)))
        top = max(top, maxima[k])
    if blocks * BLOCK < size:
        rest = -np.inf
        for i in range(begin + blocks * BLOCK, begin + size):
            is_valid = is_valid and x[i] < np.inf
            rest = max(rest, x[i])
        maxima[blocks] = rest
        top = max(top, rest)
    return top if is_valid else np.nan


@jit
def select(x, begin, size, maxima, low, index, values):
    """Select the numbers of at least ``low`` among the ``size`` numbers from ``begin`` on, and return their count.

    Parameters
    ----------
    maxima : float64
        From :func:`block_maxima`.
    low : float
        The lower bound.
    index : (size,) int32, written
        The positions of the selected numbers, counted from ``begin``.
    values : (size,) float64, written
        The selected numbers.
    """
    count, numbers, places, kept = 0, address(x), address(index), address(values)
    for k in range((size + BLOCK - 1) // BLOCK):
        if maxima[k] >= low:
            for i in range(k * BLOCK, min((k + 1) * BLOCK, size)):
                value = np.float64(numbers[begin + i])
                places[count] = np.int32(i)
                kept[count] = value
                count += value >= low  # not a branch, since the processor would mispredict it
    return count


@jit
def sort(x, count):
    """Sort the first ``count`` numbers, in ascending order, by heapsort. np.sort takes a second to compile."""
    size, root = count, count // 2
    while size > 1:
        if root > 0:  # build the heap
            root -= 1
            value = x[root]
        else:  # move the largest number to the end
            size -= 1
            value = x[size]
            x[size] = x[0]
        at, child = root, 2 * root + 1
        while child < size:
            if child + 1 < size and x[child + 1] > x[child]:
                child += 1
            if not x[child] > value:
                break
            x[at] = x[child]
            at, child = child, 2 * child + 1
        x[at] = value
