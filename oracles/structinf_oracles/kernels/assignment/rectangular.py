"""Reduction of any assignment problem to a problem in which every row is matched.

The whole smaller side is matched. With more rows than columns, the block of costs is the transpose. If −inf parts
allow fewer matches, rows and columns fall into two groups (Dulmage and Mendelsohn 1958, "Coverings of bipartite
graphs", Canadian J. of Mathematics 10, pp. 517-534). In every matching with the most pairs, the *surplus* columns are
all matched with surplus rows, which outnumber them. The other rows are all matched with other columns. So the block

    block = [ costs of other rows × other columns                    +inf                    ]
            [                 +inf                    costs of surplus columns × surplus rows ]

must match all its rows, and its assignments are the matchings with the most pairs. In a transposed problem all rows
and columns are surplus.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structinf.kernels.jit import jit

from .shortest_augmenting_paths import LANES, augment, bid, new_search

__all__ = [
    "OTHER",
    "SURPLUS",
    "UNUSED",
    "Block",
    "argmax",
    "argmax_indices",
    "lay_out",
    "mark_surplus",
    "new_block",
    "pad",
    "write",
]

OTHER, SURPLUS, UNUSED = 0, 1, 2
"""Groups of rows and columns; UNUSED is padding."""

# Scaling costs by a power of two is exact, and prevents overflow in sums of costs near the limit of float64.
SCALE = 2.0**-32


class Block(NamedTuple):
    """A matrix of costs, with the entry of θ for each cost."""

    cost: np.ndarray  # (rows + 1, width) float64; the last row is zeros
    row_part: np.ndarray  # (rows,) row of θ; column of θ in the transposed part
    column_part: np.ndarray  # (width,) column of θ; row of θ in the transposed part


@jit
def pad(columns):
    """Return the length of a row of costs with padding."""
    return (columns + LANES - 1) // LANES * LANES


@jit
def new_block(rows, columns):
    """Return arrays for blocks of at most this size, and for the search over them."""
    width = pad(columns)
    block = Block(np.empty((rows + 1, width)), np.empty(rows, np.int64), np.empty(width, np.int64))
    return block, new_search(rows, width)


@jit
def lay_out(theta, b, row_group, column_group, block):
    """Fill the block of instance ``b``; return its numbers of rows and columns, and the first transposed row."""
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
def _pair(i, choice, split, block):
    """Return the row and the column of θ that row ``i`` of the block matches."""
    one, other = block.row_part[i], block.column_part[choice[i]]
    return (one, other) if i < split else (other, one)


@jit
def write(y, choice, rows, split, block):
    """Write the structure described by ``choice`` to ``y`` (n, m)."""
    y[:] = 0.0
    for i in range(rows):
        row, column = _pair(i, choice, split, block)
        y[row, column] = 1.0


@jit
def argmax(start, stop, theta, row_group, column_group, columns_most, y, feasible):
    """Find a best structure of each instance.

    Parameters
    ----------
    theta : (B, n, m) floats
        Scores of the pairs.
    row_group, column_group : (B | 1, n) and (B | 1, m) int8
        The group of each row and column: OTHER, SURPLUS or UNUSED.
    columns_most : int
        The largest number of columns of a block.
    y : (B, n, m) floats, written
        The structures; left as they are if an instance is infeasible.
    feasible : (B,) bool, written
        Whether the block can match all its rows.
    """
    block, search = new_block(min(theta.shape[1], theta.shape[2]), columns_most)
    for b in range(start, stop):
        rows, columns, split = lay_out(theta, b, row_group, column_group, block)
        bid(block.cost, rows, pad(columns), search)
        feasible[b] = augment(block.cost, rows, pad(columns), search)
        if feasible[b]:
            write(y[b], search.choice, rows, split, block)


@jit
def argmax_indices(start, stop, theta, row_group, column_group, columns_most, columns, feasible, parts):
    """Find the structures of :func:`argmax` as lists of parts.

    ``parts`` (B, min(n, m)) is written: row · ``columns`` + column for each pair, and −1 beyond the last pair. Pairs
    with a column from ``columns`` on are left out.
    """
    block, search = new_block(min(theta.shape[1], theta.shape[2]), columns_most)
    for b in range(start, stop):
        rows, width, split = lay_out(theta, b, row_group, column_group, block)
        bid(block.cost, rows, pad(width), search)
        feasible[b] = augment(block.cost, rows, pad(width), search)
        found = 0
        for i in range(rows if feasible[b] else 0):
            row, column = _pair(i, search.choice, split, block)
            if column < columns:
                parts[b, found] = row * columns + column
                found += 1
        for i in range(found, parts.shape[1]):
            parts[b, i] = -1


@jit
def mark_surplus(start, stop, theta, row_group, column_group):
    """Find the surplus rows and columns of each instance, from a matching with the most parts above −inf.

    If no path of allowed parts leads from a row to a free column, the row has too few columns around it. All rows and
    columns reached by the search are then surplus, and later searches avoid them.

    Parameters
    ----------
    theta : (B, n, m) floats
        Scores of the pairs.
    row_group, column_group : (B, n) and (B, m) int8
        OTHER or UNUSED on entry; SURPLUS is written.
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
