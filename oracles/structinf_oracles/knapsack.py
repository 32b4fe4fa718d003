"""Knapsacks: subsets of items of limited total weight."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError
from structinf.validation import check_instances, check_natural, skips_checks

from .common.distinct_rows import check_integer_amounts, distinct_rows, number_of_dimensions
from .common.labels import reject_labels
from .common.subsets import cost_of_wrong_elements, taken_elements

__all__ = ["Knapsack"]

_LARGEST = 2**53
"""The largest sum of weights. Sums of indices and weights stay within 64 bits."""

_MOST_STATES = 2_000_000
"""The largest number of states, pairs of an item and the capacities left, for each distinct capacity on average."""


@dataclass(frozen=True)
class Knapsack(HypergraphProgram):
    """Subsets of items with a total weight of at most a capacity, or several weights with a capacity each.

    - Scores θ, shape (..., d), any sign: the value of each item. −inf forbids an item.
    - Structure y, shape (..., d): 1 for each packed item. The empty knapsack is always a structure.
    - Labels, shape (..., d): y as integers.
    - Instance data ``weights``, shape (..., d), and ``capacity``, shape (...): the weights and the capacity of each
      instance, integers of at least 0. Default: the options. In a call, weights with one dimension, a number as
      capacity, and tuples are the options. Lists and tensors with a row for each instance are instance data.

    Parameters
    ----------
    weights : sequence of int, or integer array or Tensor, shape (d,) or (m, d), optional
        The weight of each item, at least 0; or m weights of each item, such as mass and volume. Needed without
        instance data ``weights``.
    capacity : int, or sequence of m int, optional
        The largest total weight, at least 0, or of each of the m weights. Needed without instance data ``capacity``.

    Notes
    -----
    The recursion is Bellman's, over the items and the remaining capacity. Only the remaining capacities that can
    occur are stored. All capacities large enough for the remaining items share one state. For the first i of d items
    the number of states is at most the least of 2^(d − i), the capacity + 1, and the total weight of the i items + 1.
    A larger capacity thus need not cost time. With m weights, a state has m remaining capacities, and the number of
    states grows with the product of the capacities. Above 2,000,000 states, on average over the different capacities
    of instances with the same weights, the oracle raises InvalidInputError; use ``milp``, which has no sums.

    Ties go to leaving an item, decided from the last item backwards.

    References
    ----------
    H. Kellerer, U. Pferschy & D. Pisinger, Knapsack Problems, Springer 2004, §2.3.

    Examples
    --------
    >>> import torch
    >>> knapsack = Knapsack(weights=[3, 4, 5], capacity=8)
    >>> theta = torch.tensor([[2.0, 3.0, 3.5]])
    >>> knapsack.argmax(theta), knapsack.count(theta)
    (tensor([[1., 0., 1.]]), [6])
    """

    name: ClassVar[str] = "knapsack"
    search_terms: ClassVar[tuple[str, ...]] = ("budget",)
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"weights": 1, "capacity": 0})
    label_ndim: ClassVar[int] = 1
    padding_stays_in_place: ClassVar[bool] = True

    weights: Sequence[int] | Sequence[Sequence[int]] | None = None
    capacity: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.weights is not None:
            object.__setattr__(self, "weights", _checked(self.weights))
        several = self.weights is not None and self._is_matrix
        if isinstance(self.capacity, list | tuple | np.ndarray | Tensor) and number_of_dimensions(self.capacity) == 1:
            if self.weights is None or not several:
                raise InvalidInputError(
                    f"capacity must be an integer for weights of shape (d,), got {self.capacity!r}; pass the capacity "
                    "of each instance with the scores, or weights of shape (m, d) for m capacities"
                )
            given: Any = self.capacity
            numbers = tuple(given.tolist() if hasattr(given, "tolist") else given)
            for number in numbers:
                check_natural("capacity", number, 0)
            if len(numbers) != len(self.weights):
                raise InvalidInputError(
                    f"capacity must hold a number for each of {len(self.weights)} rows of weights, got {len(numbers)}"
                )
            object.__setattr__(self, "capacity", numbers)
        elif several:
            raise InvalidInputError(
                f"capacity must hold a number for each of {len(cast(Any, self.weights))} rows of weights, got "
                f"{self.capacity!r}"
            )
        elif self.capacity is not None:
            check_natural("capacity", cast(int, self.capacity), 0)

    @classmethod
    def reads_as_option(cls, name: str, value: Any) -> bool:
        """Return whether weights have one dimension, or several in a list, or whether a capacity is a number or tuple.

        Parameters
        ----------
        name : str
            "weights" or "capacity".
        value : object
            The value of a call's keyword.
        """
        if name == "capacity":
            return isinstance(value, Integral | tuple)
        return number_of_dimensions(value) == 1 or isinstance(value, tuple)

    @property
    def _is_matrix(self) -> bool:
        return bool(self.weights) and isinstance(cast(Any, self.weights)[0], tuple)

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: tuple[int]) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        weights, capacity = self._matrix_and_capacities()
        return graph.build(int(_add_items(graph, weights, capacity[None])[0]))

    def _matrix_and_capacities(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the options as weights (m, d) and capacities (m,); InvalidInputError without them."""
        for name in ("weights", "capacity"):
            if getattr(self, name) is None:
                _raise_missing(name)
        capacities = self.capacity if isinstance(self.capacity, tuple) else (self.capacity,)
        weights = np.array(self.weights, np.int64).reshape(len(capacities), -1)
        return weights, np.array([min(int(cast(int, c)), _LARGEST) for c in capacities], np.int64)

    # -- weights and capacities of instances ----------------------------------------------------

    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights (B, d) and the capacities (B,) of the instances."""
        if self._is_matrix:
            raise InvalidInputError(
                "knapsack takes instance data with one weight for each item only; use milp, or an oracle for each "
                "instance"
            )
        batch = len(next(iter(self.bound.values())))
        weights, capacity = self.bound.get("weights"), self.bound.get("capacity")
        for name, given in (("weights", weights), ("capacity", capacity)):
            if given is None and getattr(self, name) is None:
                _raise_missing(name)
        rows = np.array([self.weights]) if weights is None else weights.cpu().numpy()
        limits = np.array([min(cast(int, self.capacity), _LARGEST)]) if capacity is None else capacity.cpu().numpy()
        rows = np.broadcast_to(rows, (batch, rows.shape[1]))
        return rows, np.broadcast_to(limits, (batch,))

    def _problems(self) -> _Problems:
        """Return the hypergraph of all problems of the batch, or of a batch that this batch is a part of."""
        known: tuple[Any, _Problems] | None = vars(self).get("_of_batch")
        if known is not None and known[0] is self.bound:
            return known[1]
        table, keys = self._keyed_table()
        found = _find_problems(table.shape[1] - 1, keys) or _Problems.of(table, keys)
        object.__setattr__(self, "_of_batch", (self.bound, found))
        return found

    def _keyed_table(self) -> tuple[np.ndarray, list[bytes]]:
        """Return the weights and, in the last column, the capacity of each instance, (B, d + 1), and each row's bytes.

        Capacities above the largest sum of weights count as equal.
        """
        weights, capacity = self._tables()
        table = np.ascontiguousarray(np.concatenate([weights, np.minimum(capacity, _LARGEST)[:, None]], 1), np.int64)
        return table, [row.tobytes() for row in table]

    def _hypergraph_of(self, event_shape: Any) -> Hypergraph:
        if not self.bound:
            return _without_cache(self)._plain_hypergraph(event_shape)
        return self._problems().graph

    def _plain_hypergraph(self, event_shape: Any) -> Hypergraph:
        return super()._hypergraph_of(event_shape)

    def goal_index(self, graph: Hypergraph) -> Tensor | None:
        if not self.bound:
            return None
        problems, (_, keys) = self._problems(), self._keyed_table()
        return torch.tensor([problems.index[key] for key in keys], dtype=torch.int64, device="cpu")

    def validate(self, theta: Tensor) -> None:
        for name, values in self.bound.items():
            check_instances(name, values, len(theta))
            check_integer_amounts(name, values)
        items = self._tables()[0].shape[1] if self.bound else self._matrix_and_capacities()[0].shape[1]
        if theta.shape[1] != items:
            raise InvalidInputError(
                f"theta: knapsack takes a value for each of the {items} weights, shape "
                f"({items},), got {tuple(theta.shape[1:])} after the batch dimensions"
            )

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        y = taken_elements(labels, None, like.shape[1])
        if skips_checks(labels):
            return y.to(like.dtype)
        if self.bound:
            weights, capacity = (torch.tensor(table, device=labels.device) for table in self._tables())
            heavy = (y * weights).sum(1, keepdim=True) > capacity.unsqueeze(1)
            reject_labels(heavy, labels, "the items weigh more than the capacity")
            return y.to(like.dtype)
        weights, capacity = (torch.tensor(table, device=labels.device) for table in self._matrix_and_capacities())
        weight = (y.unsqueeze(1) * weights).sum(2)
        reject_labels(weight > capacity, labels, f"the items weigh more than the capacity of {self.capacity}")
        return y.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return (y != 0).long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs that count the items wrongly packed or left."""
        return cost_of_wrong_elements(y)


