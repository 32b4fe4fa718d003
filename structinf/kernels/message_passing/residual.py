"""Residual belief propagation: the message that would change most comes first. Importing this module imports numba.

Factor k has the edges ``first_edge[k]:first_edge[k + 1]``, one for each of its variables. A message lies at
``edge_message[e]`` in the row of all messages, and the values of its variable at ``edge_value[e]`` in the row of all
values. The pending messages are in a tournament tree, whose root is the largest change.

Reference: G. Elidan, I. McGraw & D. Koller, Residual belief propagation, UAI 2006.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp, log

__all__ = ["residual_messages"]


@jit
def _compute(e, k, table, graph, message, total, maximise, base, scores, top, pending):
    """Write the message of edge ``e`` of factor ``k`` to ``pending``, and return its largest change."""
    first, last = graph.first_edge[k], graph.first_edge[k + 1]
    own = graph.cardinality[e]
    at, value = graph.edge_message[e], graph.edge_value[e]
    top[:own] = -np.inf
    size = graph.first_entry[k + 1] - graph.first_entry[k]
    for i in range(size):
        score, rest, x = table[graph.first_entry[k] + i], i, 0
        for j in range(last - 1, first - 1, -1):
            digit = rest % graph.cardinality[j]
            rest //= graph.cardinality[j]
            if j == e:
                x = digit
            else:
                score += total[graph.edge_value[j] + digit] - message[graph.edge_message[j] + digit]
        scores[i] = score
        top[x] = max(top[x], score)
    # The values of this edge repeat with a stride in the entries of the table.
    stride = 1
    for j in range(e + 1, last):
        stride *= graph.cardinality[j]
    if not maximise:
        for x in range(own):
            pending[at + x] = 0.0
        for i in range(size):
            x = (i // stride) % own
            if scores[i] > -np.inf:
                pending[at + x] += exp(scores[i] - top[x])
        for x in range(own):
            top[x] += log(pending[at + x])
    highest = -np.inf
    for x in range(own):
        if base[value + x] > -np.inf:
            highest = max(highest, top[x])
    change = 0.0
    for x in range(own):
        if base[value + x] > -np.inf:
            pending[at + x] = top[x] - highest
            change = max(change, abs(pending[at + x] - message[at + x]))
        else:
            pending[at + x] = 0.0
    return change


@jit
def _set(tree, leaves, e, change):
    """Set the change of edge ``e`` in the tournament ``tree``."""
    node = leaves + e
    tree[node] = change
    node //= 2
    while node >= 1:
        tree[node] = max(tree[2 * node], tree[2 * node + 1])
        node //= 2


@jit
def _largest(tree, leaves):
    """Return the edge of the largest change."""
    node = 1
    while node < leaves:
        node = 2 * node if tree[2 * node] >= tree[2 * node + 1] else 2 * node + 1
    return node - leaves


@jit
def _add_up(v, graph, message, base, total):
    """Set the values of variable ``v`` in ``total`` to the base plus all weighted messages."""
    start = graph.first_value[v]
    count = graph.first_value[v + 1] - start
    for x in range(count):
        total[start + x] = base[start + x]
    for i in range(graph.first_use[v], graph.first_use[v + 1]):
        e = graph.uses[i]
        rho = graph.weight[graph.edge_factor[e]]
        for x in range(count):
            total[start + x] += rho * message[graph.edge_message[e] + x]


@jit
def residual_messages(start, stop, tables, base, graph, maximise, limit, max_updates, damping, message, residual):
    """Write the messages of the instances ``start:stop``, from messages of 0 on, and the largest change left."""
    edges = len(graph.cardinality)
    leaves = 1
    while leaves < edges:
        leaves *= 2
    total, pending = np.empty(base.shape[1]), np.empty(message.shape[1])
    tree, scores, top = np.empty(2 * leaves), np.empty(graph.largest_table), np.empty(graph.largest_cardinality)
    for b in range(start, stop):
        table, own, m = tables[min(b, len(tables) - 1)], base[b], message[b]
        m[:] = 0.0
        tree[:] = 0.0
        total[:] = own
        for e in range(edges):
            k = graph.edge_factor[e]
            tree[leaves + e] = _compute(e, k, table, graph, m, total, maximise, own, scores, top, pending)
        for node in range(leaves - 1, 0, -1):
            tree[node] = max(tree[2 * node], tree[2 * node + 1])
        for _ in range(max_updates):
            if tree[1] <= limit[b]:
                break
            e = _largest(tree, leaves)
            k, v = graph.edge_factor[e], graph.edge_variable[e]
            for x in range(graph.edge_message[e], graph.edge_message[e] + graph.cardinality[e]):
                m[x] = pending[x] + damping * (m[x] - pending[x])
            _set(tree, leaves, e, damping * tree[leaves + e])
            _add_up(v, graph, m, own, total)
            for i in range(graph.first_use[v], graph.first_use[v + 1]):
                other = graph.edge_factor[graph.uses[i]]
                if other == k and graph.weight[k] == 1.0:
                    continue  # the message to a factor does not depend on the message from the factor
                for j in range(graph.first_edge[other], graph.first_edge[other + 1]):
                    if j != graph.uses[i]:
                        change = _compute(j, other, table, graph, m, total, maximise, own, scores, top, pending)
                        _set(tree, leaves, j, change)
        residual[b] = tree[1]
