"""Every path and every alignment by plain search, and their recursions as grammars.

The lists are written from the definitions alone. The grammars say in which order the recursions choose, on which DP_Ω
depends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from enumerators import Structure
from hypergraph_reference import Grammar

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


def dag_grammar(edges: Sequence[tuple[Any, Any]], source: Any, target: Any) -> Grammar:
    """A node's value is the best of those before it."""

    def options(node):
        begin = [([], [])] if node == source else []
        return [*begin, *(([(0, e)], [start]) for e, (start, end) in enumerate(edges) if end == node)]

    return target, options


def grid_grammar(
    rows: int, columns: int, moves: Sequence[tuple[int, int]], lengths: tuple[int, int] | None = None
) -> Grammar:
    """A cell's value is its score and the best of those from which a move leads to it."""
    n, m = lengths or (rows, columns)

    def options(cell):
        i, j = cell
        if cell == (0, 0):
            return [([(0, 0, 0)], [])]
        return [([(0, i, j)], [(i - di, j - dj)]) for di, dj in moves if i >= di and j >= dj]

    return (n - 1, m - 1), options


def alignment_grammar(
    rows: int, columns: int, mode: str = "global", affine: bool = False, lengths: tuple[int, int] | None = None
) -> Grammar:
    """Symbols of the first i and j elements: M after a match, R and C after skipped rows and columns, A after any of
    these; of local ones, E where the last match is in row i, up to column j, and D where it is in one of i rows."""
    n, m = lengths or (rows, columns)
    row, more_rows = ((1, 0, 0), (1, 0, 1)) if affine else ((1, 0), (1, 0))
    column, more_columns = ((1, 1, 0), (1, 1, 1)) if affine else ((1, 1), (1, 1))

    def matched(i, j):
        begin = [([], [])] if mode == "global" and (i, j) == (0, 0) else []
        if i and j:
            first = [([(0, i - 1, j - 1)], [])] if mode == "local" else []
            begin = [*first, ([(0, i - 1, j - 1)], [("A", i - 1, j - 1)])]
        return begin if affine or mode == "local" else [*begin, ([row], [("M", i - 1, j)])]

    def after_rows(i, j):
        opened = ([row], [("M", i - 1, j)]) if affine else ([], [("M", i, j)])
        return [opened, ([more_rows], [("R", i - 1, j)])]

    def after_columns(i, j):
        return [([column], [(what, i, j - 1)]) for what in "MR"] + [([more_columns], [("C", i, j - 1)])]

    def after_any(i, j):
        if affine:
            return [([], [(what, i, j)]) for what in "MRC"]
        return [([], [("M" if mode == "global" else "R", i, j)]), ([column], [("A", i, j - 1)])]

    def last_in_row(i, j):
        return [([], [("E", i, j - 1)]), ([], [("M", i, j)])]

    def last_in_rows(i, j):
        return [([], [("D", i - 1, j)]), ([], [("E", i, j)])] if i else [([], [])]

    rules = {"M": matched, "R": after_rows, "C": after_columns, "A": after_any, "E": last_in_row, "D": last_in_rows}

    def options(symbol):
        what, i, j = symbol
        return rules[what](i, j) if min(i, j) >= 0 else []

    return ("A" if mode == "global" else "D", n, m), options
