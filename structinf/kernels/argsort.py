"""Stable argsort of a row of floats, in ascending order. Importing this module imports numba."""

from __future__ import annotations

import numpy as np

from .jit import jit

__all__ = ["argsort", "argsort_buffers"]

INSERTION_LIMIT = 32
"""Rows of up to 32 numbers use insertion sort, longer rows radix sort."""

LOW_32_BITS, LOW_8_BITS = np.uint64(2**32 - 1), np.uint64(2**8 - 1)


@jit
def argsort_buffers(size):
    """Return buffers for :func:`argsort` of up to ``size`` numbers. The first array is the order, (size,) int32."""
    key, item, other = np.empty(size, np.uint64), np.empty(size, np.uint64), np.empty(size, np.uint64)
    return np.empty(size, np.int32), key, item, other, np.empty((4, 256), np.int64)


@jit
def argsort(values, bits, n, buffers):
    """Write the stable ascending order of the first ``n`` of ``values`` to ``buffers[0]``.

    Parameters
    ----------
    values : (n or more,) floats
    bits : (n or more,) uint32 or uint64
        The bits of ``values``, or of the same numbers in a narrower dtype.
    n : int
        The number of values to sort.
    buffers : tuple of arrays
        From :func:`argsort_buffers`.
    """
    order, key, item, other, count = buffers
    if n <= INSERTION_LIMIT:
        _insertion_sort(values, n, order)
    else:
        _radix_sort(bits, n, key, item, other, count, order)


@jit
def _insertion_sort(values, n, order):
    """Write the stable ascending order of the first ``n`` values to ``order``."""
    for i in range(n):
        value, j = values[i], i
        while j > 0 and values[order[j - 1]] > value:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@jit
def _radix_sort(bits, n, key, item, other, count, order):
    """Write the stable ascending order of ``n`` floats, given by their bits, to ``order``.

    Parameters
    ----------
    bits : (n or more,) uint32 or uint64
    key, item, other : (n or more,) uint64, scratch
    count : (4, 256) int64, scratch
    order : (n or more,) int32, written
    """
    sign = np.uint64(1) << np.uint64(8 * bits.itemsize - 1)
    for i in range(n):
        b = np.uint64(bits[i])
        b = b if b != sign else np.uint64(0)  # −0 equals 0
        key[i] = ~b if b & sign else b | sign  # larger bits of negative floats mean smaller numbers
        item[i] = np.uint64(i)
    # Sort by 32 bits of the key at a time, lower half first. An item holds 32 bits of the key and the index.
    for half in range(bits.itemsize // 4):
        count[:] = 0
        for i in range(n):
            at = item[i] & LOW_32_BITS
            k = (key[at] >> np.uint64(32 * half)) & LOW_32_BITS
            item[i] = (k << np.uint64(32)) | at
            for byte in range(4):
                count[byte, (k >> np.uint64(8 * byte)) & LOW_8_BITS] += 1
        for byte in range(4):
            shift = np.uint64(32 + 8 * byte)
            if count[byte, (item[0] >> shift) & LOW_8_BITS] == n:
                continue
            before = 0
            for digit in range(256):
                before, count[byte, digit] = before + count[byte, digit], before
            for i in range(n):
                digit = (item[i] >> shift) & LOW_8_BITS
                other[count[byte, digit]] = item[i]
                count[byte, digit] += 1
            item, other = other, item
    for i in range(n):
        order[i] = item[i] & LOW_32_BITS
