"""The k best assignments.

The assignments other than a best one, c, are split by the first row in which they differ from c. The part of row t
holds row i at c_i for i < t and bans c_t for row t (Murty 1968, "An algorithm for ranking all the assignments in
order of increasing cost", Operations Research 16(3), pp. 682-687). The best assignment of a part is one augmentation
away from c, since the prices of c stay feasible. The second lowest reduced cost of row t is a lower bound of the
part's cost, so that most parts are never solved (Miller, Stone and Cox 1997, "Optimizing Murty's ranked assignment
method", IEEE Trans. Aerospace and Electronic Systems 33(3), pp. 851-862).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structinf.kernels.jit import jit

from .rectangular import SCALE, lay_out, new_block, pad, write
from .shortest_augmenting_paths import augment, bid, lowest_and_second

__all__ = ["topk"]


class Parts(NamedTuple):
    """Parts of the set of assignments, in the order of splitting. Part 0 is the whole set."""

    cost: np.ndarray  # (parts,) float64, cost of the part's best assignment, or a lower bound
    solution: np.ndarray  # (parts,) slot of the part's best assignment, −1 while only a bound is known
    parent: np.ndarray  # (parts,) slot of the assignment from which the part was split
    row: np.ndarray  # (parts,) row banned from a column; earlier rows keep their columns
    column: np.ndarray  # (parts,) the banned column
    earlier: np.ndarray  # (parts,) part with the next ban for the same row, 0 if there is none
    heap: np.ndarray  # (parts,) open parts, as a binary heap on (cost, part)


class Solutions(NamedTuple):
    """Slots for the best assignments of parts, as many as the number of assignments wanted."""

    part: np.ndarray  # (slots,) the part of the assignment
    choice: np.ndarray  # (slots, rows) the column of each row
    price: np.ndarray  # (slots, width) the dual variable of each column
    ranked: np.ndarray  # (slots,) bool, whether the assignment is one of the final k best


@jit
def new_parts(size):
    """Return arrays for ``size`` parts."""
    return Parts(
        np.empty(size),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
    )


@jit
def new_solutions(slots, rows, width):
    """Return arrays for ``slots`` assignments of at most ``rows`` rows."""
    return Solutions(
        np.empty(slots, np.int64),
        np.empty((slots, rows), np.int64),
        np.empty((slots, width)),
        np.empty(slots, np.bool_),
    )


@jit(inline=True)
def precedes(parts, one, other):
    return parts.cost[one] < parts.cost[other] or (parts.cost[one] == parts.cost[other] and one < other)


@jit
def push(part, size, parts):
    """Add the part to the heap; return the heap's new size."""
    heap, at = parts.heap, size
    while at > 0 and precedes(parts, part, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = part
    return size + 1


@jit
def pop(size, parts):
    """Remove and return the first part of a nonempty heap."""
    heap = parts.heap
    first, last = heap[0], heap[size - 1]
    size -= 1
    at, child = 0, 1
    while child < size:
        if child + 1 < size and precedes(parts, heap[child + 1], heap[child]):
            child += 1
        if not precedes(parts, heap[child], last):
            break
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = last
    return first


@jit(inline=True)
def swap_bans(cost, part, parts, aside):
    """Swap the costs banned by the part with ``aside``: +inf in the first call, the costs in the second."""
    depth = 0
    while part > 0:
        i, j = parts.row[part], parts.column[part]
        cost[i, j], aside[depth] = aside[depth], cost[i, j]
        part = parts.earlier[part]
        depth += 1


@jit
def enter(rows, columns, part, parts, solutions, search):
    """Set up the search for the part's best assignment: the parent's assignment without the banned choice."""
    price, holder, choice, rank = search.price, search.holder, search.choice, search.rank
    parent, row, width = parts.parent[part], parts.row[part], pad(columns)
    for j in range(width):
        price[j] = solutions.price[parent, j]
        holder[j] = rows if j < columns else -1
        rank[j] = width + j
    for i in range(rows):
        j = solutions.choice[parent, i]
        choice[i] = j
        holder[j] = i
        if i < row:
            price[j] = search.reach[j] = -np.inf
    opened = choice[row]
    rank[opened] = opened
    holder[opened] = choice[row] = -1


@jit
def keep(cost, rows, width, part, parts, used, solutions, search):
    """Store the assignment in ``search`` as the part's best; return the number of slots in use.

    If all slots are in use, the assignment takes the slot of the last part in order. If the part itself is the last,
    nothing is stored: k parts precede the part on the heap, so the assignment is never needed.
    """
    total = 0.0
    for i in range(rows):
        total += cost[i, search.choice[i]]
    parts.cost[part] = total
    slot = used
    if used == solutions.part.size:
        last = part
        for s in range(used):
            if not solutions.ranked[s] and precedes(parts, last, solutions.part[s]):
                slot, last = s, solutions.part[s]
        if last == part:
            return used
    solutions.part[slot], solutions.ranked[slot] = part, False
    for i in range(rows):
        solutions.choice[slot, i] = search.choice[i]
    for j in range(width):
        solutions.price[slot, j] = search.price[j]
    parts.solution[part] = slot
    return max(used, slot + 1)


@jit
def split_up(cost, rows, width, part, parts, end, size, solutions, aside, search):
    """Split the part by its best assignment into parts from ``end`` on; return their end and the heap's size."""
    price, rank = search.price, search.rank
    solution, first = parts.solution[part], parts.row[part]
    for j in range(width):
        price[j] = solutions.price[solution, j]
        rank[j] = j
    for row in range(first, rows):
        held = solutions.choice[solution, row]
        reduced = cost[row, held] - price[held]
        price[held] = -np.inf  # banned for this row, and held by this row for later rows
        banned = part if row == first else 0
        swap_bans(cost, banned, parts, aside)
        lowest = lowest_and_second(cost, row, width, search)[0]
        swap_bans(cost, banned, parts, aside)
        if lowest < np.inf:
            parts.cost[end] = parts.cost[part] + (lowest - reduced)
            parts.solution[end], parts.parent[end], parts.row[end], parts.column[end] = -1, solution, row, held
            parts.earlier[end] = banned
            size = push(end, size, parts)
            end += 1
    return end, size


@jit
def add_ranked(part, parts, order, ranked, solutions):
    """Rank the part's best assignment after earlier ones, or before some if rounding of a bound delayed the part."""
    solutions.ranked[parts.solution[part]] = True
    place = ranked
    while place > 0 and parts.cost[order[place - 1]] > parts.cost[part]:
        order[place] = order[place - 1]
        place -= 1
    order[place] = part


@jit
def topk(start, stop, theta, row_group, column_group, columns_most, y, scores):
    """Find the k best structures of each instance, best first.

    Parameters
    ----------
    theta : (B, n, m) floats
        Scores of the pairs.
    row_group, column_group, columns_most
        As for :func:`.rectangular.argmax`.
    y : (k, B, n, m) floats, written
        0 if there are fewer than k structures.
    scores : (k, B) float64, written
        −inf if there are fewer than k structures.
    """
    k = y.shape[0]
    rows_most = min(theta.shape[1], theta.shape[2])
    block, search = new_block(rows_most, columns_most)
    parts, solutions = new_parts(1 + k * rows_most), new_solutions(k, rows_most, pad(columns_most))
    order, aside = np.empty(k, np.int64), np.full(columns_most, np.inf)
    for b in range(start, stop):
        rows, columns, split = lay_out(theta, b, row_group, column_group, block)
        cost, width = block.cost, pad(columns)
        bid(cost, rows, width, search)
        parts.cost[0], parts.solution[0], parts.row[0], parts.heap[0] = -np.inf, -1, 0, 0
        # Fixed types, as numba would otherwise compile the called functions once more for literals.
        end, size, used, ranked = np.int64(1), np.int64(1), np.int64(0), np.int64(0)
        while size > 0 and ranked < k:
            part = pop(size, parts)
            size -= 1
            if parts.solution[part] < 0:
                if part > 0:
                    enter(rows, columns, part, parts, solutions, search)
                swap_bans(cost, part, parts, aside)
                if augment(cost, rows, width, search):
                    used = keep(cost, rows, width, part, parts, used, solutions, search)
                    if parts.solution[part] >= 0:
                        size = push(part, size, parts)
                swap_bans(cost, part, parts, aside)
            else:
                add_ranked(part, parts, order, ranked, solutions)
                ranked += 1
                end, size = split_up(cost, rows, width, part, parts, end, size, solutions, aside, search)
        for r in range(ranked):
            write(y[r, b], solutions.choice[parts.solution[order[r]]], rows, split, block)
            scores[r, b] = -parts.cost[order[r]] / SCALE
        for r in range(ranked, k):
            y[r, b] = 0.0
            scores[r, b] = -np.inf
