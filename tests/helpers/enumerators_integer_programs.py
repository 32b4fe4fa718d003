"""Every point of an integer program, every tour and every seating, in plain Python from their definitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from enumerators import Structure


def program(
    A: Sequence[Sequence[float]],
    lower: Sequence[float] | None = None,
    upper: Sequence[float] | None = None,
    bounds: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Iterator[Structure]:
    """Integers within ``bounds`` (0 and 1 by default) whose rows are within ``lower`` and ``upper``."""
    d = len(A[0])
    low, high = bounds or ([0] * d, [1] * d)
    for y in itertools.product(*(range(a, b + 1) for a, b in zip(low, high, strict=True))):
        sums = [sum(a * x for a, x in zip(row, y, strict=True)) for row in A]
        if lower is not None and any(s < least for s, least in zip(sums, lower, strict=True)):
            continue
        if upper is not None and any(s > most for s, most in zip(sums, upper, strict=True)):
            continue
        yield (np.array(y, float),)


def tour(nodes: int, length: int | None = None) -> Iterator[Structure]:
    """Round trips from node 0 through the first ``length`` of ``nodes``; one of a single node has no arcs."""
    length = nodes if length is None else length
    for order in itertools.permutations(range(1, length)):
        y = np.zeros((nodes, nodes))
        if length > 1:
            for start, end in zip((0, *order), (*order, 0), strict=True):
                y[start, end] = 1
        yield (y,)


@dataclass(frozen=True)
class Seating:
    """A row of seats for so many people, of whom the first two do not sit side by side: a model for CP-SAT."""

    people: int

    def __call__(self) -> tuple[Any, Any]:
        from ortools.sat.python import cp_model

        model = cp_model.CpModel()
        sits = [[model.new_bool_var("") for _ in range(self.people)] for _ in range(self.people)]
        for line in [*sits, *zip(*sits, strict=True)]:
            model.add_exactly_one(line)
        for seat in range(self.people - 1):
            model.add_at_most_one(sits[person][seat + k] for person in range(2) for k in range(2))
        return model, sits

    def listing(self) -> Iterator[Structure]:
        """All seatings."""
        for seats in itertools.permutations(range(self.people)):
            if abs(seats[0] - seats[1]) > 1:
                yield (np.eye(self.people)[list(seats)],)
