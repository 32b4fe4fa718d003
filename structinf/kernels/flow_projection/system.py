"""The linear systems of the interior-point method: flow conservation with weighted hyperedges, factored by rows.

A flow f ≥ 0 through the hyperedges enters the goal once. At every other node, the flow into the node, over the
hyperedges with this head, equals the flow out of the node, over the hyperedges with this tail. Let A f = b be these
equations. The system of a Newton step is A D Aᵀ x = r with a weight D ≥ 0 for each hyperedge.

Several hypergraphs that share variables form one system. Hyperedges of the same variable have the same flow, and are
one column of A: it is the sum of their columns. With one hypergraph, each hyperedge is a column.

A group is a set of penalised hyperedges with the same part, whose flows are summed before they are squared. Each group
adds an unknown u, the sum, and an equation: A gets a row of ones at the hyperedges of the group, and the diagonal of A
D Aᵀ gets 1.

The unknowns of one hypergraph are its nodes in topological order, then the groups. Row i of the lower triangle is
stored from its first nonzero to the diagonal, and the rows of groups from the first column. The LDLᵀ factorisation
fills no entry outside (A. George & J. Liu, Computer Solution of Large Sparse Positive Definite Systems, 1981,
chapter 4). Each number is a row of LANES instances (`structinf.kernels.simd.vector`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..jit import jit
from ..simd.memory import address, row, store_row, zero
from ..simd.vector import where_less

__all__ = [
    "FlowSystem",
    "add_edge",
    "add_to_ends",
    "clear",
    "factor",
    "group_of",
    "links_of",
    "slope",
    "slope_of",
    "solve",
]

# A pivot below this multiple of its diagonal entry is rounding, or belongs to a node without flow. Its unknown is 0.
_SMALLEST_PIVOT = 1e-17


# Columns of a panel: two rows of a panel fit the innermost cache.
_PANEL = 32


class FlowSystem(NamedTuple):
    """Hypergraphs with penalised hyperedges, and the layout of their linear systems.

    Attributes
    ----------
    component : (K + 1,) int64
        The nodes of hypergraph k, in topological order, are ``component[k]`` up to ``component[k + 1]``, excluded.
    offset : (N + 1,) int64
        The hyperedges of node i are ``offset[i]`` up to ``offset[i + 1]``, excluded.
    unknown : (N,) int64
        The unknown of each node.
    column : (H,) int64
        The column of each hyperedge.
    place_of : (H,) int64
        The row of ``ends`` of each hyperedge.
    part : (E,) int32
        The part of each column; P for none.
    first : (E + 1,) int64
        The hyperedges of column e are the rows ``first[e]`` up to ``first[e + 1]``, excluded, of ``ends``.
    ends : (H, 4) int32
        The unknowns of each hyperedge, sorted by column: the head, two tails, and the group; ``rows`` for none. Only a
        column of one hyperedge has a group.
    curvature : (E,) float64
        1 for columns penalised by ½ f², else 0.
    start : (rows,) int64
        The first column of each row of the matrix.
    place : (rows,) int64
        The entry (i, j) of the matrix is at ``place[i] + j``.
    entries : int
        The number of entries of the matrix.
    nodes : int
        N, the number of nodes of all hypergraphs.
    groups : int
        The number of groups.
    has_free_edges : bool
        Whether hyperedges without a penalty exist.
    proximal : float
        The least curvature of a hyperedge in a Newton step, a proximal term. Without it, large weights D would cancel
        the others in the factorisation. The error of z that results enters the next step as a residual.
    """

    component: np.ndarray
    offset: np.ndarray
    unknown: np.ndarray
    column: np.ndarray
    place_of: np.ndarray
    part: np.ndarray
    first: np.ndarray
    ends: np.ndarray
    curvature: np.ndarray
    start: np.ndarray
    place: np.ndarray
    entries: int
    nodes: int
    groups: int
    has_free_edges: bool
    proximal: float


class Links(NamedTuple):
    """The addresses of the arrays of a `FlowSystem`, and its numbers.

    Inner functions take these, since numba counts the references to each array of a tuple wherever the tuple is passed.

    Attributes
    ----------
    columns, hyperedges, rows : int
        The numbers of columns, hyperedges and unknowns.

    The others are those of a `FlowSystem`.
    """

    component: Any
    offset: Any
    unknown: Any
    column: Any
    place_of: Any
    part: Any
    first: Any
    ends: Any
    curvature: Any
    start: Any
    place: Any
    columns: int
    hyperedges: int
    rows: int
    entries: int
    nodes: int
    groups: int
    has_free_edges: bool
    proximal: float


@jit
def links_of(system):
    """Return the addresses of the arrays of ``system``, and its numbers."""
    return Links(
        address(system.component), address(system.offset), address(system.unknown), address(system.column),
        address(system.place_of), address(system.part), address(system.first), address(system.ends),
        address(system.curvature), address(system.start), address(system.place),
        len(system.part), len(system.column), len(system.start), system.entries, system.nodes, system.groups,
        system.has_free_edges, system.proximal,
    )  # fmt: skip


@jit
def clear(numbers, count):
    """Set the first ``count`` rows to 0."""
    nothing = zero(numbers)
    for i in range(count):
        store_row(numbers, i, nothing)


@jit
def _add(numbers, i, lanes):
    store_row(numbers, i, row(numbers, i) + lanes)


@jit
def group_of(links, column):
    """Return the unknown of a column's group."""
    return links.ends[4 * links.first[column] + 3]


