"""Rows of scores of which neighbours are fused, then a point of the simplex. Importing this module imports numba.

    p = sparsemax(z),    z = argmin ½ ‖z − x‖² + λ Σ |z_{i+1} − z_i|

(Niculae & Blondel 2017, A regularized framework for sparse and structured neural attention). The partial sums of
z are a string between the ends of those of x that is pulled taut in a tube, λ above and below them (Davies & Kovac
2001, Local extremes, runs, strings and multiresolution, Annals of Statistics 29, §3).

From the last knot on, two hulls are kept: the greatest convex curve below the tube's upper side, and the least concave
one above its lower side. Each is a list of blocks of rising, or falling, mean, to which a new step is added by pooling.
As long as the lower curve begins no steeper than the upper one, the string may go straight. When it does begin
steeper, one of the two is a single block to the new step, and the string bends at the end of the other's first block.
There the next knot is; the single block goes on from it, since all before the new step was below, or above, a straight
line through both knots. All takes O(n) operations.

The lower hull is kept upside down, as the upper hull of −x.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from .entmax import entmax

__all__ = ["fusedmax"]


@jit
def fusedmax(start, stop, x, size, weight, out):
    """The point of each row of ``size`` scores.

    Parameters
    ----------
    x : (B * size,) floats
        Those of −inf break the chain of neighbours, and have p = 0.
    size : int
    weight : float
        λ, at least 0.
    out : (B * size,) floats, 0 before, written
        As of :func:`structinf.kernels.simplex.entmax.entmax`. Numbers that are fused are equal to the last bit.
    """
    z, p, alpha = np.empty(size), np.empty(size), np.full(1, 2.0)
    first, total = np.empty((2, size), np.int64), np.empty((2, size))
    head, tail = np.empty(2, np.int64), np.empty(2, np.int64)
    for row in range(start, stop):
        begin = row * size
        for i in range(size):
            z[i], p[i] = x[begin + i], 0.0
        low = 0
        while low < size:
            if not -np.inf < z[low] < np.inf:
                low += 1
                continue
            high = low + 1
            while high < size and -np.inf < z[high] < np.inf:
                high += 1
            _pull_taut(z, low, high, weight, first, total, head, tail)
            low = high
        entmax(0, 1, z, size, alpha, p)
        for i in range(size):
            out[begin + i] = p[i]


@jit(fastmath=False)
def _pull_taut(z, begin, end, weight, first, total, head, tail):
    """Fuse the numbers from ``begin`` to before ``end``, in place; the last four arguments are scratch.

    The blocks of hull s are those from ``head[s]`` to ``tail[s]``; block b begins at ``first[s, b]`` and rises by
    ``total[s, b]``.
    """
    head[:], tail[:] = 0, -1
    knot, height = begin, 0.0  # where the string is on its way from, and how far above the sum of x there
    anchor = z[begin]  # sums of differences are small
    for k in range(begin, end):
        step, side = z[k] - anchor, (weight if k == begin else 0.0) - (weight if k == end - 1 else 0.0)
        _add(first[0], total[0], head, tail, 0, k, step + side)
        _add(first[1], total[1], head, tail, 1, k, side - step)
        while True:
            upper, lower = total[0, head[0]], total[1, head[1]]
            upper_length = _stop(first[0], head[0], tail[0], k) - first[0, head[0]]
            lower_length = _stop(first[1], head[1], tail[1], k) - first[1, head[1]]
            s = 0 if head[1] == tail[1] else 1  # whose first block the string follows
            if not upper * lower_length + lower * upper_length < 0 or head[s] == tail[s]:
                break
            after = first[s, head[s] + 1]
            at = weight if s == 0 else -weight
            _level(z, knot, after, at - height)
            total[1 - s, head[1 - s]] += total[s, head[s]]
            first[1 - s, head[1 - s]] = after
            knot, height = after, at
            head[s] += 1
    _level(z, knot, end, -height)


@jit(fastmath=False)
def _add(first, total, head, tail, s, k, rise):
    """Add the step ``k`` to hull ``s``, whose blocks' means rise."""
    at, start, last = tail[s] + 1, k, k + 1
    while at > head[s] and total[at - 1] * (last - start) >= rise * (start - first[at - 1]):
        at -= 1
        rise += total[at]
        start = first[at]
    first[at], total[at] = start, rise
    tail[s] = at


@jit
def _stop(first, block, last, k):
    """Where a block ends, k being in the last one."""
    return k + 1 if block == last else first[block + 1]


@jit(fastmath=False)
def _level(z, begin, end, more):
    """Replace numbers by their mean, after ``more`` is added to their sum."""
    rest = more
    for i in range(begin + 1, end):
        rest += z[i] - z[begin]
    z[begin:end] = z[begin] + rest / (end - begin)
