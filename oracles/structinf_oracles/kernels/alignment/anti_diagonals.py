"""The memory layout of an alignment grid, by anti-diagonals, and the transfer of numbers between cells.

Instances are processed in groups (see :mod:`.dispatch`). The cells of a group on one anti-diagonal lie side by side
in the columns of :mod:`.smooth_max_of_three`. So vectors are full and operations are independent, however short the
anti-diagonals are. For the instance g of a group, row k of ``grids[g]`` describes the anti-diagonal i + j = k − 2:

    column 0: the first row i of the cells inside the band;
    column 1: the number of these cells;
    column 2: the place of the first cell in ``rings[g]``, where anti-diagonals k and k − 3 share memory;
    column 3: the place of the first cell in tables of all cells.

Rows 0 and 1, and the rows after the instance's last cell, have no cells. Two places between neighbouring
anti-diagonals stand for the cells outside.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.scalar.min_max import maximum

from .smooth_max_of_three import unpack_probabilities

__all__ = [
    "LANES",
    "RING",
    "TABLE",
    "layout",
    "load_probabilities",
    "offset_before",
    "predecessor_scores",
    "store_outflow",
    "store_probabilities",
    "sum_inflow",
    "u64",
    "unpack_probabilities",
]

# Loops run over multiples of this number of columns, whole vectors of float32 or float64.
LANES = 16

# The type of indices. Signed indices may be negative, and the check for negative indices prevents vectorised loops.
u64 = np.uint64


RING, TABLE = 2, 3  # columns of a grid, for offset_before


@jit
def layout(n, m, band, grid):
    """Fill ``grid`` (N + M + 1, 4) for n ≤ N rows and m ≤ M columns."""
    band = min(band, n + m)
    place, size = 1, min(n, m) + LANES + 2
    for k in range(len(grid)):
        d = k - 2
        low = max(0, d - m + 1, (d - band + 1) // 2)
        count = max(0, min(n - 1, d, (d + band) // 2) - low + 1)
        grid[k, 0], grid[k, 1], grid[k, 2], grid[k, 3] = min(low, n), count, 1 + k % 3 * size, place
        place += count + 2


@jit(inline=True)
def _whole(count):
    """Return ``count`` rounded up to whole vectors."""
    return (count + LANES - 1) // LANES * LANES


@jit(inline=True)
def offset_before(grids, g, k, steps, where):
    """Return the place, in anti-diagonal k − ``steps``, of the row before the first row of anti-diagonal k."""
    return grids[g, k - steps, where] + grids[g, k, 0] - 1 - grids[g, k - steps, 0]


@jit
def predecessor_scores(rings, grids, size, k, d):
    """Write differences and the maximum of v over cells (i − 1, j − 1), (i − 1, j) and (i, j − 1) to d.

    Return the width.
    """
    column = 0
    for g in range(size):
        count = grids[g, k, 1]
        two, one = offset_before(grids, g, k, 2, RING), offset_before(grids, g, k, 1, RING)
        # Whole vectors: the next instance overwrites the surplus numbers, or no instance reads them.
        for c in range(_whole(count)):
            x0, x1, x2 = rings[g, u64(two + c)], rings[g, u64(one + c)], rings[g, u64(one + c + 1)]
            top = maximum(maximum(x0, x1), x2)
            base = top if top > -np.inf else 0.0
            d[0, u64(column + c)], d[1, u64(column + c)], d[2, u64(column + c)] = x0 - base, x1 - base, x2 - base
            d[3, u64(column + c)] = top
        column += count
    return _whole(column)


# θ and results are read and written in panels of LANES anti-diagonals, about the numbers of a cache line. ``panel``
# (size, N, LANES) has a column for each anti-diagonal, and its row 0 is the first row i of the panel's first
# anti-diagonal. A single anti-diagonal would touch a cache line, and often a page, for each of its cells.


@jit(inline=True)
def _columns(k, i, n, m, band):
    """Return the columns j of row i in the panel that starts at k: the first column, and the end of the range."""
    return max(0, i - band, k - 2 - i), min(m, i + band + 1, min(k + LANES - 1, n + m) - 1 - i)


@jit
def read_panel(k, first, size, x, lengths, bands, grids, panel):
    """Read the cells of ``x`` (B, n, m) on the anti-diagonals from the k-th on into ``panel``."""
    for g in range(size):
        n, m = lengths[first + g]
        band, low, last = min(bands[first + g], n + m), grids[g, k, 0], min(k + LANES - 1, n + m)
        for i in range(low, grids[g, last, 0] + grids[g, last, 1]):
            start, stop = _columns(k, i, n, m, band)
            if stop - start == LANES:  # a loop of constant length compiles to one vector
                for c in range(LANES):
                    panel[g, u64(i - low), u64(c)] = x[first + g, u64(i), u64(start + c)]
            else:
                for j in range(start, stop):
                    panel[g, u64(i - low), u64(i + j + 2 - k)] = x[first + g, u64(i), u64(j)]


@jit
def write_panel(k, first, size, panel, lengths, bands, grids, out):
    """Write ``panel`` to the cells of ``out`` (B, n, m): the inverse of :func:`read_panel`."""
    for g in range(size):
        n, m = lengths[first + g]
        band, low, last = min(bands[first + g], n + m), grids[g, k, 0], min(k + LANES - 1, n + m)
        for i in range(low, grids[g, last, 0] + grids[g, last, 1]):
            start, stop = _columns(k, i, n, m, band)
            if stop - start == LANES:
                for c in range(LANES):
                    out[first + g, u64(i), u64(start + c)] = panel[g, u64(i - low), u64(c)]
            else:
                for j in range(start, stop):
                    out[first + g, u64(i), u64(j)] = panel[g, u64(i - low), u64(i + j + 2 - k)]


# ``stored`` (size, 2, places) holds two numbers per cell, the packed probabilities of its predecessors, in θ's dtype.


@jit
def store_probabilities(stored, grids, size, k, f):
    """Copy the first two rows of ``f`` to the places of the cells in ``stored``."""
    for row in range(2):
        column = 0
        for g in range(size):
            place = grids[g, k, 3]
            for c in range(grids[g, k, 1]):
                stored[g, row, u64(place + c)] = f[row, u64(column + c)]
            column += grids[g, k, 1]


@jit
def load_probabilities(stored, grids, size, k, q):
    """Unpack the three probabilities of each cell into the first rows of ``q``."""
    column = 0
    for g in range(size):
        place = grids[g, k, 3]
        for c in range(grids[g, k, 1]):
            a, b = stored[g, 0, u64(place + c)], stored[g, 1, u64(place + c)]
            q[0, u64(column + c)], q[1, u64(column + c)], q[2, u64(column + c)] = unpack_probabilities(a, b)
        column += grids[g, k, 1]


# In the backward pass, ``inflow`` (size, 4, n + 3) holds the flow from an anti-diagonal to its predecessor cells, at
# i + 1 for cell i. Rows 0 and 1 hold the diagonal flow of alternate anti-diagonals, row 2 the flow up, and row 3 the
# flow to the left.


@jit
def sum_inflow(inflow, grids, size, k, e):
    """Write the sum of the flow into each cell to the last row of ``e``; return the width."""
    column, turn = 0, k % 2
    for g in range(size):
        low, count = grids[g, k, 0], grids[g, k, 1]
        for c in range(count):
            i = low + c
            e[4, u64(column + c)] = inflow[g, turn, u64(i + 2)] + inflow[g, 2, u64(i + 2)] + inflow[g, 3, u64(i + 1)]
        column += count
    return column


@jit
def store_outflow(inflow, grids, size, k, flow):
    """Replace the flow into the cells in ``inflow`` by the flow out of them, the first three rows of ``flow``."""
    column = 0
    for g in range(size):
        low, count = grids[g, k, 0], grids[g, k, 1]
        for step in range(3):
            row = k % 2 if step == 0 else step + 1
            inflow[g, row, u64(low)], inflow[g, row, u64(low + count + 1)] = 0.0, 0.0
            for c in range(count):
                inflow[g, row, u64(low + c + 1)] = flow[step, u64(column + c)]
        column += count
