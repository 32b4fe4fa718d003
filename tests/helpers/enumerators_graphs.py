"""Every spanning tree and every matching of small graphs, from the definitions alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from enumerators import Structure

Edges = Sequence[tuple[int, int]]


def all_pairs(nodes: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(nodes), 2))


def spanning_trees(nodes: int, edges: Edges) -> Iterator[tuple[int, ...]]:
    """Numbers of n − 1 edges that join all nodes."""
    for chosen in itertools.combinations(range(len(edges)), nodes - 1):
        reached = {0}
        for _ in chosen:
            for e in chosen:
                if reached & set(edges[e]):
                    reached |= set(edges[e])
        if len(reached) == nodes:
            yield chosen


def matchings(nodes: int, edges: Edges, perfect: bool) -> Iterator[tuple[int, ...]]:
    """Numbers of edges of which no two share a node."""
    for count in [nodes / 2] if perfect else range(nodes // 2 + 1):
        for chosen in itertools.combinations(range(len(edges)), int(count)):
            ends = [node for e in chosen for node in edges[e]]
            if len(set(ends)) == len(ends) and (not perfect or len(ends) == nodes):
                yield chosen


def as_list(found: Iterator[tuple[int, ...]], edges: Edges) -> Iterator[Structure]:
    """Structures (E,)."""
    for chosen in found:
        y = np.zeros(len(edges))
        y[list(chosen)] = 1
        yield (y,)


def as_matrix(found: Iterator[tuple[int, ...]], edges: Edges, size: int) -> Iterator[Structure]:
    """Structures (size, size)."""
    for chosen in found:
        y = np.zeros((size, size))
        for e in chosen:
            y[edges[e]] = 1
        yield (y,)
