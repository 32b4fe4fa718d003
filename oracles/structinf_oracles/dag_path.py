"""Paths from the source to the target of a directed acyclic graph."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphProgram
from structinf.dp.paths import DAG, path_graph
from structinf.errors import InvalidInputError
from structinf.shapes import Int

from .common.labels import indicators, nonzero_positions, reject_labels

__all__ = ["DagPath"]


@dataclass(frozen=True)
class DagPath(HypergraphProgram):
    """Paths from the source to the target of a directed acyclic graph.

    - Scores θ, shape (..., E), any sign: the score of each edge, in the order of the graph's edges. Parallel edges
      have separate scores. −inf forbids an edge.
    - Structure y, shape (..., E): 1 for each edge on the path.
    - Labels, shape (..., L): the numbers of the path's edges in order, integers in [0, E) padded with −1. L is the
      number of edges of the longest path, at least 1. The method :meth:`nodes` returns the nodes on the path.

    Parameters
    ----------
    graph : (E, 2) integer array, sequence of pairs of hashable nodes, or networkx.DiGraph
        The edges, each from the first to the second node of a pair. The edges of a DiGraph are in the order of its
        ``edges``.
    source : hashable, optional
        The first node of all paths. Default: the only node without incoming edges.
    target : hashable, optional
        The last node of all paths. Default: the only node without outgoing edges.

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
    padding_stays_in_place: ClassVar[bool] = True

    graph: Any
    source: Hashable | None = None
    target: Hashable | None = None

    def __post_init__(self) -> None:
        dag = DAG.of(self.graph)
        source, target = dag.terminals(self.source, self.target)
        dag.edges_between(source, target)
        for name, value in (("graph", dag), ("source", source), ("target", target)):
            object.__setattr__(self, name, value)

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: tuple[int]) -> Hypergraph:
        return path_graph(self.graph, self.source, self.target)

    def validate(self, theta: Tensor) -> None:
        if theta.shape[1] != len(self.graph.ends):
            raise InvalidInputError(
                f"theta: dag_path takes a score for each of the graph's {len(self.graph.ends)} edges, shape "
                f"(..., {len(self.graph.ends)}); got {theta.shape[1]} after the batch dimensions"
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
        reject_labels(
            used & ((labels < 0) | (labels >= count)), labels, f"edge numbers must lie between 0 and {count - 1}"
        )
        reject_labels(used[:, 1:] & ~used[:, :-1], labels, "an edge follows the padding")
        start, end = torch.from_numpy(self.graph.ends.astype(np.int64)).to(labels.device).unbind(1)
        nodes = end.new_full((len(labels), most + 1), self.graph.number(self.source))
        nodes[:, 1:][used] = end[labels[used]]
        reject_labels(
            used.index_put((used,), start[labels[used]] != nodes[:, :-1][used]), labels, "the edges do not form a path"
        )
        last = nodes.gather(1, used.sum(1, keepdim=True))
        reject_labels(last != self.graph.number(self.target), labels, f"the path must end in {self.target!r}")
        return indicators(labels, used, count, like)

    def describe_part(self, y: Tensor, tensor: int, index: tuple[int, ...]) -> str:
        return self.graph.describe_edge(index[0])

    def decode(self, y: Tensor) -> Int[Tensor, "batch most"]:
        paths = self._paths
        scored = paths.part < paths.parts
        rank = np.full(paths.parts, paths.nodes)
        rank[paths.part[scored]] = paths.level[paths.head[scored]]
        order = torch.from_numpy(np.append(rank.argsort(kind="stable"), -1)).to(y.device)  # and −1 for the padding
        return order[nonzero_positions(y[:, order[:-1]], self._longest)]

    def nodes(self, y: Tensor) -> Sequence[Sequence[Hashable]]:
        """Return the nodes on each path of ``y`` (B, E), in order, under their names in the graph."""
        paths = [self.graph.ends[edges[edges >= 0], 1].tolist() for edges in self.decode(y).cpu().numpy()]
        return [[self.source, *(self.graph.nodes[node] for node in path)] for path in paths]

    @property
    def _paths(self) -> Hypergraph:
        return self._hypergraph_of((len(self.graph.ends),))

    @property
    def _longest(self) -> int:
        """The number of edges of the longest path, at least 1."""
        return max(int(self._paths.derivation_size[self._paths.goals]) - 1, 1)
