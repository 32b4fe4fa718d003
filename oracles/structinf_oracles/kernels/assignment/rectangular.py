"""Any instance of the assignment problem as one whose every row is matched.

The smaller side is matched wholly: with more rows than columns, the block of costs is the
transpose. Where −inf parts allow fewer matches than that, rows and columns fall into two groups
(Dulmage and Mendelsohn 1958, "Coverings of bipartite graphs", Canadian J. of Mathematics 10,
pp. 517-534): in every matching of the most parts, the *surplus* columns are all taken, by surplus
rows, which outnumber them; the other rows all find a column among the others. So

    block = [ costs of other rows × other columns                    +inf                    ]
            [                 +inf                    costs of surplus columns × surplus rows ]

has to match all its rows, and its assignments are the matchings of the most parts. A transpose is
the case in which all are surplus.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structinf.kernels.jit import jit

from .shortest_augmenting_paths import LANES, augment, bid, new_search

__all__ = ["OTHER", "SURPLUS", "UNUSED", "Block", "argmax", "lay_out", "mark_surplus", "new_block", "pad", "write"]

OTHER, SURPLUS, UNUSED = 0, 1, 2
"""Groups of rows and columns; the unused ones are padding."""

# Halved 32 times, which is exact, costs leave room for sums of them at the far end of float64.
SCALE = 2.0**-32


class Block(NamedTuple):
    """A matrix of costs, and which part of θ each entry is."""

    cost: np.ndarray  # (rows + 1, width) float64; a row of zeros comes last
    row_part: np.ndarray  # (rows,) row of θ, from the split on column of θ
    column_part: np.ndarray  # (width,) column of θ, from the split on row of θ


@jit
def pad(columns):
    """Length of a row of costs with its padding."""
    return (columns + LANES - 1) // LANES * LANES


@jit
def new_block(rows, columns):
    """Arrays for blocks of at most this size, and for the search over them."""
    width = pad(columns)
    block = Block(np.empty((rows + 1, width)), np.empty(rows, np.int64), np.empty(width, np.int64))
    return block, new_search(rows, width)


@jit
def lay_out(theta, b, row_group, column_group, block):
    """Fill the block of instance ``b``; its number of rows, of columns, and the row from which it is transposed."""
    cost, row_part, column_part = block.cost, block.row_part, block.column_part
    shared = b % row_group.shape[0]
    rows, columns = 0, 0
    for i in range(row_group.shape[1]):
        if row_group[shared, i] == OTHER:
            row_part[rows] = i
            rows += 1
    for j in range(column_group.shape[1]):
        if column_group[shared, j] == OTHER:
            column_part[columns] = j
            columns += 1
    split, split_column = rows, columns
    for j in range(column_group.shape[1]):
        if column_group[shared, j] == SURPLUS:
            row_part[rows] = j
            rows += 1
    for i in range(row_group.shape[1]):
        if row_group[shared, i] == SURPLUS:
            column_part[columns] = i
            columns += 1
    width = pad(columns)
    untouched = split == theta.shape[1] and split_column == theta.shape[2]
    for i in range(rows):
        for j in range(width):
            cost[i, j] = np.inf
        if untouched:
            for j in range(columns):
                cost[i, j] = theta[b, i, j] * -SCALE
        elif i < split:
            for j in range(split_column):
                cost[i, j] = theta[b, row_part[i], column_part[j]] * -SCALE
        else:
            for j in range(split_column, columns):
                cost[i, j] = theta[b, column_part[j], row_part[i]] * -SCALE
    for j in range(width):
        cost[rows, j] = 0.0 if j < columns else np.inf
    return rows, columns, split


@jit
def write(y, choice, rows, split, block):
    """Write the structure that ``choice`` describes to ``y`` (n, m)."""
    y[:] = 0.0
    for i in range(rows):
        one, other = block.row_part[i], block.column_part[choice[i]]
        if i < split:
            y[one, other] = 1.0
        else:
            y[other, one] = 1.0


@jit
def argmax(start, stop, theta, row_group, column_group, columns_most, y, feasible):
    """A best structure of each instance.

    Parameters
    ----------
    theta : (B, n, m) floats
    row_group, column_group : (B | 1, n), (B | 1, m) int8
    columns_most : int
        No block has more columns.
    y : (B, n, m) floats, written
    feasible : (B,) bool, written
        False where the block cannot match all its rows; ``y`` is not written there.
    """
    block, search = new_block(min(theta.shape[1], theta.shape[2]), columns_most)
    for b in range(start, stop):
        rows, columns, split = lay_out(theta, b, row_group, column_group, block)
        bid(block.cost, rows, pad(columns), search)
        feasible[b] = augment(block.cost, rows, pad(columns), search)
        if feasible[b]:
            write(y[b], search.choice, rows, split, block)


@jit
def mark_surplus(start, stop, theta, row_group, column_group):
    """Find the surplus rows and columns of each instance, from a matching of the most parts that are not −inf.

    A row from which no path of allowed parts leads to a free column has more rows than columns
    around it: all that its search saw is surplus, and a dead end for every later search.

    Parameters
    ----------
    theta : (B, n, m) floats
    row_group, column_group : (B, n), (B, m) int8, OTHER or UNUSED; the surplus is written
    """
    n, m = theta.shape[1], theta.shape[2]
    holder, choice = np.empty(m, np.int64), np.empty(n, np.int64)
    via, queue = np.empty(m, np.int64), np.empty(n, np.int64)
    for b in range(start, stop):
        holder[:] = -1
        choice[:] = -1
        for first in range(n):
            if row_group[b, first] == UNUSED:
                continue
            via[:] = -1
            queue[0] = first
            read, filled, end = 0, 1, -1
            while read < filled and end < 0:
                row = queue[read]
                read += 1
                for j in range(m):
                    if theta[b, row, j] > -np.inf and via[j] < 0 and column_group[b, j] == OTHER:
                        via[j] = row
                        if holder[j] < 0:
                            end = j
                            break
                        queue[filled] = holder[j]
                        filled += 1
            if end < 0:
                for s in range(filled):
                    row_group[b, queue[s]] = SURPLUS
                for j in range(m):
                    column_group[b, j] = SURPLUS if via[j] >= 0 else column_group[b, j]
                continue
            row = -1
            while row != first:
                row = via[end]
                holder[end] = row
                choice[row], end = end, choice[row]
