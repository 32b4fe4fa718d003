"""Every simple path of a grid or a graph by plain recursion, written from the definition alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from enumerators import Structure

Way = list[tuple[Any, Any]]
"""The steps of a path: the part that each uses, and the node that it leads to."""

FOUR = ((0, 1), (1, 0), (0, -1), (-1, 0))
EIGHT = (*FOUR, (1, 1), (1, -1), (-1, 1), (-1, -1))


def simple_paths(
    source: Hashable, target: Hashable, steps: Callable[[Any], Iterator[tuple[Any, Any]]]
) -> Iterator[Way]:
    """All ways from source to target that come to no node twice; ``steps`` are those from a node."""

    def onward(node: Any, passed: list[Any]) -> Iterator[Way]:
        if node == target:
            yield []
            return
        for part, ahead in steps(node):
            if ahead not in passed:
                yield from ([(part, ahead), *rest] for rest in onward(ahead, [*passed, ahead]))

    yield from onward(source, [source])


def neighbour_paths(
    rows: int, columns: int, moves: Sequence[tuple[int, int]], lengths: tuple[int, int] | None = None
) -> Iterator[Structure]:
    """Indicators of the sets of cells on simple paths from the first cell in use to the last."""
    n, m = lengths or (rows, columns)

    def steps(cell: tuple[int, int]) -> Iterator[tuple[Any, Any]]:
        for di, dj in moves:
            ahead = cell[0] + di, cell[1] + dj
            if 0 <= ahead[0] < n and 0 <= ahead[1] < m:
                yield ahead, ahead

    for cells in {frozenset(cell for cell, _ in way) for way in simple_paths((0, 0), (n - 1, m - 1), steps)}:
        y = np.zeros((rows, columns))
        for cell in [(0, 0), *cells]:
            y[cell] = 1
        yield (y,)


def graph_paths(
    edges: Sequence[tuple[Any, Any]], source: Any, target: Any, directed: bool = True, scores: str = "edges"
) -> Iterator[Structure]:
    """Indicators of the edges, or of the sets of nodes, on simple paths; nodes are numbered as they appear."""
    nodes = list(dict.fromkeys(node for edge in edges for node in edge))

    def steps(node: Any) -> Iterator[tuple[Any, Any]]:
        for e, (start, end) in enumerate(edges):
            if node == start:
                yield e, end
            if node == end and not directed:
                yield e, start

    ways = list(simple_paths(source, target, steps))
    if scores == "edges":
        parts, count = {frozenset(e for e, _ in way) for way in ways}, len(edges)
        assert len(parts) == len(ways)
    else:
        parts = {frozenset([nodes.index(source), *(nodes.index(node) for _, node in way)]) for way in ways}
        count = len(nodes)
    for used in parts:
        y = np.zeros(count)
        y[list(used)] = 1
        yield (y,)
