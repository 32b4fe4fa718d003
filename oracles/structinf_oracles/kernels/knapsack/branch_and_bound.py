"""The best subsets under several capacities, by branch and bound with a Lagrangian bound.

With multipliers u ≥ 0 for the capacities c, L(u) = ⟨u, c⟩ + Σ max(0, r_j) bounds the score of every subset, for the
reduced scores r_j = p_j − ⟨u, w_j⟩ (H. Kellerer, U. Pferschy & D. Pisinger, Knapsack Problems, Springer 2004, §9.2). A
decision against the sign of r_j lowers the bound by |r_j|, so that a node of the search costs as many operations as
there are capacities. The search decides the items in the order of falling |r_j|: most decisions against the sign are
then cut off at once.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["best_subsets"]

_STEPS = 150
"""The largest number of steps of the subgradient method for the multipliers."""


@jit
def _sort(items, key):
    """Sort ``items`` by falling ``key``, by insertion: an order mostly differs little from the order before."""
    for n in range(1, len(items)):
        item, i = items[n], n
        while i > 0 and key[items[i - 1]] < key[item]:
            items[i] = items[i - 1]
            i -= 1
        items[i] = item


@jit
def _fits(item, w, room):
    for i in range(len(room)):  # noqa: SIM110 - numba compiles no generators
        if w[i, item] > room[i]:
            return False
    return True


@jit
def _fill(items, p, w, room, taken):
    """Add the ``items`` in their order while they fit, and return the score of the ``taken`` items."""
    score = 0.0
    for j in items:
        taken[j] = _fits(j, w, room)
        if taken[j]:
            score += p[j]
            for i in range(len(room)):
                room[i] -= w[i, j]
    return score


@jit
def _multipliers(p, w, c, items, least_r, best):
    """Minimise L by subgradient steps of Polyak's length. Return the least bound, and the score of the best filling.

    Writes the reduced scores to ``least_r`` (d,) and the filling to ``best`` (d,). A filling adds the items that fit,
    in the order of score per ⟨u, w_j⟩.
    """
    m, d = w.shape
    u, slope, room = np.zeros(m), np.zeros(m), np.zeros(m)
    r, key, taken = np.zeros(d), np.zeros(d), np.zeros(d, np.bool_)
    least, score, length, since = np.inf, -1.0, 1.0, 0
    for _ in range(_STEPS):
        bound, square = 0.0, 0.0
        for i in range(m):
            bound += u[i] * c[i]
            slope[i] = room[i] = c[i]
        for j in items:
            cost = 0.0
            for i in range(m):
                cost += u[i] * w[i, j]
            r[j], key[j] = p[j] - cost, p[j] / cost if cost > 0 else np.inf
            if r[j] > 0:
                bound += r[j]
                for i in range(m):
                    slope[i] -= w[i, j]
        for i in range(m):
            if slope[i] < 0 or u[i] > 0:
                square += slope[i] * slope[i]
        since += 1
        if bound < least:
            least, since = bound, 0
            _sort(items, key)
            found = _fill(items, p, w, room, taken)
            for j in items:
                least_r[j] = r[j]
                if found > score:
                    best[j] = taken[j]
            score = max(score, found)
        elif since == 8:
            length, since = length / 2, 0
        if square == 0 or least <= score:
            break
        for i in range(m):
            u[i] = max(u[i] - length * (bound - score) / square * slope[i], 0.0)
    return least, score


@jit
def _search(p, w, c, items, bound, r, score, best, most_nodes):
    """Improve the subset ``best`` (d,) of the ``score`` to a best subset. Return whether ``most_nodes`` were enough.

    The search decides the ``items`` in their order, first by the sign of r.
    """
    m, d = len(c), len(items)
    rest, rest_weight = np.zeros(d + 1), np.zeros((d + 1, m))
    for t in range(d - 1, -1, -1):
        rest[t] = rest[t + 1] + p[items[t]]
        for i in range(m):
            rest_weight[t, i] = rest_weight[t + 1, i] + w[i, items[t]]
    taken, tried = np.zeros(d, np.bool_), np.zeros(d + 1, np.int64)
    bounds, scores, room = np.zeros(d + 1), np.zeros(d + 1), np.zeros((d + 1, m))
    bounds[0] = bound
    for i in range(m):
        room[0, i] = c[i]
    t, nodes = 0, 0
    while t >= 0:
        if tried[t] == 0:
            nodes += 1
            if nodes > most_nodes:
                return False
            all_fit = True
            for i in range(m):
                all_fit &= rest_weight[t, i] <= room[t, i]
            if all_fit and scores[t] + rest[t] > score:
                score = scores[t] + rest[t]
                for k in range(d):
                    best[items[k]] = taken[k] if k < t else True
            if all_fit or bounds[t] <= score:
                tried[t] = 2
        if tried[t] == 2:
            t -= 1
            continue
        j = items[t]
        takes = (r[j] > 0) == (tried[t] == 0)
        tried[t] += 1
        if takes and not _fits(j, w, room[t]):
            continue
        taken[t] = takes
        for i in range(m):
            room[t + 1, i] = room[t, i] - (w[i, j] if takes else 0.0)
        scores[t + 1] = scores[t] + (p[j] if takes else 0.0)
        bounds[t + 1] = bounds[t] - (abs(r[j]) if takes != (r[j] > 0) else 0.0)
        tried[t + 1] = 0
        t += 1
    return True


@jit
def best_subsets(start, stop, theta, weights, capacities, most_nodes, out, solved):
    """Write the best subsets to ``out`` (B, d), initially zero, and whether ``most_nodes`` were enough to ``solved``.

    ``theta`` (B, d) float64 is at most 1. ``weights`` (B, m, d), with sums of at most 2^53, and ``capacities`` (B, m),
    of at most 2^53, are integers in float64, so that their sums and differences are exact.
    """
    d = theta.shape[1]
    every, r, size, best = np.zeros(d, np.int64), np.zeros(d), np.zeros(d), np.zeros(d, np.bool_)
    for b in range(start, stop):
        p, w, c, count = theta[b], weights[b], capacities[b], 0
        for j in range(d):
            if p[j] > 0 and _fits(j, w, c):
                every[count] = j
                count += 1
        items = every[:count]
        bound, score = _multipliers(p, w, c, items, r, best)
        for j in items:
            size[j] = abs(r[j])
        _sort(items, size)
        solved[b] = _search(p, w, c, items, bound, r, score, best, most_nodes)
        for j in items:
            if best[j]:
                out[b, j] = 1.0
