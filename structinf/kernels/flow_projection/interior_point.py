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

At the end, f is divided by the flow into each node and sent down from the goal again. The result satisfies A f = b
to rounding, and is a mean over derivations. Its gap is computed from the best derivation for the gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..jit import jit
from ..simd.memory import address, row, rows, store_row, zero
from ..simd.vector import LANES, largest, maximum, minimum, where_less
from .system import add_edge, add_to_ends, clear, factor, links_of, slope, solve

__all__ = ["EDGE_TABLES", "NODE_TABLES", "multiply_by_jacobian", "project"]

EDGE_TABLES = 6
"""Scratch numbers for each hyperedge and instance."""

NODE_TABLES = 4
"""Scratch numbers for each unknown and instance."""

FREE_CURVATURE = 1e-8
"""The curvature of hyperedges without a penalty in Jacobians, for a finite result where their flows are not unique."""

# The least curvature of a hyperedge in a Newton step, a proximal term: without it, large weights D would cancel the
# others in the factorisation. The error of z that results enters the next step as a residual.
_PROXIMAL = 1e-6

# The start exceeds the values of the best derivations at each node by this multiple of its gap over the nodes.
_SPREAD = 4.0

# A gap below this multiple of the size of the terms of the objective is rounding.
_ROUNDING = 1e-13

# Steps go on while they multiply Σ f z by less than this number.
_FALLING = 0.9999

# Below this multiple of the rounding error, steps must multiply Σ f z by less than the second number.
_NEAR_ROUNDING = 1e3
_FALLING_NEAR_ROUNDING = 0.97

# Newton steps on the face, the second of which removes the rounding errors of the first.
_FACE_STEPS = 2

# A step ends before a flow or a slack is 0, at this multiple of the distance.
_INSIDE = 0.995


class _Edges(NamedTuple):
    """Addresses of numbers for each hyperedge: θ, f, z, the residual of z, and two scratch tables."""

    score: Any
    flow: Any
    slack: Any
    residual: Any
    a: Any
    b: Any


# ----------------------------------------------------------------------------- passes over the hypergraph


@jit
def _gather_scores(theta, first, system, scores):
    parts, last = theta.shape[1], len(theta) - 1
    for e in range(len(system.part)):
        part = system.part[e]
        for c in range(LANES):
            scores[e * LANES + c] = theta[min(first + c, last), part] if part < parts else 0.0


@jit
def _gradient(edges, group_flow, ends, edge, curvature):
    """Return θ − H f of a hyperedge."""
    return row(edges.score, edge) - (curvature[edge] * row(edges.flow, edge) + row(group_flow, ends[4 * edge + 3]))


@jit
def _sum_groups(edges, system, links, sums):
    """Write the sum of f over each group to the rows of the groups."""
    clear(sums, links.rows + 1)
    if system.groups:
        for e in range(len(system.part)):
            group = links.ends[4 * e + 3]
            if group < links.rows:
                store_row(sums, group, row(sums, group) + row(edges.flow, e))


@jit
def _best_values(edges, system, links, sums, gap, v):
    """Write the potentials V of each node: the best value for the gradient, plus the ``gap`` of each node.

    Return Σ f (θ − H f).
    """
    curvature = address(system.curvature)
    total = zero(v)
    store_row(v, links.rows, total)
    for i in range(system.nodes):
        best = zero(v) - np.inf
        for e in range(system.offset[i], system.offset[i + 1]):
            gradient = _gradient(edges, sums, links.ends, e, curvature)
            flow = row(edges.flow, e)
            total += where_less(0.0, flow, flow * gradient, 0.0)
            x = (gradient + row(v, links.ends[4 * e + 1])) + row(v, links.ends[4 * e + 2])
            best = maximum(best, x)
            store_row(edges.a, e, x)
        best += gap
        store_row(v, i, best)
    return total


