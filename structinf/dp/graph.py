"""Graphs as options of oracles: named nodes, and edges in the order of their scores."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from typing_extensions import Self

from ..errors import InvalidInputError

__all__ = ["Graph", "listed"]


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A graph with equality and hashing. :meth:`of` converts pairs, arrays and networkx graphs.

    Attributes
    ----------
    nodes : tuple of hashable
        The names of the nodes: integers in ascending order, other names in order of appearance.
    ends : (E, 2) int64 array
        The start and end of each edge, as indices into ``nodes``. Parallel edges are separate rows.
    directed : bool
        Whether edges have a direction.
    checksum : int
        Checksum of ``ends``, the hash of the graph.
    option : str
        The name of the option in error messages.
    """

    nodes: tuple[Hashable, ...]
    ends: np.ndarray
    directed: bool = True
    checksum: int = field(init=False)

    option: ClassVar[str] = "graph"

    def __post_init__(self) -> None:
        ends = np.array(self.ends, np.int64).reshape(-1, 2)
        if ends.size and (ends.min() < 0 or ends.max() >= len(self.nodes)):
            raise InvalidInputError(
                f"{self.option}: ends must be numbers of nodes, from 0 to {len(self.nodes) - 1}, got "
                f"{ends[((ends < 0) | (ends >= len(self.nodes))).any(1)][0].tolist()}"
            )
        ends.setflags(write=False)
        object.__setattr__(self, "ends", ends)
        object.__setattr__(self, "checksum", zlib.crc32(ends.tobytes()))

    @classmethod
    def of(cls, graph: Any, directed: bool | None = None) -> Self:
        """Convert pairs of nodes, an (E, 2) integer array or a networkx graph; the order of the edges is kept.

        With ``directed=None``, the result is directed if the input graph is. Pairs and arrays are directed.
        """
        if isinstance(graph, cls) and directed in (None, graph.directed):
            return graph
        known = isinstance(graph, Graph)
        if known or hasattr(graph, "is_directed"):  # recognizes networkx graphs without importing networkx
            is_directed = bool(graph.directed if known else graph.is_directed())
            if directed and not is_directed:
                raise InvalidInputError(
                    f"{cls.option} must be a directed graph, got a {type(graph).__name__}, whose edges have no "
                    "direction"
                )
            kept = is_directed if directed is None else directed
            if known:
                return cls(graph.nodes, graph.ends, kept)
            return cls._of_pairs(graph.edges(), graph.nodes, kept)
        if hasattr(graph, "dtype"):
            array = np.asarray(graph)
            if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
                raise InvalidInputError(
                    f"{cls.option}: edges are pairs of integers, (E, 2), got an array of {array.dtype} of shape "
                    f"{tuple(array.shape)}"
                )
            graph = array.tolist()
        try:
            return cls._of_pairs(graph, (), directed is None or directed)
        except InvalidInputError:
            raise  # InvalidInputError is a ValueError, but its message already explains the problem
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidInputError(
                f"{cls.option} must be an (E, 2) integer array, a sequence of pairs of hashable nodes, or a "
                f"networkx graph, got a {type(graph).__name__}: {error}; for different graphs in a batch, pass "
                "structinf.GraphBatch.of(graphs)"
            ) from error

    @classmethod
    def _of_pairs(cls, edges: Iterable[Any], nodes: Iterable[Hashable], directed: bool) -> Self:
        flat = [_key(node) for start, end in edges for node in (start, end)]
        names = list(dict.fromkeys([*nodes, *flat]))
        integers = [name for name in names if isinstance(name, Integral)]
        if len(integers) == len(names):
            names = sorted(integers, key=int)
        number = {name: i for i, name in enumerate(names)}
        return cls(tuple(names), np.array([number[node] for node in flat], np.int64), directed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph) or type(other) is not type(self):
            return NotImplemented
        same = self.nodes == other.nodes and self.directed == other.directed
        return self is other or (same and np.array_equal(self.ends, other.ends))

    def __hash__(self) -> int:
        return self.checksum

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.nodes)} nodes, {len(self.ends)} edges)"

    def number(self, node: Hashable, option: str = "") -> int:
        """Return the index of ``node`` in ``nodes``.

        Parameters
        ----------
        node : hashable
            The name of the node.
        option : str
            The name of the option that holds the node, for messages.

        Raises
        ------
        InvalidInputError
            If the graph has no such node. The message lists the nodes.
        """
        try:
            return self._numbers[_key(node)]
        except (KeyError, TypeError, RuntimeError):  # unhashable objects and tensors of several numbers are no nodes
            nodes = listed(self.nodes) or "none"
            raise InvalidInputError(
                f"{option + ': ' if option else ''}{node!r} is not a node of the graph; its nodes are {nodes}"
            ) from None

    def describe_edge(self, edge: int) -> str:
        """Return the words of messages for the edge of index ``edge``, with the names of its nodes."""
        start, end = (self.nodes[i] for i in self.ends[edge])
        return f"edge {edge}, {start!r} {'->' if self.directed else '-'} {end!r}"

    @cached_property
    def _numbers(self) -> dict[Hashable, int]:
        return {node: i for i, node in enumerate(self.nodes)}


def _key(node: Hashable) -> Hashable:
    """Return ``node``, converting a one-element tensor to a number; equal tensors would be different keys."""
    return node.item() if isinstance(node, Tensor) else node


def listed(nodes: Iterable[Any], separator: str = ", ") -> str:
    """Return at most ten of ``nodes`` as text."""
    shown = [repr(node) for node in nodes]
    return separator.join(shown if len(shown) <= 10 else [*shown[:9], "...", shown[-1]])
