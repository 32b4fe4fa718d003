"""The order in which the numbers of a row ascend. Importing this module imports numba."""

from __future__ import annotations

import numpy as np

from .jit import jit

__all__ = ["argsort", "argsort_buffers"]

INSERTION_LIMIT = 32
"""Up to this many numbers are sorted by insertion."""

LOW_32_BITS, LOW_8_BITS = np.uint64(2**32 - 1), np.uint64(2**8 - 1)


@jit
def argsort_buffers(size):
    """Memory for :func:`argsort` of up to ``size`` numbers. The first array is the order, (size,) int32."""
    key, item, other = np.empty(size, np.uint64), np.empty(size, np.uint64), np.empty(size, np.uint64)
    return np.empty(size, np.int32), key, item, other, np.empty((4, 256), np.int64)


@jit
def argsort(values, bits, n, buffers):
    """Write the stable order in which the first ``n`` of ``values`` ascend to ``buffers[0]``.

    Parameters
    ----------
    values : (n or more,) floats
    bits : (n or more,) uint32 or uint64
        The bits of ``values``, or of the same numbers in a narrower dtype.
    n : int
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
    """The stable order in which the first ``n`` values ascend."""
    for i in range(n):
        value, j = values[i], i
        while j > 0 and values[order[j - 1]] > value:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@jit
def _radix_sort(bits, n, key, item, other, count, order):
    """The stable order in which the floats ascend whose bits are the first ``n`` of ``bits``.

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
        b = b if b != sign else np.uint64(0)  # −0 is 0
        key[i] = ~b if b & sign else b | sign  # negative numbers fall as their bits rise
        item[i] = np.uint64(i)
    # Half a key of 64 bits at a time, the lower one first, with its number in the other half of an item.
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