def _raise_missing(name: str) -> NoReturn:
    raise InvalidInputError(f"knapsack needs {name}, as an option or with the scores as instance data")


class _Problems(NamedTuple):
    """The hypergraph of several knapsacks, and the position in its goals of each by the bytes of its numbers."""

    items: int
    index: dict[bytes, int]
    graph: Hypergraph

    @classmethod
    def of(cls, table: np.ndarray, keys: Sequence[bytes]) -> _Problems:
        """Build the hypergraph for the rows of ``table``, (B, d + 1) with the capacity last, and remember it."""
        items = table.shape[1] - 1
        builder, goals, index = HypergraphBuilder((items,)), [], {}
        for rows, (row,) in distinct_rows(torch.from_numpy(table[:, :-1].copy())):
            members = rows.numpy()
            nodes = _add_items(builder, row.numpy()[None], table[members, -1:])
            for member, node in zip(members.tolist(), nodes.tolist(), strict=True):
                if keys[member] not in index:
                    index[keys[member]] = len(goals)
                    goals.append(node)
        several = len(np.unique(table[:, :-1], axis=0)) > 1
        if not goals:
            goals = _add_items(builder, np.zeros((1, items), np.int64), np.zeros((1, 1), np.int64)).tolist()
        found = cls(items, index, builder.build(np.array(goals), components=several))
        _remember(found)
        return found


