"""Projections onto permutahedra: a sort, then isotonic regression. Importing this module imports numba.

P(b) is the convex hull of all permutations of the numbers b. With a and b in ascending order, the point of P(b) nearest
to a is

    μ = a − argmin ‖v − (a − b)‖²  over  v_1 ≤ ... ≤ v_n

(Blondel, Teboul, Berthet and Djolonga 2020, "Fast differentiable sorting and ranking", ICML, Propositions 2 and 3). The
solution v is constant on blocks of neighbours, and μ_k = a_k − mean a + mean b with the means over the block. The means
are computed from differences within the block, so μ keeps the accuracy of a and b even for large numbers. Fast math
would reorder these sums. The pool adjacent violators algorithm finds the blocks in O(n) (Best and Chakravarti 1990,
"Active set algorithms for isotonic regression", Mathematical Programming 47, pp. 425-439).

An integer array encodes the blocks: the elements in ascending order, with the complement ~i in place of i for the first
element i of each block. Around almost every input the blocks are constant, so the Jacobian averages over each block.
"""

from __future__ import annotations

import numpy as np

from ..argsort import argsort, argsort_buffers
from ..jit import jit

__all__ = ["block_means", "pool_adjacent_violators", "project"]

# Scaling by a power of 2 is exact. It keeps sums of the largest float64 numbers finite.
SCALE = 2.0**-34


@jit(fastmath=False)
def pool_adjacent_violators(y, n, first, total, mean):
    """Solve the isotonic regression of the first ``n`` of ``y``, and return the number of blocks of the solution.

    Parameters
    ----------
    y : (n or more,) float64
    n : int
    first : (n + 1 or more,) int64, written
        The index of the first element of each block, followed by n.
    total, mean : (n or more,) float64, written
        The sum and the mean of ``y`` over each block.
    """
    blocks, end = 0, 0
    while end < n:
        # A descending run always lies within one block.
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
    """Write the soft ranks of each row of ``theta``, or its soft sort.

    Soft ranks are the projection of θ / temperature onto P((1, ..., n)). The soft sort is the projection of
    (1, ..., n) / temperature onto P(θ).

    Parameters
    ----------
    theta : (B, n) floats
    bits : (B, n) unsigned integers
        The bits of ``theta``.
    lengths : (B | 1,) int64
        The number of elements in use in each row.
    temperature : float
        0 gives hard ranks, or a hard sort.
    is_sorting : bool
        Whether to sort instead of rank.
    out : (B, n) floats, written
        Ranks from 1 to the length, in the order of θ, or sorted numbers in ascending order; 0 in the padding.
    blocks : (B, n) int32, written
        The elements in ascending order, and the complement of the first element of each block. Each padded element is
        a block of its own.
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
            a_mean, b_mean = 0.0, 0.0  # means of the differences to the first element of the block
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
    """Write the product of ``v`` with the Jacobian of :func:`project`, or with the transposed Jacobian.

    Up to permutations, the Jacobian is ``factor`` times M or 1 − M. The matrix M replaces each number of a row in
    ascending order by the mean of its block.

    Parameters
    ----------
    v : (B, n) floats
    blocks : (B, n) int32
        From :func:`project`.
    is_gathered, is_scattered : bool
        Whether ``v``, or ``out``, is in the order of θ instead of ascending order.
    is_centred : bool
        Whether to multiply by 1 − M instead of M.
    factor : float
        A factor of the product.
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
