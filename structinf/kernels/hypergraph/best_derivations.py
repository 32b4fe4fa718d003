"""The best derivation of each instance, in compiled loops. Importing this module imports numba.

The passes and their arguments are those of :mod:`.smoothed_passes`, for max in place of max_Ω. The first of a node's
equally good hyperedges is chosen.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..simd.memory import address, rows, store_row, zero
from ..simd.vector import LANES, maximum, where_less
from .smoothed_passes import (
    clear,
    first_node,
    gather_parts,
    last_node,
    links_of,
    prepare,
    scatter_parts,
    score_of,
)

__all__ = ["best"]


@jit
def best(start, stop, tables, theta, goal, graph, weight, out_value, out):
    """Write the best scores to ``out_value``, (B,) float64, and weight · the parts of the best derivations to ``out``.

    ``out`` is (B, P), initially zero, in θ's dtype, and ``tables`` holds three tables.
    """
    v, choice, w = tables[0], tables[1], tables[2]
    scores, flows = rows(graph.height + 1, theta.dtype), rows(graph.height + 1, theta.dtype)
    links, blocks = links_of(graph), len(graph.node_offset) - 1
    for first in range(start * LANES, min(stop * LANES, len(goal)), LANES):
        begin, nodes = first_node(goal, first, graph), last_node(goal, first)
        prepare(v, scores, graph)
        for block in range(blocks):
            low, high = max(graph.node_offset[block], begin), min(graph.node_offset[block + 1], nodes)
            if low < high:
                gather_parts(theta, goal, first, graph, block, scores)
            for i in range(low, high):
                _choose(i, links, address(v), address(choice), address(scores))
        clear(w[begin:], nodes - begin)
        for c in range(min(LANES, len(goal) - first)):
            out_value[first + c] = v[goal[first + c], c]
            w[goal[first + c], c] = weight[first + c]
        for block in range(blocks - 1, -1, -1):
            low, high = max(graph.node_offset[block], begin), min(graph.node_offset[block + 1], nodes)
            if low < high:
                clear(flows, graph.row_offset[block + 1] - graph.row_offset[block])
                for i in range(high - 1, low - 1, -1):
                    _send_flow(i, links, address(choice), address(w), address(flows))
                scatter_parts(flows, goal, first, graph, block, out)


@jit
def _choose(i, links, v, choice, scores):
    """Write the best score of node i, and the number of its best hyperedge."""
    edge = links.offset[i]
    top = score_of(v, scores, links, edge)
    first = zero(v)
    for k in range(1, links.offset[i + 1] - edge):
        score = score_of(v, scores, links, edge + k)
        first = where_less(top, score, k, first)
        top = maximum(top, score)
    store_row(v, i, top)
    store_row(choice, i, first)


@jit
def _send_flow(i, links, choice, w, flows):
    """Send the flow through node i over its best hyperedge."""
    # Most nodes are in no best derivation, and one sum tells faster than a branch for each instance.
    total = 0.0
    for c in range(i * LANES, (i + 1) * LANES):
        total += abs(w[c])
    if total == 0:
        return
    for c in range(i * LANES, (i + 1) * LANES):
        if w[c] != 0:
            edge = links.offset[i] + np.int64(choice[c])
            if links.row[edge] < links.no_row:
                flows[links.row[edge] * LANES + c % LANES] += w[c]
            for j in range(2):
                tail = links.tails[2 * edge + j]
                if tail < links.no_node:
                    w[tail * LANES + c % LANES] += w[c]
