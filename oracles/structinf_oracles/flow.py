"""Flows through a directed graph, scored by their edges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.dp.graph import Graph
from structinf.dp.paths import DAG
from structinf.errors import InvalidInputError
from structinf.oracle import Enumerable
from structinf.shapes import Float

from .common.min_cost_flow import Network, Solver, check_amounts, check_solver

__all__ = ["Flow"]


@dataclass(frozen=True)
class Flow(Enumerable):
    """Whole flows through a directed graph, from nodes that supply to nodes that demand.

    θ is (..., E), the score of a unit on each edge, any sign, in the order of the graph's edges; y is the integer
    amount on each edge, 0 ≤ y_e ≤ capacity_e, such that from each node v

        Σ_{e from v} y_e − Σ_{e to v} y_e = supply_v.

    −inf forbids an edge. Parallel edges are edges of their own. Labels are y in integers, (..., E).

    Parameters
    ----------
    graph : (E, 2) integer array, sequence of pairs of hashable nodes, or networkx.DiGraph
        Edges from the first to the second node of a pair; a DiGraph's are in the order of its ``edges``.
    supplies : mapping, sequence of pairs, or sequence of integers
        Integers by node, positive where flow begins, negative where it ends, with a sum of 0; nodes without one pass on
        what they get. A sequence of integers gives those of nodes 0, 1, 2, and so on.
    capacities : sequence of E integers, an integer for all edges, or None
        None is as much as all supplies together. Round a cycle of positive scores, flow takes all the capacity there
        is: with ``math.inf`` such scores have no best flow, and it is an UnboundedError.
    solver : {"simplex", "ortools"}
        The network simplex method alone, or from where ortools' cost-scaling push-relabel algorithm ends: seldom
        sooner, but that part's time has a polynomial bound. It takes ``pip install 'structinf[solvers]'``.

    Notes
    -----
    Special cases are b-matchings, with edges of capacity 1 between nodes that supply and nodes that demand so many
    partners, shortest paths in graphs without positive cycles, with a supply of 1, and assignments and transport
    plans, which have oracles of their own.

    y is a vertex of the flows' polytope, whose vertices are whole. The network simplex method compares exact sums of
    scores, so that no scale of them matters. Ties go the same way every time. CUDA tensors are copied once a batch.
    Amounts are of θ's dtype, which has whole numbers up to 2^24 as float32.

    References
    ----------
    R. K. Ahuja, T. L. Magnanti & J. B. Orlin, Network Flows, 1993, chapter 11. A. V. Goldberg, An efficient
    implementation of a scaling minimum-cost flow algorithm (Journal of Algorithms 22, 1997), for ortools.

    Examples
    --------
    >>> oracle = Flow(
    ...     [("plant", "port"), ("plant", "town"), ("port", "town")],
    ...     supplies={"plant": 3, "town": -3},
    ...     capacities=[5, 2, 5],
    ... )
    >>> oracle.argmax(-torch.tensor([[2.0, 3.0, 2.0]]))
    tensor([[1., 2., 1.]])
    """

    name: ClassVar[str] = "flow"
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    label_ndim: ClassVar[int] = 1
    padding_stays_in_place: ClassVar[bool] = True
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "to count the whole flows of a network is #P-complete, already between two sides of nodes "
            "(Dyer, Kannan & Mount 1997); dag_path has the sums over paths",
            "Samplable": "exact samples are as hard as to count whole flows, which is #P-complete",
            "Smoothable": "a best flow is no recursion of maxima; dag_path is one",
            "KBest": "the k best flows take another algorithm, which is not here; assignment lists those between two "
            "sides of nodes",
        }
    )

    graph: Any
    supplies: Any = field(kw_only=True)
    capacities: Any = field(default=None, kw_only=True)
    solver: Solver = field(default="simplex", kw_only=True)

    def __post_init__(self) -> None:
        graph = Graph.of(self.graph, directed=True)
        supplies = _by_node(self.supplies, graph)
        capacities = _by_edge(self.capacities, graph, sum(max(amount, 0) for _, amount in supplies))
        check_solver(self.solver)
        for name, value in (("graph", graph), ("supplies", supplies), ("capacities", capacities)):
            object.__setattr__(self, name, value)

    @cached_property
    def _network(self) -> Network:
        supplies = np.zeros(len(self.graph.nodes), np.int64)
        for node, amount in self.supplies:
            supplies[self.graph.number(node)] = amount
        tails, heads = np.ascontiguousarray(self.graph.ends.T, np.int64)
        return Network(tails, heads, np.array(self.capacities, np.float64), supplies)

    def validate(self, theta: Tensor) -> None:
        if theta.shape[1] != len(self.graph.ends):
            raise InvalidInputError(
                f"theta: this graph has {len(self.graph.ends)} edges, and flow takes a score for each of them, "
                f"(..., {len(self.graph.ends)}); got {theta.shape[1]} after the batch dimensions"
            )

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch E"]:
        return self._network.best(theta, self.solver)

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Half a unit for each that an edge empty in ``y`` takes, or one full in it misses."""
        return self._network.hamming_cost(y)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        if labels.shape[1:] != like.shape[1:]:
            raise InvalidInputError(
                f"labels: flows are amounts on {like.shape[1]} edges, (..., {like.shape[1]}); got "
                f"{tuple(labels.shape)} with the batch flat"
            )
        self._network.check_labels(labels)
        left = self._network.left(labels)
        if bool(left.any()):
            index, node = left.nonzero()[0].tolist()
            raise InvalidInputError(
                f"labels: {int(left[index, node]):+d} units should leave node {self.graph.nodes[node]!r} besides those "
                f"that do at batch index {index}"
            )
        return labels.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return y.long()

    def enumerate(self, event_shape: Any) -> Tensor:
        """All flows, (|Y|, E) in float64, by the amounts on the edges in order; at most a million."""
        unlimited = np.flatnonzero(np.isinf(self.capacities))
        try:
            DAG(self.graph.nodes, self.graph.ends[unlimited])
        except InvalidInputError as error:
            raise InvalidInputError(f"there is no end of flows, as capacities are unlimited: {error}") from None
        return torch.from_numpy(self._network.all())


def _by_node(supplies: Any, graph: Graph) -> tuple[tuple[Any, int], ...]:
    """The supplies that are not 0, by node, in the order of the graph's nodes."""
    if not isinstance(supplies, Mapping):
        given = list(supplies.tolist() if hasattr(supplies, "tolist") else supplies)
        pairs = all(isinstance(item, tuple) and len(item) == 2 for item in given)
        supplies = dict(given) if pairs else dict(enumerate(given))
    amounts = check_amounts("supplies", supplies.values(), -math.inf)
    if sum(amounts):
        raise InvalidInputError(
            f"supplies must sum to 0, got {sum(amounts)}: what flows from nodes of positive supply ends in nodes of "
            "negative supply"
        )
    named = {graph.number(node): amount for node, amount in zip(supplies, amounts, strict=True) if amount}
    return tuple((graph.nodes[i], named[i]) for i in sorted(named))


def _by_edge(capacities: Any, graph: Graph, total: int) -> tuple[int | float, ...]:
    edges = len(graph.ends)
    if hasattr(capacities, "tolist"):
        capacities = capacities.tolist()
    if capacities is None:
        capacities = total
    if isinstance(capacities, int | float):
        (one,) = check_amounts("capacities", [capacities], unlimited=True)
        return (one,) * edges
    checked = check_amounts("capacities", capacities, unlimited=True)
    if len(checked) != edges:
        raise InvalidInputError(f"capacities: one for each of {edges} edges is needed, got {len(checked)}")
    return checked
