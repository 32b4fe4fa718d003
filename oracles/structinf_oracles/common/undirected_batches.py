"""Batches of different undirected graphs with scored edges, in the index tables of one graph with a row for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structinf.dp.graph_batch import GraphBatch
from structinf.errors import InvalidInputError
from structinf.shapes import Int

from .undirected_graphs import UndirectedGraph

__all__ = ["UndirectedBatch"]


@dataclass(frozen=True, eq=False)
class UndirectedBatch:
    """Undirected graphs without self-loops; numbers of nodes and edges are those of each graph.

    Attributes
    ----------
    graphs : GraphBatch
        The graphs.
    """

    graphs: GraphBatch

    @classmethod
    def of(cls, edges: Any) -> UndirectedBatch:
        """Convert and check the option ``edges``: a batch of graphs, or a list of graphs."""
        if not isinstance(edges, GraphBatch):
            for i, graph in enumerate(edges):
                if hasattr(graph, "is_directed") and graph.is_directed():
                    raise InvalidInputError(
                        f"edges: graph {i} of the batch must be undirected, got a {type(graph).__name__}"
                    )
            edges = GraphBatch.of(edges, directed=False)
        if edges.directed:
            raise InvalidInputError(
                "edges must be a batch of undirected graphs, got directed graphs; pass directed=False to GraphBatch"
            )
        loops = np.flatnonzero(edges.edges[:, 0] == edges.edges[:, 1])
        if len(loops):
            graph, edge = edges.graph_of_edge[loops[0]], edges.place_of_edge[loops[0]]
            raise InvalidInputError(
                f"edges: edge {edge} of graph {graph} of the batch joins a node to itself; drop the edge, as no "
                "structure has self-loops"
            )
        return cls(edges)

    @cached_property
    def union(self) -> UndirectedGraph:
        """The graph of all nodes, one graph after another."""
        return UndirectedGraph(tuple(range(int(self.graphs.node_counts.sum()))), self.graphs.edges_of_all_nodes)

    @property
    def most_nodes(self) -> int:
        """The largest number of nodes of a graph."""
        return int(self.graphs.node_counts.max())

    @cached_property
    def ends(self) -> Int[np.ndarray, "graphs edges 2"]:
        """The nodes joined by each edge, the lower first, (G, E, 2), padded with 0."""
        return np.sort(self.graphs.padded_edges, axis=2)

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The tables of :attr:`UndirectedGraph.pairs` and :attr:`UndirectedGraph.edges_of_pairs` of each graph.

        The pairs of nodes i < j with edges as sorted keys i n + j and as j n + i, (G, P); the pair of each edge,
        (G, E); the edges of each pair, (G, P, M). Keys are padded with a number above all keys, pairs with P, and edges
        with E.
        """
        union, graphs, n = self.union, self.graphs, self.most_nodes
        keys, _, pair = union.pairs
        low, high = union.ends_of(keys)
        graph = np.searchsorted(graphs.node_offset + graphs.node_counts, low, side="right")
        counts = np.bincount(graph, minlength=len(graphs))
        first = np.cumsum(counts) - counts
        most, place = int(counts.max(initial=0)), np.arange(len(keys)) - first[graph]
        low, high = low - graphs.node_offset[graph], high - graphs.node_offset[graph]
        # The key above all keys is the place after the matrix of max(n, 2) nodes.
        forward, mirrored = (np.full((len(graphs), most), max(n, 2) ** 2) for _ in range(2))
        forward[graph, place], mirrored[graph, place] = low * n + high, high * n + low
        of_edge = np.full((len(graphs), graphs.most_edges), most)
        of_edge[graphs.graph_of_edge, graphs.place_of_edge] = place[pair]
        known = union.edges_of_pairs
        edges = np.full((len(graphs), most, known.shape[1]), graphs.most_edges)
        edges[graph, place] = np.append(graphs.place_of_edge, graphs.most_edges)[known]
        return forward, mirrored, of_edge, edges

    def tables_on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return `pairs` and the number of nodes of each graph as tensors that later calls share."""
        return _tables_on(self.graphs, device)

    @cached_property
    def is_simple(self) -> bool:
        """Whether the edges of each graph are sorted and without parallel edges."""
        return self.union.is_simple

    def check_connected(self) -> None:
        """Raise InvalidInputError unless each graph has a node and is connected."""
        counts = self.graphs.node_counts
        if (empty := np.flatnonzero(counts == 0)).size:
            raise InvalidInputError(f"edges: graph {empty[0]} of the batch must have at least one node, got none")
        component = self.union.components
        apart = np.flatnonzero(component != np.repeat(component[self.graphs.node_offset], counts))
        if len(apart):
            graph = int(np.searchsorted(self.graphs.node_offset, apart[0], side="right")) - 1
            nodes = self.graphs[graph].nodes
            raise InvalidInputError(
                f"edges: graph {graph} of the batch must be connected, but no path connects {nodes[0]!r} and "
                f"{nodes[apart[0] - self.graphs.node_offset[graph]]!r}; add edges between them"
            )


@lru_cache(maxsize=64)
def _tables_on(graphs: GraphBatch, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(array, device=device) for array in (*UndirectedBatch(graphs).pairs, graphs.node_counts))
