"""The passes of a smoothed recursion over a hypergraph, in compiled loops. Importing this module imports numba.

The score x_e of a hyperedge is the score of its part plus the values of its tails. The numbers q and s are defined in
`structinf.kernels.smooth_max`, and dots mean derivatives along a direction z of the scores (Mensch & Blondel 2018,
Algorithms 1 and 2):

    inside          v_i = max_Ω {x_e : e leads to i}
    outside         f_e = q_e w_i,  added to the expected number of its part and to the w of its tails; w_goal = 1
    tangent inside  v̇_i = Σ_e q_e ẋ_e,  m_i = Σ_e s_e ẋ_e / Σ_e s_e,  q̇_e = s_e (ẋ_e − m_i)
    tangent outside ḟ_e = q̇_e w_i + q_e ẇ_i

For any graph, LANES instances are processed together, one per lane (`structinf.kernels.simd.vector`). Copies of the
last instance fill the last vector. Parts are read and written for one block of nodes at a time, since the scores of a
part are far apart in θ. Blocks and their buffers of parts fit the cache (`structinf.dp.blocks`).

Values are float64, so that float32 scores lose no accuracy over long recursions. q and flows have the dtype of θ. The
kernels store three numbers per node, v, max x and t, and recompute q, so memory does not grow with the number of
hyperedges. Besides θ and a result of the same size, the gradient takes 32 LANES bytes per node in each thread.

Arguments of the kernels, for the groups ``start:stop`` of LANES instances:

    tables  (k, N + 1, LANES) float64: scratch, allocated by numpy, which can request huge pages, unlike kernels
    theta   (B, P) float32 or float64, contiguous
    goal    (B,) int64
    graph   a `structinf.dp.blocks.Blocks`
    alpha   None for α = 1, or the α of the regularizer, float64. numba compiles a separate version for None
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..jit import jit
from ..simd.memory import address, cast, is_zero, row, rows, store_row
from ..simd.vector import LANES, maximum
from ..smooth_max import curved, probability, smooth_max

__all__ = [
    "clear",
    "first_node",
    "gather_parts",
    "hessian_product",
    "inside",
    "last_node",
    "links_of",
    "prepare",
    "scatter_parts",
    "score_of",
    "value",
    "value_and_mean",
]


# ----------------------------------------------------------------------------- parts


@jit
def _lanes(goal, first, graph, block):
    """Return the range of lanes with all instances whose goal is in the component of a block.

    Other lanes compute numbers that nothing reads, so that their scores and flows need not be moved.
    """
    component, last = graph.begin[graph.node_offset[block]], len(goal) - 1
    low, high = LANES, 0
    for c in range(LANES):
        node = goal[min(first + c, last)]
        if (graph.begin[node] if node >= 0 else 0) == component:
            low, high = min(low, c), c + 1
    return low, high


@jit
def gather_parts(theta, goal, first, graph, block, scores):
    """Write the scores of a block's parts to ``scores`` (height + 1, LANES), for LANES instances from ``first``."""
    last, start = len(theta) - 1, graph.row_offset[block]
    low, high = _lanes(goal, first, graph, block)
    for r in range(graph.row_offset[block + 1] - start):
        part = graph.row_part[start + r]
        if high - low == LANES:
            for c in range(LANES):
                scores[r, c] = theta[min(first + c, last), part]
        else:
            for c in range(low, high):
                scores[r, c] = theta[min(first + c, last), part]


@jit
def scatter_parts(flow, goal, first, graph, block, out):
    """Add the ``flow`` (height + 1, LANES) of a block's parts to ``out`` (B, P). The blocks come from last to first."""
    start = graph.row_offset[block]
    low, high = _lanes(goal, first, graph, block)
    high = min(high, len(out) - first)
    for r in range(graph.row_offset[block + 1] - start):
        part, is_first = graph.row_part[start + r], graph.row_is_first_write[start + r]
        for c in range(low, high):
            # The first flow of a part is written without reading ``out``, whose memory the system has not cleared yet.
            out[first + c, part] = flow[r, c] if is_first else out[first + c, part] + flow[r, c]


