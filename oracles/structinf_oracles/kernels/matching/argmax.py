"""Matchings of highest score, compiled. Importing this module imports numba.

Edmonds' blossom algorithm in O(n (m + n) log n) for n nodes and m edges without long chains of nested blossoms, and
O(n³ + n m log n) in any case (Galil 1986, Efficient algorithms for finding maximum matching in graphs, ACM Computing
Surveys 18). After a greedy start, each search begins at one free node (Cook & Rohe 1999, Computing minimum-weight
perfect matchings, INFORMS Journal on Computing 11, section 2) and ends with the first change of the matching, so that
its cost is that of the tree it grows.
"""

from __future__ import annotations

import math

import numpy as np

from structinf.kernels.jit import jit

from .blossoms import new_state
from .search import improve
from .wide_integers import from_fraction, half, is_less, scale, subtract

__all__ = ["best_matchings", "solve"]


@jit
def _set_arcs(s, ends, edges, scores):
    """Enter the arcs of the given edges."""
    top = 0.0
    for e in edges:
        top = max(top, abs(scores[e]))
        for side in range(2):
            s.first_arc[ends[e, side]] += 1
    _, exponent = math.frexp(top)
    total = 0
    for v in range(len(s.first_arc)):
        total += s.first_arc[v]
        s.first_arc[v] = total
    for k in range(len(edges) - 1, -1, -1):
        e = edges[k]
        u, v = ends[e, 0], ends[e, 1]
        s.first_arc[u] -= 1
        s.first_arc[v] -= 1
        a, b = s.first_arc[u], s.first_arc[v]
        s.arc[a].head, s.arc[a].twin = v, b
        s.arc[b].head, s.arc[b].twin = u, a
        weight = scale(from_fraction(scores[e], exponent), 2)
        for x in (s.arc[a], s.arc[b]):
            x.edge, x.high, x.low = e, weight[0], weight[1]


@jit
def _start(s, perfect):
    """Set feasible dual variables, and match nodes along edges of slack 0."""
    n = len(s.first_arc) - 1
    for v in range(n):
        # Slacks are at least 0 if the variable of each node is half the weight, so the score, of its best edge.
        top = (0, 0)
        for a in range(s.first_arc[v], s.first_arc[v + 1]):
            weight = s.arc[a].high, s.arc[a].low
            if a == s.first_arc[v] or is_less(top, weight):
                top = weight
        s.node[v].high, s.node[v].low = half(top)
    for v in range(n):
        # Lower the variable of a free node until an edge has slack 0, preferably an edge to a free node.
        if s.node[v].mate >= 0:
            continue
        top, best = (0, 0), -1
        for a in range(s.first_arc[v], s.first_arc[v + 1]):
            x = s.node[s.arc[a].head]
            value = subtract((s.arc[a].high, s.arc[a].low), (x.high, x.low))
            if is_less(top, value) or (best < 0 and (perfect or value == top)):
                top, best = value, a
            elif value == top and x.mate < 0 and s.node[s.arc[best].head].mate >= 0:
                best = a
        s.node[v].high, s.node[v].low = top
        if best >= 0 and s.node[s.arc[best].head].mate < 0:
            s.node[v].mate, s.node[s.arc[best].head].mate = best, s.arc[best].twin


@jit
def solve(ends, scores, nodes, perfect):
    """Find the best matching of one instance.

    Parameters
    ----------
    ends : (E, 2) int64
        The nodes joined by each edge.
    scores : (E,) float64
        Scores; edges of −inf, and of nodes from ``nodes`` on, do not exist.
    nodes : int
        The number of nodes in use.
    perfect : bool
        Whether every node must be matched. If not, edges of score 0 or less are not taken.

    Returns
    -------
    feasible : bool
        Whether there is a perfect matching, or True if it need not be perfect.
    state : State
        The matching, with optimal dual variables.
    """
    least = -np.inf if perfect else 0.0
    edges, count = np.empty(len(ends), np.int64), 0
    for e in range(len(ends)):
        if scores[e] > least and max(ends[e, 0], ends[e, 1]) < nodes:
            edges[count] = e
            count += 1
    s = new_state(nodes, 2 * count)
    _set_arcs(s, ends, edges[:count], scores)
    _start(s, perfect)
    keys, items = np.empty((4 * nodes, 2), np.int64), np.empty(4 * nodes, np.int64)
    for v in range(nodes):
        x = s.node[v]
        if x.mate < 0 and (perfect or x.high != 0 or x.low != 0):
            found, keys, items = improve(s, v, perfect, keys, items)
            if not found:
                return False, s
    return True, s


@jit
def best_matchings(start, stop, ends, scores, nodes, perfect, y, feasible):
    """Find the best matchings of the instances start : stop.

    Parameters
    ----------
    ends : (B | 1, E, 2) int64
        The nodes joined by each edge.
    perfect
        As for :func:`solve`.
    scores : (B, E) float64
        Scores.
    nodes : (B,) int64
        The numbers of nodes in use.
    y : (B, E) float64
        Zero on entry; the edges of the matching are set to 1.
    feasible : (B,) bool
        Written: whether there is such a matching.
    """
    for b in range(start, stop):
        feasible[b], s = solve(ends[b if len(ends) > 1 else 0], scores[b], nodes[b], perfect)
        if feasible[b]:
            for v in range(nodes[b]):
                if s.node[v].mate >= 0:
                    y[b, s.arc[s.node[v].mate].edge] = 1
