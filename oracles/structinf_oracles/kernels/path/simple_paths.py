"""Simple paths by depth-first search, that leaves a way as soon as it cannot be completed.

From each node at which there is a choice, what can still be reached is looked up before a way is taken, so that every
way taken leads to the last node: listing takes time in proportion to the number of paths.

References
----------
Read and Tarjan 1975, "Bounds on backtrack algorithms for listing cycles, paths, and spanning trees", Networks 5,
pp. 237-252.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["order", "search"]


@jit
def reach(usable, offset, head, part, node, target, visited, seen, queue):
    """How many more nodes can be reached from ``node``, not by way of ``target``; how many arcs were looked at.

    0 nodes if ``target`` is not among them. ``seen`` (N,) is all False, and is left so.
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


@jit
def search(usable, offset, head, part, source, target, remaining, most, budget, found):
    """List the simple paths from ``source`` to ``target``.

    Parameters
    ----------
    usable : (P,) bool
        Parts that may be used.
    offset, head, part
        The graph, as of :func:`structinf_oracles.kernels.path.dijkstra.argmax`.
    wanted : int
        How many arcs a path has, −1 for any number.
    most : int
        Stop after so many paths.
    budget : int
        Stop after looking at so many arcs, without limit if negative.
    found : (n, L) integers, written
        The parts of the arcs of the first n paths, in order. What follows them is left as it is.

    Returns
    -------
    int
        How many paths there are, −1 if the budget did not suffice to tell.
    """
    nodes = offset.shape[0] - 1
    visited, seen, queue = np.zeros(nodes, np.bool_), np.zeros(nodes, np.bool_), np.empty(nodes, np.int64)
    way, cursor, by = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    chosen = np.empty(nodes, np.bool_)  # whether there is a choice at each node of the way
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
    """A simple path of each instance that uses all the parts that are usable.

    Parameters
    ----------
    usable : (B, P) bool
    offset, head, part, terminals, on_nodes
        As of :func:`structinf_oracles.kernels.path.dijkstra.argmax`.
    budget : int
        How many arcs are looked at before an instance is given up.
    labels : (B, L) int64, written
        Its parts in order. What follows them is left as it is.
    outcome : (B,) int64, written
        1 for a path, 0 if there is none, −1 if it was given up.
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
