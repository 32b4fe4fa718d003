"""Construction of hypergraphs from nodes and hyperedges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from ..errors import InvalidInputError
from .hypergraph import Hypergraph
from .node_order import check_dangling, group_offsets, levels_of, needed_nodes

__all__ = ["HypergraphBuilder"]

Nodes = Any  # an integer, or an input of np.asarray with integers


class HypergraphBuilder:
    """A builder that collects nodes and hyperedges; :meth:`build` returns the hypergraph.

    Parameters
    ----------
    event_shape : tuple of int, or tuple of such tuples
        Shape of θ, or of each tensor of θ, without batch dimensions.

    Attributes
    ----------
    parts : int64 array, or tuple of arrays
        The number of each part, in the event shapes of θ.

    Examples
    --------
    All subsets of three elements, with the choice to skip or take each element:

    >>> graph = HypergraphBuilder((3,))
    >>> done = graph.nodes(4)
    >>> graph.add(done[0])
    >>> graph.add(done[1:], done[:-1])
    >>> graph.add(done[1:], done[:-1], part=graph.parts)
    >>> graph.build(done[3])
    Hypergraph(4 nodes, 7 hyperedges, 3 parts)
    """

    def __init__(self, event_shape: Any) -> None:
        is_tuple = (
            isinstance(event_shape, Sequence) and len(event_shape) > 0 and not isinstance(event_shape[0], Integral)
        )
        shapes = [_sizes("event_shape", shape) for shape in (event_shape if is_tuple else [event_shape])]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        numbers = [
            np.arange(end - math.prod(shape), end).reshape(shape) for end, shape in zip(ends, shapes, strict=True)
        ]
        self.parts: Any = tuple(numbers) if is_tuple else numbers[0]
        self._count = int(ends[-1])
        self._nodes = 0
        self._added: list[np.ndarray] = []

    def node(self) -> int:
        """Add a node and return its number."""
        self._nodes += 1
        return self._nodes - 1

    def nodes(self, *shape: int) -> np.ndarray:
        """Add nodes and return their numbers, in an array of the given shape.

        Parameters
        ----------
        *shape : int
            The sizes of the array.
        """
        shape = _sizes("nodes", shape)
        self._nodes += math.prod(shape)
        return np.arange(self._nodes - math.prod(shape), self._nodes).reshape(shape)

    @property
    def _known_nodes(self) -> str:
        return f"there are {self._nodes} nodes; use the results of node() and nodes()"

    def add(self, head: Nodes, *tails: Nodes, part: Nodes = None) -> None:
        """Add a hyperedge, or one hyperedge for each entry of arrays, which are broadcast.

        Among the hyperedges of a node, ties of a maximum go to the hyperedge added first.

        Parameters
        ----------
        head : int or integer array
            The node of the hyperedge.
        *tails : int or integer array
            At most two nodes whose values add to the score. A hyperedge without tails makes its head a leaf.
        part : int or integer array, optional
            The part whose score adds to the score, a number from ``parts``. By default, the hyperedge has no part.
        """
        if len(tails) > 2:
            raise InvalidInputError(
                f"add: a hyperedge has at most two tails, got {len(tails)}; combine tails in an extra node"
            )
        columns = [
            _numbers(name, value, self._nodes, self._known_nodes)
            for name, value in zip(("head", "first tail", "second tail"), (head, *tails), strict=False)
        ]
        columns += [np.asarray(-1)] * (2 - len(tails))
        known = f"theta has {self._count} parts; use numbers from the builder's `parts`"
        columns.append(np.asarray(self._count) if part is None else _numbers("part", part, self._count, known))
        try:
            rows = np.stack([column.ravel() for column in np.broadcast_arrays(*columns)])
        except ValueError:
            shapes = ", ".join(str(column.shape) for column in columns)
            raise InvalidInputError(
                f"add: head, tails and part must broadcast to a common shape, got {shapes}"
            ) from None
        self._added.append(rows.astype(np.int64))

    def build(self, goals: Nodes, *, prune: bool = False, components: bool = False) -> Hypergraph:
        """Return the hypergraph of all nodes and hyperedges used by derivations of the goals.

        Parameters
        ----------
        goals : int or integer array
            The goal node, whose value is the result of the recursion. An array of goals is indexed by the lengths of
            an instance, with −1 for lengths without structures. Without lengths, the last goal counts.
        prune : bool
            Whether to drop underivable nodes and the hyperedges from underivable nodes. Goals in an array that cannot
            be derived become −1. By default (False), a tail without hyperedges is an error.
        components : bool
            Whether the hypergraph consists of separate hypergraphs, such as those of different instances. On the CPU,
            an instance then costs the time of the component of its goal. By default (False), compiled loops visit all
            nodes up to the goal.

        Raises
        ------
        InvalidInputError
            If hyperedges form a cycle, a goal cannot be derived, or (without ``prune``) a tail has no hyperedges. With
            ``prune``, at least one goal of an array must be derivable.
        """
        goals_as_given = goals
        try:
            goals = np.asarray(goals_as_given)
        except ValueError:  # ragged lists
            goals = np.empty(0)
        if goals.dtype.kind not in "iu" or not goals.size:
            raise InvalidInputError(f"goals must be a node or an integer array of nodes, got {goals_as_given!r}")
        wrong = goals[(goals < -1) | (goals >= self._nodes)]
        if wrong.size:
            raise InvalidInputError(f"goals: node {wrong[0]} is out of range: {self._known_nodes}, or −1 for no goal")
        goal_nodes = goals[goals >= 0]
        if not goal_nodes.size:
            raise InvalidInputError("goals must hold at least one node, got only −1")
        rows = np.concatenate(self._added, 1) if self._added else np.zeros((4, 0), np.int64)
        heads, tails, part = rows[0], rows[1:3].T, rows[3]
        level = levels_of(self._nodes, heads, tails)
        derived = np.append(level >= 0, True)  # the last entry stands for no tail
        if not prune:
            check_dangling(self._nodes, heads, tails)
        if prune and derived[goal_nodes].any():
            goals = np.where((goals >= 0) & derived[goals], goals, -1) if goals.ndim else goals
            goal_nodes = goals[goals >= 0]
        if not derived[goal_nodes].all():
            raise InvalidInputError(
                f"goals: node {goal_nodes[~derived[goal_nodes]][0]} cannot be derived: no hyperedges lead to it from "
                "leaves; a leaf is a node with a hyperedge without tails, add(node)"
            )
        is_kept = derived[heads] & derived[tails].all(1)
        needed = needed_nodes(self._nodes, heads[is_kept], tails[is_kept], goal_nodes)
        is_kept &= needed[heads]
        # Sort nodes by level, then by number. The hyperedges of a node stay in the order of addition.
        kept, begin, component = np.flatnonzero(needed), None, np.zeros(self._nodes, np.int64)
        if components:
            level, component = _separate(self._nodes, level, kept, heads[is_kept], tails[is_kept])
        order = kept[np.argsort(level[kept], kind="stable")]
        if components:
            _, begin = np.unique(component[order], return_index=True)
            begin = begin[component[order]]
        number = np.full(self._nodes + 1, len(order))
        number[order] = np.arange(len(order))
        heads, tails, part = number[heads[is_kept]], number[tails[is_kept]], part[is_kept]
        by_head = np.argsort(heads, kind="stable")
        return Hypergraph(
            offset=group_offsets(heads, len(order)),
            part=np.ascontiguousarray(part[by_head], np.int32),
            tails=np.ascontiguousarray(tails[by_head], np.int32),
            goals=np.where(goals >= 0, number[goals], -1),
            level=level[order].astype(np.int32),
            parts=self._count,
            begin=begin,
        )


def _separate(
    nodes: int, level: np.ndarray, kept: np.ndarray, heads: np.ndarray, tails: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return levels (N,) by which each component follows the whole component before it, and the components (N,).

    Components are numbered in the order of their first nodes among ``kept``.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    start, end = np.repeat(heads, 2), tails.ravel()
    is_node = (end >= 0) & (end < nodes)
    matrix = csr_array((np.ones(int(is_node.sum())), (start[is_node], end[is_node])), shape=(nodes, nodes))
    _, label = connected_components(matrix, directed=False)
    _, first, number = np.unique(label[kept], return_index=True, return_inverse=True)
    component = np.full(nodes, -1)
    component[kept] = np.argsort(np.argsort(first))[number]
    depth = np.zeros(len(first), np.int64)
    np.maximum.at(depth, component[kept], level[kept] + 1)
    below = np.cumsum(depth) - depth
    separated = level.copy()
    separated[kept] += below[component[kept]]
    return separated, component


def _sizes(name: str, shape: Any) -> tuple[int, ...]:
    """Return ``shape`` as a tuple of integers of at least 0."""
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else (-1,)
    if not all(isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 0 for size in sizes):
        several = ", or a tuple of shapes" if name == "event_shape" else ""
        raise InvalidInputError(f"{name}: a shape is a tuple of sizes of at least 0{several}, got {shape!r}")
    return tuple(int(size) for size in sizes)


def _numbers(name: str, value: Nodes, count: int, known: str) -> np.ndarray:
    """Return ``value`` as an array of integers from 0 to ``count`` − 1."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidInputError(f"add: {name} must be an integer, or an integer array; got {array.dtype}")
    wrong = (array < 0) | (array >= count)
    if wrong.any():
        raise InvalidInputError(f"add: {name} {array[wrong].flat[0]} is out of range: {known}")
    return array
