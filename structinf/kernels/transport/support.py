"""The cells that transport plans can use if some cells are forbidden. Importing this module imports numba.

If every plan is 0 in an allowed cell, no finite potentials exist, and Sinkhorn's sweeps never converge. Shortest
augmenting paths give a plan of the largest total (J. Edmonds & R. Karp, J. ACM 19, 1972). A cell is usable if this plan
uses the cell, or if the cell closes a cycle along which the plan can change (the decomposition of A. L. Dulmage & N. S.
Mendelsohn, Canadian J. Math. 10, 1958, for margins of 1).
"""

from __future__ import annotations

import numpy as np

from ..jit import jit

__all__ = ["usable_cells"]

ROUNDING = 1e-12  # relative to a margin, or to the sum of all margins


@jit
def usable_cells(start, stop, scores, rows, columns, cells, feasible):
    """Write to ``cells`` (B, n, m) whether any plan has a number above 0 in the cell.

    Write to ``feasible`` (B,) whether any plan exists. Cells with score −inf are forbidden. The margins (B | 1, n) and
    (B | 1, m) have equal totals up to rounding. Margins may be smaller than the rounding error of the totals.
    """
    n, m = scores.shape[1], scores.shape[2]
    plan, supply, demand = np.empty((n, m)), np.empty(n), np.empty(m)
    row_before, column_before, queue = np.empty(m, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    for k in range(start, stop):
        a, b = rows[min(k, len(rows) - 1)], columns[min(k, len(columns) - 1)]
        supply[:], demand[:], plan[:] = a, b, 0.0
        unshipped = _maximise_flow(scores[k], plan, a, b, supply, demand, row_before, column_before, queue)
        _mark_usable(scores[k], plan, a, b, cells[k], row_before, queue)
        is_covered = _mark_rounded_away(scores[k], a, b, cells[k])
        feasible[k] = is_covered and unshipped <= ROUNDING * a.sum() * (n + m)


@jit
def _is_shipped(plan, a, b, i, j):
    """Return whether cell (i, j) is above 0 by more than rounding."""
    return plan[i, j] > ROUNDING * min(a[i], b[j])


@jit
def _maximise_flow(scores, plan, a, b, supply, demand, row_before, column_before, queue):
    """Find a plan of the largest total, and return the amount left in the rows."""
    n, m = scores.shape
    for i in range(n):
        for j in range(m):
            if supply[i] > 0 and demand[j] > 0 and scores[i, j] > -np.inf:
                amount = min(supply[i], demand[j])
                plan[i, j] += amount
                supply[i] -= amount
                demand[j] -= amount
    while True:
        # Breadth-first search from the rows with supply left: from a row to each allowed column, and from a column back
        # to each row that ships to it.
        row_before[:], column_before[:] = -1, -2
        head, tail, end = 0, 0, -1
        for i in range(n):
            if supply[i] > ROUNDING * a[i]:
                queue[tail], column_before[i] = i, -1
                tail += 1
        while head < tail and end < 0:
            i = queue[head]
            head += 1
            for j in range(m):
                if row_before[j] < 0 and scores[i, j] > -np.inf:
                    row_before[j] = i
                    if demand[j] > ROUNDING * b[j]:
                        end = j
                        break
                    for k in range(n):
                        if column_before[k] == -2 and _is_shipped(plan, a, b, k, j):
                            column_before[k] = j
                            queue[tail] = k
                            tail += 1
        if end < 0:
            return supply.sum()
        amount, j = demand[end], end
        while True:
            i = row_before[j]
            if column_before[i] == -1:
                amount = min(amount, supply[i])
                break
            j = column_before[i]
            amount = min(amount, plan[i, j])
        demand[end] -= amount
        j = end
        while True:
            i = row_before[j]
            plan[i, j] += amount
            if column_before[i] == -1:
                supply[i] -= amount
                break
            j = column_before[i]
            plan[i, j] -= amount


@jit
def _mark_usable(scores, plan, a, b, cells, reached, queue):
    n, m = scores.shape
    for i in range(n):
        for j in range(m):
            cells[i, j] = _is_shipped(plan, a, b, i, j)
    for i in range(n):
        if a[i] == 0:
            continue
        # Find the rows that can ship less if row i ships more.
        reached[:] = 0
        queue[0] = i
        head, tail = 0, 1
        seen = np.zeros(n, np.bool_)
        seen[i] = True
        while head < tail:
            k = queue[head]
            head += 1
            for j in range(m):
                if reached[j] == 0 and b[j] > 0 and scores[k, j] > -np.inf:
                    reached[j] = 1
                    for h in range(n):
                        if not seen[h] and _is_shipped(plan, a, b, h, j):
                            seen[h] = True
                            queue[tail] = h
                            tail += 1
        # If cell (k, j) gains an amount, cell (i, j) loses it, and a path of other cells restores the rows i and k.
        for j in range(m):
            if _is_shipped(plan, a, b, i, j):
                for k in range(n):
                    if seen[k] and scores[k, j] > -np.inf and a[k] > 0:
                        cells[k, j] = True


@jit
def _mark_rounded_away(scores, a, b, cells):
    """Mark the allowed cells of rows and columns without a usable cell, since rounding may hide a margin near 0.

    Return whether each row and column with a positive margin now has a cell.
    """
    n, m = scores.shape
    is_covered = True
    for i in range(n):
        if a[i] > 0 and not cells[i].any():
            for j in range(m):
                cells[i, j] = b[j] > 0 and scores[i, j] > -np.inf
            is_covered = is_covered and cells[i].any()
    for j in range(m):
        if b[j] > 0 and not cells[:, j].any():
            for i in range(n):
                cells[i, j] = a[i] > 0 and scores[i, j] > -np.inf
            is_covered = is_covered and cells[:, j].any()
    return is_covered
