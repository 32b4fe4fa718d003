"""Integer flows through a directed graph, scored by their edges."""

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
from structinf.parts import Parts
from structinf.restriction import Restrictable
from structinf.shapes import Float

from .common.min_cost_flow import Network, Solver, as_sequence, check_amounts, check_solver

__all__ = ["Flow"]


@dataclass(frozen=True)
class Flow(Restrictable, Enumerable):
    """Integer flows through a directed graph, from supply nodes to demand nodes.

    A flow y has 0 ≤ y_e ≤ capacity_e at each edge e and, at each node v,

        Σ_{e from v} y_e − Σ_{e to v} y_e = supply_v.

    - Scores θ, shape (..., E), any sign: the score of one unit on each edge, in the order of the graph's edges.
      Parallel edges have separate scores. −inf forbids an edge.
    - Structure y, shape (..., E): the integer amount on each edge.
    - Labels, shape (..., E): y as integers.

    Parameters
    ----------
    graph : (E, 2) integer array, sequence of pairs of hashable nodes, or networkx.DiGraph
        The edges, each from the first to the second node of a pair. The edges of a DiGraph are in the order of its
        ``edges``.
    supplies : mapping, sequence of pairs (node, integer), or sequence of integers
        The supply of each node: positive where flow begins, negative where flow ends. The sum must be 0. Nodes
        without an entry have supply 0. A sequence of integers gives the supplies of the nodes 0, 1, 2, and so on.
    capacities : sequence of E integers, an integer for all edges, or None
        The largest amount on each edge. None, the default, is the sum of all positive supplies. ``math.inf`` is
        unlimited: if a cycle of unlimited edges has a positive score, no best flow exists, and ``argmax`` raises
        UnboundedError. Cycles of positive score with finite capacities are filled up.
    solver : {"simplex", "ortools"}, default "simplex"
        "simplex" is the network simplex method. "ortools" starts the same method from the flow found by the
        cost-scaling algorithm of ortools. Cost scaling has a polynomial time bound, but is seldom faster. ortools
        holds Python's lock, so that Ctrl-C takes effect after its current instance: 0.4 s for 5,000 nodes and 100,000
        edges, 4 s for 20,000 nodes and 400,000 edges. "ortools" requires ``pip install 'structinf[solvers]'``.

    Notes
    -----
    Special cases are b-matchings (edges of capacity 1 between supply and demand nodes) and shortest paths in graphs
    without cycles of positive score (a supply of 1). Assignments and transport plans are special cases with their own
    oracles.

    y is a vertex of the flow polytope, and all vertices are integers. The network simplex method compares sums of
    scores exactly, so that the scale of the scores does not matter. Ties are broken deterministically. CUDA tensors
    are copied once per batch. y has the dtype of θ; float32 represents integers up to 2^24 exactly.

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
    search_terms: ClassVar[tuple[str, ...]] = ("min_cost_flow", "network_simplex", "network_flow")
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    label_ndim: ClassVar[int] = 1
    padding_stays_in_place: ClassVar[bool] = True
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "counting the integer flows of a network is #P-complete, even in bipartite graphs "
            "(Dyer, Kannan & Mount 1997); dag_path sums over paths",
            "Samplable": "exact sampling is as hard as counting integer flows, which is #P-complete",
            "Smoothable": "the network simplex method is not a dynamic program (a recursion of maxima); use dag_path",
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
                f"theta: flow takes a score for each of the graph's {len(self.graph.ends)} edges, shape "
                f"(..., {len(self.graph.ends)}); got {theta.shape[1]} after the batch dimensions"
            )

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch E"]:
        return self._network.best(theta, self.solver)

    @cached_property
    def has_nested_structures(self) -> bool:
        """Whether the graph has a cycle, as two flows that differ in one direction alone differ by flows in cycles."""
        try:
            DAG(self.graph.nodes, self.graph.ends)
        except InvalidInputError:
            return True
        return False

    def part_bounds(self, theta: Tensor) -> tuple[Parts, Parts]:
        return torch.zeros_like(theta[:1]), theta.new_tensor([self.capacities])

    def restricted_argmax(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Parts, Tensor]:
        return self._network.best_within(theta, low, high)

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs of half a unit, for units on edges empty in ``y`` and units missing on edges full in ``y``."""
        return self._network.hamming_cost(y)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        if labels.shape[1:] != like.shape[1:]:
            raise InvalidInputError(
                f"labels must be the amounts on {like.shape[1]} edges, shape (..., {like.shape[1]}); got "
                f"{tuple(labels.shape)} with the batch dimensions flattened"
            )
        labels = labels.long()
        self._network.check_labels(labels)
        left = self._network.left(labels)
        if bool(left.any()):
            index, node = left.nonzero()[0].tolist()
            raise InvalidInputError(
                f"labels: {int(left[index, node]):+d} more units must leave node {self.graph.nodes[node]!r} to match "
                f"its supply, at batch index {index}"
            )
        return labels.to(like.dtype)

    def describe_part(self, y: Tensor, tensor: int, index: tuple[int, ...]) -> str:
        return self.graph.describe_edge(index[0])

    def decode(self, y: Tensor) -> Tensor:
        return y.long()

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all flows, (|Y|, E) in float64, sorted by the amounts on the edges; at most a million."""
        unlimited = np.flatnonzero(np.isinf(self.capacities))
        try:
            DAG(self.graph.nodes, self.graph.ends[unlimited])
        except InvalidInputError as error:
            raise InvalidInputError(
                f"capacities: unlimited edges form a cycle, so the number of flows is infinite; set finite capacities "
                f"({error})"
            ) from None
        return torch.from_numpy(self._network.all())


def _by_node(supplies: Any, graph: Graph) -> tuple[tuple[Any, int], ...]:
    """Return the nonzero supplies by node, in the order of the graph's nodes."""
    if not isinstance(supplies, Mapping):
        given = as_sequence("supplies", supplies, "a mapping from nodes to integers, or a sequence of integers")
        if all(isinstance(item, tuple) and len(item) == 2 for item in given):
            numbers = [graph.number(node, "supplies") for node, _ in given]
            for i, n in enumerate(numbers):
                if n in numbers[:i]:
                    raise InvalidInputError(
                        f"supplies must have one entry for each node, got two for {given[i][0]!r}; add them up"
                    )
            supplies = dict(given)
        else:
            supplies = dict(enumerate(given))
    amounts = check_amounts("supplies", supplies.values(), -math.inf)
    if sum(amounts):
        raise InvalidInputError(
            f"supplies must sum to 0, got {sum(amounts)}; balance the nodes of positive supply, where flow begins, and "
            "of negative supply, where flow ends"
        )
    named = {graph.number(node, "supplies"): amount for node, amount in zip(supplies, amounts, strict=True) if amount}
    return tuple((graph.nodes[i], named[i]) for i in sorted(named))


def _by_edge(capacities: Any, graph: Graph, total: int) -> tuple[int | float, ...]:
    edges = len(graph.ends)
    if capacities is None:
        capacities = total
    if getattr(capacities, "shape", None) == ():
        capacities = capacities.item()
    if isinstance(capacities, int | float):
        (one,) = check_amounts("capacities", [capacities], unlimited=True)
        return (one,) * edges
    given = as_sequence(
        "capacities", capacities, "an integer for all edges, or a sequence of one integer for each edge"
    )
    checked = check_amounts("capacities", given, unlimited=True)
    if len(checked) != edges:
        raise InvalidInputError(f"capacities must hold one number for each of {edges} edges, got {len(checked)}")
    return checked
