"""Shortest paths of a general graph, directed or not, whose edges or nodes have costs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.dp.graph import Graph
from structinf.errors import InvalidInputError
from structinf.validation import check_flag

from .common.labels import indicators, reject_labels
from .common.shortest_paths import Arcs, ShortestPath

__all__ = ["Path"]


@dataclass(frozen=True)
class Path(ShortestPath):
    """Simple paths from a source to a target in a graph that may have cycles.

    θ is (..., E), the score of each edge, in the order of the graph's edges, or (..., N), that of each node, and y
    marks the edges on the path, whichever way it goes along one without a direction, or its nodes, both ends among
    them. Every θ is 0 or less: minus a cost. −inf forbids a part. Parallel edges are edges of their own.

    Labels are the path's edges in order, or its nodes, numbers padded with −1: (..., L) for any L, decoded ones of
    N − 1 edges (1 at least) or N nodes. :meth:`nodes` names the nodes on the way.

    Instance data: ``terminals`` (..., 2), integers, the numbers of each instance's source and target, if they are no
    options.

    Parameters
    ----------
    graph : (E, 2) integer array, sequence of pairs of hashable nodes, or networkx Graph or DiGraph
        A networkx graph's edges are in the order of its ``edges``. Nodes that are all integers are numbered in
        ascending order, others as they appear.
    source, target : hashable, optional
        Where all paths begin and end.
    directed : bool, optional
        Whether edges lead only from the first to the second node of a pair. By default as a networkx graph has it,
        and True for pairs.
    scores : {"edges", "nodes"}
        What has scores.

    Notes
    -----
    The argmax is Dijkstra's algorithm with a binary heap, O((N + E) log N), in float64, on CPU threads; CUDA tensors
    are copied once a batch. Ties are broken the same way every time, and cycles of cost 0 are never on a path.

    A positive potential is an InvalidInputError, as a longest path would have to be found, which is NP-hard; take
    ``-softplus(scores)``, say. Relaxations ask about θ − μ, which is 0 or less as well, and ``hamming_cost`` counts
    the parts of the right path that another one misses, for the same reason.

    Nodes alone do not say in which order they are passed: different paths through the same nodes are one structure,
    and its labels are one of these paths, which is searched for by trial where nodes have several neighbours among
    them.

    References
    ----------
    E. W. Dijkstra, A note on two problems in connexion with graphs (Numerische Mathematik 1, 1959). L. G. Valiant, The
    complexity of enumeration and reliability problems (SIAM Journal on Computing 8, 1979), on counting paths.

    Examples
    --------
    >>> roads = [("home", "park"), ("park", "lake"), ("lake", "home"), ("lake", "work"), ("park", "work")]
    >>> oracle = Path(roads, "home", "work", directed=False)
    >>> y = oracle.argmax(-torch.tensor([[4.0, 1.0, 2.0, 6.0, 2.0]]))
    >>> y, oracle.decode(y), oracle.nodes(y)
    (tensor([[0., 1., 1., 0., 1.]]), tensor([[2, 1, 4]]), [['home', 'lake', 'park', 'work']])
    """

    name: ClassVar[str] = "path"
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"terminals": 1})
    label_ndim: ClassVar[int] = 1
    padding_stays_in_place: ClassVar[bool] = True
    alternative_for_any_sign: ClassVar[str] = "dag_path, if no edges form a cycle"

    graph: Any
    source: Hashable | None = None
    target: Hashable | None = None
    directed: bool | None = field(default=None, kw_only=True)
    scores: Literal["edges", "nodes"] = field(default="edges", kw_only=True)

    def __post_init__(self) -> None:
        if self.directed is not None:
            check_flag("directed", self.directed)
        if self.scores not in ("edges", "nodes"):
            raise InvalidInputError(f"scores must be 'edges' or 'nodes', got {self.scores!r}")
        if (self.source is None) != (self.target is None):
            raise InvalidInputError(
                f"source and target: both are needed, or none where terminals=... comes along with theta; got "
                f"{self.source!r} and {self.target!r}"
            )
        graph = Graph.of(self.graph, self.directed)
        if not graph.nodes:
            raise InvalidInputError("graph: it has no nodes")
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "directed", graph.directed)
        if self.source is not None:
            self._check_way(graph.number(self.source), graph.number(self.target))

    def _check_way(self, source: int, target: int) -> None:
        from scipy.sparse import csr_array  # takes long to import
        from scipy.sparse.csgraph import breadth_first_order

        arcs, count = self._arcs, len(self.graph.nodes)
        matrix = csr_array((np.ones(len(arcs.head)), arcs.head, arcs.offset), shape=(count, count))
        if target not in breadth_first_order(matrix, source, return_predecessors=False):
            raise InvalidInputError(f"target: no path leads from {self.source!r} to {self.target!r}")

    # -- the graph -----------------------------------------------------------------------------

    @cached_property
    def _arcs(self) -> Arcs:
        """The ways on from each node, of which edges are the parts; an edge without a direction is two of them."""
        (tail, head), edge = self.graph.ends.T, np.arange(len(self.graph.ends))
        if not self.directed:
            tail, head, edge = np.append(tail, head), np.append(head, tail), np.append(edge, edge)
        return Arcs.of(tail, head, edge, len(self.graph.nodes))

    @property
    def parts_are_nodes(self) -> bool:
        return self.scores == "nodes"

    def arcs(self, event_shape: Sequence[int]) -> Arcs:
        return self._arcs.by_nodes() if self.parts_are_nodes else self._arcs

    def ends(self, like: Tensor) -> Tensor:
        if self.source is None:
            terminals = self.bound["terminals"]
            self._check_terminals(terminals)
            return terminals
        ends = [self.graph.number(self.source), self.graph.number(self.target)]
        return torch.tensor(ends, device=like.device).expand(len(like), 2)

    def validate(self, theta: Tensor) -> None:
        count = len(self.graph.nodes if self.parts_are_nodes else self.graph.ends)
        if theta.shape[1] != count:
            raise InvalidInputError(
                f"theta: this graph has {count} {self.scores}, and path takes a score for each, (..., {count}); "
                f"got {theta.shape[1]} after the batch dimensions"
            )
        if self.source is None:
            self.checked_ends(theta)
        elif "terminals" in self.bound:
            raise InvalidInputError(
                f"terminals: paths go from {self.source!r} to {self.target!r}; make the oracle without source and "
                "target to give them with theta"
            )

    def _check_terminals(self, terminals: Tensor) -> None:
        if terminals.shape[1:] != (2,):
            raise InvalidInputError(
                f"terminals of path are (..., 2), the numbers of a source and a target, got {tuple(terminals.shape)} "
                "with the batch flat"
            )
        if terminals.is_floating_point() or terminals.dtype is torch.bool:
            raise InvalidInputError(
                f"terminals of path are numbers of nodes, integers, got {terminals.dtype}; graph.number(node) has them"
            )
        wrong = (terminals < 0) | (terminals >= len(self.graph.nodes))
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0, 0])
            raise InvalidInputError(
                f"terminals: nodes lie between 0 and {len(self.graph.nodes) - 1}, got {terminals[index].tolist()} at "
                f"batch index {index}"
            )

    # -- labels --------------------------------------------------------------------------------

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        count = like.shape[1]
        if not 1 <= labels.shape[1] <= self._most:
            raise InvalidInputError(
                f"labels: paths are lists of at most {self._most} {self.scores}, (..., L), padded with −1; got "
                f"{tuple(labels.shape)} with the batch flat"
            )
        used = labels != -1
        reject_labels(used & ((labels < 0) | (labels >= count)), labels, f"{self.scores} lie between 0 and {count - 1}")
        reject_labels(used[:, 1:] & ~used[:, :-1], labels, f"one of the {self.scores} comes after the padding")
        if self.parts_are_nodes:
            return self.from_nodes(labels, used, labels, like)
        nodes = self._follow(labels, used, like)
        start, end = self._ends_of(labels, used).unbind(2)
        joined = (start == nodes[:, :-1]) | ((end == nodes[:, :-1]) & (not self.directed))
        reject_labels(used & ~joined, labels, "the edges are no path")
        self.check_walk(nodes, torch.nn.functional.pad(used, (1, 0), value=True), labels, like)
        return indicators(labels, used, count, like)

    def decode(self, y: Tensor) -> Tensor:
        return self.parts_in_order(y, self._most)

    def nodes(self, y: Tensor) -> Sequence[Sequence[Hashable]]:
        """The nodes on each of the paths ``y`` (B, E) or (B, N), in order, as the graph names them."""
        labels = self.decode(y)
        used = labels >= 0
        if not self.parts_are_nodes:
            labels, used = self._follow(labels, used, y), torch.nn.functional.pad(used, (1, 0), value=True)
        rows = zip(labels.tolist(), used.sum(1).tolist(), strict=True)
        return [[self.graph.nodes[node] for node in row[:length]] for row, length in rows]

    def _follow(self, edges: Tensor, used: Tensor, like: Tensor) -> Tensor:
        """The nodes before and after each of the ``edges`` (B, L) in ``used``, (B, L + 1), if they are a path.

        The next node is the sum of an edge's ends less the node before, so that nodes are sums of alternating signs.
        """
        sign = 1 - 2 * (torch.arange(edges.shape[1] + 1, device=edges.device) % 2)
        source = self.ends(like).to(edges.device)[:, :1]
        sums = (sign[:-1] * self._ends_of(edges, used).sum(2)).cumsum(1)
        return sign * torch.cat([source.expand(len(edges), 1), source - sums], 1)

    def _ends_of(self, edges: Tensor, used: Tensor) -> Tensor:
        """The two ends of each of the ``edges`` (B, L) in ``used``, (B, L, 2), 0 for others."""
        ends = torch.tensor(self.graph.ends, device=edges.device)
        nodes_of_edges = edges.new_zeros(*edges.shape, 2)
        nodes_of_edges[used] = ends[edges[used]]
        return nodes_of_edges

    @property
    def _most(self) -> int:
        """The number of labels of the longest path there could be."""
        return max(len(self.graph.nodes) - (not self.parts_are_nodes), 1)