@jit
def _send_flow(edges, system, links, goal, first, flow, w):
    """Scale ``flow`` to a flow of 1 into the goal, from the goal down, and write the flow through the nodes to ``w``.

    Negative numbers count as 0. Return the flow into nodes without flow over their hyperedges, which is lost.
    """
    lost = zero(w)
    clear(w, links.rows + 1)
    for c in range(LANES):
        w[goal[min(first + c, len(goal) - 1)] * LANES + c] = 1.0
    for i in range(system.nodes - 1, -1, -1):
        total = zero(w)
        for e in range(system.offset[i], system.offset[i + 1]):
            total += maximum(row(flow, e), 0.0)
        through = row(w, i)
        scale = where_less(0.0, total, through / total, 0.0)
        lost += where_less(0.0, total, 0.0, through)
        for e in range(system.offset[i], system.offset[i + 1]):
            part = maximum(row(flow, e), 0.0) * scale
            store_row(flow, e, part)
            for j in range(1, 3):
                tail = links.ends[4 * e + j]
                store_row(w, tail, row(w, tail) + part)
    return lost


# ----------------------------------------------------------------------------- the start


@jit
def _start(edges, system, links, goal, first, up, out_degree, v):
    """Write a flow through all hyperedges on derivations of finite score, and 0 elsewhere.

    Each node sends one unit of flow up to the goal, split evenly at each node. Flow that a node passes on without
    receiving it from below comes from the node's hyperedges evenly.

    Return the scores of the best derivations.
    """
    for e in range(len(system.part)):
        store_row(edges.flow, e, zero(v))
    clear(up, links.rows + 1)
    _best_values(edges, system, links, up, zero(v), v)
    best = _at_goals(v, goal, first, up)
    _find_active_edges(edges, system, links, goal, first, v, out_degree)
    for i in range(links.rows):
        store_row(up, i, where_less(0.0, row(v, i), 1.0, 0.0))
    for i in range(system.nodes):
        for e in range(system.offset[i], system.offset[i + 1]):
            is_active = row(edges.b, e)
            for j in range(1, 3):
                tail = links.ends[4 * e + j]
                if tail < links.rows:
                    share = is_active * row(up, tail) / maximum(row(out_degree, tail), 1.0)
                    store_row(edges.flow, e, row(edges.flow, e) + share)
            store_row(up, i, row(up, i) + row(edges.flow, e))
    scale = 1.0 / maximum(_at_goals(up, goal, first, out_degree), 1.0)
    clear(v, links.rows + 1)
    for c in range(LANES):
        v[goal[min(first + c, len(goal) - 1)] * LANES + c] = 1.0
    for i in range(system.nodes - 1, -1, -1):
        degree, received = zero(v), zero(v)
        for e in range(system.offset[i], system.offset[i + 1]):
            degree += row(edges.b, e)
            received += row(edges.flow, e)
        missing = maximum(row(v, i) - received * scale, 0.0) / maximum(degree, 1.0)
        for e in range(system.offset[i], system.offset[i + 1]):
            flow = row(edges.flow, e) * scale + row(edges.b, e) * missing
            store_row(edges.flow, e, flow)
            for j in range(1, 3):
                tail = links.ends[4 * e + j]
                store_row(v, tail, row(v, tail) + flow)
    return best


@jit
def _find_active_edges(edges, system, links, goal, first, reached, out_degree):
    """Write 1 to table b for hyperedges on derivations of finite score, else 0; table a has the scores of the heads.

    Write 1 to ``reached`` for the nodes of these derivations, and the number of active hyperedges above each node.
    """
    clear(reached, links.rows + 1)
    clear(out_degree, links.rows + 1)
    for c in range(LANES):
        reached[goal[min(first + c, len(goal) - 1)] * LANES + c] = 1.0
    for i in range(system.nodes - 1, -1, -1):
        for e in range(system.offset[i], system.offset[i + 1]):
            is_active = where_less(-np.inf, row(edges.a, e), row(reached, i), 0.0)
            store_row(edges.b, e, is_active)
            for j in range(1, 3):
                tail = links.ends[4 * e + j]
                store_row(reached, tail, maximum(row(reached, tail), is_active))
                store_row(out_degree, tail, row(out_degree, tail) + is_active)


@jit
def _at_goals(v, goal, first, scratch):
    for c in range(LANES):
        scratch[c] = v[goal[min(first + c, len(goal) - 1)] * LANES + c]
    return row(scratch, 0)


