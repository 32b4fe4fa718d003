"""Undirected graphs without self-loops, and their pairs of nodes with edges."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from structinf.dp.graph import Graph
from structinf.errors import InvalidInputError
from structinf.shapes import Int

__all__ = ["UndirectedGraph"]


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

    def ends_on(self, device: torch.device) -> Tensor:
        """Return the nodes joined by each edge, (E, 2), as a tensor that later calls share."""
        return _ends_on(self, device)

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


@lru_cache(maxsize=64)
def _ends_on(graph: UndirectedGraph, device: torch.device) -> Tensor:
    return torch.tensor(graph.ends, device=device)


@lru_cache(maxsize=64)
def _tables_on(graph: UndirectedGraph, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array).to(device) for array in (*graph.pairs, graph.edges_of_pairs))
