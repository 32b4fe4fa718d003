"""Every ranking, by itertools."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from enumerators import Structure


def rankings(size: int, length: int | None = None) -> Iterator[Structure]:
    """Ranks 1, 2, ... of the first ``length`` of ``size`` elements, in any order, and 0 for the others."""
    used = size if length is None else length
    for ranks in itertools.permutations(range(1, used + 1)):
        yield (np.array([*ranks, *[0] * (size - used)], dtype=float),)
