"""Structures of undirected graphs with scored edges: all pairs of n nodes, or lists of edges given as an option."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from structinf.dp.graph_batch import GraphBatch, is_list_of_graphs
from structinf.errors import InvalidInputError
from structinf.kernels.gpu import uses_triton
from structinf.oracle import Oracle
from structinf.parts import Parts
from structinf.shapes import Bool, Float, Int
from structinf.validation import check_instances, check_lengths

from .graph_batches import check_graph_index, counts_of_edges, edges_in_use
from .undirected_batches import UndirectedBatch
from .undirected_graphs import UndirectedGraph

__all__ = ["ScoredEdges", "above_diagonal"]


@dataclass(frozen=True)
class ScoredEdges(Oracle):
    """Sets of edges of an undirected graph, with a score for each edge.

    θ is (..., n, n), read above the diagonal, or (..., E) for a list of ``edges``, or for a list of each instance. This
    class handles all forms of θ. Subclasses see only the edges of the graphs, in order.

    Parameters
    ----------
    edges : (E, 2) integer array, sequence of pairs of hashable nodes, networkx.Graph, or GraphBatch, optional
        The edges of the graph, or of the graph of each instance. Default: all pairs of nodes.
    """

    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0, "graph_index": 0})
    min_nodes: ClassVar[int] = 0
    """The least number of nodes."""

    edges: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.edges, GraphBatch) or is_list_of_graphs(self.edges):
            graphs = UndirectedBatch.of(self.edges)
            object.__setattr__(self, "edges", graphs.graphs)
            object.__setattr__(self, "_graphs", graphs)
            index = torch.arange(len(graphs.graphs), device="cpu")
            object.__setattr__(self, "bound", self.bind(graph_index=index).bound)
        elif self.edges is not None:
            object.__setattr__(self, "edges", UndirectedGraph.of(self.edges))

    @property
    def is_batch(self) -> bool:
        """Whether each instance has a graph of a batch."""
        return isinstance(self.edges, GraphBatch)

    @cached_property
    def _graphs(self) -> UndirectedBatch:
        return UndirectedBatch(self.edges)

    def alone(self) -> Self:
        """Return the oracle of the graph of the first instance of a batch of graphs."""
        graph = self.edges.single(int(self.bound["graph_index"][0]), UndirectedGraph)
        return dataclasses.replace(self, edges=graph)

    def _of_instances(self, table: np.ndarray, device: torch.device) -> Tensor:
        """Return the rows of the instances from a table with a row for each graph."""
        on_cpu = torch.tensor(table, device="cpu")
        return on_cpu.to(device, non_blocking=True)[self.bound["graph_index"].to(device)]

    @property
    def event_ndim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of event dimensions of θ: 1 with ``edges``, else 2."""
        return 2 if self.edges is None else 1

    @property
    def padding_stays_in_place(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.edges is not None

    def validate(self, theta: Tensor) -> None:
        if self.is_batch:
            check_graph_index(self, theta)
        elif "graph_index" in self.bound:
            raise InvalidInputError("graph_index needs a batch of graphs; pass edges=structinf.GraphBatch.of(graphs)")
        if self.edges is not None:
            count = self.edges.most_edges if self.is_batch else len(self.edges.ends)
            if theta.shape[1] != count:
                raise InvalidInputError(
                    f"theta: {self.label()} takes a score for each of the graph's {count} edges, shape "
                    f"(..., {count}); got {theta.shape[1]} after the batch dimensions (for different graphs in a "
                    "batch, pass edges=structinf.GraphBatch.of(graphs, directed=False))"
                )
            if "lengths" in self.bound:
                raise InvalidInputError(
                    "lengths must not be given with a list of edges, as all nodes are in use; forbid edges by scores "
                    "of −inf"
                )
        elif theta.shape[1] != theta.shape[2] or theta.shape[1] < self.min_nodes:
            least = f" for n >= {self.min_nodes} nodes" if self.min_nodes else ""
            raise InvalidInputError(
                f"theta: {self.label()} takes scores (n, n) of pairs of nodes{least}; got {tuple(theta.shape[1:])} "
                "after the batch dimensions"
            )
        elif "lengths" in self.bound:
            check_lengths(
                self.bound["lengths"],
                self.min_nodes,
                theta.shape[1],
                f"n = {theta.shape[1]} nodes",
                has_empty=self.has_empty_structure,
            )

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        """Mask the pairs i < j of nodes in use, or the edges of the graph of each instance."""
        if self.edges is not None:
            return edges_in_use(self, theta) if self.is_batch else None
        n = theta.shape[1]
        if "lengths" in self.bound and uses_triton(theta):
            from structinf.kernels.padding import triton_masks

            return triton_masks.mask((n, n), theta.device, self.bound["lengths"], columns=0, order="row < column")
        upper = above_diagonal(n, theta.device)
        if "lengths" not in self.bound:
            return upper
        nodes = torch.arange(theta.shape[1], device=theta.device)
        return upper & (nodes < self.nodes_in_use(theta[:1])[:, None, None])

    def graph_of(self, like: Tensor) -> UndirectedGraph:
        """Return the graph shared by all instances, whose edges the scores (B, *event) belong to."""
        return UndirectedGraph.complete(like.shape[1]) if self.edges is None else self.edges

    def ends_of(self, like: Tensor) -> Int[np.ndarray, "rows edges 2"]:
        """Return the nodes joined by each edge, the lower first, (1 | B, E, 2); 0 for edges in the padding."""
        if not self.is_batch:
            return self.graph_of(like).ends[None]
        return self._graphs.ends[self.bound["graph_index"].cpu().numpy()]

    def ends_on(self, like: Tensor) -> Int[Tensor, "rows edges 2"]:
        """Return :meth:`ends_of` as a tensor on the device of ``like``."""
        if self.is_batch:
            return self._of_instances(self._graphs.ends, like.device)
        return self.graph_of(like).ends_on(like.device).unsqueeze(0)

    def most_nodes(self, like: Tensor) -> int:
        """Return the number of nodes, of the largest graph in a batch of graphs."""
        return self._graphs.most_nodes if self.is_batch else len(self.graph_of(like).nodes)

    def pairs_of(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the tables of :attr:`UndirectedBatch.pairs`, with one row, or a row for each instance."""
        if self.is_batch:
            keys, mirrored, pair, edges = (self._of_instances(table, like.device) for table in self._graphs.pairs)
        else:
            keys, mirrored, pair, edges = (t.unsqueeze(0) for t in self.graph_of(like).tables_on(like.device))
        return keys, mirrored, pair, edges

    def tables_on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the keys, the pair of each edge and the edges of pairs of :meth:`pairs_of`, and the numbers of nodes.

        The tables have a row for each graph of a batch of graphs. Later calls share the copies on a GPU.
        """
        if self.is_batch:
            keys, _, pair, edges, counts = self._graphs.tables_on(device)
            return keys, pair, edges, counts
        keys, _, pair, edges = self.edges.tables_on(device)
        return keys.unsqueeze(0), pair.unsqueeze(0), edges.unsqueeze(0), None

    def find_edges(
        self, instance: np.ndarray, low: np.ndarray, high: np.ndarray, like: Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first edge that joins the nodes ``low`` and ``high`` of each instance, and the number of edges.

        Parameters
        ----------
        instance, low, high : (M,) int64 array
            An instance, and two of its nodes, the lower first.
        like : (B, *event) Tensor
            Scores.
        """
        if not self.is_batch:
            graph = self.graph_of(like)
            return graph.find_edges(low * len(graph.nodes) + high)
        union, graphs = self._graphs.union, self._graphs.graphs
        first = graphs.node_offset[self.bound["graph_index"].cpu().numpy()[instance]]
        edges, count = union.find_edges((first + low) * len(union.nodes) + first + high)
        return graphs.place_of_edge[edges] if len(graphs.edges) else edges, count

    def edges_of_instance(self, event_shape: Any) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the part of each edge (E,), the nodes it joins (E, 2), and the number of nodes, of the only instance.

        Edges between nodes that are not in use are left out.
        """
        like = torch.zeros(1, *event_shape, dtype=torch.float64, device="cpu")
        ends, nodes = self.ends_of(like)[0], int(self.nodes_in_use(like)[0])
        parts = np.arange(len(ends)) if self.edges is not None else self.graph_of(like).pairs[0]
        valid = self.valid_parts(like)
        used = np.ones(len(parts), np.bool_) if valid is None else valid[0].flatten().numpy()[parts]
        return parts[used], ends[used], nodes

    def is_simple(self, like: Tensor) -> bool:
        """Return whether the edges are sorted, without parallel edges, so that edges and pairs of nodes coincide."""
        return self._graphs.is_simple if self.is_batch else self.graph_of(like).is_simple

    def nodes_in_use(self, theta: Tensor) -> Int[Tensor, " batch"]:
        """Return the bound lengths (B,), or the number of all nodes for each instance."""
        if self.is_batch:
            check_instances("graph_index", self.bound["graph_index"], len(theta))
            return self._of_instances(self.edges.node_counts, theta.device)
        lengths = self.bound.get("lengths") if self.edges is None else None
        if lengths is None:
            return torch.full((len(theta),), len(self.graph_of(theta).nodes), device=theta.device)
        check_instances("lengths", lengths, len(theta))
        return lengths

    def edge_counts(self, like: Tensor) -> int | Int[Tensor, "batch 1"]:
        """Return the number of edges of a list of edges, or of the list of each instance."""
        return counts_of_edges(self, like.device).unsqueeze(1) if self.is_batch else like.shape[1]

    def edge_scores(self, theta: Tensor) -> Float[Tensor, "batch edges"]:
        """Return the scores of the graph's edges (B, E), differentiable by autograd."""
        if self.edges is not None:
            return theta
        return theta.flatten(1).index_select(1, self.graph_of(theta).tables_on(theta.device)[0])

    def without_padding(self, theta: Parts) -> Tensor:
        """Return ``theta`` (B, *event) with −inf for parts beyond the edges of the graph of an instance."""
        assert isinstance(theta, Tensor)
        if not self.is_batch:
            return theta
        theta = theta.expand(len(self.bound["graph_index"]), -1)
        used = edges_in_use(self, theta)
        return theta if used is None else theta.masked_fill(~used, -torch.inf)

    def as_parts(self, values: Tensor, like: Tensor) -> Tensor:
        """Return ``values`` (..., E) of the edges in the form and the dtype of θ, (..., *event)."""
        values = values.to(like.dtype)
        if self.edges is not None:
            return values
        n = like.shape[1]
        parts = values.new_zeros(*values.shape[:-1], n * n)
        parts[..., self.graph_of(like).tables_on(values.device)[0]] = values
        return parts.unflatten(-1, (n, n))


def above_diagonal(n: int, device: torch.device) -> Bool[Tensor, "1 n n"]:
    """Return the mask of the pairs i < j, which later calls share."""
    return _above_diagonal(n, device) if device.type != "cpu" else torch.from_numpy(_above_diagonal_on_cpu(n))


@lru_cache(maxsize=64)
def _above_diagonal(n: int, device: torch.device) -> Bool[Tensor, "1 n n"]:
    return torch.ones(1, n, n, dtype=torch.bool, device=device).triu_(1)


@lru_cache(maxsize=64)
def _above_diagonal_on_cpu(n: int) -> Bool[np.ndarray, "1 n n"]:
    return np.triu(np.ones((1, n, n), np.bool_), 1)