@jit
def _start_slacks(edges, system, links, sums, gap, v):
    """Write slacks z > 0 whose potentials exceed the best values by ``gap`` at each node; return the number of flows.

    The slack of a hyperedge without flow is 1, and no pass reads it.
    """
    _best_values(edges, system, links, sums, gap, v)
    count = zero(v)
    for i in range(system.nodes):
        for e in range(system.offset[i], system.offset[i + 1]):
            flow = row(edges.flow, e)
            store_row(edges.slack, e, where_less(0.0, flow, row(v, i) - row(edges.a, e), 1.0))
            count += where_less(0.0, flow, 1.0, 0.0)
    return count


# ----------------------------------------------------------------------------- the steps


@jit
def _advance_and_assemble(edges, system, links, step, least_slack, goal, first, matrix, right):
    """Add ``step`` times the direction (tables b, a) to f and z, and set up the system.

    z stays above ``least_slack``, since rounding errors of z near 0 would block the next steps. Table a gets
    1 / (z + f h). Return the sum of the products f z.
    """
    curvature = address(system.curvature)
    clear(right, links.rows + 1)
    clear(matrix, system.entries)
    for k in range(system.groups):
        store_row(matrix, links.place[system.nodes + k] + system.nodes + k, zero(matrix) + 1.0)
    for c in range(LANES):
        right[goal[min(first + c, len(goal) - 1)] * LANES + c] = -1.0
    products = zero(right)
    for e in range(len(system.part)):
        # A lane at its end may have an undefined direction.
        proximal = max(_PROXIMAL - curvature[e], 0.0)
        change = where_less(0.0, step, step * row(edges.b, e), 0.0)
        flow = row(edges.flow, e) + change
        slack = row(edges.slack, e) + where_less(0.0, step, step * row(edges.a, e), 0.0)
        slack = maximum(slack, least_slack)
        residual = (1.0 - step) * row(edges.residual, e) - proximal * change
        store_row(edges.residual, e, residual)
        store_row(edges.flow, e, flow)
        store_row(edges.slack, e, slack)
        products += where_less(0.0, flow, flow * slack, 0.0)
        scale = 1.0 / (slack + flow * (curvature[e] + proximal))
        weight = flow * scale
        store_row(edges.a, e, scale)
        add_edge(matrix, links, e, weight)
        down = weight * (slack + residual)
        add_to_ends(right, links, e, flow - down, 0.0 - down)
    return products


@jit
def _predict(edges, system, links, x):
    """Write the products df dz of the step with targets 0 to table b. Return their sum, and 1 / the longest step."""
    curvature = address(system.curvature)
    total = zero(x)
    limit = zero(x)
    for e in range(len(system.part)):
        flow = row(edges.flow, e)
        # −df / f; and −dz / z is 1 minus the same number, because f dz + z df = −f z.
        slope_of_edge = slope(x, links, e) + row(edges.residual, e)
        fall = row(edges.a, e) * (row(edges.slack, e) + slope_of_edge)
        change = 0.0 - flow * fall
        other = slope_of_edge + max(curvature[e], _PROXIMAL) * change
        product = change * other
        store_row(edges.b, e, product)
        total += product
        limit = maximum(limit, where_less(0.0, flow, maximum(fall, 1.0 - fall), 0.0))
    return total, limit


@jit
def _correct(edges, system, links, target, right):
    """Add the targets and the products df dz to the right side; leave both, times table a, in table b."""
    for e in range(len(system.part)):
        flow = row(edges.flow, e)
        extra = where_less(0.0, flow, row(edges.a, e) * (target - row(edges.b, e)), 0.0)
        store_row(edges.b, e, extra)
        add_to_ends(right, links, e, extra, extra)


@jit
def _direction(edges, system, links, sums, least_slack, x):
    """Write df to table b and dz to table a. Return 1 / the longest step.

    The changes of the groups in ``x`` are replaced by the sums of df, so that z stays exact if the solution of the
    system is not.
    """
    curvature = address(system.curvature)
    clear(sums, links.rows + 1)
    for e in range(len(system.part)):
        slope_of_edge = slope(x, links, e) + row(edges.residual, e)
        fall = row(edges.a, e) * (row(edges.slack, e) + slope_of_edge)
        change = row(edges.b, e) - row(edges.flow, e) * fall
        store_row(edges.b, e, change)
        if system.groups:
            group = links.ends[4 * e + 3]
            store_row(sums, group, row(sums, group) + change)
    for k in range(system.nodes, links.rows):
        store_row(x, k, row(sums, k))
    limit = zero(x)
    for e in range(len(system.part)):
        flow, slack, change = row(edges.flow, e), row(edges.slack, e) + least_slack, row(edges.b, e)
        slope_of_edge = slope(x, links, e) + row(edges.residual, e)
        other = where_less(0.0, flow, slope_of_edge + max(curvature[e], _PROXIMAL) * change, 0.0)
        store_row(edges.a, e, other)
        fall = maximum((0.0 - change) * slack, (0.0 - other) * flow) / (flow * slack)
        limit = maximum(limit, where_less(0.0, flow, fall, 0.0))
    return limit


