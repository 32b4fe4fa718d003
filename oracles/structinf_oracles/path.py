"""Shortest paths in a general graph, directed or undirected, with costs of edges or of nodes."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.deferred_checks import check_data_later
from structinf.dp.graph import Graph
from structinf.dp.graph_batch import GraphBatch, is_list_of_graphs
from structinf.errors import InvalidInputError
from structinf.shapes import Int
from structinf.validation import check_flag, check_instances

from .common.graph_batches import PathBatch, check_edge_labels, check_graph_index, edges_in_use, numbers_of_nodes
from .common.labels import indicators, reject_labels
from .common.shortest_paths import Arcs, ShortestPath

__all__ = ["Path"]


@dataclass(frozen=True)
class Path(ShortestPath):
    """Simple paths from a source to a target in a graph that may have cycles.

    - Scores θ, shape (..., E), at most 0: minus the cost of each edge, in the order of the graph's edges. Parallel
      edges have separate scores. With ``scores="nodes"``, shape (..., N): minus the cost of each node. −inf forbids
      an edge or a node.
    - Structure y, same shape as θ: 1 for each edge on the path, in either direction of an undirected edge; or 1 for
      each node on the path, including both ends.
    - Labels, shape (..., L) for any L: the numbers of the path's edges or nodes in order, padded with −1. Decoded
      labels have L = N for nodes and L = max(N − 1, 1) for edges. The method :meth:`nodes` returns the nodes on the
      path.
    - Instance data ``terminals``, shape (..., 2): the node numbers of the source and the target of each instance,
      integers in [0, N). Required unless the options ``source`` and ``target`` are given.
      ``oracle.graph.number(node)`` returns the number of a node. In a batch of graphs, numbers of the instance's graph.
    - Instance data ``graph_index``, shape (...), with a batch of graphs: the number of each instance's graph. Default:
      instance b has graph b.

    Parameters
    ----------
    graph : (E, 2) integer array, sequence of pairs of hashable nodes, networkx Graph or DiGraph, or GraphBatch
        The edges. The edges of a networkx graph are in the order of its ``edges``. Nodes are numbered in ascending
        order if all are integers, else in order of appearance. A :class:`structinf.GraphBatch`, or a list of networkx
        graphs or arrays, has a graph for each instance. E is then the largest number of edges, and parts beyond the
        edges of a graph are padding.
    source : hashable, or sequence of them, optional
        The first node of all paths. Default: given by ``terminals``. With a batch of graphs, a node for each graph.
    target : hashable, or sequence of them, optional
        The last node of all paths. Default: given by ``terminals``. With a batch of graphs, a node for each graph.
    directed : bool, optional
        Whether edges lead only from the first to the second node of a pair. Default: as the networkx graph, and True
        for pairs.
    scores : {"edges", "nodes"}, default "edges"
        Whether θ scores the edges or the nodes. Batches of graphs have scores of edges.

    Notes
    -----
    ``argmax`` is Dijkstra's algorithm with a binary heap, O((N + E) log N), in float64 on CPU threads. CUDA tensors
    are copied once per batch. Ties are broken deterministically, and cycles of cost 0 are never on a path.

    A positive score raises InvalidInputError, as Dijkstra's algorithm requires costs of at least 0, and longest paths
    are NP-hard. Pass, for example, ``-softplus(scores)``. The scores θ − μ of relaxations such as SparseMAP are at
    most 0 as well. For the same reason ``hamming_cost`` counts only the parts of the gold path missing from another
    path.

    With ``scores="nodes"``, the nodes of a path do not determine their order: different paths through the same nodes
    are one structure. ``decode`` searches for one of these paths by backtracking if nodes have several neighbours on
    the path.

    References
    ----------
    E. W. Dijkstra, A note on two problems in connexion with graphs (Numerische Mathematik 1, 1959). L. G. Valiant,
    The complexity of enumeration and reliability problems (SIAM Journal on Computing 8, 1979), on counting paths.

    Examples
    --------
    >>> roads = [
    ...     ("home", "park"),
    ...     ("park", "lake"),
    ...     ("lake", "home"),
    ...     ("lake", "work"),
    ...     ("park", "work"),
    ... ]
    >>> oracle = Path(roads, "home", "work", directed=False)
    >>> y = oracle.argmax(-torch.tensor([[4.0, 1.0, 2.0, 6.0, 2.0]]))
    >>> y, oracle.decode(y)
    (tensor([[0., 1., 1., 0., 1.]]), tensor([[2, 1, 4]]))
    >>> oracle.nodes(y)
    [['home', 'lake', 'park', 'work']]
    """

    name: ClassVar[str] = "path"
    search_terms: ClassVar[tuple[str, ...]] = ("dijkstra", "bellman_ford", "shortest_path")
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"terminals": 1, "graph_index": 0})
    label_ndim: ClassVar[int] = 1
    padding_stays_in_place: ClassVar[bool] = True
    alternative_for_any_sign: ClassVar[str] = "dag_path, if no edges form a cycle"

    graph: Any
    source: Hashable | Sequence[Hashable] | None = None
    target: Hashable | Sequence[Hashable] | None = None
    directed: bool | None = field(default=None, kw_only=True)
    scores: Literal["edges", "nodes"] = field(default="edges", kw_only=True)

    def __post_init__(self) -> None:
        if self.directed is not None:
            check_flag("directed", self.directed)
        if self.scores not in ("edges", "nodes"):
            raise InvalidInputError(f"scores must be 'edges' or 'nodes', got {self.scores!r}")
        if (self.source is None) != (self.target is None):
            raise InvalidInputError(
                f"source and target must be given together, got {self.source!r} and {self.target!r}; leave out both "
                "to give the instance data terminals=... with theta"
            )
        if isinstance(self.graph, GraphBatch) or is_list_of_graphs(self.graph):
            self._set_batch()
            return
        graph = Graph.of(self.graph, self.directed)
        if not graph.nodes:
            raise InvalidInputError("graph must have at least one node, got none")
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "directed", graph.directed)
        if self.source is not None:
            self._check_way(graph.number(self.source, "source"), graph.number(self.target, "target"))

    def _set_batch(self) -> None:
        graphs = self.graph if isinstance(self.graph, GraphBatch) else GraphBatch.of(self.graph, self.directed)
        if self.scores != "edges":
            raise InvalidInputError('scores must be "edges" with a batch of graphs; give the edges the costs of nodes')
        if self.directed not in (None, graphs.directed):
            raise InvalidInputError(
                f"directed={self.directed} differs from the batch of graphs; pass directed= to GraphBatch.of"
            )
        object.__setattr__(self, "graph", graphs)
        object.__setattr__(self, "directed", graphs.directed)
        if self.source is not None:
            numbers = [
                numbers_of_nodes(graphs, name, nodes)
                for name, nodes in (("source", self.source), ("target", self.target))
            ]
            PathBatch(graphs, *numbers).check_paths()
            for name, each in zip(("source", "target"), numbers, strict=True):
                object.__setattr__(self, name, tuple(each.tolist()))
        object.__setattr__(self, "bound", self.bind(graph_index=torch.arange(len(graphs), device="cpu")).bound)

    @property
    def _is_batch(self) -> bool:
        return isinstance(self.graph, GraphBatch)

    @cached_property
    def _ends_of_graphs(self) -> Int[np.ndarray, "graphs 2"]:
        """The source and the target of each graph, among the nodes of all graphs."""
        return np.array([self.source, self.target]).T + self.graph.node_offset[:, None]

    def _first_nodes(self, device: torch.device) -> Tensor:
        """Return the number of the first node of each instance's graph, among the nodes of all graphs, (B,)."""
        return torch.tensor(self.graph.node_offset, device=device)[self.bound["graph_index"].to(device)]

    def nodes_of_instances(self, batch: int, nodes: int) -> Int[np.ndarray, "batch 2"]:
        if not self._is_batch:
            return super().nodes_of_instances(batch, nodes)
        index = self.bound["graph_index"].cpu().numpy()
        first = self.graph.node_offset[index]
        return np.stack([first, first + self.graph.node_counts[index]], 1)

    def _check_way(self, source: int, target: int) -> None:
        from scipy.sparse import csr_array  # slow to import
        from scipy.sparse.csgraph import breadth_first_order

        arcs, count = self._arcs, len(self.graph.nodes)
        matrix = csr_array((np.ones(len(arcs.head)), arcs.head, arcs.offset), shape=(count, count))
        if target not in breadth_first_order(matrix, source, return_predecessors=False):
            raise InvalidInputError(
                f"target: no path leads from {self.source!r} to {self.target!r}; check the edges and their direction"
            )

    # -- the graph -----------------------------------------------------------------------------

    @cached_property
    def _arcs(self) -> Arcs:
        """The arcs out of each node, with edges as parts; an undirected edge is two arcs."""
        if self._is_batch:
            (tail, head), edge = self.graph.edges_of_all_nodes.T, self.graph.place_of_edge
        else:
            (tail, head), edge = self.graph.ends.T, np.arange(len(self.graph.ends))
        if not self.directed:
            tail, head, edge = np.append(tail, head), np.append(head, tail), np.append(edge, edge)
        nodes = int(self.graph.node_counts.sum()) if self._is_batch else len(self.graph.nodes)
        return Arcs.of(tail, head, edge, nodes)

    @property
    def parts_are_nodes(self) -> bool:
        return self.scores == "nodes"

    def arcs(self, event_shape: Sequence[int]) -> Arcs:
        return self._arcs.by_nodes() if self.parts_are_nodes else self._arcs

    def ends(self, like: Tensor) -> Tensor:
        if self.source is None:
            terminals = self.bound["terminals"]
            self._check_terminals(terminals)
            return terminals + self._first_nodes(terminals.device).unsqueeze(1) if self._is_batch else terminals
        if self._is_batch:
            return torch.from_numpy(self._ends_of_graphs).to(like.device)[self.bound["graph_index"].to(like.device)]
        ends = [self.graph.number(self.source), self.graph.number(self.target)]
        return torch.tensor(ends, device=like.device).expand(len(like), 2)

    def validate(self, theta: Tensor) -> None:
        if self._is_batch:
            check_graph_index(self, theta)
        elif "graph_index" in self.bound:
            raise InvalidInputError("graph_index needs a batch of graphs; pass graph=structinf.GraphBatch.of(graphs)")
        count = self.graph.most_edges if self._is_batch else self._count_of_graph
        if theta.shape[1] != count:
            raise InvalidInputError(
                f"theta: path takes a score for each of the graph's {count} {self.scores}, shape (..., {count}); "
                f"got {theta.shape[1]} after the batch dimensions (for different graphs in a batch, pass "
                "graph=structinf.GraphBatch.of(graphs))"
            )
        if self.source is None:
            self.checked_ends(theta)
        elif "terminals" in self.bound:
            raise InvalidInputError(
                f"terminals must not be given, as the options fix source {self.source!r} and target {self.target!r}; "
                "construct the oracle without these options"
            )

    @property
    def _count_of_graph(self) -> int:
        return len(self.graph.nodes if self.parts_are_nodes else self.graph.ends)

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return edges_in_use(self, theta) if self._is_batch else None

    def _check_terminals(self, terminals: Tensor) -> None:
        if terminals.shape[1:] != (2,):
            raise InvalidInputError(
                f"terminals of path must have shape (..., 2), the node numbers of source and target, got "
                f"{tuple(terminals.shape)} with the batch dimensions flattened"
            )
        if terminals.is_floating_point() or terminals.dtype is torch.bool:
            raise InvalidInputError(
                f"terminals of path must be integers, got {terminals.dtype}; oracle.graph.number(node) returns the "
                "number of a node"
            )
        if self._is_batch:
            check_instances("terminals", terminals, len(self.bound["graph_index"]))
            table = torch.tensor(self.graph.node_counts, device="cpu").to(terminals.device, non_blocking=True)
            counts = table[self.bound["graph_index"].to(terminals.device)].unsqueeze(1)
        else:
            counts = torch.full((1, 1), len(self.graph.nodes), device=terminals.device)
        wrong = (terminals < 0) | (terminals >= counts)
        is_wrong = wrong.any()
        if not check_data_later(is_wrong, operator.not_) and bool(is_wrong):
            index = int(wrong.nonzero()[0, 0])
            raise InvalidInputError(
                f"terminals must lie between 0 and {int(counts[index % len(counts)]) - 1}, got "
                f"{terminals[index].tolist()} at batch index {index}"
            )

    # -- labels --------------------------------------------------------------------------------

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        count = like.shape[1]
        if labels.ndim != 2 or not 1 <= labels.shape[1] <= self._most:
            raise InvalidInputError(
                f"labels must be lists of at most {self._most} {self.scores}, shape (..., L), padded with −1; got "
                f"{tuple(labels.shape)} with the batch dimensions flattened"
            )
        used = labels != -1
        check_edge_labels(self, labels, used, count, self.scores)
        reject_labels(used[:, 1:] & ~used[:, :-1], labels, f"{self.scores} follow the padding")
        if self.parts_are_nodes:
            return self.from_nodes(labels, used, labels, like)
        nodes = self._follow(labels, used, like)
        start, end = self._ends_of(labels, used).unbind(2)
        joined = (start == nodes[:, :-1]) | ((end == nodes[:, :-1]) & (not self.directed))
        reject_labels(used & ~joined, labels, "the edges do not form a path")
        self.check_walk(nodes, torch.nn.functional.pad(used, (1, 0), value=True), labels, like)
        return indicators(labels, used, count, like)

    def describe_part(self, y: Tensor, tensor: int, index: tuple[int, ...]) -> str:
        if self._is_batch:
            graph = int(self.bound["graph_index"][0])
            return f"{self.graph[graph].describe_edge(index[0])} of graph {graph}"
        return f"node {self.graph.nodes[index[0]]!r}" if self.parts_are_nodes else self.graph.describe_edge(index[0])

    def decode(self, y: Tensor) -> Tensor:
        return self.parts_in_order(y, self._most)

    def nodes(self, y: Tensor) -> Sequence[Sequence[Hashable]]:
        """Return the nodes on each path of ``y`` (B, E) or (B, N), in order, under their names in the graph."""
        labels = self.decode(y)
        used = labels >= 0
        if not self.parts_are_nodes:
            labels, used = self._follow(labels, used, y), torch.nn.functional.pad(used, (1, 0), value=True)
        rows = zip(labels.tolist(), used.sum(1).tolist(), strict=True)
        if self._is_batch:
            index, first = self.bound["graph_index"].tolist(), self._first_nodes(y.device).tolist()
            names = [self.graph[i].nodes for i in index]
            return [[names[b][node - first[b]] for node in row[:length]] for b, (row, length) in enumerate(rows)]
        return [[self.graph.nodes[node] for node in row[:length]] for row, length in rows]

    def _follow(self, edges: Tensor, used: Tensor, like: Tensor) -> Tensor:
        """Return the nodes before and after each used edge of a path, (B, L + 1), for ``edges`` (B, L).

        The next node is the sum of an edge's two ends minus the node before. All nodes are thus alternating
        cumulative sums.
        """
        sign = 1 - 2 * (torch.arange(edges.shape[1] + 1, device=edges.device) % 2)
        source = self.ends(like).to(edges.device)[:, :1]
        sums = (sign[:-1] * self._ends_of(edges, used).sum(2)).cumsum(1)
        return sign * torch.cat([source.expand(len(edges), 1), source - sums], 1)

    def _ends_of(self, edges: Tensor, used: Tensor) -> Tensor:
        """Return both ends of each of the used ``edges`` (B, L), shape (B, L, 2); 0 elsewhere."""
        if self._is_batch:
            ends = torch.tensor(self.graph.padded_edges, device=edges.device)[
                self.bound["graph_index"].to(edges.device)
            ]
            ends = ends + self._first_nodes(edges.device).view(-1, 1, 1)
            place = torch.where(used, edges, 0).unsqueeze(2).expand(*edges.shape, 2)
            return torch.where(used.unsqueeze(2), ends.gather(1, place), 0)
        ends = torch.tensor(self.graph.ends, device=edges.device)
        nodes_of_edges = edges.new_zeros(*edges.shape, 2)
        nodes_of_edges[used] = ends[edges[used]]
        return nodes_of_edges

    @property
    def _most(self) -> int:
        """The largest number of labels that a path can have."""
        nodes = int(self.graph.node_counts.max()) if self._is_batch else len(self.graph.nodes)
        return max(nodes - (not self.parts_are_nodes), 1)
