"""Spanning trees of highest score, compiled. Importing this module imports numba.

Of edges with equal scores, the first in order counts as better. So each instance has a unique best tree, found by
both algorithms.

:func:`prim` is for matrices. It visits each pair of nodes once, in O(n²) (Prim 1957, Shortest connection networks and
some generalizations, Bell System Technical Journal 36). :func:`boruvka` is for lists of edges. Every tree of a forest
takes its best outgoing edge until a single tree is left. This takes at most log₂ n scans of the edges that still join
two trees (Nešetřil, Milková & Nešetřilová 2001, Otakar Borůvka on minimum spanning tree problem, Discrete Mathematics
233). The algorithm avoids sorting, which dominates the time of Kruskal's algorithm.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["boruvka", "prim"]


@jit
def _is_before(a, b, c, d):
    """Return whether the pair of nodes {a, b} comes before {c, d}, compared by the lower node first."""
    first, other = min(a, b), min(c, d)
    return first < other or (first == other and max(a, b) < max(c, d))


@jit
def prim(start, stop, theta, lengths, y, feasible):
    """Find the best trees of the instances start : stop.

    Parameters
    ----------
    theta : (B, n, n) float32 or float64
        Scores, read above the diagonal.
    lengths : (B,) int64
        Numbers of nodes in use, at least 1.
    y : as theta
        Zero on entry; the edges of the tree are set to 1.
    feasible : (B,) bool
        Written: whether there is a tree.
    """
    n = theta.shape[1]
    best = np.empty(n, theta.dtype)  # the best score of an edge from the tree to each remaining node
    source, left = np.empty(n, np.int64), np.empty(n, np.int64)
    for b in range(start, stop):
        count, newest = lengths[b] - 1, 0
        for k in range(count):
            best[k], source[k], left[k] = -np.inf, 0, k + 1
        while count > 0:
            top, choice = best[0], 0
            for k in range(count):
                node = left[k]
                score = theta[b, newest, node] if newest < node else theta[b, node, newest]
                if score > best[k] or (score == best[k] and newest < source[k]):
                    best[k], source[k] = score, newest
                if k == 0 or best[k] > top:
                    top, choice = best[k], k
                elif best[k] == top and _is_before(source[k], node, source[choice], left[choice]):
                    choice = k
            if top == -np.inf:
                break
            newest = left[choice]
            y[b, min(source[choice], newest), max(source[choice], newest)] = 1
            count -= 1
            best[choice], source[choice], left[choice] = best[count], source[count], left[count]
        feasible[b] = count == 0


@jit
def _root(parent, node):
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@jit
def boruvka(start, stop, theta, ends, lengths, y, feasible):
    """Find the best trees of the instances start : stop.

    Parameters
    ----------
    theta : (B, E) float32 or float64
        Scores of the edges.
    ends : (B | 1, E, 2) int64
        The nodes joined by each edge.
    lengths : (B,) int64
        The numbers of nodes.
    y, feasible
        As for :func:`prim`, with ``y`` in the form of θ.
    """
    size = 0
    for b in range(start, stop):
        size = max(size, lengths[b])
    parent, label = np.empty(size, np.int64), np.empty(size, np.int64)
    # The best score of an edge out of each tree, and the place of this edge.
    top, best = np.empty(size, theta.dtype), np.empty(size, np.int64)
    # The edges between different trees, in order: their numbers, scores and trees.
    edges = theta.shape[1]
    number, score = np.empty(edges, np.int64), np.empty(edges, theta.dtype)
    one, other = np.empty(edges, np.int64), np.empty(edges, np.int64)
    for b in range(start, stop):
        pair = ends[b if len(ends) > 1 else 0]
        trees, count = lengths[b], 0
        for v in range(trees):
            label[v] = v
        for e in range(edges):
            number[count], score[count], one[count], other[count] = e, theta[b, e], pair[e, 0], pair[e, 1]
            count += 1 if theta[b, e] > -np.inf else 0
        while trees > 1 and count > 0:
            scanned, count = count, 0
            for t in range(trees):
                top[t], best[t], parent[t] = -np.inf, -1, t
            for k in range(scanned):
                s, u, v = score[k], label[one[k]], label[other[k]]
                if u != v:
                    number[count], score[count], one[count], other[count] = number[k], s, u, v
                    if s > top[u]:
                        top[u], best[u] = s, count
                    if s > top[v]:
                        top[v], best[v] = s, count
                    count += 1
            for t in range(trees):
                k = best[t]
                if k >= 0:
                    u, v = _root(parent, one[k]), _root(parent, other[k])
                    if u != v:
                        parent[u] = v
                        y[b, number[k]] = 1
            scanned, trees = trees, 0
            for t in range(scanned):
                if parent[t] == t:
                    label[t] = trees
                    trees += 1
            for t in range(scanned):
                label[t] = label[_root(parent, t)]
        feasible[b] = trees == 1
