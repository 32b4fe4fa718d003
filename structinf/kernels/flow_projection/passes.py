"""Passes over the flows of hypergraphs: values, sums, and the start of the interior-point method.

Numbers of hyperedges and nodes are rows of LANES instances (`structinf.kernels.simd.vector`), given by the address of
an array. `structinf.kernels.flow_projection.interior_point` defines the symbols.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..jit import jit
from ..simd.memory import address, row, store_row, zero
from ..simd.vector import LANES, largest, maximum, where_less
from .system import clear, group_of, slope, slope_of

__all__ = [
    "Edges",
    "Work",
    "at_goals",
    "average_flows",
    "best_values",
    "edges_of",
    "gather_scores",
    "send_flow",
    "set_at_goals",
    "start_flow",
    "start_slacks",
    "sum_groups",
    "work_of",
]


class Edges(NamedTuple):
    """Addresses of numbers for each column: θ, f, z, the residual of z, two scratch tables, and the share of outsiders.

    Scratch tables may hold numbers for each hyperedge, in the order of the ends. With several hypergraphs, a hyperedge
    whose column has θ = −inf takes its share in the gradient from the last table.
    """

    score: Any
    flow: Any
    slack: Any
    residual: Any
    a: Any
    b: Any
    outside: Any


class Work(NamedTuple):
    """Addresses of numbers for each unknown, the potentials among them, and of the matrix."""

    x: Any
    right: Any
    inverse_pivots: Any
    sums: Any
    potentials: Any
    matrix: Any


@jit
def edges_of(tables):
    """Return the addresses of seven tables for columns and hyperedges."""
    return Edges(
        address(tables[0]), address(tables[1]), address(tables[2]), address(tables[3]), address(tables[4]),
        address(tables[5]), address(tables[6]),
    )  # fmt: skip


@jit
def work_of(tables, matrix):
    """Return the addresses of five tables for unknowns, and of the matrix."""
    return Work(
        address(tables[0]), address(tables[1]), address(tables[2]), address(tables[3]), address(tables[4]),
        address(matrix),
    )  # fmt: skip


@jit
def gather_scores(theta, first, links, scores):
    """Write the scores of the columns of the LANES instances from ``first``, 0 for columns without a part."""
    parts, last = theta.shape[1], len(theta) - 1
    for e in range(links.columns):
        part = links.part[e]
        for c in range(LANES):
            scores[e * LANES + c] = theta[min(first + c, last), part] if part < parts else 0.0


@jit
def at_goals(v, goal, first, scratch):
    """Return the sum of the numbers ``v`` at the goals of the LANES instances from ``first``.

    Row 0 of ``scratch`` is written.
    """
    total = zero(v)
    for k in range(len(goal)):
        total += _at_goal(v, goal, k, first, scratch)
    return total


@jit
def _at_goal(v, goal, k, first, scratch):
    for c in range(LANES):
        scratch[c] = v[goal[k, min(first + c, goal.shape[1] - 1)] * LANES + c]
    return row(scratch, 0)


@jit
def set_at_goals(numbers, goal, first, value):
    """Set the ``numbers`` at the goals of the LANES instances from ``first``."""
    for k in range(len(goal)):
        for c in range(LANES):
            numbers[goal[k, min(first + c, goal.shape[1] - 1)] * LANES + c] = value


# ----------------------------------------------------------------------------- values and flows


@jit
def _gradient(edges, links, sums, column):
    """Return θ − H f of a column."""
    curvature = links.curvature
    group = row(sums, group_of(links, column))
    return row(edges.score, column) - (curvature[column] * row(edges.flow, column) + group)


@jit
def _gradient_share(edges, links, sums, potentials, column, place):
    """Return the share of a hyperedge in θ − H f of its column.

    With several hyperedges, each gets its slope of ``potentials``, and what is left of θ − H f is divided evenly.
    """
    share = _gradient(edges, links, sums, column)
    if links.hyperedges == links.columns:
        return share
    count = links.first[column + 1] - links.first[column]
    if count > 1:
        rest = share - slope(potentials, links, column)
        share = slope_of(potentials, links, place) + rest * (1.0 / count)
    # Potentials are −inf at nodes outside all derivations of finite score.
    return where_less(-np.inf, row(edges.score, column), share, row(edges.outside, column))


@jit
def sum_groups(edges, links, sums):
    """Write the sum of f over each group to the rows of the groups."""
    clear(sums, links.rows + 1)
    if links.groups:
        for e in range(links.columns):
            group = group_of(links, e)
            if group < links.rows:
                store_row(sums, group, row(sums, group) + row(edges.flow, e))


@jit
def best_values(edges, links, sums, potentials, gap, v):
    """Write the values V of each node: the best value for the gradient, plus the ``gap`` of each node.

    Old ``potentials`` divide the gradient of a column over its hyperedges. Table a gets the value of the head over each
    hyperedge. Return Σ f (θ − H f).
    """
    total = zero(v)
    store_row(v, links.rows, total)
    for i in range(links.nodes):
        best = zero(v) - np.inf
        for h in range(links.offset[i], links.offset[i + 1]):
            e, place = links.column[h], links.place_of[h]
            gradient = _gradient_share(edges, links, sums, potentials, e, place)
            flow = row(edges.flow, e)
            total += where_less(0.0, flow, flow * gradient, 0.0)
            x = (gradient + row(v, links.ends[4 * place + 1])) + row(v, links.ends[4 * place + 2])
            best = maximum(best, x)
            store_row(edges.a, place, x)
        best += gap
        store_row(v, links.unknown[i], best)
    return total


@jit
def send_flow(edges, links, goal, first, flow, w):
    """Scale ``flow`` to a flow of 1 into the goal, from the goal down, and write the flow through the nodes to ``w``.

    The system has one hypergraph. Negative numbers count as 0. Return the flow into nodes without flow over their
    hyperedges, which is lost.
    """
    lost = zero(w)
    clear(w, links.rows + 1)
    set_at_goals(w, goal, first, 1.0)
    for i in range(links.nodes - 1, -1, -1):
        total = zero(w)
        for e in range(links.offset[i], links.offset[i + 1]):
            total += maximum(row(flow, e), 0.0)
        through = row(w, i)
        scale = where_less(0.0, total, through / total, 0.0)
        lost += where_less(0.0, total, 0.0, through)
        for e in range(links.offset[i], links.offset[i + 1]):
            part = maximum(row(flow, e), 0.0) * scale
            store_row(flow, e, part)
            for j in range(1, 3):
                tail = links.ends[4 * e + j]
                store_row(w, tail, row(w, tail) + part)
    return lost


# ----------------------------------------------------------------------------- the start


@jit
def start_flow(edges, links, goal, first, flow, up, out_degree, v):
    """Write a flow through all hyperedges on derivations of finite score, and 0 elsewhere, to ``flow``.

    Each node sends one unit of flow up to the goal, split evenly at each node. Flow that a node passes on without
    receiving it from below comes from the node's hyperedges evenly. A column whose hyperedges are not all on
    derivations of finite score gets the score −inf.

    Return the scores of the best derivations, and write the flow through each node to ``v``.
    """
    nothing = zero(v)
    for e in range(links.columns):
        store_row(edges.flow, e, nothing)
        store_row(edges.outside, e, nothing - np.inf)
    best = nothing
    changed = 1.0
    while changed > 0:
        clear(up, links.rows + 1)
        best_values(edges, links, up, up, nothing, v)
        best = at_goals(v, goal, first, up)
        _find_active_edges(edges, links, goal, first, v, out_degree)
        changed = largest(_forbid_columns(edges, links))
    for h in range(links.hyperedges):
        store_row(flow, h, nothing)
    for i in range(links.rows):
        store_row(up, i, where_less(0.0, row(v, i), 1.0, 0.0))
    for i in range(links.nodes):
        node = links.unknown[i]
        for h in range(links.offset[i], links.offset[i + 1]):
            place = links.place_of[h]
            is_active = row(edges.b, place)
            for j in range(1, 3):
                tail = links.ends[4 * place + j]
                if tail < links.rows:
                    share = is_active * row(up, tail) / maximum(row(out_degree, tail), 1.0)
                    store_row(flow, place, row(flow, place) + share)
            store_row(up, node, row(up, node) + row(flow, place))
    clear(v, links.rows + 1)
    set_at_goals(v, goal, first, 1.0)
    for k in range(len(goal)):
        scale = 1.0 / maximum(_at_goal(up, goal, k, first, out_degree), 1.0)
        for i in range(links.component[k + 1] - 1, links.component[k] - 1, -1):
            degree, received = zero(v), zero(v)
            for h in range(links.offset[i], links.offset[i + 1]):
                degree += row(edges.b, links.place_of[h])
                received += row(flow, links.place_of[h])
            missing = maximum(row(v, links.unknown[i]) - received * scale, 0.0) / maximum(degree, 1.0)
            for h in range(links.offset[i], links.offset[i + 1]):
                place = links.place_of[h]
                through = row(flow, place) * scale + row(edges.b, place) * missing
                store_row(flow, place, through)
                for j in range(1, 3):
                    tail = links.ends[4 * place + j]
                    store_row(v, tail, row(v, tail) + through)
    return best


@jit
def average_flows(edges, links, flow):
    """Write the average ``flow`` of the hyperedges of each column to f."""
    for e in range(links.columns):
        low, high = links.first[e], links.first[e + 1]
        total = zero(flow)
        for place in range(low, high):
            total += row(flow, place)
        store_row(edges.flow, e, total * (1.0 / (high - low)))


@jit
def _find_active_edges(edges, links, goal, first, reached, out_degree):
    """Write 1 to table b for hyperedges on derivations of finite score, else 0; table a has the scores of the heads.

    Write 1 to ``reached`` for the nodes of these derivations, and the number of active hyperedges above each node.
    """
    clear(reached, links.rows + 1)
    clear(out_degree, links.rows + 1)
    set_at_goals(reached, goal, first, 1.0)
    for i in range(links.nodes - 1, -1, -1):
        for h in range(links.offset[i], links.offset[i + 1]):
            place = links.place_of[h]
            is_active = where_less(-np.inf, row(edges.a, place), row(reached, links.unknown[i]), 0.0)
            store_row(edges.b, place, is_active)
            for j in range(1, 3):
                tail = links.ends[4 * place + j]
                store_row(reached, tail, maximum(row(reached, tail), is_active))
                store_row(out_degree, tail, row(out_degree, tail) + is_active)


@jit
def _forbid_columns(edges, links):
    """Set the score of columns to −inf if some of their hyperedges are not active; return 1 in lanes with a change."""
    changed = zero(edges.b)
    if links.hyperedges == links.columns:
        return changed
    for e in range(links.columns):
        active = zero(edges.b)
        for place in range(links.first[e], links.first[e + 1]):
            active += row(edges.b, place)
        all_active = zero(edges.b) + (links.first[e + 1] - links.first[e])
        is_split = where_less(0.0, active, where_less(active, all_active, 1.0, 0.0), 0.0)
        changed = maximum(changed, is_split)
        store_row(edges.score, e, where_less(0.0, is_split, -np.inf, row(edges.score, e)))
    return changed


@jit
def start_slacks(edges, links, sums, potentials, gap, v):
    """Write slacks z > 0 whose potentials exceed the best values by ``gap`` at each node; return the number of flows.

    The slack of a column without flow is 1, and no pass reads it.
    """
    best_values(edges, links, sums, potentials, gap, v)
    count = zero(v)
    for e in range(links.columns):
        store_row(edges.slack, e, zero(v))
    for i in range(links.nodes):
        for h in range(links.offset[i], links.offset[i + 1]):
            e = links.column[h]
            own = row(v, links.unknown[i]) - row(edges.a, links.place_of[h])
            store_row(edges.slack, e, row(edges.slack, e) + own)
    for e in range(links.columns):
        flow = row(edges.flow, e)
        store_row(edges.slack, e, where_less(0.0, flow, row(edges.slack, e), 1.0))
        count += where_less(0.0, flow, 1.0, 0.0)
    return count
