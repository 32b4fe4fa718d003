"""Hypergraphs of dynamic programs, built once for the options of a program and an event shape."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import PluginError
from ..registry import is_frozen_dataclass
from .hypergraph import Hypergraph

__all__ = ["build_once", "latest_hypergraph", "store_latest_hypergraph"]


class _Program(Protocol):
    """A program whose hypergraph depends on its options and on the event shape."""

    def build(self, event_shape: Any) -> Hypergraph: ...

    def label(self) -> str: ...


_latest: dict[int, tuple[weakref.ref[_Program], Any, Hypergraph]] = {}
"""The latest event shape and hypergraph of each oracle that exists, by id. To hash the options takes longer."""


def latest_hypergraph(oracle: _Program, event_shape: Any) -> Hypergraph | None:
    """Return the hypergraph of the latest call for this object, if it had the same ``event_shape``."""
    latest = _latest.get(id(oracle))
    return latest[2] if latest is not None and latest[0]() is oracle and latest[1] == event_shape else None


def store_latest_hypergraph(oracle: _Program, event_shape: Any, graph: Hypergraph) -> None:
    """Store the hypergraph for :func:`latest_hypergraph`, if no option of the object can change."""
    if is_frozen_dataclass(type(oracle)):
        key = id(oracle)
        _latest[key] = weakref.ref(oracle, lambda _: _latest.pop(key, None)), event_shape, graph


def build_once(oracle: _Program, event_shape: Any) -> Hypergraph:
    """Return the hypergraph of an oracle without instance data, from a cache by the options and ``event_shape``."""
    # Skip values stored by cached properties, which are no options.
    options = tuple(
        (name, value)
        for name, value in vars(oracle).items()
        if name != "bound" and not isinstance(getattr(type(oracle), name, None), functools.cached_property)
    )
    try:
        hash(options)
    except TypeError as error:
        raise PluginError(
            f"{oracle.label()}: options must be hashable, since hypergraphs are cached by options ({error}); "
            "use tuples instead of lists and arrays"
        ) from error
    return _build(_Request(type(oracle), options, event_shape, oracle))


@dataclass(frozen=True)
class _Request:
    """Cache key of a hypergraph, with the oracle that builds the hypergraph (not compared)."""

    kind: type
    options: Sequence[Any]
    event_shape: Any
    oracle: _Program = field(compare=False)


@functools.lru_cache(maxsize=64)
def _build(request: _Request) -> Hypergraph:
    graph = request.oracle.build(request.event_shape)
    if not isinstance(graph, Hypergraph):
        raise PluginError(
            f"build of {request.oracle.label()} must return a Hypergraph, got {type(graph).__name__}; "
            "return builder.build(goals)"
        )
    shapes = [request.event_shape] if isinstance(request.event_shape[0], int) else request.event_shape
    if graph.parts != (count := sum(map(math.prod, shapes))):
        raise PluginError(
            f"build of {request.oracle.label()} made a hypergraph of {graph.parts} parts for the event shape "
            f"{request.event_shape}, which has {count} parts; pass event_shape to HypergraphBuilder, or pass "
            f"scores for {graph.parts} parts"
        )
    return graph
