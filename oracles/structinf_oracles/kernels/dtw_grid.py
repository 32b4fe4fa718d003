"""Where the numbers of an alignment grid's cells lie, anti-diagonal by anti-diagonal, and how they come together.

Instances are served in groups (see :mod:`.dtw_cpu`), whose cells of one anti-diagonal stand side by side in the columns
of :mod:`.dtw_nodes`: vectors are full and no operation waits for the one before, however short the anti-diagonals are.
For the instance g of a group, the row k of ``grids[g]`` describes the anti-diagonal i + j = k − 2:

    first row i of the cells inside the band,    their number,    the place of the first in a row of ``tables[g]``.

The rows 0 and 1, and those behind the instance's last cell, have no cells. Between anti-diagonals lie two places that
stand for cells outside, with v = −inf.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.extrema import maximum
from structinf.kernels.jit import jit

__all__ = ["LANES", "at", "collect", "compare", "layout", "place_before", "send"]

# Loops run over multiples of so many columns, whole vectors of float32 or float64.
LANES = 16

# An index: signed ones may count from the end, and asking whether they do keeps loops from being vectorised.
at = np.uint64


@jit
def layout(n, m, band, is_ring, grid):
    """Fill ``grid`` (N + M + 1, 3) for n ≤ N rows and m ≤ M columns; return the number of places that a table needs.

    In a ring, each anti-diagonal takes the places of the third before.
    """
    band = min(band, n + m)
    place, size = 1, min(n, m) + LANES + 2
    for k in range(len(grid)):
        d = k - 2
        low = max(0, d - m + 1, (d - band + 1) // 2)
        count = max(0, min(n - 1, d, (d + band) // 2) - low + 1)
        grid[k, 0], grid[k, 1], grid[k, 2] = min(low, n), count, place
        place = 1 + (k + 1) % 3 * size if is_ring else place + count + 2
    return (3 * size if is_ring else place) + LANES


@jit(inline=True)
def _whole(count):
    """``count``, rounded up to whole vectors."""
    return (count + LANES - 1) // LANES * LANES


@jit(inline=True)
def place_before(grids, g, k, steps):
    """The place, ``steps`` anti-diagonals before the k-th, of the cell in the row before the first."""
    return grids[g, k - steps, 2] + grids[g, k, 0] - 1 - grids[g, k - steps, 0]


@jit
def compare(tables, grids, size, k, d):
    """Differences and maximum of v over the cells (i − 1, j − 1), (i − 1, j) and (i, j − 1); returns the width."""
    column = 0
    for g in range(size):
        count, two, one = grids[g, k, 1], place_before(grids, g, k, 2), place_before(grids, g, k, 1)
        # Whole vectors: what is written too much is the next instance's to overwrite, or nobody's.
        for c in range(_whole(count)):
            x0, x1, x2 = tables[g, at(two + c)], tables[g, at(one + c)], tables[g, at(one + c + 1)]
            top = maximum(maximum(x0, x1), x2)
            base = top if top > -np.inf else 0.0
            d[0, at(column + c)], d[1, at(column + c)], d[2, at(column + c)] = x0 - base, x1 - base, x2 - base
            d[3, at(column + c)] = top
        column += count
    return _whole(column)


# On the way back, ``inflow`` (size, 4, n + 3) holds what flows from an anti-diagonal to the cells before it, at i + 1
# for cell i: in rows 0 and 1, by turns, along the diagonal, in row 2 up and in row 3 to the left.


@jit
def collect(inflow, grids, size, k, e):
    """What flows into the cells, into the last row of ``e``."""
    column, turn = 0, k % 2
    for g in range(size):
        low, count = grids[g, k, 0], grids[g, k, 1]
        for c in range(count):
            i = low + c
            e[4, at(column + c)] = inflow[g, turn, at(i + 2)] + inflow[g, 2, at(i + 2)] + inflow[g, 3, at(i + 1)]
        column += count


@jit
def send(inflow, grids, size, k, flow):
    """What flows out of the cells, the first three rows of ``flow``, in the place of what flowed into them."""
    column = 0
    for g in range(size):
        low, count = grids[g, k, 0], grids[g, k, 1]
        for step in range(3):
            row = k % 2 if step == 0 else step + 1
            inflow[g, row, at(low)], inflow[g, row, at(low + count + 1)] = 0.0, 0.0
            for c in range(count):
                inflow[g, row, at(low + c + 1)] = flow[step, at(column + c)]
        column += count