_RECENT: deque[_Problems] = deque(maxlen=16)

_MOST_REMEMBERED = 4_000_000
"""The largest number of nodes of all remembered hypergraphs, about 250 MB. The newest hypergraph may have more."""


def _remember(problems: _Problems) -> None:
    """Remember a hypergraph, and forget the oldest hypergraphs beyond the limits."""
    _RECENT.appendleft(problems)
    with contextlib.suppress(IndexError):  # another thread forgets them too
        while len(_RECENT) > 1 and sum(known.graph.nodes for known in tuple(_RECENT)) > _MOST_REMEMBERED:
            _RECENT.pop()


def _find_problems(items: int, keys: Sequence[bytes]) -> _Problems | None:
    """Return a remembered hypergraph with all problems ``keys``."""
    for problems in tuple(_RECENT):
        if problems.items == items and all(key in problems.index for key in keys):
            return problems
    return None


def _without_cache(oracle: Knapsack) -> Knapsack:
    """Return the oracle without the hypergraph of an earlier batch, which is no option."""
    return Knapsack(oracle.weights, oracle.capacity) if "_of_batch" in vars(oracle) else oracle


def _add_items(graph: HypergraphBuilder, weights: np.ndarray, capacities: np.ndarray) -> np.ndarray:
    """Add the recursion for items of ``weights`` (m, d), and return the goals (c,) of ``capacities`` (c, m)."""
    total = np.pad(np.cumsum(weights, 1), ((0, 0), (1, 0)))  # [:, i]: the most that the first i items can use
    left, goal = _distinct(np.minimum(capacities, total[:, -1]))
    head = graph.nodes(len(left))
    goals, states, most = head[goal], len(left), _MOST_STATES * max(len(left), 1)
    for i in reversed(range(weights.shape[1])):
        fits = (left >= weights[:, i]).all(1)
        after = np.concatenate([left, left[fits] - weights[:, i]])
        left, place = _distinct(np.minimum(after, total[:, i]))
        states += len(left)
        if states > most:
            raise InvalidInputError(
                f"knapsack: these weights and capacities have more than {_MOST_STATES:,} states; divide weights and "
                "capacities by a common number and round, or use milp for the best subset"
            )
        tail = graph.nodes(len(left))
        graph.add(head, tail[place[: len(head)]])
        graph.add(head[fits], tail[place[len(head) :]], part=graph.parts[i])
        head = tail
    graph.add(head)
    return goals


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ``rows`` (n, m) in ascending order, and the place of each row."""
    if rows.shape[1] == 1:
        values, place = np.unique(rows[:, 0], return_inverse=True)
        return values[:, None], place
    values, place = np.unique(rows, axis=0, return_inverse=True)
    return values, place.ravel()


def _checked(weights: Any) -> tuple[Any, ...]:
    """Return weights as a tuple of integers, or as a tuple of such tuples."""
    if number_of_dimensions(weights) == 2:
        matrix = tuple(_checked_row(row) for row in weights)
        if len({len(row) for row in matrix}) > 1:
            raise InvalidInputError(f"weights must have the same number of items in each row, got {weights!r}")
        return matrix
    return _checked_row(weights)


def _checked_row(weights: Any) -> tuple[int, ...]:
    shape = getattr(weights, "shape", None)
    numbers: Any = weights.tolist() if hasattr(weights, "tolist") else weights
    is_sequence = isinstance(numbers, Sequence) and not isinstance(numbers, str | bytes)
    if not is_sequence or (shape is not None and len(shape) != 1):
        received = repr(weights) if shape is None else f"shape {tuple(shape)}"
        raise InvalidInputError(
            f"weights must be a sequence of one integer for each item, got {received}; for several capacities, pass a "
            "matrix with a row for each"
        )
    for i, weight in enumerate(numbers):
        if isinstance(weight, bool) or not isinstance(weight, Integral) or int(weight) < 0:
            remedy = ""
            if isinstance(weight, float):
                remedy = "; scale and round fractional weights, and scale the capacity alike"
            raise InvalidInputError(f"weights must be integers of at least 0, got {weight!r} for item {i}{remedy}")
    total = sum(map(int, numbers))
    if total > _LARGEST:
        raise InvalidInputError(
            f"weights must have a sum of at most 2^53, got {total}; divide all weights and the capacity by a common "
            "number and round"
        )
    return tuple(int(weight) for weight in numbers)
