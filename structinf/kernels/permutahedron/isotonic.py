"""Projection onto permutahedra: a sort, then isotonic regression. Importing this module imports numba.

P(b) is the convex hull of all orders of the numbers b. With a and b both ascending, the point of P(b) nearest to a is

    μ = a − argmin ‖v − (a − b)‖²  over  v_1 ≤ ... ≤ v_n

(Blondel, Teboul, Berthet and Djolonga 2020, "Fast differentiable sorting and ranking", ICML, Propositions 2 and 3), and
v is constant on blocks of neighbours: there, μ_k = a_k − mean a + mean b. So a and b are all that a block needs, and μ
is as exact as they are, however large: sums of differences, in an order that fast math would not keep. Blocks are found
by pooling neighbours in the wrong order (Best and Chakravarti 1990, "Active set algorithms for isotonic regression",
Mathematical Programming 47, pp. 425-439), in O(n).

They are handed on as one array of integers: the elements in ascending order, where one that begins a block stands as
its complement. Around almost every input the blocks stay the same, so that the Jacobian is made of means over them.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit

__all__ = ["block_means", "project"]

FEW = 32
"""Up to so many numbers are sorted by insertion."""

LOW, BYTE = np.uint64(2**32 - 1), np.uint64(2**8 - 1)

# So halved, which is exact, numbers leave room for sums of them at the far end of float64.
SCALE = 2.0**-34


@jit
def insertion_sort(values, n, order):
    """The stable order in which the first ``n`` values ascend."""
    for i in range(n):
        value, j = values[i], i
        while j > 0 and values[order[j - 1]] > value:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@jit
def radix_sort(bits, n, key, item, other, count, order):
    """As :func:`insertion_sort`, of the floats whose bits are the first ``n`` of ``bits``.

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
            at = item[i] & LOW
            k = (key[at] >> np.uint64(32 * half)) & LOW
            item[i] = (k << np.uint64(32)) | at
            for byte in range(4):
                count[byte, (k >> np.uint64(8 * byte)) & BYTE] += 1
        for byte in range(4):
            shift = np.uint64(32 + 8 * byte)
            if count[byte, (item[0] >> shift) & BYTE] == n:
                continue
            before = 0
            for digit in range(256):
                before, count[byte, digit] = before + count[byte, digit], before
            for i in range(n):
                digit = (item[i] >> shift) & BYTE
                other[count[byte, digit]] = item[i]
                count[byte, digit] += 1
            item, other = other, item
    for i in range(n):
        order[i] = item[i] & LOW


@jit(fastmath=False)
def pool(y, n, first, total, mean):
    """The number of blocks of the nearest ascending sequence to ``y``; they begin at ``first``, which ends with n."""
    blocks, end = 0, 0
    while end < n:
        # A descent is within one block.
        start, rest = end, y[end]
        end += 1
        while end < n and y[end] <= y[end - 1]:
            rest += y[end]
            end += 1
        value = rest / (end - start)
        while blocks > 0 and mean[blocks - 1] >= value:
            blocks -= 1
            start = first[blocks]
            rest += total[blocks]
            value = rest / (end - start)
        first[blocks], total[blocks], mean[blocks] = start, rest, value
        blocks += 1
    first[blocks] = n
    return blocks


@jit(fastmath=False)
def project(start, stop, theta, bits, lengths, temperature, is_sorting, out, blocks):
    """Ranks of each row of ``theta``, or its numbers in ascending order: soft ones, and hard ones at temperature 0.

    The projection of θ / temperature onto P((1, ..., n)), or of (1, ..., n) / temperature onto P(θ).

    Parameters
    ----------
    theta : (B, n) floats
    bits : (B, n) unsigned integers
        Those of ``theta``.
    lengths : (B | 1,) int64
        The elements in use.
    temperature : float
    is_sorting : bool
    out : (B, n) floats, written
        The ranks 1, ..., length in the order of θ, or the numbers in ascending order; 0 in the padding.
    blocks : (B, n) int32, written
        The elements in ascending order, each first one of a block as its complement; in the padding, each for itself.
    """
    n = theta.shape[1]
    values, ranks, y = np.empty(n), np.arange(1.0, n + 1.0), np.empty(n)
    first, total, mean = np.empty(n + 1, np.int64), np.empty(n), np.empty(n)
    order, count = np.empty(n, np.int32), np.empty((4, 256), np.int64)
    key, item, other = np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.uint64)
    for row in range(start, stop):
        size = lengths[row % lengths.shape[0]]
        for i in range(size):
            y[i] = theta[row, i]
        if size <= FEW:
            insertion_sort(y, size, order)
        else:
            radix_sort(bits[row], size, key, item, other, count, order)
        for i in range(size):
            values[i] = y[order[i]]
        a, b = (ranks, values) if is_sorting else (values, ranks)
        if temperature == 0:
            many, gain = size, 0.0
            for i in range(size + 1):
                first[i] = i
        else:
            gain = 1.0 / temperature
            for i in range(size):
                y[i] = (a[i] * SCALE - a[0] * SCALE) * gain - (b[i] * SCALE - b[0] * SCALE)
            many = pool(y, size, first, total, mean)
        for j in range(many):
            low, high = first[j], first[j + 1]
            a_mean, b_mean = 0.0, 0.0  # beyond the block's first
            for i in range(low + 1, high):
                a_mean += a[i] - a[low]
                b_mean += b[i] - b[low]
            a_mean, b_mean = a_mean / (high - low), b_mean / (high - low)
            for i in range(low, high):
                at = order[i]
                blocks[row, i] = ~at if i == low else at
                out[row, i if is_sorting else at] = ((a[i] - a[low]) - a_mean) * gain + (b[low] + b_mean)
        for i in range(size, n):
            blocks[row, i] = ~i
            out[row, i] = 0.0


@jit
def block_means(start, stop, v, blocks, is_gathered, is_scattered, is_centred, factor, out):
    """The product of ``v`` with the Jacobian of :func:`project`, M the matrix of means over blocks in ascending order.

    Parameters
    ----------
    v : (B, n) floats
    blocks : (B, n) int32
    is_gathered, is_scattered : bool
        Whether ``v`` and ``out`` are in the order of θ, or in ascending order.
    is_centred : bool
        For 1 − M in place of M.
    factor : float
        The product is times this.
    out : (B, n) floats, written
    """
    n = v.shape[1]
    for row in range(start, stop):
        low = 0
        while low < n:
            high, mean = low, 0.0
            while high < n and (high == low or blocks[row, high] >= 0):
                at = blocks[row, high]
                mean += v[row, max(at, ~at) if is_gathered else high]
                high += 1
            mean /= high - low
            for i in range(low, high):
                at = max(blocks[row, i], ~blocks[row, i])
                value = v[row, at if is_gathered else i] - mean if is_centred else mean
                out[row, at if is_scattered else i] = value * factor
            low = high