@jit
def clear(array, count):
    """Set the first ``count`` rows to 0."""
    for i in range(count):
        for c in range(LANES):
            array[i, c] = 0


# ----------------------------------------------------------------------------- hyperedges


class _Links(NamedTuple):
    """Addresses of the graph's arrays, and the indices that mean no node and no part."""

    offset: Any
    tails: Any
    row: Any
    no_node: int
    no_row: int


@jit
def links_of(graph):
    """Return the addresses of the arrays of ``graph`` that passes over hyperedges read."""
    nodes = len(graph.offset) - 1
    return _Links(address(graph.offset), address(graph.tails), address(graph.row), nodes, graph.height)


@jit
def score_of(v, scores, links, edge):
    """Return x of a hyperedge, or ẋ."""
    x = row(v, links.tails[2 * edge]) + cast(row(scores, links.row[edge]), v)
    other = links.tails[2 * edge + 1]
    if other < links.no_node:
        x += row(v, other)
    return x


@jit
def _add_to_tails(flow, links, edge, w):
    """Add the ``flow`` of a hyperedge to the w of its tails."""
    for j in range(2):
        tail = links.tails[2 * edge + j]
        if tail < links.no_node:
            store_row(w, tail, row(w, tail) + cast(flow, w))


@jit
def _add_to_part(flow, links, edge, flows):
    """Add the ``flow`` of a hyperedge to the flow of its part."""
    part = links.row[edge]
    if part < links.no_row:
        store_row(flows, part, row(flows, part) + flow)


# ----------------------------------------------------------------------------- inside


@jit
def last_node(goal, first):
    """Return the number of nodes up to the last goal of the LANES instances from ``first``."""
    last = 0
    for b in range(first, min(first + LANES, len(goal))):
        last = max(last, goal[b])
    return last + 1


@jit
def first_node(goal, first, graph):
    """Return the first node of the components of the goals of the LANES instances from ``first``."""
    begin = len(graph.begin)
    for b in range(first, min(first + LANES, len(goal))):
        begin = min(begin, graph.begin[goal[b]] if goal[b] >= 0 else 0)
    return begin


@jit
def inside(theta, goal, first, graph, begin, nodes, alpha, v, top, t, scores, x, kind):
    """Write v, max x and t, each (N + 1, LANES), of the nodes from ``begin`` up to ``nodes``, excluded.

    ``scores``, ``x`` and ``kind`` are scratch. If ``top`` and ``t`` have a single row, each node overwrites the row.
    """
    prepare(v, scores, graph)
    links, last = links_of(graph), len(top) - 1
    for block in range(len(graph.node_offset) - 1):
        start, stop = max(graph.node_offset[block], begin), min(graph.node_offset[block + 1], nodes)
        if start < stop:
            gather_parts(theta, goal, first, graph, block, scores)
        for i in range(start, stop):
            _value(
                i, min(i, last), links, alpha, address(v), address(top), address(t), address(scores), address(x),
                address(kind),
            )  # fmt: skip


@jit
def prepare(v, scores, graph):
    """Set the value of no node and the score of no part to 0, and the scores of unused lanes to finite numbers."""
    v[len(v) - 1] = 0
    scores[:] = 0


@jit
def _value(i, place, links, alpha, v, top, t, scores, x, kind):
    """Write v of node i to its row, max x and t to the row ``place``, and the scores of its hyperedges to ``x``."""
    edge = links.offset[i]
    count = links.offset[i + 1] - edge
    best = score_of(v, scores, links, edge)
    store_row(x, 0, best)
    for k in range(1, count):
        score = score_of(v, scores, links, edge + k)
        store_row(x, k, score)
        best = maximum(best, score)
    smooth, threshold = smooth_max(x, count, best, alpha, kind)
    store_row(v, i, smooth)
    store_row(top, place, best)
    store_row(t, place, threshold)