@jit
def _copy(source, target, count):
    for i in range(count):
        store_row(target, i, row(source, i))


@jit
def _iterate(
    edges, system, links, goal, first, count, stop, rounding, least_slack, max_iter, matrix, right, x, inverse_pivots,
    sums,
):  # fmt: skip
    """Take steps until Σ f z is at most ``stop`` in all lanes, or no longer falls. Return the number of steps."""
    one = zero(x) + 1.0
    step = zero(x)
    lowest = zero(x) + np.inf
    slow_below = _NEAR_ROUNDING * rounding
    for e in range(len(system.part)):
        store_row(edges.a, e, zero(x))
        store_row(edges.b, e, zero(x))
        store_row(edges.residual, e, zero(x))
    for iteration in range(max_iter + 1):
        products = _advance_and_assemble(edges, system, links, step, least_slack, goal, first, matrix, right)
        # Rounding limits lanes whose products no longer fall.
        limit = where_less(products, slow_below, _FALLING_NEAR_ROUNDING * lowest, _FALLING * lowest)
        is_open = where_less(stop, products, where_less(products, limit, one, 0.0), 0.0)
        lowest = minimum(lowest, products)
        if iteration == max_iter or largest(is_open) == 0:
            return iteration
        factor(matrix, links, inverse_pivots)
        _copy(right, x, links.rows + 1)
        store_row(x, links.rows, zero(x))
        solve(matrix, links, inverse_pivots, x)
        second, limit = _predict(edges, system, links, x)
        step = minimum(one, 1.0 / limit)
        left = (1.0 - step) + step * step * second / maximum(products, 1e-300)
        _correct(edges, system, links, left * left * left * products / count, right)
        _copy(right, x, links.rows + 1)
        store_row(x, links.rows, zero(x))
        solve(matrix, links, inverse_pivots, x)
        limit = _direction(edges, system, links, sums, least_slack, x)
        step = where_less(0.0, is_open, minimum(one, maximum(1.0 - left, _INSIDE) / limit), 0.0)
    return max_iter


# ----------------------------------------------------------------------------- the end


@jit
def _end_on_face(edges, system, links, goal, first, matrix, right, x, inverse_pivots):
    """Write a flow to table b that is 0 where f is below z, after steps with targets 0 at all other hyperedges.

    The steps do not stop at the boundary, and share a factorisation. Table a gets the weights of the
    Jacobian on the face.
    """
    curvature = address(system.curvature)
    for e in range(len(system.part)):
        flow, slack = row(edges.flow, e), row(edges.slack, e)
        store_row(edges.flow, e, where_less(slack, flow, flow, 0.0))
        store_row(edges.a, e, zero(x))
        store_row(edges.b, e, flow)
    _advance_and_assemble(edges, system, links, zero(x), zero(x), goal, first, matrix, right)
    factor(matrix, links, inverse_pivots)
    for e in range(len(system.part)):
        whole, flow = row(edges.b, e), row(edges.flow, e)
        store_row(edges.a, e, flow * row(edges.a, e))
        store_row(edges.b, e, flow)
        store_row(edges.flow, e, whole)
        store_row(edges.slack, e, row(edges.slack, e) + row(edges.residual, e))
    for repeat in range(_FACE_STEPS):
        if repeat:
            clear(right, links.rows + 1)
            for c in range(LANES):
                right[goal[min(first + c, len(goal) - 1)] * LANES + c] = -1.0
            for e in range(len(system.part)):
                down = row(edges.a, e) * row(edges.slack, e)
                add_to_ends(right, links, e, row(edges.b, e) - down, 0.0 - down)
        _copy(right, x, links.rows + 1)
        store_row(x, links.rows, zero(x))
        solve(matrix, links, inverse_pivots, x)
        clear(right, links.rows + 1)
        for e in range(len(system.part)):
            change = 0.0 - row(edges.a, e) * (row(edges.slack, e) + slope(x, links, e))
            store_row(edges.b, e, row(edges.b, e) + change)
            group = links.ends[4 * e + 3]
            store_row(right, group, row(right, group) + change)
            store_row(edges.slack, e, row(edges.slack, e) + curvature[e] * change)
        for k in range(system.nodes, links.rows):
            store_row(x, k, row(right, k))
        for e in range(len(system.part)):
            store_row(edges.slack, e, row(edges.slack, e) + slope(x, links, e))
    for e in range(len(system.part)):
        is_positive = row(edges.a, e)
        weight = zero(x) + 1.0 / (curvature[e] + FREE_CURVATURE)
        store_row(edges.a, e, where_less(0.0, is_positive, weight, 0.0))


