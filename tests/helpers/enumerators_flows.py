"""Every flow and every transport plan by itertools, from the definitions alone."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np

from enumerators import Structure


def flows(
    edges: Sequence[tuple[Hashable, Hashable]], supplies: Mapping[Hashable, int], capacities: Sequence[int]
) -> Iterator[Structure]:
    """Amounts up to the capacities that leave each node as its supply says."""
    nodes = {node for edge in edges for node in edge} | set(supplies)
    for amounts in itertools.product(*(range(most + 1) for most in capacities)):
        left = dict.fromkeys(nodes, 0)
        for (start, end), amount in zip(edges, amounts, strict=True):
            left[start] += amount
            left[end] -= amount
        if all(left[node] == supplies.get(node, 0) for node in nodes):
            yield (np.array(amounts, float),)


def plans(supplies: Sequence[int], demands: Sequence[int]) -> Iterator[Structure]:
    """Matrices with the given sums, of which those of the side with the larger sum are bounds."""
    cells = [range(min(r, c) + 1) for r in supplies for c in demands]
    for units in itertools.product(*cells):
        y = np.array(units, float).reshape(len(supplies), len(demands))
        within = (y.sum(1) <= supplies).all() and (y.sum(0) <= demands).all()
        if within and y.sum() == min(sum(supplies), sum(demands)):
            yield (y,)