@jit
def slope_of(x, links, place):
    """Return the contribution to Aᵀ x of the hyperedge in row ``place`` of the ends.

    It is x of the head, minus x of the tails, plus x of the group. Row ``rows`` of x is 0.
    """
    e, ends = 4 * place, links.ends
    return (row(x, ends[e]) - row(x, ends[e + 1])) - (row(x, ends[e + 2]) - row(x, ends[e + 3]))


@jit
def slope(x, links, column):
    """Return Aᵀ x at a column."""
    total = slope_of(x, links, links.first[column])
    for place in range(links.first[column] + 1, links.first[column + 1]):
        total += slope_of(x, links, place)
    return total


@jit
def add_to_ends(numbers, links, column, at_nodes, at_group):
    """Add a column of A, times ``at_nodes`` at nodes and ``at_group`` at the group, to ``numbers``."""
    ends = links.ends
    for place in range(links.first[column], links.first[column + 1]):
        e = 4 * place
        _add(numbers, ends[e], at_nodes)
        store_row(numbers, ends[e + 1], row(numbers, ends[e + 1]) - at_nodes)
        store_row(numbers, ends[e + 2], row(numbers, ends[e + 2]) - at_nodes)
        _add(numbers, ends[e + 3], at_group)


@jit
def add_edge(matrix, links, column, weight):
    """Add the ``weight`` of a column to the matrix A D Aᵀ."""
    ends, place, none = links.ends, links.place, links.rows
    low, minus = 4 * links.first[column], 0.0 - weight
    for i in range(low, 4 * links.first[column + 1]):
        a = ends[i]
        if a < none:
            _add(matrix, place[a] + a, weight)
            for j in range(low, i):
                b = ends[j]
                if b < none:
                    tails = (0 < i % 4 < 3) + (0 < j % 4 < 3)
                    value = minus if tails == 1 else weight
                    _add(matrix, place[max(a, b)] + min(a, b), value)
                    if a == b:  # an unknown occurs twice
                        _add(matrix, place[a] + a, value)


@jit
def _dot(left, left_start, right, right_start, count, total):
    """Return ``total`` − Σ left · right over ``count`` rows."""
    for k in range(count):
        total -= row(left, left_start + k) * row(right, right_start + k)
    return total


@jit
def _factor_rows(matrix, links, inverse_pivots, low, high):
    """Factor the block of the rows and columns from ``low`` up to ``high``, excluded."""
    start, place = links.start, links.place
    for i in range(low, high):
        first, here = max(start[i], low), place[i]
        for j in range(first, i):
            k = max(first, start[j])
            store_row(matrix, here + j, _dot(matrix, here + k, matrix, place[j] + k, j - k, row(matrix, here + j)))
        diagonal = row(matrix, here + i)
        pivot = diagonal
        for j in range(first, i):
            entry = row(matrix, here + j)
            scaled = entry * row(inverse_pivots, j)
            pivot -= scaled * entry
            store_row(matrix, here + j, scaled)
        store_row(inverse_pivots, i, where_less(_SMALLEST_PIVOT * diagonal, pivot, 1.0 / pivot, 0.0))


