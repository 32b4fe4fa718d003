"""Every path and every alignment by plain search, and the recursions over them as plain lists of hyperedges.

Written from the definitions alone; shares nothing with the library but the shapes of θ and the order of its parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from enumerators import Structure
from hyperedges import Edge, Hyperedges

Rules = Mapping[Hashable, Sequence[tuple[Sequence[Hashable], int | None]]]
"""For each node its hyperedges, tails and a part each; ties go to the first."""


# ----------------------------------------------------------------------------- structures


def dag_paths(edges: Sequence[tuple[Any, Any]], source: Any, target: Any) -> Iterator[Structure]:
    """Indicators of the edges on each way from source to target."""

    def ways(node: Any) -> Iterator[list[int]]:
        if node == target:
            yield []
        for e, (start, end) in enumerate(edges):
            if start == node:
                yield from ([e, *rest] for rest in ways(end))

    for way in ways(source):
        y = np.zeros(len(edges))
        y[way] = 1
        yield (y,)


def grid_paths(
    rows: int, columns: int, moves: Sequence[tuple[int, int]], lengths: tuple[int, int] | None = None
) -> Iterator[Structure]:
    """Indicators of the cells on each way from the first cell in use to the last."""
    n, m = lengths or (rows, columns)

    def ways(i: int, j: int) -> Iterator[list[tuple[int, int]]]:
        if (i, j) == (n - 1, m - 1):
            yield [(i, j)]
            return
        for di, dj in moves:
            if i + di < n and j + dj < m:
                yield from ([(i, j), *rest] for rest in ways(i + di, j + dj))

    for way in ways(0, 0):
        y = np.zeros((rows, columns))
        for cell in way:
            y[cell] = 1
        yield (y,)


def alignments(
    rows: int, columns: int, mode: str = "global", affine: bool = False, lengths: tuple[int, int] | None = None
) -> Iterator[Structure]:
    """All sets of matches that rise on both sides, with what they skip, counted run by run."""
    n, m = lengths or (rows, columns)
    for count in range(min(n, m) + 1):
        for matches in itertools.product(
            itertools.combinations(range(n), count), itertools.combinations(range(m), count)
        ):
            y, gaps = np.zeros((rows, columns)), np.zeros((2, 2))
            y[matches] = 1
            for side, (matched, size) in enumerate(zip(matches, (n, m), strict=True)):
                in_use = [x in matched for x in range(size)]
                if mode == "local":
                    in_use = in_use[min(matched, default=0) : max(matched, default=-1) + 1]
                for is_matched, run in itertools.groupby(in_use):
                    if not is_matched:
                        gaps[side] += 1, len(list(run)) - 1
            yield y, gaps if affine else gaps.sum(1)


# ----------------------------------------------------------------------------- recursions


def dag_recursion(edges: Sequence[tuple[Any, Any]], source: Any, target: Any) -> Hyperedges:
    """A node's value is the best of those before it."""
    rules: dict[Hashable, list[tuple[Sequence[Hashable], int | None]]] = {source: [((), None)]}
    for e, (start, end) in enumerate(edges):
        rules.setdefault(end, []).append(((start,), e))
    return _numbered(rules, target, len(edges))


def grid_recursion(
    rows: int, columns: int, moves: Sequence[tuple[int, int]], lengths: tuple[int, int] | None = None
) -> Hyperedges:
    """A cell's value is its score and the best of those from which a move leads to it."""
    n, m = lengths or (rows, columns)
    rules = {
        (i, j): [(((i - di, j - dj),), i * columns + j) for di, dj in moves]
        for i, j in itertools.product(range(n), range(m))
    }
    rules[0, 0] = [((), 0)]
    return _numbered(rules, (n - 1, m - 1), rows * columns)


def alignment_recursion(
    rows: int, columns: int, mode: str = "global", affine: bool = False, lengths: tuple[int, int] | None = None
) -> Hyperedges:
    """Nodes of the first i and j elements: M after a match, R after skipped rows, A after anything, D if done."""
    n, m = lengths or (rows, columns)
    gap = rows * columns
    row, more_rows, column, more_columns = (gap, gap + 1, gap + 2, gap + 3) if affine else (gap, gap, gap + 1, gap + 1)
    rules: dict[Hashable, list[tuple[Sequence[Hashable], int | None]]] = {("D", 0): [((), None)]}
    for i, j in itertools.product(range(n + 1), range(m + 1)):
        match = (i - 1) * columns + j - 1
        begin = [((), match)] if mode == "local" else []
        rules["M", i, j] = [*begin, ((("A", i - 1, j - 1),), match)] if i and j else []
        if (i, j) == (0, 0) and mode == "global":
            rules["M", i, j] = [((), None)]
        if affine:
            rules["R", i, j] = [((("M", i - 1, j),), row), ((("R", i - 1, j),), more_rows)]
            rules["C", i, j] = [
                ((("M", i, j - 1),), column),
                ((("R", i, j - 1),), column),
                ((("C", i, j - 1),), more_columns),
            ]
            rules["A", i, j] = [((("M", i, j),), None), ((("R", i, j),), None), ((("C", i, j),), None)]
            continue
        if mode == "local":
            rules["R", i, j] = [((("M", i, j),), None), ((("R", i - 1, j),), row)]
            rules["A", i, j] = [((("R", i, j),), None), ((("A", i, j - 1),), column)]
        else:
            rules["M", i, j].append(((("M", i - 1, j),), row))
            rules["A", i, j] = [((("M", i, j),), None), ((("A", i, j - 1),), column)]
    for i in range(1, n + 1):
        for j in range(m + 1):
            rules["E", i, j] = [((("E", i, j - 1),), None), ((("M", i, j),), None)]
        rules["D", i] = [((("D", i - 1),), None), ((("E", i, m),), None)]
    goal = ("A", n, m) if mode == "global" else ("D", n)
    return _numbered(rules, goal, gap + (4 if affine else 2))


def _numbered(rules: Rules, goal: Hashable, parts: int) -> Hyperedges:
    """The rules that derive something, their nodes numbered so that tails come first."""
    number: dict[Hashable, int | None] = {}
    edges: list[Edge] = []

    def visit(node: Hashable) -> int | None:
        if node not in number:
            found = [([visit(tail) for tail in tails], part) for tails, part in rules.get(node, ())]
            derived = [(tuple(tails), part) for tails, part in found if None not in tails]
            number[node] = sum(i is not None for i in number.values()) if derived else None
            edges.extend((number[node], tails, part) for tails, part in derived)  # type: ignore[arg-type]
        return number[node]

    end = visit(goal)
    assert end is not None
    return Hyperedges(tuple(edges), parts, (end,))