@jit
def value(start, stop, tables, theta, goal, graph, alpha, out):
    """Write DP_Ω to ``out``, (B,) float64. ``tables`` holds one table."""
    v, top, t = tables[0], rows(1, np.float64), rows(1, np.float64)
    scores, x = rows(graph.height + 1, theta.dtype), rows(graph.degree, np.float64)
    kind = rows(graph.degree, theta.dtype)
    for first in range(start * LANES, min(stop * LANES, len(goal)), LANES):
        begin, nodes = first_node(goal, first, graph), last_node(goal, first)
        inside(theta, goal, first, graph, begin, nodes, alpha, v, top, t, scores, x, kind)
        for c in range(min(LANES, len(goal) - first)):
            out[first + c] = v[goal[first + c], c]


# ----------------------------------------------------------------------------- outside


@jit
def value_and_mean(start, stop, tables, theta, goal, graph, alpha, weight, out_value, out):
    """Write DP_Ω to ``out_value``, (B,) float64, and weight · ∇DP_Ω to ``out``, (B, P), initially zero, in θ's dtype.

    α is finite (:mod:`.best_derivations` serves α = inf), and ``tables`` holds four tables.
    """
    v, top, t, w = tables[0], tables[1], tables[2], tables[3]
    scores, flows = rows(graph.height + 1, theta.dtype), rows(graph.height + 1, theta.dtype)
    x, kind = rows(graph.degree, np.float64), rows(graph.degree, theta.dtype)
    for first in range(start * LANES, min(stop * LANES, len(goal)), LANES):
        begin, nodes = first_node(goal, first, graph), last_node(goal, first)
        inside(theta, goal, first, graph, begin, nodes, alpha, v, top, t, scores, x, kind)
        clear(w[begin:], nodes - begin)
        for c in range(min(LANES, len(goal) - first)):
            out_value[first + c] = v[goal[first + c], c]
            w[goal[first + c], c] = weight[first + c]
        _outside(theta, goal, first, graph, begin, nodes, alpha, v, top, t, w, scores, flows, out)


@jit
def _outside(theta, goal, first, graph, begin, nodes, alpha, v, top, t, w, scores, flows, out):
    links = links_of(graph)
    for block in range(len(graph.node_offset) - 2, -1, -1):
        start, stop = max(graph.node_offset[block], begin), min(graph.node_offset[block + 1], nodes)
        if start >= stop:
            continue
        gather_parts(theta, goal, first, graph, block, scores)
        clear(flows, graph.row_offset[block + 1] - graph.row_offset[block])
        for i in range(stop - 1, start - 1, -1):
            peak, threshold = row(address(top), i), row(address(t), i)
            _send_flow(i, links, alpha, address(v), peak, threshold, address(w), address(scores), address(flows))
        scatter_parts(flows, goal, first, graph, block, out)


@jit
def _send_flow(i, links, alpha, v, top, t, w, scores, flows):
    """Send the flow through node i over its hyperedges, in proportion to q."""
    times = cast(row(w, i), flows)
    if not is_zero(times):
        for edge in range(links.offset[i], links.offset[i + 1]):
            flow = probability(score_of(v, scores, links, edge), top, t, alpha, flows) * times
            _add_to_part(flow, links, edge, flows)
            _add_to_tails(flow, links, edge, w)


# ----------------------------------------------------------------------------- Hessian


@jit
def hessian_product(start, stop, tables, theta, direction, goal, graph, alpha, out_value, out):
    """Write DP_Ω to ``out_value``, and ∇²DP_Ω times ``direction`` (B, P) to ``out`` (B, P), initially zero.

    α is finite, and ``tables`` holds seven tables.
    """
    v, v_dot, top, t, m = tables[0], tables[1], tables[2], tables[3], tables[4]
    w, w_dot = tables[5], tables[6]
    scores, scores_dot = rows(graph.height + 1, theta.dtype), rows(graph.height + 1, theta.dtype)
    x, kind = rows(graph.degree, np.float64), rows(graph.degree, theta.dtype)
    flows = rows(graph.height + 1, theta.dtype)
    for first in range(start * LANES, min(stop * LANES, len(goal)), LANES):
        begin, nodes = first_node(goal, first, graph), last_node(goal, first)
        _tangents(
            theta, direction, goal, first, graph, begin, nodes, alpha, v, v_dot, top, t, m, scores, scores_dot, x, kind
        )  # fmt: skip
        clear(w[begin:], nodes - begin)
        clear(w_dot[begin:], nodes - begin)
        for c in range(min(LANES, len(goal) - first)):
            out_value[first + c] = v[goal[first + c], c]
            w[goal[first + c], c] = 1.0
        _tangents_outside(
            theta, direction, goal, first, graph, begin, nodes, alpha, v, v_dot, top, t, m, w, w_dot, scores,
            scores_dot, flows, out,
        )  # fmt: skip


