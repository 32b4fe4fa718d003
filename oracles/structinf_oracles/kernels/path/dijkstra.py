"""Shortest paths by Dijkstra's algorithm, with a binary heap of open paths.

Distances are in float64 for all dtypes of scores. A node is settled once, by the first path to the node that leaves
the heap. So paths are simple even if costs are 0, and the order of the arcs alone breaks ties. If nodes have the
costs, the first path found to a node is a shortest path: all paths to the node end with the same cost, and this path
comes from the node settled first.

References
----------
Dijkstra 1959, "A note on two problems in connexion with graphs", Numerische Mathematik 1, pp. 269-271. Floyd 1964,
"Algorithm 245: Treesort 3", Communications of the ACM 7(12), p. 701, for heaps.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["argmax"]

# Scaling costs by a power of two is exact, and prevents overflow in sums of costs near the limit of float64.
SCALE = 2.0**-32


@jit
def rise(keys, items, at, key, item):
    """Put an item into the hole at ``at`` of a heap, or above it."""
    while at > 0:
        above = (at - 1) >> 1
        if keys[above] <= key:
            break
        keys[at], items[at] = keys[above], items[above]
        at = above
    keys[at], items[at] = key, item


@jit
def pop(keys, items, size):
    """Return the item of the lowest key, and leave the other ``size`` − 1 items in a heap.

    The hole moves down to a leaf, always to the lower of two children. The last item, which usually belongs near the
    leaves, then fills the hole.
    """
    first, last = items[0], size - 1
    key, item = keys[last], items[last]
    keys[last] = np.inf  # stands for a missing second child
    at, below = 0, 1
    while below < last:
        below += 1 if keys[below + 1] < keys[below] else 0
        keys[at], items[at] = keys[below], items[below]
        at, below = below, 2 * below + 1
    if last > 0:
        rise(keys, items, at, key, item)
    return first


@jit
def argmax(start, stop, theta, offset, head, part, terminals, nodes_of, on_nodes, y, found):
    """Find a best path of each instance.

    Parameters
    ----------
    theta : (B, P) floats
        Scores of parts, at most 0; −inf forbids a part.
    offset : (N + 1,) int64
        Arcs ``offset[v]:offset[v + 1]`` leave node v.
    head, part : (A,) uint32
        The node where each arc ends, and the part used by each arc.
    terminals : (B, 2) int64
        First and last node.
    nodes_of : (B, 2) int64
        The first node of the graph of each instance, and the node after its last node.
    on_nodes : bool
        Whether parts are nodes. The part of an arc is then its head, and a path also uses its first node.
    y : (B, P) floats
        Zeros on entry; the parts of the path are set to 1.
    found : (B,) bool, written
        Whether a path leads from the first node to the last.
    """
    nodes, most = offset.shape[0] - 1, head.shape[0] + 2
    keys, items = np.empty(most), np.empty(most, np.uint32)
    distance, settled = np.empty(nodes), np.empty(nodes, np.bool_)
    tail = np.empty(nodes, np.uint32)  # the node before
    by = np.empty(nodes, np.uint32)  # the part of the arc from the node before
    for b in range(start, stop):
        source, target = terminals[b, 0], terminals[b, 1]
        settled[nodes_of[b, 0] : nodes_of[b, 1]] = False
        distance[nodes_of[b, 0] : nodes_of[b, 1]] = np.inf
        distance[source] = 0.0
        size = 0
        if not on_nodes or theta[b, source] > -np.inf:
            rise(keys, items, size, 0.0, source)
            size += 1
        while size > 0 and not settled[target]:
            node = pop(keys, items, size)
            size -= 1
            if settled[node] and not on_nodes:
                continue
            settled[node] = True
            here = distance[node]
            for arc in range(offset[node], offset[node + 1]):
                ahead = head[arc]
                if settled[ahead] if not on_nodes else distance[ahead] < np.inf:
                    continue
                score = theta[b, part[arc]]
                length = here - score * SCALE
                if length < distance[ahead]:
                    distance[ahead], tail[ahead], by[ahead] = length, node, part[arc]
                    rise(keys, items, size, length, ahead)
                    size += 1
        found[b] = settled[target]
        if not found[b]:
            continue
        if on_nodes:
            y[b, source] = 1.0
        node = target
        while node != source:
            y[b, by[node]] = 1.0
            node = tail[node]
