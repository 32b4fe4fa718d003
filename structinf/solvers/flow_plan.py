"""The linear systems of hypergraphs for the interior-point method over flows, and calls of its kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from ..kernels import parallel_rows, zeros
from ..oracle import Oracle
from ..parts import Parts, as_tuple
from .direct_mean import describes_argmax

if TYPE_CHECKING:
    from ..dp import Hypergraph, HypergraphProgram
    from ..kernels.flow_projection.system import FlowSystem

__all__ = [
    "MAX_ENTRIES",
    "FlowPlan",
    "Recursion",
    "aligned",
    "below_goal",
    "count_multiplications",
    "flow_graph",
    "largest_count",
    "make_system",
    "multiply_by_jacobian",
    "run_kernel",
]

MAX_ENTRIES = 2_000_000
"""Largest number of entries of the matrix of one instance. Sixteen instances of this size take 256 MB."""

# The proximal term of Newton steps, for groups of at most ten hyperedges; it grows with the largest group. Measured on
# chains whose transition is shared by 10 to 100 steps, and on grids: with smaller terms the gaps of long chains stay
# above rounding, and with larger terms the gaps of grids.
_PROXIMAL = 1e-6


def flow_graph(oracle: Oracle, theta: Parts) -> Hypergraph | None:
    """Return the hypergraph whose flows give the means of ``oracle``; None if the method over flows does not apply.

    It applies on the CPU to dynamic programs with one hypergraph for all instances, without weights of parts, unless
    ``argmax`` needs no hypergraph.

    Parameters
    ----------
    oracle : Oracle
        The set of structures.
    theta : (B | 1, *event) tensor, or a tuple of them
        Scores, of which only shapes and device are read.
    """
    tensors = as_tuple(theta)
    is_program = describes_argmax(type(oracle), "build") and "HypergraphProgram" not in oracle.unsupported
    if not is_program or tensors[0].device.type != "cpu":
        return None
    program = cast("HypergraphProgram", oracle)
    # The system would have the size of the hypergraphs of all instances.
    if program.varies_between_instances or program.has_faster_argmax(theta):
        return None
    graph = program.hypergraph(theta)
    parts = sum(t.shape[1:].numel() for t in tensors)
    # Parts with weights need a weighted penalty.
    return graph if graph.begin is None and graph.parts == parts else None


class FlowPlan(Protocol):
    """What kernels need beside the scores: the system, and the multiplications of a factorisation."""

    @property
    def system(self) -> FlowSystem: ...

    @property
    def multiplications(self) -> int: ...


def run_kernel(plan: FlowPlan, kernel: Any, edge_tables: int, node_tables: int, groups: int, *args: Any) -> None:
    """Run a kernel over groups of instances, with scratch for each thread."""
    from ..kernels.simd.vector import LANES

    system = plan.system

    def serve(start: int, stop: int) -> None:
        edges = aligned(edge_tables, len(system.column), LANES)
        nodes = aligned(node_tables, len(system.start) + 1, LANES)
        kernel(start, stop, edges, nodes, aligned(system.entries + 3, LANES), *args)

    parallel_rows(serve, groups, work=groups * LANES * 10 * (plan.multiplications + 20 * len(system.part)))


def multiply_by_jacobian(plan: FlowPlan, weights: np.ndarray, cotangent: Tensor) -> Tensor:
    """Return the products of cotangents (B, P) with the Jacobian of the flows, given by the weights of a solution."""
    from ..kernels.flow_projection import interior_point as kernels

    out = zeros(*cotangent.shape, dtype=torch.float64)
    arguments = weights, cotangent.contiguous().numpy(), plan.system, out.numpy()
    run_kernel(plan, kernels.multiply_by_jacobian, 2, 3, len(weights), *arguments)
    return out


def aligned(*shape: int) -> np.ndarray:
    """Return an uninitialised float64 array whose rows do not straddle cache lines."""
    size, line = math.prod(shape), 16
    flat = np.empty(size + line)
    return flat[-flat.ctypes.data % (8 * line) // 8 :][:size].reshape(shape)


class Recursion(NamedTuple):
    """The hyperedges of one hypergraph, with nodes in topological order and hyperedges sorted by head.

    Attributes
    ----------
    nodes : int
        N, the number of nodes.
    head : (H,) int64
        The head of each hyperedge.
    tails : (H, 2) int64
        The tails; −1 for none.
    part : (H,) int64
        The part of each hyperedge; P for none.
    """

    nodes: int
    head: np.ndarray
    tails: np.ndarray
    part: np.ndarray


def below_goal(graph: Hypergraph, goal: int | None) -> tuple[Recursion, np.ndarray]:
    """Return the part of a hypergraph below one ``goal``, or any goal, and the number of each node, −1 for others."""
    kept = _nodes_below(graph, goal)
    node_of = np.where(kept, np.cumsum(kept) - 1, -1)
    edges = np.flatnonzero(kept[graph.head])
    recursion = Recursion(
        int(kept.sum()), node_of[graph.head[edges]], node_of[graph.tails[edges]], graph.part[edges].astype(np.int64)
    )
    return recursion, node_of[:-1]


def _nodes_below(graph: Hypergraph, goal: int | None) -> np.ndarray:
    """Return which nodes occur in derivations of ``goal``, or of any goal, (N + 1,) bool."""
    kept = np.zeros(graph.nodes + 1, np.bool_)
    kept[graph.goals[graph.goals >= 0] if goal is None else goal] = True
    for nodes, edges in reversed(graph.by_level):
        used = edges[np.repeat(kept[nodes], np.diff(graph.offset)[nodes])]
        kept[graph.tails[used]] = True
    kept[-1] = False
    return kept


def make_system(
    recursions: Sequence[Recursion], penalised: np.ndarray, uses: np.ndarray, shared: np.ndarray
) -> FlowSystem:
    """Return the system of hypergraphs.

    Parameters
    ----------
    recursions : sequence of Recursion
        The hypergraphs. The unknowns of a single hypergraph are in the order of its nodes.
    penalised : (P + 1,) bool
        Whether the penalty contains the flow of each part; False for the last number, which stands for no part.
    uses : (P + 1,) int64
        The number of hyperedges of each part. The flows of a penalised part are summed before they are squared.
    shared : (P + 1,) bool
        Whether all hyperedges of a part have the same flow, and form one column.
    """
    from ..kernels.flow_projection.system import FlowSystem

    grouped = penalised & ~shared & (uses > 1)
    component = np.cumsum([0, *(r.nodes for r in recursions)])
    nodes, groups = int(component[-1]), int(grouped.sum())
    rows = nodes + groups
    head = np.concatenate([r.head + low for r, low in zip(recursions, component, strict=False)])
    tails = np.concatenate(
        [np.where(r.tails < 0, nodes, r.tails + low) for r, low in zip(recursions, component, strict=False)]
    )
    part = np.concatenate([r.part for r in recursions])
    edges = np.arange(len(part))
    _, column = np.unique(np.where(shared[part], part, len(shared) + edges), return_inverse=True)
    order = np.argsort(column, kind="stable")
    first = np.searchsorted(column[order], np.arange(column.max() + 2))
    ends = np.column_stack([head, tails])[order]
    unknown = _elimination_order(ends, column[order], nodes) if len(recursions) > 1 else np.arange(nodes)
    group = np.where(grouped[part], nodes + np.cumsum(grouped)[part] - 1, rows)[order]
    ends = np.column_stack([np.append(unknown, rows)[ends], group]).astype(np.int32)
    start, place, entries = _layout(ends, first[:-1], nodes, rows)
    part_of = part[order][first[:-1]]
    return FlowSystem(
        component=component,
        offset=np.concatenate([[0], np.cumsum(np.bincount(head, minlength=nodes))]),
        unknown=unknown,
        column=column,
        place_of=np.argsort(order, kind="stable"),
        part=part_of.astype(np.int32),
        first=first,
        ends=ends,
        curvature=(penalised & ~grouped)[part_of].astype(np.float64),
        start=start,
        place=place,
        entries=entries,
        nodes=nodes,
        groups=groups,
        has_free_edges=bool((~penalised[part_of]).any()),
        proximal=_PROXIMAL * max(1.0, 0.1 * float(uses[grouped].max(initial=0))),
    )


def _elimination_order(ends: np.ndarray, column: np.ndarray, nodes: int) -> np.ndarray:
    """Return the unknown of each node in an order with few entries between the first and the diagonal of a row.

    E. Cuthill & J. McKee, Reducing the bandwidth of sparse symmetric matrices, ACM National Conference 1969; reversed
    as by A. George.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    node, columns = ends.ravel(), np.repeat(column, 3)
    node, columns = node[node < nodes], columns[node < nodes]
    incidence = csr_array((np.ones(len(node)), (node, columns)), shape=(nodes, int(column.max()) + 1))
    unknown = np.empty(nodes, np.int64)
    unknown[reverse_cuthill_mckee((incidence @ incidence.T).tocsr(), symmetric_mode=True)] = np.arange(nodes)
    return unknown


