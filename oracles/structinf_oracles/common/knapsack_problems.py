"""The hypergraphs of batches of knapsacks, of which the latest are remembered."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from structinf.dp import Hypergraph, HypergraphBuilder

from .distinct_rows import distinct_rows
from .knapsack_states import add_items

__all__ = ["KnapsackProblems", "find_problems"]


class KnapsackProblems(NamedTuple):
    """The hypergraph of several knapsacks, and the position in its goals of each by the bytes of its numbers."""

    shape: tuple[int, ...]
    """(m, d)."""
    index: dict[bytes, int]
    graph: Hypergraph

    @classmethod
    def of(cls, table: np.ndarray, keys: Sequence[bytes], shape: tuple[int, ...]) -> KnapsackProblems:
        """Build the hypergraph for the rows of ``table``, (B, m d + m) with the capacities last, and remember it."""
        m, items = shape
        builder, goals, index = HypergraphBuilder((items,)), [], {}
        for rows, (row,) in distinct_rows(torch.from_numpy(table[:, : m * items].copy())):
            members = rows.numpy()
            nodes = add_items(builder, row.numpy().reshape(shape), table[members, m * items :])
            for member, node in zip(members.tolist(), nodes.tolist(), strict=True):
                if keys[member] not in index:
                    index[keys[member]] = len(goals)
                    goals.append(node)
        several = len(np.unique(table[:, : m * items], axis=0)) > 1
        if not goals:
            goals = add_items(builder, np.zeros(shape, np.int64), np.zeros((1, m), np.int64)).tolist()
        found = cls(shape, index, builder.build(np.array(goals), components=several))
        _remember(found)
        return found


_RECENT: deque[KnapsackProblems] = deque(maxlen=16)

_MOST_REMEMBERED = 4_000_000
"""The largest number of nodes of all remembered hypergraphs, about 250 MB. The newest hypergraph may have more."""


def _remember(problems: KnapsackProblems) -> None:
    """Remember a hypergraph, and forget the oldest hypergraphs beyond the limits."""
    _RECENT.appendleft(problems)
    with contextlib.suppress(IndexError):  # another thread forgets them too
        while len(_RECENT) > 1 and sum(known.graph.nodes for known in tuple(_RECENT)) > _MOST_REMEMBERED:
            _RECENT.pop()


def find_problems(shape: tuple[int, ...], keys: Sequence[bytes]) -> KnapsackProblems | None:
    """Return a remembered hypergraph with all problems ``keys``."""
    for problems in tuple(_RECENT):
        if problems.shape == shape and all(key in problems.index for key in keys):
            return problems
    return None
