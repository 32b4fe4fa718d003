"""Which numbers of a row count: a look at all of them, then only at those. Importing this module imports numba.

Few of many scores have a probability, and whether one may have one is seen from its distance to the largest. So a row
is read once, for the largest number of each block of 64, and further work is done where a block has one that counts.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..simd.memory import address
from ..simd.vector import LANES, largest, load, maximum, where_less

__all__ = ["BLOCK", "LOWEST", "block_maxima", "select"]

BLOCK = 4 * LANES

LOWEST = np.finfo(np.float64).min
"""Only −inf is lower."""


@jit
def block_maxima(x, begin, size, tops):
    """The largest of the ``size`` numbers at ``begin``; NaN if one is NaN or +inf, or there is none.

    Parameters
    ----------
    x : (m,) floats
    begin, size : int
    tops : (size / 64, rounded up) float64, written
        The largest of each block.
    """
    if size == 0:
        return np.nan
    top, is_right, blocks = -np.inf, True, size // BLOCK
    for k in range(blocks):
        at = begin + k * BLOCK
        a, b = load(x, at), load(x, at + LANES)
        c, d = load(x, at + 2 * LANES), load(x, at + 3 * LANES)
        # NaN is not below infinity.
        wrong = where_less(a, np.inf, where_less(b, np.inf, 0.0, 1.0), 1.0)
        wrong = where_less(c, np.inf, where_less(d, np.inf, wrong, 1.0), 1.0)
        is_right = is_right and largest(wrong) == 0
        tops[k] = largest(maximum(maximum(a, b), maximum(c, d)))
        top = max(top, tops[k])
    if blocks * BLOCK < size:
        rest = -np.inf
        for i in range(begin + blocks * BLOCK, begin + size):
            is_right = is_right and x[i] < np.inf
            rest = max(rest, x[i])
        tops[blocks] = rest
        top = max(top, rest)
    return top if is_right else np.nan


@jit
def select(x, begin, size, tops, low, index, values):
    """How many of the ``size`` numbers at ``begin`` are at least ``low``.

    Parameters
    ----------
    tops : float64
        As :func:`block_maxima` writes it.
    low : float
    index : (size,) int32, written
        Their places, counted from ``begin``.
    values : (size,) float64, written
        They themselves.
    """
    count, numbers, places, kept = 0, address(x), address(index), address(values)
    for k in range((size + BLOCK - 1) // BLOCK):
        if tops[k] >= low:
            for i in range(k * BLOCK, min((k + 1) * BLOCK, size)):
                value = np.float64(numbers[begin + i])
                places[count] = np.int32(i)
                kept[count] = value
                count += value >= low  # without a branch, which would be guessed wrong
    return count
