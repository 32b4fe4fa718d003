"""Undirected graphs with scored edges: all pairs of n nodes, or a list of edges given as an option."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from structinf.dp.graph import Graph
from structinf.errors import InvalidInputError
from structinf.oracle import Oracle
from structinf.shapes import Bool, Float, Int
from structinf.validation import check_instances, check_lengths

__all__ = ["ScoredEdges", "UndirectedGraph", "above_diagonal"]


@dataclass(frozen=True, eq=False, repr=False)
class UndirectedGraph(Graph):
    """An undirected graph without self-loops. The end with the lower number comes first in each edge."""

    option: ClassVar[str] = "edges"

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = np.sort(self.ends, axis=1)
        ends.setflags(write=False)
        object.__setattr__(self, "ends", ends)
        object.__setattr__(self, "directed", False)
        object.__setattr__(self, "checksum", zlib.crc32(ends.tobytes()))
        loops = np.flatnonzero(ends[:, 0] == ends[:, 1])
        if len(loops):
            raise InvalidInputError(
                f"edges: edge {loops[0]} joins {self.nodes[ends[loops[0], 0]]!r} to itself; drop the edge, as no "
                "structure has self-loops"
            )

    @classmethod
    def of(cls, graph: Any, directed: bool | None = None) -> Self:
        """Return the graph made from ``graph``; InvalidInputError for a directed networkx graph."""
        if hasattr(graph, "is_directed") and graph.is_directed():
            raise InvalidInputError(f"edges must be an undirected graph, got a {type(graph).__name__}")
        return super().of(graph, directed)

    @staticmethod
    @lru_cache(maxsize=64)
    def complete(n: int) -> UndirectedGraph:
        """Return the graph of all pairs i < j of nodes 0, ..., n − 1, in order."""
        return UndirectedGraph(tuple(range(n)), np.stack(np.triu_indices(n, 1), 1))

    def tables_on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return `pairs` and `edges_of_pairs` as tensors. Later calls share the copies on a GPU."""
        if device.type != "cpu":
            return _tables_on(self, device)
        return tuple(torch.from_numpy(array) for array in (*self.pairs, self.edges_of_pairs))

    @cached_property
    def components(self) -> Int[np.ndarray, " nodes"]:
        """The number of each node's connected component."""
        from scipy.sparse import coo_array  # slow to import
        from scipy.sparse.csgraph import connected_components

        size = len(self.nodes)
        matrix = coo_array((np.ones(len(self.ends)), tuple(self.ends.T)), shape=(size, size))
        return connected_components(matrix, directed=False)[1]

    # -- parallel edges --------------------------------------------------------------------

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The pairs of nodes i < j with edges, as sorted keys i n + j and as j n + i, (P,); each edge's pair, (E,)."""
        keys, pair = np.unique(self.ends @ [len(self.nodes), 1], return_inverse=True)
        low, high = self.ends_of(keys)
        return keys, high * len(self.nodes) + low, pair

    def ends_of(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return i and j of pairs i n + j."""
        return np.divmod(keys, max(len(self.nodes), 1))

    def find_edges(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first edge that joins each pair i n + j, 0 if no edge does, and the number of such edges."""
        known_keys, _, _ = self.pairs
        position = known_keys.searchsorted(keys)
        is_known = np.append(known_keys, -1)[position] == keys
        edges_of_pairs = np.pad(self.edges_of_pairs, ((0, 1), (0, 0)), constant_values=len(self.ends))[
            np.where(is_known, position, -1)
        ]
        return edges_of_pairs[:, 0] * is_known, (edges_of_pairs < len(self.ends)).sum(1)

    @cached_property
    def is_simple(self) -> bool:
        """Whether the edges are sorted and without parallel edges, so that edges and pairs coincide."""
        return bool((np.diff(self.ends @ [len(self.nodes), 1]) > 0).all())

    @cached_property
    def edges_of_pairs(self) -> Int[np.ndarray, "pairs most"]:
        """The edges between each pair of nodes, in order, padded with E."""
        keys, _, pair = self.pairs
        order = pair.argsort(kind="stable")
        count = np.bincount(pair, minlength=len(keys))
        edges_of_pairs = np.full((len(keys), count.max(initial=1)), len(self.ends))
        edges_of_pairs[pair[order], np.arange(len(order)) - np.repeat(count.cumsum() - count, count)] = order
        return edges_of_pairs


@dataclass(frozen=True)
class ScoredEdges(Oracle):
    """Sets of edges of an undirected graph, with a score for each edge.

    θ is (..., n, n), read above the diagonal, or (..., E) for a list of ``edges``. This class handles both forms of
    θ. Subclasses see only the edges of the graph, in order.

    Parameters
    ----------
    edges : (E, 2) integer array, sequence of pairs of hashable nodes, or networkx.Graph, optional
        The edges of the graph. Default: all pairs of nodes.
    """

    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    min_nodes: ClassVar[int] = 0
    """The least number of nodes."""

    edges: Any = None

    def __post_init__(self) -> None:
        if self.edges is not None:
            object.__setattr__(self, "edges", UndirectedGraph.of(self.edges))

    @property
    def event_ndim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of event dimensions of θ: 1 with ``edges``, else 2."""
        return 2 if self.edges is None else 1

    @property
    def padding_stays_in_place(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.edges is not None

    def validate(self, theta: Tensor) -> None:
        if self.edges is not None:
            count = len(self.edges.ends)
            if theta.shape[1] != count:
                raise InvalidInputError(
                    f"theta: {self.label()} takes a score for each of the graph's {count} edges, shape "
                    f"(..., {count}); got {theta.shape[1]} after the batch dimensions"
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
        """Mask the pairs i < j of nodes in use."""
        if self.edges is not None:
            return None
        upper = above_diagonal(theta.shape[1], theta.device)
        if "lengths" not in self.bound:
            return upper
        nodes = torch.arange(theta.shape[1], device=theta.device)
        return upper & (nodes < self.nodes_in_use(theta[:1])[:, None, None])

    def graph_of(self, like: Tensor) -> UndirectedGraph:
        """Return the graph whose edges the scores (B, *event) belong to."""
        return UndirectedGraph.complete(like.shape[1]) if self.edges is None else self.edges

    def nodes_in_use(self, theta: Tensor) -> Int[Tensor, " batch"]:
        """Return the bound lengths (B,), or the number of all nodes for each instance."""
        lengths = self.bound.get("lengths") if self.edges is None else None
        if lengths is None:
            return torch.full((len(theta),), len(self.graph_of(theta).nodes), device=theta.device)
        check_instances("lengths", lengths, len(theta))
        return lengths

    def edge_scores(self, theta: Tensor) -> Float[Tensor, "batch edges"]:
        """Return the scores of the graph's edges (B, E), differentiable by autograd."""
        if self.edges is not None:
            return theta
        return theta.flatten(1).index_select(1, self.graph_of(theta).tables_on(theta.device)[0])

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


@lru_cache(maxsize=64)
def _tables_on(graph: UndirectedGraph, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array).to(device) for array in (*graph.pairs, graph.edges_of_pairs))
