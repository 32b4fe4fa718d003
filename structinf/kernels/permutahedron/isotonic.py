"""Projection onto permutahedra: a sort, then isotonic regression. Importing this module imports numba.

P(b) is the convex hull of all orders of the numbers b. With a and b both ascending, the point of P(b) nearest to a is

    μ = a − argmin ‖v − (a − b)‖²  over  v_1 ≤ ... ≤ v_n

(Blondel, Teboul, Berthet and Djolonga 2020, "Fast differentiable sorting and ranking", ICML, Propositions 2 and 3), and
v is constant on blocks of neighbours, where μ_k = a_k − mean a + mean b. The means are sums of differences within the
block, so μ is as exact as a and b are, however large; fast math would change the order of these sums. The pool adjacent
violators algorithm finds the blocks in O(n) (Best and Chakravarti 1990, "Active set algorithms for isotonic
regression", Mathematical Programming 47, pp. 425-439).

One array of integers describes the blocks: the elements in ascending order, and the complement ~i instead of i for the
first element i of each block. The blocks are constant around almost every input, so the Jacobian averages over them.
"""

from __future__ import annotations

import numpy as np

from ..argsort import argsort, argsort_buffers
from ..jit import jit

__all__ = ["block_means", "pool_adjacent_violators", "project"]

# Scaling by a power of 2 is exact, and keeps sums of the largest float64 numbers finite.
SCALE = 2.0**-34


@jit(fastmath=False)
def pool_adjacent_violators(y, n, first, total, mean):
    """Isotonic regression: the number of blocks of the ascending sequence nearest to the first ``n`` of ``y``.

    Parameters
    ----------
    y : (n or more,) float64
    n : int
    first : (n + 1 or more,) int64, written
        Where each block begins, and n at the end.
    total, mean : (n or more,) float64, written
        The sum and the mean of each block.
    """
    blocks, end = 0, 0
    while end < n:
        # A descending run is within one block.
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
    """Soft ranks of each row of ``theta``, or its numbers softly sorted; at temperature 0, ranks and order are hard.

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
        The elements in ascending order, and the complement of the first element of each block. Each padded element is
        a block.
    """
    n = theta.shape[1]
    values, ranks, y = np.empty(n), np.arange(1.0, n + 1.0), np.empty(n)
    first, total, mean = np.empty(n + 1, np.int64), np.empty(n), np.empty(n)
    buffers = argsort_buffers(n)
    order = buffers[0]
    for row in range(start, stop):
        size = lengths[row % lengths.shape[0]]
        for i in range(size):
            y[i] = theta[row, i]
        argsort(y, bits[row], size, buffers)
        for i in range(size):
            values[i] = y[order[i]]
        a, b = (ranks, values) if is_sorting else (values, ranks)
        if temperature == 0:
            count, inverse = size, 0.0
            for i in range(size + 1):
                first[i] = i
        else:
            inverse = 1.0 / temperature
            for i in range(size):
                y[i] = (a[i] * SCALE - a[0] * SCALE) * inverse - (b[i] * SCALE - b[0] * SCALE)
            count = pool_adjacent_violators(y, size, first, total, mean)
        for j in range(count):
            low, high = first[j], first[j + 1]
            a_mean, b_mean = 0.0, 0.0  # of differences to the first in the block
            for i in range(low + 1, high):
                a_mean += a[i] - a[low]
                b_mean += b[i] - b[low]
            a_mean, b_mean = a_mean / (high - low), b_mean / (high - low)
            for i in range(low, high):
                at = order[i]
                blocks[row, i] = ~at if i == low else at
                out[row, i if is_sorting else at] = ((a[i] - a[low]) - a_mean) * inverse + (b[low] + b_mean)
        for i in range(size, n):
            blocks[row, i] = ~i
            out[row, i] = 0.0


@jit
def block_means(start, stop, v, blocks, is_gathered, is_scattered, is_centred, factor, out):
    """The product of ``v`` with the Jacobian of :func:`project`: a multiple of M, or of 1 − M, with rows in any order.

    M is the matrix that replaces numbers in ascending order by the means of their blocks.

    Parameters
    ----------
    v : (B, n) floats
    blocks : (B, n) int32
    is_gathered, is_scattered : bool
        Whether ``v`` and ``out`` are in the order of θ, rather than in ascending order.
    is_centred : bool
        Whether to multiply by 1 − M instead of M.
    factor : float
        Multiplies the product.
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