@jit
def _eliminate_nodes(matrix, links, low, high, i, j):
    """Eliminate the nodes before each column from ``low`` up to ``high`` from the rows i and j of two groups.

    The rows are not divided by the pivots.
    """
    start, place = links.start, links.place
    left, right = place[i], place[j]
    for k in range(low, high):
        x, y = row(matrix, left + k), row(matrix, right + k)
        for m in range(start[k], k):
            entry = row(matrix, place[k] + m)
            x -= row(matrix, left + m) * entry
            y -= row(matrix, right + m) * entry
        store_row(matrix, left + k, x)
        store_row(matrix, right + k, y)


@jit
def _subtract_products(matrix, inverse_pivots, a, b, c, d, low, high, ac, ad, bc, bd):
    """Subtract Σ (row a or b) D⁻¹ (row c or d), over the columns from ``low`` up to ``high``, from four entries.

    Rows and entries are given by their places. The four sums share their loads.
    """
    p, q, r, s = row(matrix, ac), row(matrix, ad), row(matrix, bc), row(matrix, bd)
    for k in range(low, high):
        inverse = row(inverse_pivots, k)
        x, y = row(matrix, a + k) * inverse, row(matrix, b + k) * inverse
        z, w = row(matrix, c + k), row(matrix, d + k)
        p -= x * z
        q -= x * w
        r -= y * z
        s -= y * w
    store_row(matrix, bd, s)
    store_row(matrix, bc, r)
    store_row(matrix, ad, q)
    store_row(matrix, ac, p)


@jit
def _factor_groups(matrix, links, inverse_pivots):
    """Factor the rows of the groups, which are stored from the first column, after the rows of the nodes."""
    nodes, rows, place, spare = links.nodes, links.rows, links.place, links.entries
    for low in range(0, nodes, _PANEL):
        high = min(low + _PANEL, nodes)
        for i in range(nodes, rows, 2):
            below = min(i + 1, rows - 1)
            _eliminate_nodes(matrix, links, low, high, i, below)
            for j in range(nodes, i + 1, 2):
                beside = min(j + 1, rows - 1)
                # The last row may be alone in its pair, and the diagonal pair has one entry above the diagonal.
                _subtract_products(
                    matrix, inverse_pivots, place[i], place[below], place[j], place[beside], low, high,
                    place[i] + j,
                    place[i] + beside if beside <= i and beside > j else spare,
                    place[below] + j if below > i else spare + 1,
                    place[below] + beside if below > i else spare + 2,
                )  # fmt: skip
    _factor_rows(matrix, links, inverse_pivots, nodes, rows)


@jit
def factor(matrix, links, inverse_pivots):
    """Replace the lower triangle by L of L D Lᵀ, and write 1 / D. Unknowns with a vanishing pivot get 1 / D = 0.

    The rows of groups stay multiplied by D at nodes. The three rows after the entries of the matrix are scratch.
    """
    _factor_rows(matrix, links, inverse_pivots, 0, links.nodes)
    if links.nodes < links.rows:
        _factor_groups(matrix, links, inverse_pivots)


@jit
def solve(matrix, links, inverse_pivots, x):
    """Solve the factored system in place."""
    start, place, nodes, rows = links.start, links.place, links.nodes, links.rows
    for i in range(nodes):
        store_row(x, i, _dot(matrix, place[i] + start[i], x, start[i], i - start[i], row(x, i)))
    for i in range(nodes, rows):
        total = row(x, i)
        for k in range(nodes):
            total -= row(matrix, place[i] + k) * (row(inverse_pivots, k) * row(x, k))
        store_row(x, i, _dot(matrix, place[i] + nodes, x, nodes, i - nodes, total))
    for i in range(nodes, rows):
        store_row(x, i, row(x, i) * row(inverse_pivots, i))
    for i in range(rows - 1, nodes - 1, -1):
        _subtract_multiple(matrix, place[i], x, row(x, i), 0, i)
    for i in range(nodes):
        store_row(x, i, row(x, i) * row(inverse_pivots, i))
    for i in range(nodes - 1, -1, -1):
        _subtract_multiple(matrix, place[i], x, row(x, i), start[i], i)


@jit
def _subtract_multiple(matrix, place, x, factor, low, high):
    """Subtract ``factor`` times a row of the matrix from the entries of ``x`` from ``low`` up to ``high``."""
    for k in range(low, high):
        store_row(x, k, row(x, k) - factor * row(matrix, place + k))
