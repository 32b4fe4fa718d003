"""Paths of a directed acyclic graph, as a hypergraph."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import Self

from ..errors import InvalidInputError
from ..shapes import Bool, Int
from .builder import HypergraphBuilder
from .graph import Graph, listed
from .hypergraph import Hypergraph

__all__ = ["DAG", "path_graph"]


def path_graph(graph: Any, source: Hashable | None = None, target: Hashable | None = None) -> Hypergraph:
    """Return the hypergraph of all paths from ``source`` to ``target``, with one part for each edge.

    Parameters
    ----------
    graph : DAG, (E, 2) integer array, sequence of pairs, or networkx.DiGraph
        The edges, as pairs (start, end) of nodes. Parts follow the order of the edges, in a DiGraph the order of
        ``graph.edges``. Parallel edges are different parts.
    source : hashable, optional
        The first node of each path. The default is the only node without incoming edges.
    target : hashable, optional
        The last node of each path. The default is the only node without outgoing edges.

    Raises
    ------
    InvalidInputError
        If the edges form a cycle, no path leads from the source to the target, or a default node is not unique.

    Examples
    --------
    >>> edges = [("home", "bus"), ("home", "train"), ("bus", "work")]
    >>> path_graph([*edges, ("train", "work"), ("train", "bus")])
    Hypergraph(4 nodes, 6 hyperedges, 5 parts)
    """
    dag = DAG.of(graph)
    source, target = dag.terminals(source, target)
    edges = dag.edges_between(source, target)
    builder = HypergraphBuilder((len(dag.ends),))
    node = builder.nodes(len(dag.nodes))
    start, end = dag.ends[edges].T
    builder.add(node[dag.number(source)])
    builder.add(node[end], node[start], part=builder.parts[edges])
    return builder.build(node[dag.number(target)], prune=True)


@dataclass(frozen=True, eq=False, repr=False)
class DAG(Graph):
    """A directed acyclic graph. :meth:`of` converts the graph formats accepted by :func:`path_graph`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.nodes:
            raise InvalidInputError("graph must have at least one node, got none")
        self._check_acyclic()

    @classmethod
    def of(cls, graph: Any, directed: bool | None = True) -> Self:
        """Convert ``graph`` as :meth:`Graph.of` does, and check that the edges form no cycle.

        Parameters
        ----------
        graph : DAG, (E, 2) integer array, sequence of pairs of hashable nodes, or networkx.DiGraph
            The graph to convert.
        directed : bool, optional
            If True, an undirected networkx graph raises InvalidInputError.
        """
        return super().of(graph, directed)

    def terminals(self, source: Hashable | None = None, target: Hashable | None = None) -> tuple[Hashable, Hashable]:
        """Return source and target; None stands for the only node without incoming, or outgoing, edges.

        Parameters
        ----------
        source : hashable, optional
            The first node of all paths.
        target : hashable, optional
            The last node of all paths.
        """
        left, entered = (np.bincount(side, minlength=len(self.nodes)) > 0 for side in self.ends.T)
        alone = len(self.nodes) == 1  # in larger graphs, nodes without edges are no candidates
        if source is None:
            source = self._only("source", ~entered & (left | alone), "no edge leads to")
        if target is None:
            target = self._only("target", ~left & (entered | alone), "no edge leaves")
        for option, node in (("source", source), ("target", target)):
            self.number(node, option)
        return source, target

    def _only(self, name: str, candidates: np.ndarray, why: str) -> Hashable:
        nodes = [self.nodes[i] for i in np.flatnonzero(candidates)]
        if len(nodes) != 1:
            raise InvalidInputError(
                f"{name} must be given: the default is the only node that {why}, but the graph has {len(nodes)} such "
                f"nodes: {listed(nodes)}"
            )
        return nodes[0]

    # -- paths -----------------------------------------------------------------------------

    def edges_between(self, source: Hashable, target: Hashable) -> Int[np.ndarray, " edges"]:
        """Return the numbers of the edges on paths from ``source`` to ``target``; InvalidInputError without a path.

        Parameters
        ----------
        source : hashable
            The first node of the paths.
        target : hashable
            The last node of the paths.
        """
        after = self._reached(self.number(source), *self.ends.T)
        before = self._reached(self.number(target), *self.ends.T[::-1])
        if not after[self.number(target)]:
            raise InvalidInputError(
                f"target: no path leads from {source!r} to {target!r}; the nodes that can be reached are "
                f"{listed([self.nodes[i] for i in np.flatnonzero(after)])}"
            )
        return np.flatnonzero(after[self.ends[:, 0]] & before[self.ends[:, 1]])

    def _reached(self, node: int, start: np.ndarray, end: np.ndarray) -> Bool[np.ndarray, " nodes"]:
        from scipy.sparse.csgraph import breadth_first_order

        reached = np.zeros(len(self.nodes), np.bool_)
        reached[breadth_first_order(self._matrix(start, end), node, return_predecessors=False)] = True
        return reached

    def _matrix(self, start: np.ndarray, end: np.ndarray) -> Any:
        from scipy.sparse import csr_array  # imported here because the import is slow

        return csr_array((np.ones(len(start)), (start, end)), shape=(len(self.nodes),) * 2)

    def _check_acyclic(self) -> None:
        from scipy.sparse.csgraph import connected_components

        start, end = self.ends.T
        count, component = connected_components(self._matrix(start, end), connection="strong")
        if count == len(self.nodes) and not (start == end).any():
            return
        # Each edge inside a strongly connected component lies on a cycle. Following one such edge from each node
        # therefore returns to a visited node.
        onward = dict(self.ends[component[start] == component[end]].tolist())
        seen, node = {}, next(iter(onward))
        while node not in seen:
            seen[node] = len(seen)
            node = onward[node]
        cycle = [self.nodes[i] for i in [*list(seen)[seen[node] :], node]]
        raise InvalidInputError(f"graph: the edges {listed(cycle, ' -> ')} form a cycle; paths need an acyclic graph")
