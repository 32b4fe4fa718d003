"""The k best spanning trees in O(k E α(n)) after sorting the edges, compiled. Importing this module imports numba.

Sets of trees have forced and forbidden edges. The second best tree of a set exchanges one edge of the best tree for an
edge outside. The edges outside, best first, are each the best exchange for all edges of the tree on the path between
their ends that no edge before has covered; a union of the covered edges makes this nearly linear (Tarjan 1979,
Applications of path compression on balanced trees, §5). The exchange of least loss divides the set in two: trees with
the edge that leaves, whose best tree is known, and trees without, whose best tree is the second best. So a tree takes
two searches instead of one search for each edge.

References
----------
H. N. Gabow, Two algorithms for generating weighted spanning trees in order (SIAM Journal on Computing 6, 1977).
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

from .argmax import _root

__all__ = ["topk"]

_FREE, _FORCED, _FORBIDDEN = 0, 1, 2


@jit
def _hang(tree, ends, n, first, linked, parent, through, depth):
    """Root a tree at node 0: write the parent of each node, the edge to the parent, and the depth."""
    for v in range(n + 1):
        first[v] = 0
    for e in tree[: n - 1]:
        first[ends[e, 0] + 1] += 1
        first[ends[e, 1] + 1] += 1
    for v in range(n):
        first[v + 1] += first[v]
        depth[v] = 0  # for now, the number of edges listed so far
    for e in tree[: n - 1]:
        for end in range(2):
            v = ends[e, end]
            linked[first[v] + depth[v]] = e
            depth[v] += 1
    depth[0], parent[0], through[0] = 0, 0, -1
    stack = first[n + 1 :]
    stack[0], waiting = 0, 1
    while waiting > 0:
        waiting -= 1
        v = stack[waiting]
        for place in range(first[v], first[v + 1]):
            e = linked[place]
            other = ends[e, 0] + ends[e, 1] - v
            if e != through[v]:
                parent[other], through[other], depth[other] = v, e, depth[v] + 1
                stack[waiting] = other
                waiting += 1


@jit
def _least_loss(scores, order, ends, n, status, inside, parent, through, depth, top):
    """Return the loss of the best exchange, and the edges that leave and enter; inf if there is none."""
    loss, leaves, enters, left = np.inf, -1, -1, n - 1
    for v in range(n):
        top[v] = v
    for f in order:
        if left == 0 or scores[f] == -np.inf:
            break
        u, v = ends[f, 0], ends[f, 1]
        if inside[f] or status[f] == _FORBIDDEN or u >= n or v >= n:
            continue
        u, v = _root(top, u), _root(top, v)
        while u != v:
            if depth[u] < depth[v]:
                u, v = v, u
            e = through[u]
            if status[e] == _FREE and scores[e] - scores[f] < loss:
                loss, leaves, enters = scores[e] - scores[f], e, f
            top[u] = parent[u]
            left -= 1
            u = _root(top, u)
    return loss, leaves, enters


@jit
def topk(start, stop, theta, order, ends, lengths, y, value):
    """Find the k best trees of the instances start : stop, best first up to rounding.

    Parameters
    ----------
    theta : (B, E) float64
        Scores of the edges.
    order : (B, E) int64
        The edges, best first.
    ends : (B | 1, E, 2) int64
        The nodes joined by each edge.
    lengths : (B,) int64
        Numbers of nodes in use. Edges to other nodes are not used.
    y : (k, B, E) bool
        On entry, the best tree in the first place, and False elsewhere. Written: the other trees.
    value : (k, B) float64
        −inf on entry. Written: scores of the trees.
    """
    k, edges = y.shape[0], theta.shape[1]
    nodes = 1
    for b in range(start, stop):
        nodes = max(nodes, lengths[b])
    first, linked = np.empty(2 * nodes + 1, np.int64), np.empty(2 * nodes, np.int64)
    memory = np.empty((4, nodes), np.int64)
    parent, through, depth, top = memory[0], memory[1], memory[2], memory[3]
    status = np.empty(edges, np.int8)
    # Restrictions of a set: the set that is restricted further, an edge, and whether the edge is forced or forbidden.
    restrictions = np.zeros((2 * k, 3), np.int64)
    # A candidate is a set, its best tree, and the best exchange, with the score after the exchange.
    bound, exchange, tree = np.empty(k), np.empty((k, 4), np.int64), np.empty((k, max(nodes - 1, 1)), np.int64)
    for b in range(start, stop):
        n, candidates, sets, rank = lengths[b], 1, 1, 1
        pair = ends[b if len(ends) > 1 else 0]
        count, total = 0, 0.0
        for e in range(edges):
            if y[0, b, e]:
                tree[0, count] = e
                count += 1
                total += theta[b, e]
        value[0, b] = total
        exchange[0, 3] = 0
        if n > 1:
            for e in range(edges):
                status[e] = _FREE
            _hang(tree[0], pair, n, first, linked, parent, through, depth)
            found = _least_loss(theta[b], order[b], pair, n, status, y[0, b], parent, through, depth, top)
            bound[0], exchange[0, 0], exchange[0, 1], exchange[0, 2] = total - found[0], found[1], found[2], 0
        while n > 1 and rank < k:
            chosen = 0
            for c in range(candidates):
                if bound[c] > bound[chosen]:
                    chosen = c
            if bound[chosen] == -np.inf:
                break
            leaves, enters, number = exchange[chosen, 0], exchange[chosen, 1], exchange[chosen, 2]
            total = 0.0
            for i in range(n - 1):
                e = tree[chosen, i]
                tree[candidates, i] = enters if e == leaves else e
                y[rank, b, tree[candidates, i]] = True
                total += theta[b, tree[candidates, i]]
            value[rank, b] = total
            exchange[candidates, 3] = rank
            for restriction in (_FORBIDDEN, _FORCED):
                own = sets
                sets += 1
                restrictions[own, 0], restrictions[own, 1], restrictions[own, 2] = number, leaves, restriction
                for e in range(edges):
                    status[e] = _FREE
                ancestor = own
                while ancestor > 0:
                    status[restrictions[ancestor, 1]] = restrictions[ancestor, 2]
                    ancestor = restrictions[ancestor, 0]
                place = candidates if restriction == _FORBIDDEN else chosen
                of_tree = exchange[place, 3]
                _hang(tree[place], pair, n, first, linked, parent, through, depth)
                found = _least_loss(theta[b], order[b], pair, n, status, y[of_tree, b], parent, through, depth, top)
                bound[place] = value[of_tree, b] - found[0]
                exchange[place, 0], exchange[place, 1], exchange[place, 2] = found[1], found[2], own
            candidates += 1
            rank += 1
