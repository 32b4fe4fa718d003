"""Flows through a directed graph, scored by their edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.dp.graph import Graph
from structinf.dp.graph_batch import GraphBatch, is_list_of_graphs
from structinf.dp.paths import DAG
from structinf.errors import InvalidInputError, UnsupportedError
from structinf.oracle import Enumerable, computed_on_cpu
from structinf.parts import Parts
from structinf.restriction import Restrictable
from structinf.shapes import Float
from structinf.validation import check_instances, list_instances

from .common.distinct_rows import number_of_dimensions
from .common.edge_amounts import (
    amounts_of_edges,
    bounds_table,
    check_bounds,
    check_supplies,
    precision_of,
    supplies_by_node,
    supplies_table,
)
from .common.graph_batches import check_graph_index, edges_in_use
from .common.integer_amounts import rows_of
from .common.min_cost_flow import Network, Solver, check_solver

__all__ = ["Flow"]


@dataclass(frozen=True)
class Flow(Restrictable, Enumerable):
    """Flows through a directed graph, from supply nodes to demand nodes: integer flows if all numbers are integers.

    A flow y has lower_e ≤ y_e ≤ capacity_e at each edge e and, at each node v,

        Σ_{e from v} y_e − Σ_{e to v} y_e = supply_v.

    - Scores θ, shape (..., E), any sign: the score of one unit on each edge, in the order of the graph's edges.
      Parallel edges have separate scores. −inf forbids an edge.
    - Structure y, shape (..., E): the amount on each edge. With integer supplies and bounds, y is an integer flow.
      With fractional numbers, y is a vertex of the polytope of flows.
    - Labels, shape (..., E): y as integers. Fractional flows have no labels.
    - Instance data ``supplies``, shape (..., N), and ``capacities`` and ``lower``, shape (..., E): the supplies of the
      nodes, by their numbers in ``oracle.graph.nodes``, and the bounds of the edges of each instance. Default: the
      options. In a call, a number, a mapping or a value with one dimension is the option. With a batch of graphs, N is
      the largest number of nodes, and :meth:`structinf.GraphBatch.pad` returns numbers of edges in this form.
    - Instance data ``graph_index``, shape (...), with a batch of graphs: the number of each instance's graph. Default:
      instance b has graph b.

    Parameters
    ----------
    graph : (E, 2) integer array, sequence of pairs of hashable nodes, networkx.DiGraph, or GraphBatch
        The edges, each from the first to the second node of a pair. The edges of a DiGraph are in the order of its
        ``edges``. A :class:`structinf.GraphBatch`, or a list of networkx graphs or arrays, has a graph for each
        instance. E is then the largest number of edges, and parts beyond the edges of a graph are padding. The other
        options are then a number for all edges, or a sequence with the value of each graph.
    supplies : mapping, sequence of pairs (node, number), or sequence of numbers, optional
        The supply of each node: positive where flow begins, negative where flow ends. The sum must be 0 up to
        rounding. Nodes without an entry have supply 0. A sequence of numbers gives the supplies of the nodes 0, 1, 2,
        and so on. Needed without instance data ``supplies``.
    capacities : sequence of E numbers, a number for all edges, or None
        The largest amount on each edge. None, the default, is the sum of all positive supplies and all lower bounds.
        ``math.inf`` is unlimited: if a cycle of unlimited edges has a positive score, no best flow exists, and
        ``argmax`` raises UnboundedError. Cycles of positive score with finite capacities are filled up.
    lower : sequence of E numbers, or a number for all edges, default 0
        The least amount on each edge, at least 0.
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

    y is a vertex of the flow polytope. The network simplex method compares sums of scores exactly, so that the scale of
    the scores does not matter. Amounts are integers in the solver: fractional amounts are multiples of a power of two,
    and rounded below 2^−58 of the sum of supplies, lower bounds and finite capacities. Supplies that the capacities
    cannot carry because of rounding errors, up to 64 units in the last place of their sum, are no error. Ties are
    broken deterministically. CUDA tensors are copied once per batch. y has the dtype of θ; float32 represents integers
    up to 2^24 exactly.

    ``topk`` needs integer supplies and bounds. ``enumerate`` lists the vertices of fractional flows.

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
    has_labels_on_cpu: ClassVar[bool] = True
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType(
        {"supplies": 1, "capacities": 1, "lower": 1, "graph_index": 0}
    )
    label_ndim: ClassVar[int] = 1
    padding_stays_in_place: ClassVar[bool] = True
    graph: Any
    supplies: Any = field(default=None, kw_only=True)
    capacities: Any = field(default=None, kw_only=True)
    lower: Any = field(default=0, kw_only=True)
    solver: Solver = field(default="simplex", kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.graph, GraphBatch) or is_list_of_graphs(self.graph):
            graph = self.graph if isinstance(self.graph, GraphBatch) else GraphBatch.of(self.graph, directed=True)
            if not graph.directed:
                raise InvalidInputError("graph: flows need directed graphs, got a batch of undirected graphs")
            index = torch.arange(len(graph), device="cpu")
            object.__setattr__(self, "graph", graph)
            object.__setattr__(self, "bound", self.bind(graph_index=index).bound)
        else:
            object.__setattr__(self, "graph", Graph.of(self.graph, directed=True))
        for name in ("supplies", "capacities", "lower"):
            object.__setattr__(self, name, self._checked_option(name, getattr(self, name)))
        check_solver(self.solver)
        if self.capacities is not None:
            tables = self._tables_of_options
            self._check_order(
                tables["lower"], tables["capacities"], "edge {1} of graph {0}" if self._is_batch else "edge {1}"
            )

    @property
    def unsupported(self) -> Mapping[str, str]:  # type: ignore[override]
        if self.supplies is None and "supplies" not in self.bound:
            return _UNSUPPORTED
        fractional = self._where_fractional()
        return _UNSUPPORTED if fractional is None else {**_UNSUPPORTED, "KBest": _NO_RANKING.format(fractional)}

    @classmethod
    def reads_as_option(cls, name: str, value: Any) -> bool:
        """Return whether ``value`` is a number, a mapping, pairs of nodes and numbers, or has one dimension.

        Parameters
        ----------
        name : str
            "supplies", "capacities" or "lower".
        value : object
            The value of a call's keyword.
        """
        if name == "graph_index":
            return False
        if isinstance(value, list | tuple) and value:
            return isinstance(value, tuple) or number_of_dimensions(value) < 2 or isinstance(value[0], tuple | Mapping)
        return number_of_dimensions(value) < 2

    # -- options and instance data ---------------------------------------------------------------

    @property
    def _is_batch(self) -> bool:
        return isinstance(self.graph, GraphBatch)

    def _checked_option(self, name: str, value: Any) -> Any:
        """Return an option as a tuple for the graph, or of the tuples of the graphs; None stays None."""
        if value is None and name != "lower":
            return None

        def one(given: Any, graph: Graph) -> Any:
            if name == "supplies":
                return supplies_by_node(given, graph)
            return amounts_of_edges(name, given, graph, unlimited=name == "capacities")

        if not self._is_batch:
            return one(value, self.graph)
        values: Any = [value] * len(self.graph) if isinstance(value, int | float) else value
        if isinstance(values, Mapping | str) or not hasattr(values, "__len__") or len(values) != len(self.graph):
            raise InvalidInputError(
                f"{name} must hold a value for each of the {len(self.graph)} graphs of the batch, got {value!r}"
            )
        try:
            return tuple(one(given, self.graph[i]) for i, given in enumerate(values))
        except InvalidInputError as error:
            raise InvalidInputError(f"{error}, in the batch of graphs") from None

    def _table(self, name: str) -> np.ndarray | None:
        """Return the option ``name`` as an array with a row for each graph, (G, N) or (G, E); None without it."""
        option = getattr(self, name)
        if option is None:
            return None
        options = list(option) if self._is_batch else [option]
        if name == "supplies":
            nodes = int(self.graph.node_counts.max()) if self._is_batch else len(self.graph.nodes)
            return supplies_table(options, list(self.graph) if self._is_batch else [self.graph], nodes)
        return bounds_table(options, self._edges)

    @property
    def _edges(self) -> int:
        return self.graph.most_edges if self._is_batch else len(self.graph.ends)

    @cached_property
    def _tables_of_options(self) -> dict[str, np.ndarray | None]:
        return {name: self._table(name) for name in ("supplies", "capacities", "lower")}

    def _tables(self) -> dict[str, np.ndarray | None]:
        """Return the numbers of the instances, or of all instances in one row, from the options and the data."""
        tables = self._tables_of_options
        if self._is_batch:
            index = self.bound["graph_index"].cpu().numpy()
            tables = {name: None if table is None else table[index] for name, table in tables.items()}
        return {**tables, **{k: v.double().cpu().numpy() for k, v in self.bound.items() if k != "graph_index"}}

    def _network_of(self, tables: Mapping[str, Any]) -> Network:
        """Return the network of ``tables`` with one row, or a row for each instance."""
        supplies, capacities, lower = (tables[name] for name in ("supplies", "capacities", "lower"))
        if supplies is None:
            raise InvalidInputError(
                "flow needs supplies, as an option or with the scores as instance data of shape (..., N) for N nodes"
            )
        ends, inside = self.graph.ends[None] if not self._is_batch else self.graph.padded_edges, np.True_
        if self._is_batch:
            index = self.bound["graph_index"].cpu().numpy()
            ends, inside = ends[index], np.arange(self._edges) < self.graph.edge_counts[index][:, None]
        lower = np.where(inside, lower, 0.0)
        if capacities is None:
            capacities = supplies.clip(min=0).sum(1, keepdims=True) + lower.sum(1, keepdims=True)
            capacities = np.repeat(capacities, self._edges, 1)
        capacities = np.where(inside, capacities, 0.0)
        tails, heads = (np.ascontiguousarray(side, np.int64) for side in np.moveaxis(ends, 2, 0))
        floats = [precision_of(data) for name, data in self.bound.items() if name != "graph_index"]
        return Network(tails, heads, lower, capacities, supplies, precision=max(floats, default=2.0**-52))

    @property
    def _network(self) -> Network:
        """The network of all instances, or of each instance; computed once for the instance data."""
        known: tuple[Any, Network] | None = vars(self).get("_of_batch")
        if known is not None and known[0] is self.bound:
            return known[1]
        network = self._network_of(self._tables())
        object.__setattr__(self, "_of_batch", (self.bound, network))
        return network

    def _check_order(self, lower: Any, capacities: Any, place: str) -> None:
        wrong = lower > capacities
        if wrong.any():
            row, edge = np.argwhere(wrong)[0].tolist()
            pair = [np.broadcast_to(table, wrong.shape)[row, edge] for table in (lower, capacities)]
            raise InvalidInputError(
                f"lower must be at most the capacities, got {pair[0]:g} above {pair[1]:g} for {place.format(row, edge)}"
            )

    def validate(self, theta: Tensor) -> None:
        if self._is_batch:
            check_graph_index(self, theta)
        elif "graph_index" in self.bound:
            raise InvalidInputError("graph_index needs a batch of graphs; pass graph=structinf.GraphBatch.of(graphs)")
        elif theta.shape[1] != self._edges:
            raise InvalidInputError(
                f"theta: flow takes a score for each of the graph's {self._edges} edges, shape (..., {self._edges}); "
                f"got {theta.shape[1]} after the batch dimensions (for different graphs in a batch, pass "
                "graph=structinf.GraphBatch.of(graphs))"
            )
        nodes = self.graph.node_counts[self.bound["graph_index"].cpu().numpy()] if self._is_batch else None
        for name, amounts in self.bound.items():
            check_instances(name, amounts, len(theta))
            if name == "supplies":
                check_supplies(amounts, self.graph, nodes)
            elif name != "graph_index":
                check_bounds(name, amounts, self._edges)
        if "lower" in self.bound or "capacities" in self.bound:
            tables = self._tables()
            if tables["capacities"] is not None:
                self._check_order(tables["lower"], tables["capacities"], "edge {1} at batch index {0}")
        self._network  # noqa: B018 — raises the error of missing supplies

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return edges_in_use(self, theta) if self._is_batch else None

    def _for_all(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return tensors with a row for each instance of the data."""
        rows = rows_of(*tensors, *self.bound.values())
        return tuple(t.expand(rows, *t.shape[1:]) for t in tensors)

    def _check_integral(self, what: str) -> None:
        fractional = self._where_fractional()
        if fractional is not None:
            raise UnsupportedError(f"flow has no {what}: the supplies or bounds{fractional} are fractional")

    def _where_fractional(self) -> str | None:
        """Return the place of fractional amounts, for messages; None if all amounts are integers."""
        fractional = np.flatnonzero(self._network.fractional).tolist()
        if not fractional:
            return None
        return f" at {list_instances(fractional)}" if self.bound else ""

    # -- flows -----------------------------------------------------------------------------------

    @computed_on_cpu
    def argmax(self, theta: Tensor) -> Float[Tensor, "batch E"]:
        return self._network.best(self._for_all(theta)[0], self.solver)

    @property
    def has_nested_structures(self) -> bool:
        """Whether a graph has a cycle, as two flows that differ in one direction alone differ by flows in cycles."""
        ends = (
            [(self.graph[i].nodes, self.graph[i].ends) for i in range(len(self.graph))]
            if self._is_batch
            else [(self.graph.nodes, self.graph.ends)]
        )
        try:
            for nodes, edges in ends:
                DAG(nodes, edges)
        except InvalidInputError:
            return True
        return False

    def part_bounds(self, theta: Tensor) -> tuple[Parts, Parts]:
        low, high = (torch.from_numpy(np.array(table)).to(theta) for table in self._network.bounds)
        return low, high

    @computed_on_cpu
    def topk(self, theta: Tensor, k: int) -> tuple[Parts, Tensor, Tensor]:
        """Return the k best integer flows; UnsupportedError for fractional supplies or bounds."""
        self._check_integral("k best flows")
        return super().topk(self._for_all(theta)[0], k)

    def restricted_argmax(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Parts, Tensor]:
        return self._network.best_within(*self._for_all(theta, low, high))

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs of half a unit, for units on edges empty in ``y`` and units missing on edges full in ``y``.

        An edge is empty at its lower bound.
        """
        return self._network.hamming_cost(y)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        if labels.shape[1:] != like.shape[1:]:
            raise InvalidInputError(
                f"labels must be the amounts on {like.shape[1]} edges, shape (..., {like.shape[1]}); got "
                f"{tuple(labels.shape)} with the batch dimensions flattened"
            )
        self._check_integral("integer labels")
        labels = labels.long()
        self._network.check_labels(labels)
        left = self._network.left(labels)
        if bool(left.any()):
            index, node = left.nonzero()[0].tolist()
            graph = self.graph[int(self.bound["graph_index"][index])] if self._is_batch else self.graph
            raise InvalidInputError(
                f"labels: {int(left[index, node]):+d} more units must leave node {graph.nodes[node]!r} to match "
                f"its supply, at batch index {index}"
            )
        return labels.to(like.dtype)

    def describe_part(self, y: Tensor, tensor: int, index: tuple[int, ...]) -> str:
        if self._is_batch:
            graph = int(self.bound["graph_index"][0])
            return f"{self.graph[graph].describe_edge(index[0])} of graph {graph}"
        return self.graph.describe_edge(index[0])

    def decode(self, y: Tensor) -> Tensor:
        self._check_integral("integer labels")
        return y.long()

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all flows, (|Y|, E) in float64, sorted by the amounts on the edges; at most a million.

        With fractional supplies or bounds, all vertices of the polytope of flows.
        """
        graph = self.graph[int(self.bound["graph_index"][0])] if self._is_batch else self.graph
        unlimited = np.flatnonzero(np.isinf(self._network.capacities[0]))
        if not self._network.fractional[0]:
            try:
                DAG(graph.nodes, graph.ends[unlimited])
            except InvalidInputError as error:
                raise InvalidInputError(
                    "capacities: unlimited edges form a cycle, so the number of flows is infinite; set finite "
                    f"capacities ({error})"
                ) from None
        return torch.from_numpy(self._network.all())


_UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "GibbsOracle": "counting the integer flows of a network is #P-complete, even in bipartite graphs "
        "(Dyer, Kannan & Mount 1997); dag_path sums over paths",
        "Samplable": "exact sampling is as hard as counting integer flows, which is #P-complete",
        "Smoothable": "the network simplex method is not a dynamic program (a recursion of maxima); use dag_path",
    }
)

_NO_RANKING = "the k best flows need integer supplies and bounds{}; multiply all amounts by a common denominator"
