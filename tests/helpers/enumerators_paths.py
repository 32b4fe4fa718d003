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


def warping_paths(
    rows: int,
    columns: int,
    pattern: Sequence[Sequence[tuple[int, int, float]]],
    lengths: tuple[int, int] | None = None,
    *,
    open_begin: bool = False,
    open_end: bool = False,
    bounds: tuple[int, int] | None = None,
) -> Iterator[Structure]:
    """Weights of the cells on each path by steps of the pattern, in any order of steps."""
    n, m = lengths or (rows, columns)
    least, most = bounds or (1, n + m)

    def extend(y: np.ndarray, i: int, j: int) -> Iterator[Structure]:
        if i == n - 1 and (open_end or j == m - 1) and least <= np.count_nonzero(y) <= most:
            yield (y,)
        for step in pattern:
            longer, down, right = y.copy(), i, j
            for di, dj, weight in step:
                down, right = down + di, right + dj
                if down < n and right < m:
                    longer[down, right] = weight
            if down < n and right < m:
                yield from extend(longer, down, right)

    for j in range(m if open_begin else 1):
        y = np.zeros((rows, columns))
        y[0, j] = 1
        yield from extend(y, 0, j)


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
                skipped = [x not in matched for x in range(size)]
                begin, end = min(matched, default=0), max(matched, default=-1) + 1
                before, after = _scored_ends(matches, (n, m), mode, side)
                skipped = skipped[0 if before else begin : size if after else end]
                for is_skipped, run in itertools.groupby(skipped):
                    if is_skipped:
                        gaps[side] += 1, len(list(run)) - 1
            yield y, gaps if affine else gaps.sum(1)


def _scored_ends(matches: Any, sizes: tuple[int, int], mode: str, side: int) -> tuple[bool, bool]:
    """Whether elements of a side that are skipped before the first and after the last match have scores."""
    if mode in ("global", "local"):
        return (mode == "global",) * 2
    if mode == "semi_global":
        return (side == 0,) * 2
    if not matches[0]:
        return False, False
    before = matches[0][0], matches[1][0]
    after = sizes[0] - matches[0][-1], sizes[1] - matches[1][-1]
    if mode == "overlap":
        rows = before[0] <= before[1], after[0] <= after[1]
        return rows if side == 0 else (not rows[0], not rows[1])
    return (True, False) if mode == "extension" else (side == 1, side == 0)


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


def warping_grammar(
    rows: int,
    columns: int,
    pattern: Sequence[Sequence[tuple[int, int, int]]],
    lengths: tuple[int, int] | None = None,
    **ends_and_bounds: Any,
) -> Grammar:
    """A symbol (l, i, j) for paths of l cells that end in a cell, l = 0 if nothing bounds it; B for any l within the
    bounds, and E for an end in this column or before. A part of weight w counts w times."""
    n, m = lengths or (rows, columns)
    bounds = ends_and_bounds.get("bounds")
    open_begin, open_end = (ends_and_bounds.get(name, False) for name in ("open_begin", "open_end"))
    least, most = bounds or (0, 0)

    def options(symbol):
        what, i, j = symbol
        if what == "E":
            return [*([([], [("E", i, j - 1)])] if j else []), ([], [("B", i, j)])]
        if what == "B":
            return [([], [(length, i, j)]) for length in range(least, most + 1)]
        is_begin = i == 0 and (open_begin or j == 0) and what == (1 if bounds else 0)
        found = [([(0, i, j)], [])] if is_begin else []
        for step in pattern:
            tail = (
                what - (len(step) if bounds else 0),
                i - sum(move[0] for move in step),
                j - sum(move[1] for move in step),
            )
            parts, (row, column) = [], tail[1:]
            for di, dj, weight in step:
                row, column = row + di, column + dj
                parts += [(0, row, column)] * weight
            if min(tail) >= 0:
                found.append((parts, [tail]))
        return found

    return ("E" if open_end else "B", n - 1, m - 1), options


def alignment_grammar(
    rows: int, columns: int, mode: str = "global", affine: bool = False, lengths: tuple[int, int] | None = None
) -> Grammar:
    """Symbols of the first i and j elements: M after a match, R and C after skipped rows and columns, A after any of
    these. For free ends: r and c without matches; E where the last match is in row i, up to column j, and F in column
    j, above row i; e and f some steps behind these, with scores; D after all of it."""
    n, m = lengths or (rows, columns)
    row, more_rows = ((1, 0, 0), (1, 0, 1)) if affine else ((1, 0), (1, 0))
    column, more_columns = ((1, 1, 0), (1, 1, 1)) if affine else ((1, 1), (1, 1))
    starts_whole, ends_whole = mode in ("global", "extension"), mode == "global"

    def first(i, j):
        if mode == "local":
            return [([(0, i, j)], [])]
        skips_rows = mode == "semi_global" or (mode == "overlap" and i <= j)
        return [([(0, i, j)], [("r", i, 0) if skips_rows else ("c", 0, j)])]

    def matched(i, j):
        begin = [([], [])] if starts_whole and (i, j) == (0, 0) else []
        if i and j:
            begin = [*([] if starts_whole else first(i - 1, j - 1)), ([(0, i - 1, j - 1)], [("A", i - 1, j - 1)])]
        return begin if affine or not ends_whole else [*begin, ([row], [("M", i - 1, j)])]

    def after_rows(i, j):
        opened = ([row], [("M", i - 1, j)]) if affine else ([], [("M", i, j)])
        return [opened, ([more_rows], [("R", i - 1, j)])]

    def after_columns(i, j):
        return [([column], [(what, i, j - 1)]) for what in "MR"] + [([more_columns], [("C", i, j - 1)])]

    def after_any(i, j):
        if affine:
            return [([], [(what, i, j)]) for what in "MRC"]
        return [([], [("M" if ends_whole else "R", i, j)]), ([column], [("A", i, j - 1)])]

    def only_rows(i, j):
        return [([row if i == 1 else more_rows], [("r", i - 1, j)])] if i else [([], [])]

    def only_columns(i, j):
        return [([column if j == 1 else more_columns], [("c", i, j - 1)])] if j else [([], [])]

    def last_in_row(i, j):
        return [([], [("E", i, j - 1)]), ([], [("M", i, j)])]

    def last_in_column(i, j):
        return [([], [("F", i - 1, j)]), ([], [("M", i - 1, j)])]

    def rows_behind(i, j):
        before = (i - 1, j) if mode in ("semi_global", "dovetail") else (i - 1, j - 1)
        return [([more_rows], [("e", *before)]), ([row], [("E", *before)])]

    def columns_behind(i, j):
        return [([more_columns], [("f", i - 1, j - 1)]), ([column], [("F", i - 1, j - 1)])]

    def ended(i, j):
        empty = [] if mode == "extension" else [([], [("r", i, 0)] if mode == "semi_global" else [])]
        if mode in ("local", "extension"):
            return [*(empty if i == 0 or mode == "extension" else []), ([], [("D", i - 1, j)]), ([], [("E", i, j)])]
        behind = "efF" if mode == "overlap" else "e"
        return [*empty, *(([], [(what, i, j)]) for what in behind), ([], [("E", i, j)])]

    rules = {
        "M": matched, "R": after_rows, "C": after_columns, "A": after_any, "r": only_rows, "c": only_columns,
        "E": last_in_row, "F": last_in_column, "e": rows_behind, "f": columns_behind, "D": ended,
    }  # fmt: skip

    def options(symbol):
        what, i, j = symbol
        return rules[what](i, j) if min(i, j) >= 0 else []

    return ("A" if ends_whole else "D", n, m), options