@jit
def _tangents(
    theta, direction, goal, first, graph, begin, nodes, alpha, v, v_dot, top, t, m, scores, scores_dot, x, kind
):
    prepare(v, scores, graph)
    prepare(v_dot, scores_dot, graph)
    links = links_of(graph)
    for block in range(len(graph.node_offset) - 1):
        start, stop = max(graph.node_offset[block], begin), min(graph.node_offset[block + 1], nodes)
        if start < stop:
            gather_parts(theta, goal, first, graph, block, scores)
            gather_parts(direction, goal, first, graph, block, scores_dot)
        for i in range(start, stop):
            _value(
                i, i, links, alpha, address(v), address(top), address(t), address(scores), address(x),
                address(kind),
            )  # fmt: skip
            peak, threshold = row(address(top), i), row(address(t), i)
            _tangent(i, links, alpha, address(x), peak, threshold, address(v_dot), address(m), address(scores_dot))


@jit
def _tangent(i, links, alpha, x, top, t, v_dot, m, scores_dot):
    """Write v̇ and m of node i, given the scores of its hyperedges in ``x``."""
    edge = links.offset[i]
    # Averages of differences from a pivot need no more than float32.
    pivot = score_of(v_dot, scores_dot, links, edge)
    mean = middle = total = cast(pivot - pivot, scores_dot)
    for k in range(links.offset[i + 1] - edge):
        q, s = curved(row(x, k), top, t, alpha, scores_dot)
        x_dot = cast(score_of(v_dot, scores_dot, links, edge + k) - pivot, scores_dot)
        mean += q * x_dot
        middle += s * x_dot
        total += s
    store_row(v_dot, i, pivot + cast(mean, v_dot))
    store_row(m, i, pivot + cast(middle / maximum(total, 1e-30), m))


@jit
def _tangents_outside(
    theta, direction, goal, first, graph, begin, nodes, alpha, v, v_dot, top, t, m, w, w_dot, scores, scores_dot, flows,
    out,
):  # fmt: skip
    links = links_of(graph)
    for block in range(len(graph.node_offset) - 2, -1, -1):
        start, stop = max(graph.node_offset[block], begin), min(graph.node_offset[block + 1], nodes)
        if start >= stop:
            continue
        gather_parts(theta, goal, first, graph, block, scores)
        gather_parts(direction, goal, first, graph, block, scores_dot)
        clear(flows, graph.row_offset[block + 1] - graph.row_offset[block])
        for i in range(stop - 1, start - 1, -1):
            peak, threshold, middle = row(address(top), i), row(address(t), i), row(address(m), i)
            _send_flow_tangent(
                i, links, alpha, address(v), address(v_dot), peak, threshold, middle, address(w), address(w_dot),
                address(scores), address(scores_dot), address(flows),
            )  # fmt: skip
        scatter_parts(flows, goal, first, graph, block, out)


@jit
def _send_flow_tangent(i, links, alpha, v, v_dot, top, t, middle, w, w_dot, scores, scores_dot, flows):
    """Send the derivative of the flow through node i over its hyperedges."""
    times, times_dot = cast(row(w, i), flows), cast(row(w_dot, i), flows)
    if not (is_zero(times) and is_zero(times_dot)):
        for edge in range(links.offset[i], links.offset[i + 1]):
            q, s = curved(score_of(v, scores, links, edge), top, t, alpha, flows)
            change = cast(score_of(v_dot, scores_dot, links, edge) - middle, flows)
            flow_dot = s * change * times + q * times_dot
            _add_to_part(flow_dot, links, edge, flows)
            _add_to_tails(q * times, links, edge, w)
            _add_to_tails(flow_dot, links, edge, w_dot)
