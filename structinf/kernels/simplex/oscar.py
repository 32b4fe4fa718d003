"""Rows of scores of which any are grouped, then a point of the simplex. Importing this module imports numba.

    p = argmin ½ ‖p − x‖² + λ Σ_{i<j} max(p_i, p_j)  over probabilities p

Where no number is negative the penalty is OSCAR's, and equal to λ ⟨p, ranks − 1⟩ with ranks ascending: linear among
points of the same order. So p = sparsemax(z), where z minimises the same over all of ℝⁿ: it is the ascending sequence
nearest to the sorted x − λ (ranks − 1), an isotonic regression. (Bondell & Reich 2008, Simultaneous regression
shrinkage, variable selection, and supervised clustering of predictors with OSCAR; Zeng & Figueiredo 2014, The ordered
weighted ℓ₁ norm: atomic formulation, projections, and algorithms; Yu 2013, On decomposing the proximal map, on the
order of the two steps.)
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..permutahedron.isotonic import FEW, insertion_sort, pool, radix_sort
from .entmax import entmax
from .support import BLOCK, block_maxima, select

__all__ = ["group_means", "oscarmax"]

_TINIEST = 2.0**-1022  # what is above 0


@jit(fastmath=False)
def oscarmax(start, stop, x, size, weight, out):
    """The point of each row of ``size`` scores.

    Parameters
    ----------
    x : (B * size,) floats
        Those of −inf are in no pair, and have p = 0.
    size : int
    weight : float
        λ, at least 0.
    out : (B * size,) floats, 0 before, written
        As of :func:`structinf.kernels.simplex.entmax.entmax`. Numbers of a group are equal to the last bit.
    """
    z, p, alpha = np.empty(size), np.empty(size), np.full(1, 2.0)
    y, first, total, mean = np.empty(size), np.empty(size + 1, np.int64), np.empty(size), np.empty(size)
    scratch = _scratch(size)
    order = scratch[0]
    for row in range(start, stop):
        begin = row * size
        masked, wrong = 0, False
        for i in range(size):
            z[i], p[i] = x[begin + i], 0.0
            masked += z[i] == -np.inf
            wrong = wrong or not z[i] < np.inf
        if wrong:
            out[begin : begin + size] = np.nan
            continue
        many = size - masked
        if many:
            _sort(z, size, scratch)
            top = z[order[size - 1]]
            for k in range(many):
                y[k] = (z[order[masked + k]] - top) + weight * (many - 1 - k)
            blocks = pool(y, many, first, total, mean)
            for block in range(blocks):
                low, high = first[block], first[block + 1]
                rest = 0.0
                for k in range(low + 1, high):
                    rest += y[k] - y[low]
                for k in range(low, high):
                    z[order[masked + k]] = y[low] + rest / (high - low)
            entmax(0, 1, z, size, alpha, p)
        for i in range(size):
            out[begin + i] = p[i]


@jit
def group_means(start, stop, p, g, size, is_chain, out):
    """The products of ``g`` with the Jacobians of the points: means over groups, less the mean over all.

    Parameters
    ----------
    p, g : (B * size,) floats
        A group has equal p, above 0.
    size : int
    is_chain : bool
        Whether only neighbours may be in a group.
    out : (B * size,) floats, 0 before, written
    """
    tops, index, q = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32), np.empty(size)
    scratch = _scratch(size)
    order = scratch[0]
    for row in range(start, stop):
        begin = row * size
        top = block_maxima(p, begin, size, tops)
        if not top < np.inf:
            out[begin : begin + size] = np.nan
            continue
        count, all_mean = select(p, begin, size, tops, _TINIEST, index, q), 0.0
        for i in range(count):
            all_mean += g[begin + index[i]]
        all_mean /= max(count, 1)
        if is_chain:
            for i in range(count):
                order[i] = i
        else:
            _sort(q, count, scratch)
        low = 0
        while low < count:
            high, mean, value = low, 0.0, q[order[low]]
            while high < count and q[order[high]] == value:
                if is_chain and high > low and index[high] != index[high - 1] + 1:
                    break
                mean += g[begin + index[order[high]]]
                high += 1
            mean /= high - low
            for i in range(low, high):
                out[begin + index[order[i]]] = mean - all_mean
            low = high


@jit
def _scratch(size):
    """What :func:`_sort` writes; the order comes first."""
    key, item, other = np.empty(size, np.uint64), np.empty(size, np.uint64), np.empty(size, np.uint64)
    return np.empty(size, np.int32), key, item, other, np.empty((4, 256), np.int64)


@jit
def _sort(values, many, scratch):
    """The order in which the first ``many`` of ``values`` ascend."""
    order, key, item, other, count = scratch
    if many <= FEW:
        insertion_sort(values, many, order)
    else:
        radix_sort(values.view(np.uint64), many, key, item, other, count, order)