def _layout(ends: np.ndarray, first: np.ndarray, nodes: int, rows: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the first column and the place of each row of the lower triangle, and the number of entries."""
    lowest = np.repeat(np.minimum.reduceat(ends.min(1), first), np.diff(first, append=len(ends)))
    start = np.arange(rows + 1)
    for column in ends.T:
        np.minimum.at(start, column, lowest)
    start = start[:rows]
    start[nodes:] = 0
    size = np.arange(rows) - start + 1
    return start, np.cumsum(size) - size - start, int(size.sum())


def count_multiplications(start: np.ndarray) -> int:
    """Return the number of multiplications of the factorisation."""
    total = 0
    for i, first in enumerate(start):
        columns = np.arange(first, i)
        total += int((columns - np.maximum(first, start[first:i])).sum()) + 2 * (i - int(first))
    return total


def largest_count(graph: Hypergraph, counted: np.ndarray) -> np.ndarray:
    """Return the largest number of ``counted`` hyperedges in a derivation of each node, (N + 1,) float64."""
    size = np.zeros(graph.nodes + 1)
    for nodes, edges in graph.by_level:
        most = counted[edges] + size[graph.tails[edges]].sum(1)
        size[nodes] = np.maximum.reduceat(most, np.searchsorted(graph.head[edges], nodes))
    return size