@jit
def _finish_flow(edges, system, links, goal, first, flow, sums, v):
    """Make ``flow``, in place of f, satisfy the equations to rounding; return its objective and its gap.

    The gap is infinite if no such flow has the same zeros.
    """
    curvature = address(system.curvature)
    lost = _send_flow(edges, system, links, goal, first, flow, v)
    own = _Edges(edges.score, flow, edges.slack, edges.residual, edges.slack, edges.b)
    _sum_groups(own, system, links, sums)
    value = _best_values(own, system, links, sums, zero(v), v)
    gap = zero(v)
    for i in range(system.nodes):
        for e in range(system.offset[i], system.offset[i + 1]):
            f = row(flow, e)
            gap += where_less(0.0, f, f * (row(v, i) - row(edges.slack, e)), 0.0)
            value += (0.5 * curvature[e]) * f * f
    for k in range(system.nodes, links.rows):
        value += 0.5 * row(sums, k) * row(sums, k)
    return value, where_less(0.0, lost, np.inf, gap)


@jit
def _write(edges, system, first, is_face, mean, weights):
    """Add the flow of each hyperedge to the mean of its part, and write the weights of the Jacobian.

    In lanes with ``is_face`` = 1, the flow is in table b and the weights are in table a.
    """
    parts = mean.shape[1]
    lanes = min(LANES, len(mean) - first)
    for e in range(len(system.part)):
        flow = where_less(0.0, is_face, row(edges.b, e), row(edges.flow, e))
        weight = where_less(0.0, is_face, row(edges.a, e), row(weights, e))
        store_row(weights, e, weight)
        store_row(edges.flow, e, flow)
        part = system.part[e]
        if part < parts:
            for c in range(lanes):
                mean[first + c, part] += edges.flow[e * LANES + c]


