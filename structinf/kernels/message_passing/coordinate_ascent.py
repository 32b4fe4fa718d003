"""Coordinate ascent of mean field, and the sweeps for its derivative. Importing this module imports numba.

The distributions q of all variables lie in a row of values, from ``first_value[v]`` on. ``graph`` is a
`structinf.solvers.factor_edges.EdgeGraph`, and ``order`` holds the variables in the order of a sweep.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp

__all__ = ["ascend", "tangents"]


@jit
def _strides(e, first, graph):
    """Return the strides of edge ``e`` and of the other edge in the table of a factor of two variables."""
    return (graph.cardinality[first + 1], 1) if e == first else (1, graph.cardinality[first + 1])


@jit
def _add_expected(e, k, table, graph, q, scores):
    """Add the expected scores of factor ``k`` given each value of the variable of edge ``e``; −inf if forbidden."""
    first, last = graph.first_edge[k], graph.first_edge[k + 1]
    if last - first == 2:
        own, other = _strides(e, first, graph)
        at = graph.edge_value[2 * first + 1 - e]
        for x in range(graph.cardinality[e]):
            for y in range(graph.cardinality[2 * first + 1 - e]):
                entry = table[graph.first_entry[k] + x * own + y * other]
                if entry > -np.inf:
                    scores[x] += entry * q[at + y]
                elif q[at + y] > 0.0:
                    scores[x] = -np.inf
        return
    for i in range(graph.first_entry[k + 1] - graph.first_entry[k]):
        rest, x, share, possible = i, 0, 1.0, True
        for j in range(last - 1, first - 1, -1):
            digit = rest % graph.cardinality[j]
            rest //= graph.cardinality[j]
            if j == e:
                x = digit
            else:
                share *= q[graph.edge_value[j] + digit]
                possible = possible and q[graph.edge_value[j] + digit] > 0.0
        entry = table[graph.first_entry[k] + i]
        if entry > -np.inf:
            scores[x] += entry * share
        elif possible:
            scores[x] = -np.inf


@jit
def _add_change(e, k, table, graph, q, change, scores):
    """Add the derivative of :func:`_add_expected` for a ``change`` of q."""
    first, last = graph.first_edge[k], graph.first_edge[k + 1]
    if last - first == 2:
        own, other = _strides(e, first, graph)
        at = graph.edge_value[2 * first + 1 - e]
        for x in range(graph.cardinality[e]):
            for y in range(graph.cardinality[2 * first + 1 - e]):
                entry = table[graph.first_entry[k] + x * own + y * other]
                if entry > -np.inf:
                    scores[x] += entry * change[at + y]
        return
    for i in range(graph.first_entry[k + 1] - graph.first_entry[k]):
        rest, x, share, slope = i, 0, 1.0, 0.0
        for j in range(last - 1, first - 1, -1):
            digit = rest % graph.cardinality[j]
            rest //= graph.cardinality[j]
            if j == e:
                x = digit
            else:
                at = graph.edge_value[j] + digit
                slope = slope * q[at] + share * change[at]
                share *= q[at]
        entry = table[graph.first_entry[k] + i]
        if entry > -np.inf:
            scores[x] += entry * slope


@jit
def ascend(start, stop, tables, base, graph, order, limit, max_iter, q, residual):
    """Change ``q``, which holds the start, until no probability of an instance changes by more than the limit."""
    scores = np.empty(graph.largest_cardinality)
    for b in range(start, stop):
        table, own = tables[min(b, len(tables) - 1)], q[b]
        for _ in range(max_iter):
            largest = 0.0
            for v in order:
                at, count = graph.first_value[v], graph.first_value[v + 1] - graph.first_value[v]
                scores[:count] = base[b, at : at + count]
                for i in range(graph.first_use[v], graph.first_use[v + 1]):
                    _add_expected(graph.uses[i], graph.edge_factor[graph.uses[i]], table, graph, own, scores)
                top, total = -np.inf, 0.0
                for x in range(count):
                    top = max(top, scores[x])
                for x in range(count):
                    scores[x] = exp(scores[x] - top)
                    total += scores[x]
                for x in range(count):
                    new = scores[x] / total
                    largest = max(largest, abs(new - own[at + x]))
                    own[at + x] = new
            residual[b] = largest
            if largest <= limit[b]:
                break


@jit
def tangents(start, stop, tables, given, graph, order, q, limit, max_iter, change, residual, scale):
    """Change ``change``, which holds zeros, until it is the derivative of ``q`` for the change ``given`` of scores.

    ``limit`` is the accepted change in a sweep, for derivatives of size ``scale`` at most.
    """
    scores = np.empty(graph.largest_cardinality)
    for b in range(start, stop):
        table, own, moved = tables[min(b, len(tables) - 1)], q[b], change[b]
        for _ in range(max_iter):
            largest, size = 0.0, 0.0
            for v in order:
                at, count = graph.first_value[v], graph.first_value[v + 1] - graph.first_value[v]
                scores[:count] = given[b, at : at + count]
                for i in range(graph.first_use[v], graph.first_use[v + 1]):
                    _add_change(graph.uses[i], graph.edge_factor[graph.uses[i]], table, graph, own, moved, scores)
                mean = 0.0
                for x in range(count):
                    mean += own[at + x] * scores[x]
                for x in range(count):
                    new = own[at + x] * (scores[x] - mean)
                    largest = max(largest, abs(new - moved[at + x]))
                    size = max(size, abs(new))
                    moved[at + x] = new
            residual[b], scale[b] = largest, size
            if not largest > max(limit[0], limit[1] * (1.0 + size)):
                break
