"""Oscarmax: isotonic regression of the scores, then sparsemax. Importing this module imports numba.

    p = argmin ½ ‖p − x‖² + λ Σ_{i<j} max(p_i, p_j)  over probabilities p

For nonnegative p, the penalty is OSCAR. It equals λ ⟨p, ranks − 1⟩ with ascending ranks, so it is linear on the set of
points with a given order. Therefore p = sparsemax(z), where z minimizes the same objective over all of ℝⁿ: in sorted
order, z is the isotonic regression of x − λ (ranks − 1). (Bondell & Reich 2008, Simultaneous regression shrinkage,
variable selection, and supervised clustering of predictors with OSCAR; Zeng & Figueiredo 2014, The ordered weighted ℓ₁
norm: atomic formulation, projections, and algorithms; Yu 2013, On decomposing the proximal map, for the order of the
steps.)
"""

from __future__ import annotations

import numpy as np

from ..argsort import argsort, argsort_buffers
from ..fast_builtins import reinterpret
from ..jit import jit
from ..permutahedron.isotonic import pool_adjacent_violators
from .entmax import to_sparsemax
from .support import BLOCK, SMALLEST_POSITIVE, block_maxima, fill, select

__all__ = ["group_means", "oscarmax"]


@jit(fastmath=False)
def oscarmax(start, stop, x, size, weight, out):
    """Write oscarmax of each row of ``size`` scores.

    Parameters
    ----------
    x : (B * size,) floats
        The scores. Scores of −inf have p = 0, and are in no pair of the penalty.
    size : int
        The length of a row.
    weight : float
        λ, at least 0.
    out : (B * size,) floats, initially zero, written
        0 in a row of −inf, NaN in a row with NaN or +inf. The p of a group are equal to the last bit.
    """
    z = np.empty(size)
    y, first, total, mean = np.empty(size), np.empty(size + 1, np.int64), np.empty(size), np.empty(size)
    buffers = argsort_buffers(size)
    order = buffers[0]
    for row in range(start, stop):
        begin = row * size
        masked, is_invalid = 0, False
        for i in range(size):
            z[i] = x[begin + i]
            masked += z[i] == -np.inf
            is_invalid = is_invalid or not z[i] < np.inf
        if is_invalid:
            fill(out, begin, size, np.nan)
            continue
        count = size - masked
        if count:
            argsort(z, reinterpret(z, np.uint64), size, buffers)
            top = z[order[size - 1]]
            for k in range(count):
                y[k] = (z[order[masked + k]] - top) + weight * (count - 1 - k)
            blocks = pool_adjacent_violators(y, count, first, total, mean)
            for block in range(blocks):
                low, high = first[block], first[block + 1]
                rest = 0.0
                for k in range(low + 1, high):
                    rest += y[k] - y[low]
                for k in range(low, high):
                    z[order[masked + k]] = y[low] + rest / (high - low)
        to_sparsemax(z, size, total)
        for i in range(size):
            out[begin + i] = z[i]


@jit
def group_means(start, stop, p, g, size, out):
    """Write the products of ``g`` with the Jacobians at ``p``: the mean over a group minus the mean over the support.

    Parameters
    ----------
    p, g : (B * size,) floats
        The probabilities, and the cotangents. A group consists of the elements with the same p above 0.
    size : int
        The length of a row.
    out : (B * size,) floats, initially zero, written
    """
    maxima, index, q = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32), np.empty(size)
    buffers = argsort_buffers(size)
    order = buffers[0]
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
        argsort(q, reinterpret(q, np.uint64), count, buffers)
        low = 0
        while low < count:
            high, mean, value = low, 0.0, q[order[low]]
            while high < count and q[order[high]] == value:
                mean += g[begin + index[order[high]]]
                high += 1
            mean /= high - low
            for i in range(low, high):
                out[begin + index[order[i]]] = mean - all_mean
            low = high
