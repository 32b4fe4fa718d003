"""Linear assignment by successive shortest paths.

The problem is min Σ_i cost[i, choice_i] over choices of distinct columns for all rows, where cost +inf is forbidden.
Prices of columns (the dual variables) certify the optimum: each row holds a column of lowest ``cost − price``, and a
column held by no row has the highest price. Rows first bid for columns, which places most rows in one scan each
(augmenting row reduction). Dijkstra's algorithm over reduced costs places the other rows.

Sums are in float64 for all dtypes of scores, so that sums of float32 scores are nearly exact. The loops over columns
are written for vectorisation, without gathers and branches. Settled columns stay in place, with price −inf and so
distance +inf.

References
----------
Jonker and Volgenant 1987, "A shortest augmenting path algorithm for dense and sparse linear assignment problems",
Computing 38, pp. 325-340. Crouse 2016, "On implementing 2D rectangular assignment algorithms", IEEE Trans. Aerospace
and Electronic Systems 52(4), pp. 1679-1696.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.scalar.min_max import minimum

__all__ = ["LANES", "Search", "augment", "bid", "lowest_and_second", "new_search"]

LANES = 16
"""Rows of costs are padded with +inf to multiples of this length, so that loops over rows are whole vectors."""

NOWHERE = np.int64(2**62)


class Search(NamedTuple):
    """The state of a search over ``width`` columns."""

    price: np.ndarray  # (width,) dual variable of each column; −inf while the column is settled
    holder: np.ndarray  # (width,) row holding the column, −1 if none
    choice: np.ndarray  # (rows + 1,) column held by the row, −1 if none
    rank: np.ndarray  # (width,) j for an open column j, where a path may end; width + j for another column
    distance: np.ndarray  # (width,) length of the shortest known path to the column, +inf once settled
    via: np.ndarray  # (width,) row before the column on the shortest known path
    reach: np.ndarray  # (width,) price + distance of the column when it was settled


@jit
def new_search(rows, width):
    """Return arrays for problems of at most ``rows`` rows and ``width`` padded columns."""
    return Search(
        np.empty(width),
        np.empty(width, np.int64),
        np.empty(rows + 1, np.int64),
        np.empty(width, np.int64),
        np.empty(width),
        np.empty(width, np.int64),
        np.empty(width),
    )


@jit(inline=True)
def lowest_and_second(cost, row, width, search):
    """Return the row's lowest reduced cost, its column's rank (open first on ties), and the second lowest."""
    price, rank, distance = search.price, search.rank, search.distance
    lowest = np.inf
    for j in range(width):
        reduced = cost[row, j] - price[j]
        distance[j] = reduced
        lowest = minimum(lowest, reduced)
    at, second, ties = NOWHERE, np.inf, 0
    for j in range(width):
        here = distance[j] == lowest
        at = min(at, rank[j] if here else NOWHERE)
        second = minimum(second, np.inf if here else distance[j])
        ties += 1 if here else 0
    return lowest, at if lowest < np.inf else NOWHERE, lowest if ties > 1 else second


@jit(inline=True)
def relax(cost, row, offset, width, search):
    """Shorten paths through ``row``; return the least distance and its column's rank (open first on ties)."""
    price, rank, distance, via = search.price, search.rank, search.distance, search.via
    nearest = np.inf
    for j in range(width):
        length = (cost[row, j] - price[j]) + offset
        old = distance[j]
        via[j] = row if length < old else via[j]
        new = length if length < old else old
        distance[j] = new
        nearest = minimum(nearest, new)
    at = NOWHERE
    for j in range(width):
        at = min(at, rank[j] if distance[j] == nearest else NOWHERE)
    return nearest, at if nearest < np.inf else NOWHERE


@jit
def bid(cost, rows, width, search):
    """Starting without assignments, let rows take their cheapest columns, as long as the second costs more.

    A row that loses its column bids again at once. Bids without an advantage over the second column could go on
    forever. Such rows, and rows left when the budget is spent, wait for :func:`augment`.
    """
    for j in range(width):
        search.price[j] = 0.0
        search.holder[j] = -1
        search.rank[j] = j
    for i in range(rows + 1):
        search.choice[i] = -1
    budget = 2 * rows
    for start in range(rows):
        row = start
        while True:
            lowest, at, second = lowest_and_second(cost, row, width, search)
            if at == NOWHERE:
                break
            is_open = at < width
            j = at if is_open else at - width
            if lowest < second < np.inf and budget > 0:
                search.price[j] -= second - lowest
                budget -= 1
            elif not is_open:
                break
            loser = search.holder[j]
            search.holder[j] = row
            search.choice[row] = j
            if is_open:
                search.rank[j] = width + j
                break
            search.choice[loser] = -1
            row = loser


@jit
def augment(cost, rows, width, search):
    """Place each row without a column, by a shortest path to an open column.

    Columns held by no row are open. In a search for further assignments, a spare row after the last row, of cost 0,
    holds all such columns. The spare row stands for identical rows, one per column, so a path to one of the rows
    reaches all.

    Returns
    -------
    bool
        False as soon as a row can reach no open column. This row and later rows then have no column.
    """
    price, holder, choice, distance, reach = search.price, search.holder, search.choice, search.distance, search.reach
    for start in range(rows):
        if choice[start] >= 0:
            continue
        for j in range(width):
            distance[j] = np.inf
        row, offset = start, 0.0
        while True:
            nearest, at = relax(cost, row, offset, width, search)
            if at < width or at == NOWHERE:
                break
            j = at - width
            row = holder[j]
            offset = nearest - (cost[row, j] - price[j])
            reach[j], price[j], distance[j] = price[j] + nearest, -np.inf, np.inf
            if row == rows:
                choice[row] = j
                for other in range(width):
                    if holder[other] == row and price[other] > -np.inf:
                        reach[other], price[other], distance[other] = price[other] + nearest, -np.inf, np.inf
        if at == NOWHERE:
            return False
        for j in range(width):
            # Settled columns, nearer than the end of the path, become more expensive by the difference.
            price[j] = reach[j] - nearest if price[j] == -np.inf else price[j]
        search.rank[at] = width + at
        j = at
        row = -1
        while row != start:
            row = search.via[j]
            holder[j] = row
            choice[row], j = j, choice[row]
    return True
