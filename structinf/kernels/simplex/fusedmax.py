"""Fusedmax: total-variation denoising of the scores, then sparsemax. Importing this module imports numba.

    p = sparsemax(z),    z = argmin ½ ‖z − x‖² + λ Σ |z_{i+1} − z_i|

(Niculae & Blondel 2017, A regularized framework for sparse and structured neural attention). The taut-string algorithm
finds z: its partial sums are the shortest string from the first to the last partial sum of x, within a tube that
extends λ above and below the partial sums of x (Davies & Kovac 2001, Local extremes, runs, strings and multiresolution,
Annals of Statistics 29, §3).

From the last knot on, the algorithm keeps two hulls: the greatest convex curve below the upper side of the tube, and
the least concave curve above the lower side. Each hull is a list of blocks, with ascending means in the upper hull and
descending means in the lower hull. A new step is pooled with the last blocks. While the lower hull begins no steeper
than the upper hull, the string may be straight. Once the lower hull begins steeper, one hull is a single block up to
the new step, and the next knot of the string is the end of the first block of the other hull. The single block then
begins at this knot, since all earlier steps lie on one side of the line through both knots. The algorithm takes O(n)
operations.

The lower hull is stored upside down, as the upper hull of −x.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from .entmax import to_sparsemax
from .support import BLOCK, SMALLEST_POSITIVE, block_maxima, fill, select

__all__ = ["fusedmax", "run_means"]


@jit
def fusedmax(start, stop, x, size, weight, out):
    """Write fusedmax of each row of ``size`` scores.

    Parameters
    ----------
    x : (B * size,) floats
        The scores. Scores of −inf have p = 0, and separate the scores on both sides: these are not neighbours.
    size : int
        The length of a row.
    weight : float
        λ, at least 0.
    out : (B * size,) floats, initially zero, written
        0 in a row of −inf, NaN in a row with NaN or +inf. The p of a group are equal to the last bit.
    """
    z = np.empty(size)
    first, total = np.empty((2, size), np.int64), np.empty((2, size))
    head, tail = np.empty(2, np.int64), np.empty(2, np.int64)
    for row in range(start, stop):
        begin, is_invalid = row * size, False
        for i in range(size):
            z[i] = x[begin + i]
            is_invalid = is_invalid or not z[i] < np.inf
        if is_invalid:
            fill(out, begin, size, np.nan)
            continue
        low = np.int64(0)  # 0 alone would have a type of its own, and compile the functions below twice
        while low < size:
            if z[low] == -np.inf:
                low += 1
                continue
            high = low + 1
            while high < size and z[high] > -np.inf:
                high += 1
            _pull_taut(z, low, high, weight, first, total, head, tail)
            low = high
        to_sparsemax(z, size, total[0])
        for i in range(size):
            out[begin + i] = z[i]


@jit(fastmath=False)
def _pull_taut(z, begin, end, weight, first, total, head, tail):
    """Fuse the numbers from ``begin`` to ``end`` − 1 in place. The last four arguments store the hulls.

    Hull s consists of the blocks from ``head[s]`` to ``tail[s]``. Block b begins at ``first[s, b]`` and rises by
    ``total[s, b]``.
    """
    head[:], tail[:] = 0, -1
    knot, height = begin, 0.0  # the last knot, and its height above the partial sum of x
    anchor = z[begin]  # sums of differences to this number lose fewer digits
    for k in range(begin, end):
        step, side = z[k] - anchor, (weight if k == begin else 0.0) - (weight if k == end - 1 else 0.0)
        _add(first[0], total[0], head, tail, np.int64(0), k, step + side)
        _add(first[1], total[1], head, tail, np.int64(1), k, side - step)
        while True:
            upper, lower = total[0, head[0]], total[1, head[1]]
            upper_length = _block_end(first[0], head[0], tail[0], k) - first[0, head[0]]
            lower_length = _block_end(first[1], head[1], tail[1], k) - first[1, head[1]]
            s = 0 if head[1] == tail[1] else 1  # the hull whose first block the string follows
            if not upper * lower_length + lower * upper_length < 0 or head[s] == tail[s]:
                break
            after = first[s, head[s] + 1]
            at = weight if s == 0 else -weight
            _replace_by_mean(z, knot, after, at - height)
            total[1 - s, head[1 - s]] += total[s, head[s]]
            first[1 - s, head[1 - s]] = after
            knot, height = after, at
            head[s] += 1
    _replace_by_mean(z, knot, end, -height)


@jit(fastmath=False)
def _add(first, total, head, tail, s, k, rise):
    """Add the step ``k`` to hull ``s``, stored with ascending means of blocks."""
    at, start, last = tail[s] + 1, k, k + 1
    while at > head[s] and total[at - 1] * (last - start) >= rise * (start - first[at - 1]):
        at -= 1
        rise += total[at]
        start = first[at]
    first[at], total[at] = start, rise
    tail[s] = at


@jit
def _block_end(first, block, last, k):
    """Return the end of a block, given that the last block ends with step k."""
    return k + 1 if block == last else first[block + 1]


@jit(fastmath=False)
def _replace_by_mean(z, begin, end, extra):
    """Replace each number from ``begin`` to ``end`` − 1 by (their sum + ``extra``) / (their count)."""
    rest = extra
    for i in range(begin + 1, end):
        rest += z[i] - z[begin]
    z[begin:end] = z[begin] + rest / (end - begin)


@jit
def run_means(start, stop, p, g, size, out):
    """Write the products of ``g`` with the Jacobians at ``p``: the mean over a group minus the mean over the support.

    Parameters
    ----------
    p, g : (B * size,) floats
        The probabilities, and the cotangents. A group is a run of neighbours with the same p above 0.
    size : int
        The length of a row.
    out : (B * size,) floats, initially zero, written
    """
    maxima, index, q = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32), np.empty(size)
    for row in range(start, stop):
        begin = row * size
        top = block_maxima(p, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
            continue
        count, all_mean = select(p, begin, size, maxima, SMALLEST_POSITIVE, index, q), 0.0
        for i in range(count):
            all_mean += g[begin + index[i]]
        all_mean /= max(count, 1)
        low = 0
        while low < count:
            high, mean = low + 1, np.float64(g[begin + index[low]])
            while high < count and q[high] == q[low] and index[high] == index[high - 1] + 1:
                mean += g[begin + index[high]]
                high += 1
            mean /= high - low
            for i in range(low, high):
                out[begin + index[i]] = mean - all_mean
            low = high