@jit
def project(
    start, stop, edge_tables, node_tables, matrix_table, theta, goal, system, tolerance, squares, max_iter, mean, value,
    gap, target, weights,
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
    goal : (B,) int64
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
    weights : (groups, E, LANES) float64, written
        The weights D of the Jacobian.
    """
    links = links_of(system)
    edges = _Edges(
        address(edge_tables[0]), address(edge_tables[1]), address(edge_tables[2]), address(edge_tables[3]),
        address(edge_tables[4]), address(edge_tables[5]),
    )  # fmt: skip
    x, right = address(node_tables[0]), address(node_tables[1])
    inverse_pivots, sums = address(node_tables[2]), address(node_tables[3])
    matrix = address(matrix_table)
    held = rows(4, np.float64)
    lanes = address(held)
    for group in range(start, stop):
        first = group * LANES
        last = len(goal) - 1
        _gather_scores(theta, first, system, edges.score)
        best = _start(edges, system, links, goal, first, right, inverse_pivots, x)
        size, length = zero(x), zero(x)
        for e in range(len(system.part)):
            f, score = row(edges.flow, e), row(edges.score, e)
            size += where_less(0.0, f, f * maximum(score, 0.0 - score), 0.0)
            length += f
        for c in range(LANES):
            held[0, c] = squares[min(first + c, last)]
        goal_square = row(lanes, 0)
        rounding = _ROUNDING * (size + goal_square)
        end = maximum(tolerance * goal_square, rounding)
        # Near rounding, a step costs less than a face with a hyperedge too many.
        stop_at = maximum(tolerance * goal_square, 0.01 * rounding)
        least_slack = 1e-3 * rounding / maximum(length, 1.0)
        _sum_groups(edges, system, links, sums)
        total = _best_values(edges, system, links, sums, zero(x), x)
        first_gap = _at_goals(x, goal, first, right) - total
        spread = _SPREAD * maximum(first_gap, 0.5 * end) / system.nodes
        count = _start_slacks(edges, system, links, sums, spread, x)
        _iterate(
            edges, system, links, goal, first, count, stop_at, rounding, least_slack, max_iter, matrix, right, x,
            inverse_pivots, sums,
        )  # fmt: skip
        out = address(weights[group])
        for e in range(len(system.part)):
            f, slack = row(edges.flow, e), row(edges.slack, e)
            weight = f / (slack + f * max(system.curvature[e], FREE_CURVATURE))
            store_row(out, e, where_less(0.0, f, weight, 0.0))
        _end_on_face(edges, system, links, goal, first, matrix, right, x, inverse_pivots)
        face_value, face_gap = _finish_flow(edges, system, links, goal, first, edges.b, sums, x)
        inner_value, inner_gap = _finish_flow(edges, system, links, goal, first, edges.flow, sums, x)
        is_face = where_less(face_gap, maximum(inner_gap, end), zero(x) + 1.0, 0.0)
        _write(edges, system, first, is_face, mean, out)
        finite = where_less(-np.inf, best, 1.0, 0.0 * zero(x))
        store_row(lanes, 0, where_less(0.0, is_face, face_value, inner_value))
        store_row(lanes, 1, where_less(0.0, is_face, face_gap, inner_gap))
        store_row(lanes, 2, finite)
        store_row(lanes, 3, end)
        for c in range(min(LANES, len(goal) - first)):
            value[first + c] = held[0, c] if held[2, c] > 0 else -np.inf
            gap[first + c] = held[1, c]
            target[first + c] = held[3, c]


@jit
def multiply_by_jacobian(start, stop, edge_tables, node_tables, matrix_table, weights, cotangent, system, out):
    """Write the product of ``cotangent`` (B, P) with the Jacobian of μ to ``out`` (B, P), initially zero.

    The change of the flow for a change c of the scores of hyperedges is df = D (c − Aᵀ dV) with A df = 0. On the
    face, D is 1 / (h + ε), where ε is `FREE_CURVATURE`. Free hyperedges in a cycle without penalty would change by
    1 / ε. The second product J H J c, where H has the curvatures 1 / D − ε, has no such part, and equals J c in the
    limit ε → 0 if c depends on the penalised hyperedges only.
    """
    links = links_of(system)
    c, change = address(edge_tables[0]), address(edge_tables[1])
    x, inverse_pivots = address(node_tables[0]), address(node_tables[1])
    matrix = address(matrix_table)
    parts = cotangent.shape[1]
    for group in range(start, stop):
        first = group * LANES
        weight = address(weights[group])
        _gather_scores(cotangent, first, system, c)
        clear(matrix, system.entries)
        for k in range(system.nodes, links.rows):
            store_row(matrix, links.place[k] + k, zero(matrix) + 1.0)
        for e in range(len(system.part)):
            add_edge(matrix, links, e, row(weight, e))
        factor(matrix, links, inverse_pivots)
        for _ in range(2 if system.has_free_edges else 1):
            clear(x, links.rows + 1)
            for e in range(len(system.part)):
                right = row(weight, e) * row(c, e)
                add_to_ends(x, links, e, right, right)
            store_row(x, links.rows, zero(x))
            solve(matrix, links, inverse_pivots, x)
            for e in range(len(system.part)):
                d = row(weight, e)
                df = d * (row(c, e) - slope(x, links, e))
                store_row(change, e, df)
                group_change = row(x, links.ends[4 * e + 3])
                own = where_less(0.0, d, df * maximum(1.0 / d - FREE_CURVATURE, 0.0), 0.0)
                store_row(c, e, own + group_change)
        for e in range(len(system.part)):
            part = system.part[e]
            if part < parts:
                for lane in range(min(LANES, len(cotangent) - first)):
                    out[first + lane, part] += change[e * LANES + lane]
