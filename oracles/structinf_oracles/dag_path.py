"""Paths from the source to the target of a directed acyclic graph."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphProgram
from structinf.dp.graph_batch import GraphBatch, is_list_of_graphs
from structinf.dp.paths import DAG, path_graph
from structinf.errors import InvalidInputError
from structinf.kernels.arrays import has_numpy_view
from structinf.shapes import Int

from .common.graph_batches import PathBatch, check_edge_labels, check_graph_index, edges_in_use
from .common.labels import indicators, nonzero_positions, reject_labels

__all__ = ["DagPath"]

_MOST_DENSE = 2**16
"""The largest number of entries of a dense incidence matrix."""


@dataclass(frozen=True)
class DagPath(HypergraphProgram):
    """Paths from the source to the target of a directed acyclic graph.

    - Scores θ, shape (..., E), any sign: the score of each edge, in the order of the graph's edges. Parallel edges
      have separate scores. −inf forbids an edge.
    - Structure y, shape (..., E): 1 for each edge on the path.
    - Labels, shape (..., L): the numbers of the path's edges in order, integers in [0, E) padded with −1. L is the
      number of edges of the longest path, at least 1. The method :meth:`nodes` returns the nodes on the path.
    - Instance data ``graph_index``, shape (...), with a batch of graphs: the number of each instance's graph. Default:
      instance b has graph b.

    Parameters
    ----------
    graph : (E, 2) integer array, sequence of pairs of hashable nodes, networkx.DiGraph, or GraphBatch
        The edges, each from the first to the second node of a pair. The edges of a DiGraph are in the order of its
        ``edges``. A :class:`structinf.GraphBatch`, or a list of networkx graphs or arrays, has a graph for each
        instance. E is then the largest number of edges, and parts beyond the edges of a graph are padding.
    source : hashable, or sequence of them, optional
        The first node of all paths. Default: the only node without incoming edges. With a batch of graphs, a node for
        each graph.
    target : hashable, or sequence of them, optional
        The last node of all paths. Default: the only node without outgoing edges. With a batch of graphs, a node for
        each graph.

    Notes
    -----
    Ties go to the edge with the lowest number, decided from the target backwards.

    References
    ----------
    T. H. Cormen, C. E. Leiserson, R. L. Rivest & C. Stein, Introduction to Algorithms, third edition, 2009, §24.2.

    Examples
    --------
    >>> oracle = DagPath([
    ...     ("home", "bus"),
    ...     ("home", "train"),
    ...     ("train", "bus"),
    ...     ("bus", "work"),
    ...     ("train", "work"),
    ... ])
    >>> y = oracle.argmax(-torch.tensor([[30.0, 10.0, 5.0, 10.0, 20.0]]))
    >>> y, oracle.nodes(y)
    (tensor([[0., 1., 1., 1., 0.]]), [['home', 'train', 'bus', 'work']])
    """

    name: ClassVar[str] = "dag_path"
    search_terms: ClassVar[tuple[str, ...]] = ("lattice", "word_lattice", "dag")
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    label_ndim: ClassVar[int] = 1
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"graph_index": 0})
    padding_stays_in_place: ClassVar[bool] = True

    graph: Any
    source: Hashable | Sequence[Hashable] | None = None
    target: Hashable | Sequence[Hashable] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.graph, GraphBatch) or is_list_of_graphs(self.graph):
            paths = PathBatch.of(self.graph, self.source, self.target)
            object.__setattr__(self, "graph", paths.graphs)
            object.__setattr__(self, "source", tuple(paths.source.tolist()))
            object.__setattr__(self, "target", tuple(paths.target.tolist()))
            object.__setattr__(
                self, "bound", self.bind(graph_index=torch.arange(len(paths.graphs), device="cpu")).bound
            )
            return
        dag = DAG.of(self.graph)
        source, target = dag.terminals(self.source, self.target)
        dag.edges_between(source, target)
        for name, value in (("graph", dag), ("source", source), ("target", target)):
            object.__setattr__(self, name, value)

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    @property
    def _is_batch(self) -> bool:
        return isinstance(self.graph, GraphBatch)

    @property
    def varies_between_instances(self) -> bool:
        return self._is_batch

    @property
    def _batch(self) -> PathBatch:
        return PathBatch(self.graph, np.array(self.source), np.array(self.target))

    def build(self, event_shape: tuple[int]) -> Hypergraph:
        if self._is_batch:
            return self._batch.hypergraph()
        return path_graph(self.graph, self.source, self.target)

    def goal_index(self, graph: Hypergraph) -> Tensor | None:
        return self.bound["graph_index"] if self._is_batch else None

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return edges_in_use(self, theta) if self._is_batch else None

    def validate(self, theta: Tensor) -> None:
        if self._is_batch:
            check_graph_index(self, theta)
            return
        if "graph_index" in self.bound:
            raise InvalidInputError("graph_index needs a batch of graphs; pass graph=structinf.GraphBatch.of(graphs)")
        if theta.shape[1] != len(self.graph.ends):
            raise InvalidInputError(
                f"theta: dag_path takes a score for each of the graph's {len(self.graph.ends)} edges, shape "
                f"(..., {len(self.graph.ends)}); got {theta.shape[1]} after the batch dimensions (for different graphs "
                "in a batch, pass graph=structinf.GraphBatch.of(graphs))"
            )

    # -- labels ----------------------------------------------------------------------------

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        count, most = like.shape[1], self._longest
        if labels.shape[1:] != (most,):
            raise InvalidInputError(
                f"labels must be lists of edge numbers, shape (..., {most}), padded with −1; got "
                f"{tuple(labels.shape)} with the batch dimensions flattened"
            )
        used = labels != -1
        check_edge_labels(self, labels, used, count, "edge numbers")
        reject_labels(used[:, 1:] & ~used[:, :-1], labels, "an edge follows the padding", defers=True)
        ends, source, target = self._ends_and_terminals(labels)
        start, end = ends.gather(1, labels.clamp(0, count - 1).unsqueeze(2).expand(-1, -1, 2)).unbind(2)
        nodes = torch.cat([source, torch.where(used, end, 0)], 1)
        reject_labels(used & (start != nodes[:, :-1]), labels, "the edges do not form a path", defers=True)
        last = nodes.gather(1, used.sum(1, keepdim=True))
        shown = "the target of its graph" if self._is_batch else repr(self.target)
        reject_labels(last != target, labels, f"the path must end in {shown}", defers=True)
        return indicators(labels, used, count, like)

    def _ends_and_terminals(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the ends of each edge, (B, E, 2), the source and the target, (B, 1), as numbers of nodes."""
        if self._is_batch:
            index = self.bound["graph_index"].to(like.device)
            tables = self.graph.padded_edges, self._batch.source[:, None], self._batch.target[:, None]
            ends, source, target = (_on(like.device, table)[index] for table in tables)
            return ends, source, target
        ends = _on(like.device, self.graph.ends.astype(np.int64))
        nodes = np.array([self.graph.number(node) for node in (self.source, self.target)])
        source, target = _on(like.device, nodes).expand(len(like), 2).split(1, 1)
        return ends.expand(len(like), *ends.shape), source, target

    def contains(self, y: Tensor) -> Tensor | None:
        # Without cycles, a flow of 0 and 1 from the source to the target is a path.
        if self._is_batch:
            return None
        ends, needed, incidence = self._balance
        if incidence is not None and has_numpy_view(y):
            # Operations of numpy on small arrays take less time than those of torch, but warn about infinite parts.
            parts = y.detach().numpy()
            is_binary = np.logical_and.reduce((parts == 0) | (parts == 1), axis=1)
            if not is_binary.all():
                parts = np.where(is_binary[:, None], parts, 0)
            is_balanced = np.logical_and.reduce(parts @ incidence.numpy() == needed.numpy(), axis=1)
            return torch.from_numpy(is_binary & is_balanced)
        if incidence is not None:
            surplus = y @ incidence.to(y, non_blocking=True)
        else:
            surplus = y.new_zeros(len(y), len(needed)).index_add_(
                1, ends.to(y.device, non_blocking=True), torch.cat([-y, y], 1)
            )
        return (y == y * y).all(1) & (surplus == needed.to(y, non_blocking=True)).all(1)

    @functools.cached_property
    def _balance(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What :meth:`contains` needs of the graph.

        The starts of all edges and then their ends, (2 E,); the edges into each node less those out of it on a path,
        (N,); and for small graphs the same for each edge, (E, N).
        """
        # Later calls may use autograd, which cannot record inference tensors.
        with torch.inference_mode(False):
            ends = torch.from_numpy(self.graph.ends.astype(np.int64))
            count, (edges, _) = len(self.graph.nodes), ends.shape
            needed = torch.zeros(count, device="cpu")
            needed[self.graph.number(self.source)] -= 1
            needed[self.graph.number(self.target)] += 1
            incidence = None
            if edges * count <= _MOST_DENSE:
                incidence = torch.zeros(edges, count, device="cpu")
                incidence.scatter_add_(1, ends, torch.tensor([-1.0, 1.0], device="cpu").expand(edges, 2))
            return ends.T.reshape(-1), needed, incidence

    def describe_part(self, y: Tensor, tensor: int, index: tuple[int, ...]) -> str:
        if self._is_batch:
            graph = int(self.bound["graph_index"][0])
            return f"{self.graph[graph].describe_edge(index[0])} of graph {graph}"
        return self.graph.describe_edge(index[0])

    def decode(self, y: Tensor) -> Int[Tensor, "batch most"]:
        if self._is_batch:
            index = self.bound["graph_index"].to(y.device)
            ranks = _on(y.device, self._batch.order_of_edges(self._paths))[index]
            positions = nonzero_positions(y.gather(1, ranks[:, :-1]), self._longest)
            return ranks.gather(1, torch.where(positions < 0, ranks.shape[1] - 1, positions))
        paths = self._paths
        scored = paths.part < paths.parts
        rank = np.full(paths.parts, paths.nodes)
        rank[paths.part[scored]] = paths.level[paths.head[scored]]
        order = _on(y.device, np.append(rank.argsort(kind="stable"), -1))  # and −1 for the padding
        return order[nonzero_positions(y[:, order[:-1]], self._longest)]

    def nodes(self, y: Tensor) -> Sequence[Sequence[Hashable]]:
        """Return the nodes on each path of ``y`` (B, E), in order, under their names in the graph."""
        if self._is_batch:
            single = enumerate(self.bound["graph_index"].tolist())
            return [self._alone(graph).nodes(y[b : b + 1, : self.graph.edge_counts[graph]])[0] for b, graph in single]
        paths = [self.graph.ends[edges[edges >= 0], 1].tolist() for edges in self.decode(y).cpu().numpy()]
        return [[self.source, *(self.graph.nodes[node] for node in path)] for path in paths]

    def _alone(self, graph: int) -> DagPath:
        """Return the oracle of one graph of the batch."""
        dag = self.graph.single(graph, DAG)
        return DagPath(dag, dag.nodes[self._batch.source[graph]], dag.nodes[self._batch.target[graph]])

    @property
    def _paths(self) -> Hypergraph:
        return self._hypergraph_of((self.graph.most_edges if self._is_batch else len(self.graph.ends),))

    @property
    def _longest(self) -> int:
        """The number of edges of the longest path, at least 1."""
        return max(int(self._paths.derivation_size[self._paths.goals].max()) - 1, 1)


def _on(device: torch.device, table: np.ndarray) -> Tensor:
    """Return a copy of the table on ``device``, without a wait for the device."""
    return torch.from_numpy(np.array(table)).to(device, non_blocking=True)
