"""Mehrotra's predictor-corrector method for max ⟨θ, μ⟩ − ½ ‖R μ‖² over the flows of a hypergraph.

The flow f ≥ 0 satisfies A f = b (`.system`), and μ sums f over the hyperedges of each part. With potentials V, slacks
z ≥ 0 and the Hessian H of the penalty, the optimal flow satisfies

    z = Aᵀ V + H f − θ,   A f = b,   f z = 0.

The method reduces the products f z, whose sum is the duality gap while the other equations hold. A step with targets t
for the products solves A D Aᵀ dV = A (D / f) (t − f z) + A f − b, where D = f / (z + f h). A first step
with t = 0 shows how far the products can fall, and a second step takes a common target and the products df dz of the
first into account (S. Mehrotra, On the implementation of a primal-dual interior point method, SIAM J. Optim. 2,
1992).

The start sends flow through all nodes. Its potentials are the values of the best derivations for the gradient
of the objective, plus a constant at each node. Hyperedges outside all derivations of finite score get f = 0, and no
pass changes them.

The last point decides which flows are 0, and block pivoting corrects this choice until the flow on the other hyperedges
is optimal (`.newton_steps.end_on_face`). If it does not end, the last point itself is the result.

At the end, f is divided by the flow into each node and sent down from the goal again. The result satisfies A f = b
to rounding, and is a mean over derivations. Its gap is computed from the best derivation for the gradient.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..simd.memory import address, row, rows, store_row, zero
from ..simd.vector import LANES, maximum, where_less
from .newton_steps import FREE_CURVATURE, ROUNDED_FLOW, end_on_face, iterate
from .passes import (
    Edges,
    at_goals,
    average_flows,
    best_values,
    edges_of,
    gather_scores,
    send_flow,
    start_flow,
    start_slacks,
    sum_groups,
    work_of,
)
from .system import add_edge, add_to_ends, clear, factor, group_of, links_of, slope, solve

__all__ = [
    "EDGE_TABLES",
    "NODE_TABLES",
    "ROUNDING",
    "approach",
    "gap_of",
    "multiply_by_jacobian",
    "project",
    "size_of",
    "squares_of",
    "write_solution",
]

EDGE_TABLES = 7
"""Scratch numbers for each hyperedge and instance."""

NODE_TABLES = 5
"""Scratch numbers for each unknown and instance."""

# The start exceeds the values of the best derivations at each node by this multiple of its gap over the nodes.
_SPREAD = 4.0

# Solutions of the system of a Jacobian; each removes more of the effect of `FREE_CURVATURE`.
_SOLUTIONS = 3

ROUNDING = 1e-13
"""A gap below this multiple of the size of the terms of the objective is rounding."""


@jit
def gap_of(edges, links, v):
    """Return the gap Σ f z, for values ``v`` of the nodes and table a of :func:`best_values`."""
    gap = zero(v)
    for i in range(links.nodes):
        for h in range(links.offset[i], links.offset[i + 1]):
            f = row(edges.flow, links.column[h])
            below = row(v, links.unknown[i]) - row(edges.a, links.place_of[h])
            gap += where_less(0.0, f, f * below, 0.0)
    return gap


@jit
def size_of(edges, links):
    """Return Σ f |θ|, the size of the terms of the objective, and Σ f."""
    size, length = zero(edges.flow), zero(edges.flow)
    for e in range(links.columns):
        f, score = row(edges.flow, e), row(edges.score, e)
        size += where_less(0.0, f, f * maximum(score, 0.0 - score), 0.0)
        length += f
    return size, length


@jit
def _finish_flow(edges, links, goal, first, flow, sums, v):
    """Make ``flow``, in place of f, satisfy the equations to rounding; return its objective and its gap.

    The gap is infinite if no such flow has the same zeros, up to rounding.
    """
    curvature = links.curvature
    lost = send_flow(edges, links, goal, first, flow, v)
    own = Edges(edges.score, flow, edges.slack, edges.residual, edges.slack, edges.b, edges.outside)
    sum_groups(own, links, sums)
    value = best_values(own, links, sums, sums, zero(v), v)
    gap = gap_of(own, links, v)
    for e in range(links.columns):
        f = row(flow, e)
        value += (0.5 * curvature[e]) * f * f
    for k in range(links.nodes, links.rows):
        value += 0.5 * row(sums, k) * row(sums, k)
    return value, where_less(ROUNDED_FLOW, lost, np.inf, gap)


@jit
def write_solution(edges, links, first, is_face, mean, weights):
    """Add the flow of each hyperedge to the mean of its part, and write the weights of the Jacobian.

    In lanes with ``is_face`` = 1, the flow is in table b and the weights are in table a.
    """
    parts = mean.shape[1]
    lanes = min(LANES, len(mean) - first)
    for e in range(links.columns):
        flow = where_less(0.0, is_face, row(edges.b, e), row(edges.flow, e))
        weight = where_less(0.0, is_face, row(edges.a, e), row(weights, e))
        store_row(weights, e, weight)
        store_row(edges.flow, e, flow)
        part = links.part[e]
        if part < parts:
            for c in range(lanes):
                mean[first + c, part] += edges.flow[e * LANES + c]


@jit
def approach(edges, work, links, theta, goal, first, tolerance, squares, max_iter, held):
    """Solve the LANES instances from ``first`` up to ``tolerance``; the flow and the slacks are in the tables.

    Return the scores of the best derivations, a gap that is rounding, and the gap at which steps end.
    """
    x, right, inverse_pivots, sums = work.x, work.right, work.inverse_pivots, work.sums
    gather_scores(theta, first, links, edges.score)
    best = start_flow(edges, links, goal, first, edges.residual, right, inverse_pivots, x)
    average_flows(edges, links, edges.residual)
    # Nodes of other goals do not count, so that an instance has the same result alone.
    nodes = zero(x)
    for i in range(links.nodes):
        nodes += where_less(0.0, row(x, i), 1.0, 0.0)
    size, length = size_of(edges, links)
    goal_square = squares_of(squares, first, held)
    rounding = ROUNDING * (size + goal_square)
    end = maximum(tolerance * goal_square, rounding)
    # Near rounding, a step costs less than a face with a hyperedge too many.
    stop_at = maximum(tolerance * goal_square, 0.01 * rounding)
    least_slack = 1e-3 * rounding / maximum(length, 1.0)
    sum_groups(edges, links, sums)
    clear(right, links.rows + 1)
    total = best_values(edges, links, sums, right, zero(x), x)
    first_gap = at_goals(x, goal, first, inverse_pivots) - total
    # The gap of an average of flows may be negative.
    spread = _SPREAD * maximum(maximum(first_gap, 0.0 - first_gap), 0.5 * end) / maximum(nodes, 1.0)
    count = start_slacks(edges, links, sums, right, spread, work.potentials)
    iterate(edges, work, links, goal, first, count, stop_at, rounding, least_slack, max_iter)
    return best, rounding, end


@jit
def squares_of(squares, first, held):
    """Return the numbers ``squares`` of the LANES instances from ``first``. Row 0 of ``held`` is written."""
    for c in range(LANES):
        held[c] = squares[min(first + c, len(squares) - 1)]
    return row(held, 0)


@jit
def project(
    start, stop, edge_tables, node_tables, matrix_table, theta, goal, system, tolerance, squares, max_iter, mean, value,
    gap, target, exact, weights,
):  # fmt: skip
    """Solve the instances of the groups ``start:stop`` of LANES.

    Parameters
    ----------
    edge_tables : (EDGE_TABLES, E, LANES) float64
        Scratch.
    node_tables : (NODE_TABLES, rows + 1, LANES) float64
        Scratch.
    matrix_table : (entries + 3, LANES) float64
        Scratch.
    theta : (B, P) float64
        The scores, finite or −inf.
    goal : (1, B) int64
        The goal of each instance.
    system : FlowSystem
        The hypergraph.
    tolerance : float
        Bound of ‖R (μ − μ*)‖² / 2, relative to ``squares``.
    squares : (B,) float64
        The largest ‖R y‖² of a structure.
    max_iter : int
        Largest number of steps.
    mean : (B, P) float64, initially zero, written
        μ.
    value : (B,) float64, written
        The objective at μ; −inf without a structure of finite score.
    gap : (B,) float64, written
        Upper bound of the distance of the value from the maximum.
    target : (B,) float64, written
        The largest gap that counts as converged.
    exact : (B,) bool, written
        Whether μ is the mean on an optimal face, up to rounding.
    weights : (groups, E, LANES) float64, written
        The weights D of the Jacobian.
    """
    links, edges, work = links_of(system), edges_of(edge_tables), work_of(node_tables, matrix_table)
    x, sums = work.x, work.sums
    held = rows(5, np.float64)
    lanes = address(held)
    for group in range(start, stop):
        first = group * LANES
        best, rounding, end = approach(edges, work, links, theta, goal, first, tolerance, squares, max_iter, lanes)
        out = address(weights[group])
        for e in range(links.columns):
            f, slack = row(edges.flow, e), row(edges.slack, e)
            weight = f / (slack + f * max(system.curvature[e], FREE_CURVATURE))
            store_row(out, e, where_less(0.0, f, weight, 0.0))
        is_optimal = end_on_face(edges, work, links, goal, first, rounding)
        face_value, face_gap = _finish_flow(edges, links, goal, first, edges.b, sums, x)
        inner_value, inner_gap = _finish_flow(edges, links, goal, first, edges.flow, sums, x)
        # An infinite or undefined gap is never accepted.
        is_face = where_less(face_gap, np.inf, is_optimal, 0.0)
        is_face = where_less(maximum(inner_gap, end), face_gap, 0.0, is_face)
        write_solution(edges, links, first, is_face, mean, out)
        finite = where_less(-np.inf, best, 1.0, 0.0 * zero(x))
        store_row(lanes, 0, where_less(0.0, is_face, face_value, inner_value))
        store_row(lanes, 1, where_less(0.0, is_face, face_gap, inner_gap))
        store_row(lanes, 2, finite)
        store_row(lanes, 3, end)
        store_row(lanes, 4, where_less(rounding, face_gap, 0.0, is_face))
        for c in range(min(LANES, goal.shape[1] - first)):
            exact[first + c] = held[4, c] > 0
            value[first + c] = held[0, c] if held[2, c] > 0 else -np.inf
            gap[first + c] = held[1, c]
            target[first + c] = held[3, c]


@jit
def _add_change(weights, c, change, links, matrix, inverse_pivots, x):
    """Add df = D (c − Aᵀ dV) with A df = 0 to ``change``, and replace c by what D leaves of it: ε df where h = 0."""
    curvature = links.curvature
    clear(x, links.rows + 1)
    for e in range(links.columns):
        right = row(weights, e) * row(c, e)
        add_to_ends(x, links, e, right, right)
    store_row(x, links.rows, zero(x))
    solve(matrix, links, inverse_pivots, x)
    for e in range(links.columns):
        df = row(weights, e) * (row(c, e) - slope(x, links, e))
        store_row(change, e, row(change, e) + df)
        store_row(c, e, max(FREE_CURVATURE - curvature[e], 0.0) * df)


@jit
def multiply_by_jacobian(start, stop, edge_tables, node_tables, matrix_table, weights, cotangent, system, out):
    """Write the product of ``cotangent`` (B, P) with the Jacobian of μ to ``out`` (B, P), initially zero.

    The change of the flow for a change c of the scores of hyperedges is df = D (c − Aᵀ dV) with A df = 0. On the
    face, D is 1 / h, and 1 / ε where h = 0, for ε = `FREE_CURVATURE`. Further solutions for c = ε df where h = 0
    remove the effect of ε. Free hyperedges in a cycle without penalty would change by 1 / ε. The product J H J c has
    no such part, and equals J c if c depends on the penalised hyperedges only.
    """
    links = links_of(system)
    c, change = address(edge_tables[0]), address(edge_tables[1])
    x, inverse_pivots, sums = address(node_tables[0]), address(node_tables[1]), address(node_tables[2])
    matrix = address(matrix_table)
    curvature = links.curvature
    parts = cotangent.shape[1]
    for group in range(start, stop):
        first = group * LANES
        weight = address(weights[group])
        gather_scores(cotangent, first, links, c)
        clear(matrix, links.entries)
        for k in range(links.nodes, links.rows):
            store_row(matrix, links.place[k] + k, zero(matrix) + 1.0)
        for e in range(links.columns):
            add_edge(matrix, links, e, row(weight, e))
        factor(matrix, links, inverse_pivots)
        for product in range(2 if links.has_free_edges else 1):
            if product:
                clear(sums, links.rows + 1)
                for e in range(links.columns):
                    add_to_ends(sums, links, e, zero(x), row(change, e))
                store_row(sums, links.rows, zero(x))
                for e in range(links.columns):
                    d, df = row(weight, e), row(change, e)
                    least = max(FREE_CURVATURE - curvature[e], 0.0)
                    own = where_less(0.0, d, df * maximum(1.0 / d - least, 0.0), 0.0)
                    store_row(c, e, own + row(sums, group_of(links, e)))
            clear(change, links.columns)
            for _ in range(_SOLUTIONS):
                _add_change(weight, c, change, links, matrix, inverse_pivots, x)
        for e in range(links.columns):
            part = links.part[e]
            if part < parts:
                for lane in range(min(LANES, len(cotangent) - first)):
                    out[first + lane, part] += change[e * LANES + lane]
