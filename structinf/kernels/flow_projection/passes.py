"""Passes over the flows of a hypergraph: values, sums, and the start of the interior-point method.

Numbers of hyperedges and nodes are rows of LANES instances (`structinf.kernels.simd.vector`), given by the address of
an array. `structinf.kernels.flow_projection.interior_point` defines the symbols.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..jit import jit
from ..simd.memory import address, row, store_row, zero
from ..simd.vector import LANES, maximum, where_less
from .system import clear

__all__ = [
    "Edges",
    "at_goals",
    "best_values",
    "gather_scores",
    "send_flow",
    "set_at_goals",
    "start_flow",
    "start_slacks",
    "sum_groups",
]


class Edges(NamedTuple):
    """Addresses of numbers for each hyperedge: θ, f, z, the residual of z, and two scratch tables."""

    score: Any
    flow: Any
    slack: Any
    residual: Any
    a: Any
    b: Any


@jit
def gather_scores(theta, first, system, scores):
    """Write the scores of the hyperedges of the LANES instances from ``first``, 0 for hyperedges without a part."""
    parts, last = theta.shape[1], len(theta) - 1
    for e in range(len(system.part)):
        part = system.part[e]
        for c in range(LANES):
            scores[e * LANES + c] = theta[min(first + c, last), part] if part < parts else 0.0


@jit
def at_goals(v, goal, first, scratch):
    """Return the numbers ``v`` at the goals of the LANES instances from ``first``. Row 0 of ``scratch`` is written."""
    for c in range(LANES):
        scratch[c] = v[goal[min(first + c, len(goal) - 1)] * LANES + c]
    return row(scratch, 0)


@jit
def set_at_goals(numbers, goal, first, value):
    """Set the ``numbers`` at the goals of the LANES instances from ``first``."""
    for c in range(LANES):
        numbers[goal[min(first + c, len(goal) - 1)] * LANES + c] = value


# ----------------------------------------------------------------------------- values and flows


@jit
def _gradient(edges, group_flow, ends, edge, curvature):
    """Return θ − H f of a hyperedge."""
    return row(edges.score, edge) - (curvature[edge] * row(edges.flow, edge) + row(group_flow, ends[4 * edge + 3]))


@jit
def sum_groups(edges, system, links, sums):
    """Write the sum of f over each group to the rows of the groups."""
    clear(sums, links.rows + 1)
    if system.groups:
        for e in range(len(system.part)):
            group = links.ends[4 * e + 3]
            if group < links.rows:
                store_row(sums, group, row(sums, group) + row(edges.flow, e))


@jit
def best_values(edges, system, links, sums, gap, v):
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
def send_flow(edges, system, links, goal, first, flow, w):
    """Scale ``flow`` to a flow of 1 into the goal, from the goal down, and write the flow through the nodes to ``w``.

    Negative numbers count as 0. Return the flow into nodes without flow over their hyperedges, which is lost.
    """
    lost = zero(w)
    clear(w, links.rows + 1)
    set_at_goals(w, goal, first, 1.0)
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
def start_flow(edges, system, links, goal, first, up, out_degree, v):
    """Write a flow through all hyperedges on derivations of finite score, and 0 elsewhere.

    Each node sends one unit of flow up to the goal, split evenly at each node. Flow that a node passes on without
    receiving it from below comes from the node's hyperedges evenly.

    Return the scores of the best derivations.
    """
    for e in range(len(system.part)):
        store_row(edges.flow, e, zero(v))
    clear(up, links.rows + 1)
    best_values(edges, system, links, up, zero(v), v)
    best = at_goals(v, goal, first, up)
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
    scale = 1.0 / maximum(at_goals(up, goal, first, out_degree), 1.0)
    clear(v, links.rows + 1)
    set_at_goals(v, goal, first, 1.0)
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
    set_at_goals(reached, goal, first, 1.0)
    for i in range(system.nodes - 1, -1, -1):
        for e in range(system.offset[i], system.offset[i + 1]):
            is_active = where_less(-np.inf, row(edges.a, e), row(reached, i), 0.0)
            store_row(edges.b, e, is_active)
            for j in range(1, 3):
                tail = links.ends[4 * e + j]
                store_row(reached, tail, maximum(row(reached, tail), is_active))
                store_row(out_degree, tail, row(out_degree, tail) + is_active)


@jit
def start_slacks(edges, system, links, sums, gap, v):
    """Write slacks z > 0 whose potentials exceed the best values by ``gap`` at each node; return the number of flows.

    The slack of a hyperedge without flow is 1, and no pass reads it.
    """
    best_values(edges, system, links, sums, gap, v)
    count = zero(v)
    for i in range(system.nodes):
        for e in range(system.offset[i], system.offset[i + 1]):
            flow = row(edges.flow, e)
            store_row(edges.slack, e, where_less(0.0, flow, row(v, i) - row(edges.a, e), 1.0))
            count += where_less(0.0, flow, 1.0, 0.0)
    return count
