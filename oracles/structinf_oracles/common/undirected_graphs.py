"""Undirected graphs whose edges are scored: all pairs of n nodes, or a list of edges given once."""

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

__all__ = ["ScoredEdges", "UndirectedGraph"]


@dataclass(frozen=True, eq=False, repr=False)
class UndirectedGraph(Graph):
    """An undirected graph without self-loops, the lower end of each edge first."""

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
                f"edges: number {loops[0]} leads from {self.nodes[ends[loops[0], 0]]!r} to itself; no structure has "
                "such an edge, drop it"
            )

    @classmethod
    def of(cls, graph: Any, directed: bool | None = None) -> Self:
        """As for any graph, but for one whose edges have directions."""
        if hasattr(graph, "is_directed") and graph.is_directed():
            raise InvalidInputError(f"edges: an undirected graph is needed, got a {type(graph).__name__}")
        return super().of(graph, directed)

    @staticmethod
    @lru_cache(maxsize=64)
    def complete(n: int) -> UndirectedGraph:
        """All pairs i < j of nodes 0, ..., n − 1, in order."""
        return UndirectedGraph(tuple(range(n)), np.stack(np.triu_indices(n, 1), 1))

    @cached_property
    def components(self) -> Int[np.ndarray, " nodes"]:
        """The number of each node's connected component."""
        from scipy.sparse import coo_array  # takes long to import
        from scipy.sparse.csgraph import connected_components

        size = len(self.nodes)
        matrix = coo_array((np.ones(len(self.ends)), tuple(self.ends.T)), shape=(size, size))
        return connected_components(matrix, directed=False)[1]

    # -- parallel edges --------------------------------------------------------------------

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The pairs of nodes i < j with edges, as i n + j in order, and as j n + i, (P,); that of each edge, (E,)."""
        keys, pair = np.unique(self.ends @ [len(self.nodes), 1], return_inverse=True)
        low, high = self.ends_of(keys)
        return keys, high * len(self.nodes) + low, pair

    def ends_of(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """i and j of pairs i n + j."""
        return np.divmod(keys, max(len(self.nodes), 1))

    def find_edges(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first of the edges that join each of the pairs i n + j, 0 for none, and the number of them."""
        known_keys, _, _ = self.pairs
        position = known_keys.searchsorted(keys)
        is_known = np.append(known_keys, -1)[position] == keys
        edges_of_pairs = np.pad(self.edges_of_pairs, ((0, 1), (0, 0)), constant_values=len(self.ends))[
            np.where(is_known, position, -1)
        ]
        return edges_of_pairs[:, 0] * is_known, (edges_of_pairs < len(self.ends)).sum(1)

    @cached_property
    def is_simple(self) -> bool:
        """Whether edges are pairs, in order."""
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
    """Sets of edges of an undirected graph, each edge with a score.

    θ is (..., n, n), of which the part above the diagonal is read, or (..., E) for a list of ``edges``. What differs
    between the two is written here: subclasses see the edges of the graph, in order.
    """

    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    min_nodes: ClassVar[int] = 0
    """Nodes that a graph has at least."""

    edges: Any = None

    def __post_init__(self) -> None:
        if self.edges is not None:
            object.__setattr__(self, "edges", UndirectedGraph.of(self.edges))

    @property
    def event_ndim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """1 with a list of edges, else 2."""
        return 2 if self.edges is None else 1

    @property
    def padding_stays_in_place(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.edges is not None

    def validate(self, theta: Tensor) -> None:
        if self.edges is not None:
            count = len(self.edges.ends)
            if theta.shape[1] != count:
                raise InvalidInputError(
                    f"theta: this graph has {count} edges, and {self.label()} takes a score for each of them, "
                    f"(..., {count}); got {theta.shape[1]} after the batch dimensions"
                )
            if "lengths" in self.bound:
                raise InvalidInputError(
                    "lengths: a list of edges has all its nodes in use; forbid edges with scores of −inf"
                )
        elif theta.shape[1] != theta.shape[2] or theta.shape[1] < self.min_nodes:
            least = f" for n >= {self.min_nodes} nodes" if self.min_nodes else ""
            raise InvalidInputError(
                f"theta: {self.label()} takes scores (n, n) of pairs of nodes{least}; got {tuple(theta.shape[1:])} "
                "after the batch dimensions"
            )
        elif "lengths" in self.bound:
            self._check_lengths(theta)

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        """All pairs i < j of nodes in use."""
        if self.edges is not None:
            return None
        upper = torch.from_numpy(_above_diagonal(theta.shape[1])).to(theta.device)
        if "lengths" not in self.bound:
            return upper
        nodes = torch.arange(theta.shape[1], device=theta.device)
        return upper & (nodes < self.nodes_in_use(theta[:1])[:, None, None])

    def graph_of(self, like: Tensor) -> UndirectedGraph:
        """The graph whose edges potentials (B, *event) score."""
        return UndirectedGraph.complete(like.shape[1]) if self.edges is None else self.edges

    def nodes_in_use(self, theta: Tensor) -> Int[Tensor, " batch"]:
        """Bound lengths, or all nodes for each instance; checked in direct calls, as compiled loops index by them."""
        lengths = self.bound.get("lengths") if self.edges is None else None
        if lengths is None:
            return torch.full((len(theta),), len(self.graph_of(theta).nodes), device=theta.device)
        check_instances("lengths", lengths, len(theta))
        if self.must_check_lengths():
            self._check_lengths(theta)
        return lengths

    def _check_lengths(self, theta: Tensor) -> None:
        check_lengths(self.bound["lengths"], self.min_nodes, theta.shape[1], f"n = {theta.shape[1]} nodes")

    def edge_scores(self, theta: Tensor) -> Float[Tensor, "batch edges"]:
        """The scores of the graph's edges, differentiable."""
        if self.edges is not None:
            return theta
        return theta.flatten(1).index_select(1, torch.from_numpy(self.graph_of(theta).pairs[0]).to(theta.device))

    def as_parts(self, values: Tensor, like: Tensor) -> Tensor:
        """``values`` (..., E) of the edges in the form and dtype of θ, (..., *event)."""
        values = values.to(like.dtype)
        if self.edges is not None:
            return values
        n = like.shape[1]
        parts = values.new_zeros(*values.shape[:-1], n * n)
        parts[..., torch.from_numpy(self.graph_of(like).pairs[0]).to(values.device)] = values
        return parts.unflatten(-1, (n, n))


@lru_cache(maxsize=64)
def _above_diagonal(n: int) -> Bool[np.ndarray, "1 n n"]:
    return np.triu(np.ones((1, n, n), np.bool_), 1)
