"""The dynamic program of knapsacks: its states, their number, and its recursion."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from structinf.dp import HypergraphBuilder
from structinf.shapes import Bool, Int64

__all__ = ["MOST_STATES", "add_items", "exceeds_states"]

MOST_STATES = 2_000_000
"""The largest number of states of an instance, pairs of an item and the capacities left, for the dynamic program."""

_LARGEST_KEY = np.iinfo(np.int64).max


def exceeds_states(
    weights: Int64[np.ndarray, "batch m d"], capacities: Int64[np.ndarray, "batch m"], most: int
) -> Bool[np.ndarray, " batch"]:
    """Return which knapsacks have more than ``most`` states.

    For the first i of d items, the number of states is at most 2^(d − i), and at most the product over the weights of
    min(capacity, total weight of the i items) + 1. States are counted only if these bounds do not decide.
    """
    totals = np.pad(np.cumsum(weights, 2), ((0, 0), (0, 0), (1, 0))).astype(np.float64)
    left = (np.minimum(totals, capacities[:, :, None]) + 1).prod(1)
    bound = np.minimum(left, np.exp2(np.arange(weights.shape[2], -1.0, -1.0))).sum(1)
    exceeds = bound > most
    for b in np.flatnonzero(exceeds).tolist():
        row, limits = np.ascontiguousarray(weights[b]), np.minimum(capacities[b], weights[b].sum(1))
        exceeds[b] = _exceeds(row.tobytes(), limits.tobytes(), row.shape, most)
    return exceeds


@functools.lru_cache(maxsize=1024)
def _exceeds(weights: bytes, capacities: bytes, shape: tuple[int, int], most: int) -> bool:
    table = np.frombuffer(weights, np.int64).reshape(shape)
    count = 0
    for _, left, _, _ in _states(table, np.frombuffer(capacities, np.int64)[None]):
        count += len(left)
        if count > most:
            return True
    return False


def _states(weights: np.ndarray, capacities: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the distinct capacities left, for the first d, d − 1, ..., 0 items.

    The other elements are the number of the next item, which of the former states have room for the item, and the
    state without the item of each former state, followed by the state with the item of each former state with room.
    First, they are d, all knapsacks, and the state of each knapsack.
    """
    total = np.pad(np.cumsum(weights, 1), ((0, 0), (1, 0)))  # [:, i]: the most that the first i items can use
    left, place = _distinct(np.minimum(capacities, total[:, -1]))
    yield weights.shape[1], left, np.ones(len(capacities), np.bool_), place
    for i in reversed(range(weights.shape[1])):
        fits = np.all(left >= weights[:, i], axis=1)
        after = np.concatenate([left, left[fits] - weights[:, i]])
        left, place = _distinct(np.minimum(after, total[:, i]))
        yield i, left, fits, place


def add_items(
    graph: HypergraphBuilder, weights: Int64[np.ndarray, "m d"], capacities: Int64[np.ndarray, "knapsacks m"]
) -> Int64[np.ndarray, " knapsacks"]:
    """Add the recursion for items of ``weights`` to the graph, and return the goal of each of the ``capacities``."""
    states = _states(weights, capacities)
    _, left, _, place = next(states)
    head = graph.nodes(len(left))
    goals = head[place]
    for i, left, fits, place in states:
        tail = graph.nodes(len(left))
        graph.add(head, tail[place[: len(head)]])
        graph.add(head[fits], tail[place[len(head) :]], part=graph.parts[i])
        head = tail
    graph.add(head)
    return goals


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ``rows`` (n, m) of numbers of at least 0 in ascending order, and the place of each row.

    Each row becomes one integer of the same order, since a sort of integers is much faster than a sort of rows.
    """
    keys = rows[:, 0]
    for column in rows.T[1:]:
        if (_largest(keys) + 1) * (_largest(column) + 1) > _LARGEST_KEY:
            keys, column = _ranks(keys), _ranks(column)
        keys = keys * (_largest(column) + 1) + column
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], place


def _largest(numbers: np.ndarray) -> int:
    return int(numbers.max(initial=0))


def _ranks(numbers: np.ndarray) -> np.ndarray:
    return np.unique(numbers, return_inverse=True)[1]
