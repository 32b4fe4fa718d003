"""Step patterns of dynamic time warping: the steps that a path may take, and the weights of the cells in a step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from structinf.dp import HypergraphBuilder
from structinf.errors import InvalidInputError

__all__ = ["PATTERNS", "Pattern", "add_steps", "check_bounds", "check_pattern", "weights_of"]

Move = tuple[int, int, float]
Pattern = tuple[tuple[Move, ...], ...]

# A step is a sequence of moves (down, right, weight of the cell that the move reaches). The names and weights are those
# of dtw-python 1.9.0; P stands for the slope constraint in table I of Sakoe & Chiba (1978).
PATTERNS: dict[str, Pattern] = {
    "symmetric1": (((1, 1, 1),), ((1, 0, 1),), ((0, 1, 1),)),
    "symmetric2": (((1, 1, 2),), ((1, 0, 1),), ((0, 1, 1),)),
    "symmetricP0": (((1, 1, 2),), ((1, 0, 1),), ((0, 1, 1),)),
    "symmetricP05": (
        ((1, 1, 2),),
        ((1, 1, 2), (1, 0, 1)),
        ((1, 1, 2), (1, 0, 1), (1, 0, 1)),
        ((1, 1, 2), (0, 1, 1)),
        ((1, 1, 2), (0, 1, 1), (0, 1, 1)),
    ),
    "symmetricP1": (((1, 1, 2),), ((1, 1, 2), (1, 0, 1)), ((1, 1, 2), (0, 1, 1))),
    "symmetricP2": (
        ((1, 1, 2),),
        ((1, 1, 2), (1, 1, 2), (1, 0, 1)),
        ((1, 1, 2), (1, 1, 2), (0, 1, 1)),
    ),
    "asymmetric": (((1, 1, 1),), ((1, 0, 1),), ((1, 2, 1),)),
    "asymmetricP05": (
        ((1, 1, 1),),
        ((1, 1, 1), (1, 0, 1)),
        ((1, 1, 1), (1, 0, 1), (1, 0, 1)),
        ((1, 1, 1 / 2), (0, 1, 1 / 2)),
        ((1, 1, 1 / 3), (0, 1, 1 / 3), (0, 1, 1 / 3)),
    ),
    "asymmetricP1": (((1, 1, 1),), ((1, 1, 1), (1, 0, 1)), ((1, 1, 1 / 2), (0, 1, 1 / 2))),
    "asymmetricP2": (
        ((1, 1, 1),),
        ((1, 1, 1), (1, 1, 1), (1, 0, 1)),
        ((1, 1, 2 / 3), (1, 1, 2 / 3), (0, 1, 2 / 3)),
    ),
    "mori2006": (((1, 1, 3),), ((1, 1, 2), (1, 0, 1)), ((1, 1, 3), (0, 1, 3))),
}


def check_pattern(value: Any) -> str | Pattern:
    """Return ``value``, a name or steps, with steps as tuples of numbers; raise InvalidInputError for other values."""
    if isinstance(value, str):
        if value not in PATTERNS:
            raise InvalidInputError(
                f"step_pattern must be one of {', '.join(PATTERNS)}, or a sequence of steps; got {value!r}"
            )
        return value
    try:
        steps = [[(down, right, weight) for down, right, weight in step] for step in value]
    except (TypeError, ValueError):
        steps = []
    if not steps or not all(steps):
        raise InvalidInputError(
            "step_pattern must be a name or a sequence of steps, each a sequence of moves (down, right, weight), got "
            f"{value!r}"
        )
    for move in itertools.chain(*steps):
        *distances, weight = move
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not all(isinstance(d, Integral) and not isinstance(d, bool) and int(d) >= 0 for d in distances) or not any(
            distances
        ):
            raise InvalidInputError(
                f"step_pattern: the move {move} must go down and right by integers of at least 0, not both 0"
            )
        if not is_number or not 0 < float(weight) < math.inf:
            raise InvalidInputError(f"step_pattern: the weight of the move {move} must be a finite number above 0")
    pattern = tuple(tuple((int(down), int(right), float(weight)) for down, right, weight in step) for step in steps)
    words = [tuple(move[:2] for move in step) for step in pattern]
    if len(set(words)) < len(words) or not _is_code(words):
        raise InvalidInputError(
            "step_pattern: two sequences of steps visit the same cells, so that a path has two scores; remove a step "
            "that equals a sequence of other steps"
        )
    return pattern


def _is_code(words: Collection[tuple[Any, ...]]) -> bool:
    """Return whether each sequence is a concatenation of ``words`` in at most one way (Sardinas & Patterson 1953)."""

    def rests(prefixes: Collection[tuple[Any, ...]], of: Collection[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
        return {word[len(p) :] for p, word in itertools.product(prefixes, of) if word[: len(p)] == p}

    known: set[tuple[Any, ...]] = set()
    found = {rest for rest in rests(words, words) if rest}
    while not found <= known:
        known |= found
        found = rests(known, words) | rests(words, known)
        if () in found:
            return False
    return True


def weights_of(pattern: Pattern) -> tuple[float, ...]:
    """Return the distinct weights of cells, with the weight 1 of the first cell of a path first."""
    return 1.0, *sorted({float(move[2]) for step in pattern for move in step} - {1.0})


def add_steps(
    graph: HypergraphBuilder,
    pattern: Pattern,
    cell: np.ndarray,
    parts: np.ndarray,
    inside: np.ndarray,
    *,
    counts_cells: bool,
) -> None:
    """Add the steps between nodes of cells.

    Parameters
    ----------
    graph : HypergraphBuilder
        The builder with the nodes.
    pattern : tuple
        The steps.
    cell : (L, n, m) int array
        The nodes: with ``counts_cells``, node [l, i, j] stands for paths of l cells that end in cell (i, j).
    parts : (W, n, m) int array
        The part of each cell with each of the weights of :func:`weights_of`.
    inside : (n, m) bool array
        The cells that a path may visit.
    counts_cells : bool
        Whether each cell of a step leads to the next layer of nodes. Otherwise L is 1.
    """
    layers, n, m = cell.shape
    weights = weights_of(pattern)
    for step in pattern:
        down, right = sum(move[0] for move in step), sum(move[1] for move in step)
        rise = len(step) if counts_cells else 0
        if down >= n or right >= m or rise >= layers:
            continue
        tails = cell[: layers - rise, : n - down, : m - right]
        i = j = 0
        for number, move in enumerate(step, 1):
            i, j = i + move[0], j + move[1]
            heads = cell[rise:, down:, right:] if number == len(step) else graph.nodes(*tails.shape)
            visited = slice(i, i + n - down), slice(j, j + m - right)
            is_inside = inside[visited]
            part = parts[weights.index(float(move[2]))][visited]
            graph.add(heads[:, is_inside], tails[:, is_inside], part=part[is_inside])
            tails = heads


def check_bounds(value: Any) -> tuple[int, int] | None:
    """Return ``value``, None or the least and the largest number of cells; raise InvalidInputError otherwise."""
    if value is None:
        return None
    is_pair = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2
    if not is_pair or not all(isinstance(v, Integral) and not isinstance(v, bool) for v in value):
        raise InvalidInputError(f"length_bounds must be None or two integers (least, most), got {value!r}")
    least, most = int(value[0]), int(value[1])
    if not 1 <= least <= most:
        raise InvalidInputError(f"length_bounds must satisfy 1 ≤ least ≤ most, numbers of cells, got {value!r}")
    return least, most
