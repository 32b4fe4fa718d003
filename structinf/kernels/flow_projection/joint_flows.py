"""The interior-point method over the flows of several hypergraphs that share variables.

Hyperedges of a shared variable are one column of A, so that their flows are equal. The method is the one of
`structinf.kernels.flow_projection.interior_point`, with two differences. The flows of the start differ between
hypergraphs, so a column starts with their average, and the equations A f = b hold only after some steps. And the best
derivations for the gradient depend on the shares of hyperedges in the gradient of their column. The potentials of the
last step give these shares, and the gap is the sum over the hypergraphs.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..simd.memory import address, row, rows, store_row, zero
from ..simd.vector import LANES, maximum, where_less
from .interior_point import ROUNDING, approach, gap_of, size_of, squares_of, write_solution
from .newton_steps import end_on_face
from .passes import Edges, best_values, edges_of, gather_scores, set_at_goals, sum_groups, work_of
from .system import add_to_ends, clear, links_of

__all__ = ["project"]

# Largest violation of the equations A f = b.
_VIOLATION = 1e-11


@jit
def _clip_flow(edges, links):
    """Set negative flows of table b, and flows outside the face, to 0."""
    for e in range(links.columns):
        flow = maximum(row(edges.b, e), 0.0)
        store_row(edges.b, e, where_less(0.0, row(edges.a, e), flow, 0.0))


@jit
def _violation(edges, links, goal, first, sums):
    """Return the largest violation of A f = b at a node."""
    clear(sums, links.rows + 1)
    set_at_goals(sums, goal, first, -1.0)
    for e in range(links.columns):
        add_to_ends(sums, links, e, row(edges.flow, e), zero(sums))
    largest = zero(sums)
    for i in range(links.nodes):
        largest = maximum(largest, maximum(row(sums, i), 0.0 - row(sums, i)))
    return largest


@jit
def _gather_masked(masked, first, links, outside):
    """Divide the scores of columns evenly over their hyperedges, for the bound of the maximum."""
    gather_scores(masked, first, links, outside)
    for e in range(links.columns):
        store_row(outside, e, row(outside, e) * (1.0 / (links.first[e + 1] - links.first[e])))


@jit
def project(
    start, stop, edge_tables, node_tables, matrix_table, theta, goal, system, squares, max_iter, masked, mean,
    gap, residual, exact, weights,
):  # fmt: skip
    """Solve the instances of the groups ``start:stop`` of LANES.

    Parameters
    ----------
    edge_tables : (EDGE_TABLES, H, LANES) float64
        Scratch.
    node_tables : (NODE_TABLES, rows + 1, LANES) float64
        Scratch.
    matrix_table : (entries + 3, LANES) float64
        Scratch.
    theta : (B, P) float64
        The scores, finite or −inf.
    goal : (K, B) int64
        The unknown of the goal in each hypergraph.
    system : FlowSystem
        The hypergraphs.
    squares : (B,) float64
        An upper bound of ‖R y‖².
    max_iter : int
        Largest number of steps.
    masked : (B, P) float64, or (0, 0)
        The scores for the bound of the maximum, of parts whose score in ``theta`` is −inf.
    mean : (B, P) float64, initially zero, written
        μ on the last face.
    gap : (B,) float64, written
        Upper bound of the distance of the objective at μ from the maximum.
    residual : (B,) float64, written
        The largest violation of A f = b.
    exact : (B,) bool, written
        Whether μ is the mean on an optimal face, up to rounding.
    weights : (groups, E, LANES) float64, written
        The weights D of the Jacobian.
    """
    links, edges, work = links_of(system), edges_of(edge_tables), work_of(node_tables, matrix_table)
    x, sums = work.x, work.sums
    held = rows(3, np.float64)
    lanes = address(held)
    for group in range(start, stop):
        first = group * LANES
        best, rounding, _ = approach(edges, work, links, theta, goal, first, 0.0, squares, max_iter, lanes)
        is_exact = end_on_face(edges, work, links, goal, first, rounding)
        _clip_flow(edges, links)
        own = Edges(edges.score, edges.b, edges.slack, edges.residual, edges.slack, edges.b, edges.outside)
        violation = _violation(own, links, goal, first, sums)
        sum_groups(own, links, sums)
        if len(masked):
            _gather_masked(masked, first, links, edges.outside)
        best_values(own, links, sums, work.potentials, zero(x), x)
        own_gap = gap_of(own, links, x)
        # The size of the start would count scores of −1e30, such as masks.
        size, _ = size_of(own, links)
        rounding = ROUNDING * (size + squares_of(squares, first, lanes))
        is_exact = where_less(-np.inf, best, is_exact, 0.0)
        is_exact = where_less(own_gap, rounding, is_exact, 0.0)
        is_exact = where_less(violation, _VIOLATION, is_exact, 0.0)
        write_solution(edges, links, first, 1.0 + zero(x), mean, address(weights[group]))
        store_row(lanes, 0, own_gap)
        store_row(lanes, 1, violation)
        store_row(lanes, 2, is_exact)
        for c in range(min(LANES, goal.shape[1] - first)):
            gap[first + c] = held[0, c]
            residual[first + c] = held[1, c]
            exact[first + c] = held[2, c] > 0
