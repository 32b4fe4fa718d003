"""Simple paths by depth-first search, which abandons a partial path as soon as it cannot be completed.

At each node with a choice, the search checks which nodes can still be reached before it takes an arc. So every arc
taken leads to the last node, and listing takes time proportional to the number of paths.

References
----------
Read and Tarjan 1975, "Bounds on backtrack algorithms for listing cycles, paths, and spanning trees", Networks 5, pp.
237-252.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["order", "search"]


@jit
def reach(usable, offset, head, part, node, target, visited, seen, queue):
    """Return the number of nodes reachable from ``node`` before ``target``, and the number of visited arcs.

    The first number is 0 if ``target`` is not reachable. ``seen`` (N,) must be all False, and is all False
    afterwards.
    """
    queue[0], read, filled, looked, arrives = node, 0, 1, 0, False
    while read < filled:
        at = queue[read]
        read += 1
        if at == target:
            arrives = True
            continue
        for arc in range(offset[at], offset[at + 1]):
            ahead = head[arc]
            looked += 1
            if usable[part[arc]] and not visited[ahead] and not seen[ahead]:
                seen[ahead] = True
                queue[filled] = ahead
                filled += 1
    for i in range(filled):
        seen[queue[i]] = False
    return filled - 1 if arrives else 0, looked


@jit(called_from_python=True)
def search(usable, offset, head, part, source, target, remaining, most, budget, found):
    """List the simple paths from ``source`` to ``target``; return their number, −1 if the budget was too small.

    Parameters
    ----------
    usable : (P,) bool
        Parts that may be used.
    offset, head, part
        The graph, as in :func:`structinf_oracles.kernels.path.dijkstra.argmax`.
    source, target : int
        First and last node.
    remaining : int
        The number of arcs of a path, −1 for any number.
    most : int
        Stop after this number of paths.
    budget : int
        Stop after visiting this number of arcs; no limit if negative.
    found : (n, L) integers, written
        The parts of the arcs of the first n paths, in order. Later entries are left as they are.

    Returns
    -------
    int
        The number of paths, −1 if the budget was too small to tell.
    """
    nodes = offset.shape[0] - 1
    visited, seen, queue = np.zeros(nodes, np.bool_), np.zeros(nodes, np.bool_), np.empty(nodes, np.int64)
    way, cursor, by = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    chosen = np.empty(nodes, np.bool_)  # whether each node of the path offers a choice of arcs
    count, depth, arrived = 0, 0, True
    way[0] = source
    while depth >= 0:
        node = way[depth]
        if arrived:
            arrived, options = False, 0
            visited[node], cursor[depth] = True, offset[node]
            for arc in range(offset[node], offset[node + 1]):
                options += 1 if usable[part[arc]] and not visited[head[arc]] else 0
            chosen[depth] = options > 1
        if node == target and (remaining < 0 or depth == remaining):
            for i in range(depth if count < found.shape[0] else 0):
                found[count, i] = by[i]
            count += 1
            if count >= most:
                return count
        if node == target or cursor[depth] == offset[node + 1]:
            visited[node] = False
            depth -= 1
            continue
        arc = cursor[depth]
        cursor[depth] += 1
        ahead = head[arc]
        if not usable[part[arc]] or visited[ahead]:
            continue
        if chosen[depth] and ahead != target:
            visited[ahead] = True
            reached, looked = reach(usable, offset, head, part, ahead, target, visited, seen, queue)
            visited[ahead] = False
            if budget >= 0:
                budget = max(budget - looked, 0)
                if budget == 0:
                    return -1
            if reached == 0 or depth + 1 + reached < remaining:
                continue
        by[depth] = part[arc]
        depth += 1
        way[depth] = ahead
        arrived = True
    return count


@jit
def order(start, stop, usable, offset, head, part, terminals, on_nodes, budget, labels, outcome):
    """Find a simple path of each instance that uses all usable parts.

    Parameters
    ----------
    usable : (B, P) bool
        The parts of the path.
    offset, head, part, terminals, on_nodes
        As in :func:`structinf_oracles.kernels.path.dijkstra.argmax`.
    budget : int
        The number of visited arcs after which the search for an instance stops.
    labels : (B, L) int64, written
        The parts of the path in order. Later entries are left as they are.
    outcome : (B,) int64, written
        1 for a path, 0 if there is none, −1 if the search stopped early.
    """
    for b in range(start, stop):
        parts = 0
        for p in range(usable.shape[1]):
            parts += 1 if usable[b, p] else 0
        source, target = terminals[b, 0], terminals[b, 1]
        first = 1 if on_nodes else 0
        outcome[b] = 0
        if parts < first or parts > labels.shape[1] or (on_nodes and not usable[b, source]):
            continue
        row = labels[b : b + 1]
        remaining = parts - first
        outcome[b] = search(usable[b], offset, head, part, source, target, remaining, row.shape[0], budget, row)
        if on_nodes and outcome[b] == 1:
            for i in range(parts - 1, 0, -1):
                row[0, i] = row[0, i - 1]
            row[0, 0] = source
