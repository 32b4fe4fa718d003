"""Which cells a transport plan can use where some are forbidden, compiled. Importing this module imports numba.

A cell that every plan leaves empty has no finite potentials: Sinkhorn's sweeps would approach it for ever. A plan of
largest total comes from shortest augmenting paths (J. Edmonds & R. Karp, J. ACM 19, 1972); a cell can then be used if
it is, or if it closes a cycle along which the plan can be changed (the decomposition of A. L. Dulmage & N. S.
Mendelsohn, Canadian J. Math. 10, 1958, where all margins are 1).
"""

from __future__ import annotations

import numpy as np

from ..jit import jit

__all__ = ["usable"]

ROUNDING = 1e-12  # of a margin, or of what all add up to


@jit
def usable(start, stop, scores, rows, columns, cells, feasible):
    """Whether each cell (B, n, m) is above 0 in some plan, and whether (B,) there is one.

    Cells of score −inf are forbidden; margins (B | 1, n) and (B | 1, m) have equal totals, up to rounding. Margins may
    be smaller than that is.
    """
    n, m = scores.shape[1], scores.shape[2]
    plan, left, wanted = np.empty((n, m)), np.empty(n), np.empty(m)
    came, before, queue = np.empty(m, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    for k in range(start, stop):
        a, b = rows[min(k, len(rows) - 1)], columns[min(k, len(columns) - 1)]
        left[:], wanted[:], plan[:] = a, b, 0.0
        rest = _fill(scores[k], plan, a, b, left, wanted, came, before, queue)
        _mark(scores[k], plan, a, b, cells[k], came, queue)
        whole = _mark_lost(scores[k], a, b, cells[k])
        feasible[k] = whole and rest <= ROUNDING * a.sum() * (n + m)


@jit
def _ships(plan, a, b, i, j):
    """Whether cell (i, j) is above 0, and not by rounding."""
    return plan[i, j] > ROUNDING * min(a[i], b[j])


@jit
def _fill(scores, plan, a, b, left, wanted, came, before, queue):
    """Ship as much as can be: what of the rows is left."""
    n, m = scores.shape
    for i in range(n):
        for j in range(m):
            if left[i] > 0 and wanted[j] > 0 and scores[i, j] > -np.inf:
                amount = min(left[i], wanted[j])
                plan[i, j] += amount
                left[i] -= amount
                wanted[j] -= amount
    while True:
        # Breadth first from all rows with something left: from a row to any allowed column, and back where it ships.
        came[:], before[:] = -1, -2
        head, tail, end = 0, 0, -1
        for i in range(n):
            if left[i] > ROUNDING * a[i]:
                queue[tail], before[i] = i, -1
                tail += 1
        while head < tail and end < 0:
            i = queue[head]
            head += 1
            for j in range(m):
                if came[j] < 0 and scores[i, j] > -np.inf:
                    came[j] = i
                    if wanted[j] > ROUNDING * b[j]:
                        end = j
                        break
                    for k in range(n):
                        if before[k] == -2 and _ships(plan, a, b, k, j):
                            before[k] = j
                            queue[tail] = k
                            tail += 1
        if end < 0:
            return left.sum()
        amount, j = wanted[end], end
        while True:
            i = came[j]
            if before[i] == -1:
                amount = min(amount, left[i])
                break
            j = before[i]
            amount = min(amount, plan[i, j])
        wanted[end] -= amount
        j = end
        while True:
            i = came[j]
            plan[i, j] += amount
            if before[i] == -1:
                left[i] -= amount
                break
            j = before[i]
            plan[i, j] -= amount


@jit
def _mark(scores, plan, a, b, cells, reached, queue):
    n, m = scores.shape
    for i in range(n):
        for j in range(m):
            cells[i, j] = _ships(plan, a, b, i, j)
    for i in range(n):
        if a[i] == 0:
            continue
        # The rows that can have less if row i has more to give.
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
                        if not seen[h] and _ships(plan, a, b, h, j):
                            seen[h] = True
                            queue[tail] = h
                            tail += 1
        # More in cell (k, j) is less in (i, j), which goes round to where row k has less.
        for j in range(m):
            if _ships(plan, a, b, i, j):
                for k in range(n):
                    if seen[k] and scores[k, j] > -np.inf and a[k] > 0:
                        cells[k, j] = True


@jit
def _mark_lost(scores, a, b, cells):
    """Mark all that a row or column may use whose margin is lost in the rounding of others; whether each has a cell."""
    n, m = scores.shape
    whole = True
    for i in range(n):
        if a[i] > 0 and not cells[i].any():
            for j in range(m):
                cells[i, j] = b[j] > 0 and scores[i, j] > -np.inf
            whole = whole and cells[i].any()
    for j in range(m):
        if b[j] > 0 and not cells[:, j].any():
            for i in range(n):
                cells[i, j] = a[i] > 0 and scores[i, j] > -np.inf
            whole = whole and cells[:, j].any()
    return whole
