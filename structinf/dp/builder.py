"""Hypergraphs from the hyperedges that a user adds, checked and put in order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import InvalidInputError
from .hypergraph import Hypergraph

__all__ = ["HypergraphBuilder"]

Nodes = Any  # an integer, or anything that numpy takes for an array of them


class HypergraphBuilder:
    """Collects nodes and hyperedges; :meth:`build` makes the hypergraph.

    Parameters
    ----------
    event_shape : tuple of int, or a tuple of such tuples
        Shape of each tensor of θ without the batch.

    Attributes
    ----------
    parts : int64 array, or a tuple of them
        The number of each part, in the shapes of θ.

    Examples
    --------
    Subsets of three elements, of any size, as paths of "leave it" and "take it":

    >>> graph = HypergraphBuilder((3,))
    >>> done = graph.nodes(4)
    >>> graph.add(done[0])
    >>> graph.add(done[1:], done[:-1])
    >>> graph.add(done[1:], done[:-1], part=graph.parts)
    >>> graph.build(done[3])
    Hypergraph(4 nodes, 7 hyperedges, 3 parts)
    """

    def __init__(self, event_shape: Any) -> None:
        is_tuple = bool(event_shape) and not isinstance(event_shape[0], int | np.integer)
        shapes = [tuple(shape) for shape in event_shape] if is_tuple else [tuple(event_shape)]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        numbers = [
            np.arange(end - math.prod(shape), end).reshape(shape) for end, shape in zip(ends, shapes, strict=True)
        ]
        self.parts: Any = tuple(numbers) if is_tuple else numbers[0]
        self._count = int(ends[-1])
        self._nodes = 0
        self._added: list[np.ndarray] = []

    def node(self) -> int:
        """A new node."""
        self._nodes += 1
        return self._nodes - 1

    def nodes(self, *shape: int) -> np.ndarray:
        """An array of new nodes."""
        self._nodes += math.prod(shape)
        return np.arange(self._nodes - math.prod(shape), self._nodes).reshape(shape)

    def add(self, head: Nodes, *tails: Nodes, part: Nodes = None) -> None:
        """A hyperedge to ``head`` from at most two ``tails``, which scores ``part``; arrays add many at once.

        Without tails the head is a leaf; without a part the hyperedge scores 0. Among a node's hyperedges,
        ties of a maximum go to the one added first.

        Parameters
        ----------
        head, *tails, part : int, or integer arrays that broadcast to a common shape
        """
        if len(tails) > 2:
            raise InvalidInputError(f"add: a hyperedge has at most two tails, got {len(tails)}; put a node between")
        columns = np.broadcast_arrays(
            np.asarray(head), *map(np.asarray, tails), *[np.asarray(-1)] * (2 - len(tails)), self._part(part)
        )
        if any(column.dtype.kind not in "iu" for column in columns):
            raise InvalidInputError("add: nodes and parts are integers, or integer arrays")
        rows = np.stack([column.ravel() for column in columns]).astype(np.int64)
        for name, row, least in (("head", rows[0], 0), *(("tails", rows[1 + i], 0) for i in range(len(tails)))):
            wrong = (row < least) | (row >= self._nodes)
            if wrong.any():
                raise InvalidInputError(
                    f"add: {name} names node {row[wrong][0]}, but there are {self._nodes} nodes; "
                    "take those that node() and nodes() return"
                )
        self._added.append(rows)

    def _part(self, part: Nodes) -> np.ndarray:
        if part is None:
            return np.asarray(self._count)
        numbers = np.asarray(part)
        wrong = (numbers < 0) | (numbers >= self._count)
        if wrong.any():
            raise InvalidInputError(
                f"add: part number {np.atleast_1d(numbers)[np.atleast_1d(wrong)][0]} is out of range: theta has "
                f"{self._count} parts, whose numbers are in the builder's `parts`"
            )
        return numbers

    def build(self, goals: Nodes, *, prune: bool = False) -> Hypergraph:
        """The hypergraph of everything added.

        Parameters
        ----------
        goals : int, or an integer array
            The node whose value is the recursion's; or an array of nodes indexed by instances' lengths, −1 where a
            length has none. Without lengths, the last one counts.
        prune : bool
            Drop nodes that nothing derives, and the hyperedges from them; without it, they are an error.

        Raises
        ------
        InvalidInputError
            If hyperedges form a cycle, a goal cannot be derived, or a tail is a node that no hyperedge leads to.
        """
        goals = np.asarray(goals)
        if goals.dtype.kind not in "iu" or goals.size == 0 or goals.max() < 0 or goals.max() >= self._nodes:
            raise InvalidInputError(f"goals: a node or an integer array of nodes is needed, got {goals!r}")
        rows = np.concatenate(self._added, 1) if self._added else np.zeros((4, 0), np.int64)
        heads, tails, part = rows[0], rows[1:3].T, rows[3]
        level = _levels(self._nodes, heads, tails)
        derived = level >= 0
        if not prune:
            _check_dangling(derived, heads, tails, goals)
        lost = np.append(~derived, False)
        kept = ~(lost[heads] | lost[tails].any(1))
        wanted = goals[goals >= 0]
        if not derived[wanted].all():
            raise InvalidInputError(
                f"goals: node {wanted[~derived[wanted]][0]} cannot be derived: no hyperedges lead to it from leaves; "
                "a leaf is a node with a hyperedge without tails, add(node)"
            )
        order = np.argsort(level, kind="stable")[np.count_nonzero(~derived) :]
        number = np.full(self._nodes + 1, len(order))
        number[order] = np.arange(len(order))
        heads, tails, part = number[heads[kept]], number[tails[kept]], part[kept]
        by_head = np.argsort(heads, kind="stable")
        return Hypergraph(
            offset=np.concatenate([[0], np.cumsum(np.bincount(heads, minlength=len(order)))]).astype(np.int64),
            part=np.ascontiguousarray(part[by_head], np.int32),
            tails=np.ascontiguousarray(tails[by_head], np.int32),
            goals=np.where(goals >= 0, number[goals], -1).astype(np.int64),
            level=level[order].astype(np.int32),
            parts=self._count,
        )


def _levels(nodes: int, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """The level of each node, −1 for those that cannot be derived; InvalidInputError if hyperedges form a cycle."""
    waiting = (tails >= 0).sum(1)  # tails of each hyperedge without a level
    open_edges = np.bincount(heads, minlength=nodes)  # hyperedges of each node that wait
    lost = open_edges == 0
    level = np.full(nodes, -1)
    edge, which = np.nonzero(tails >= 0)
    by_tail = np.argsort(tails[edge, which], kind="stable")
    edge_of, start = edge[by_tail], np.concatenate([[0], np.cumsum(np.bincount(tails[edge, which], minlength=nodes))])
    # Nodes that nothing derives hold up nobody: what needs them is no hyperedge at all.
    alive = np.ones(len(heads), np.bool_)
    frontier = np.flatnonzero(lost)
    while len(frontier):
        dead = _edges_from(frontier, edge_of, start)
        dead = np.unique(dead[alive[dead]])
        alive[dead] = False
        np.subtract.at(open_edges, heads[dead], 1)
        touched = np.unique(heads[dead])
        frontier = touched[(open_edges[touched] == 0) & ~lost[touched]]
        lost[frontier] = True
    ready = np.flatnonzero(alive & (waiting == 0))
    depth = 0
    while len(ready):
        np.subtract.at(open_edges, heads[ready], 1)
        touched = np.unique(heads[ready])
        done = touched[open_edges[touched] == 0]
        level[done] = depth
        depth += 1
        freed = _edges_from(done, edge_of, start)
        np.subtract.at(waiting, freed, 1)
        freed = np.unique(freed)
        ready = freed[alive[freed] & (waiting[freed] == 0)]
    stuck = (level < 0) & ~lost
    if stuck.any():
        cycle = _find_cycle(stuck, heads[alive], tails[alive])
        raise InvalidInputError(
            f"the hyperedges form a cycle, {' -> '.join(map(str, cycle))}: a recursion needs an order of the nodes in "
            "which tails come before heads"
        )
    return level


def _edges_from(nodes: np.ndarray, edge_of: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The hyperedges with a tail among ``nodes``, once for each such tail."""
    count = start[nodes + 1] - start[nodes]
    return edge_of[np.arange(count.sum()) + np.repeat(start[nodes] - (np.cumsum(count) - count), count)]


def _find_cycle(stuck: np.ndarray, heads: np.ndarray, tails: np.ndarray) -> list[int]:
    """Nodes of one cycle, tails before heads, the first one again at the end."""
    stuck_tail = (tails >= 0) & stuck[tails]
    from_node = {}
    for edge in np.flatnonzero(stuck_tail.any(1)):
        from_node.setdefault(int(heads[edge]), int(tails[edge][stuck_tail[edge]][0]))
    # Every stuck node waits for a stuck one, so that walking back must come round.
    path, node = [], next(iter(from_node))
    while node not in path:
        path.append(node)
        node = from_node[node]
    return [node, *reversed(path[path.index(node) :])]


def _check_dangling(derived: np.ndarray, heads: np.ndarray, tails: np.ndarray, goals: np.ndarray) -> None:
    dangling = np.setdiff1d(tails[tails >= 0], heads)
    if len(dangling):
        raise InvalidInputError(
            f"node {dangling[0]} is a tail, but no hyperedge leads to it; add({dangling[0]}) makes it a leaf, and "
            "build(..., prune=True) drops what cannot be derived"
        )
