"""Knapsacks: subsets of items of limited total weight."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError, UnsupportedError, renumber_instances
from structinf.kernels import to_numpy
from structinf.kernels.arrays import has_numpy_view
from structinf.linear_constraints import LinearConstraints
from structinf.parts import Parts, as_tuple
from structinf.shapes import Bool
from structinf.validation import check_instances, check_natural, list_instances, skips_checks

from .common.distinct_rows import check_integer_amounts, number_of_dimensions
from .common.knapsack_problems import KnapsackProblems, find_problems
from .common.knapsack_search import best_subsets
from .common.knapsack_states import MOST_STATES, add_items, exceeds_states
from .common.knapsack_weights import LARGEST_SUM, check_weights
from .common.labels import reject_labels
from .common.subsets import cost_of_wrong_elements, taken_elements
from .milp import MILP

__all__ = ["Knapsack"]

_BEYOND = f"weights and capacities have more than {MOST_STATES:,} states, the limit of the dynamic program"
_REMEDY = (
    "; divide weights and capacities by a common number, and round weights up and capacities down, or use a method "
    "that needs only the best structures, such as sparsemap or perturbed"
)


@dataclass(frozen=True)
class Knapsack(HypergraphProgram):
    """Subsets of items with a total weight of at most a capacity, or several weights with a capacity each.

    - Scores θ, shape (..., d), any sign: the value of each item. −inf forbids an item.
    - Structure y, shape (..., d): 1 for each packed item. The empty knapsack is always a structure.
    - Labels, shape (..., d): y as integers.
    - Instance data ``weights``, shape (..., d) or (..., m, d), and ``capacity``, shape (...) or (..., m): the weights
      and the capacities of each instance, integers of at least 0. Default: the options. In a call, weights with one
      dimension, a number as capacity, and tuples are the options. Lists and tensors with a row for each instance are
      instance data.

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
    states grows with the product of the capacities.

    The argmax of an instance with more than 2,000,000 states is found by branch and bound, with Lagrangian bounds: 40
    items with 2 capacities take 0.03 ms to 0.6 ms, on one thread of an Intel Xeon. If 2,000,000 nodes of the search are
    not enough, HiGHS solves the instance; see ``milp``. HiGHS also finds the structures of ``topk``. Both are exact up
    to 1e-13 of the largest score, and all relaxations work that need only the best structures. Methods that need the
    dynamic program raise UnsupportedError: marginals, samples, and smoothed maxima.

    Ties go to leaving an item, decided from the last item backwards. Beyond 2,000,000 states they go to any of the
    best.

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
    reads_data: ClassVar[bool] = True

    weights: Sequence[int] | Sequence[Sequence[int]] | None = None
    capacity: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.weights is not None:
            object.__setattr__(self, "weights", check_weights(self.weights))
        several = self.weights is not None and self._is_matrix
        if isinstance(self.capacity, list | tuple | np.ndarray | Tensor) and number_of_dimensions(self.capacity) == 1:
            if not several and not (self.weights is None and isinstance(self.capacity, tuple)):
                raise InvalidInputError(
                    f"capacity must be an integer for weights of shape (d,), got {self.capacity!r}; pass the capacity "
                    "of each instance with the scores, or weights of shape (m, d) for m capacities"
                )
            given: Any = self.capacity
            numbers = tuple(given.tolist() if hasattr(given, "tolist") else given)
            for number in numbers:
                check_natural("capacity", number, 0)
            if self.weights is not None and len(numbers) != len(self.weights):
                raise InvalidInputError(
                    f"capacity must hold a number for each of {len(self.weights)} rows of weights, got {len(numbers)}"
                )
            object.__setattr__(self, "capacity", numbers)
        elif several and self.capacity is not None:
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

    def resolve_instance_ndim(self, name: str, ndim: int, batch_ndim: int) -> int:
        least = self.instance_ndim[name]
        return least + 1 if ndim == batch_ndim + least + 1 else least

    @property
    def unsupported(self) -> Mapping[str, str]:  # type: ignore[override]
        has_data = bool(self.bound) or (self.weights is not None and self.capacity is not None)
        reason = self._beyond_states() if has_data else None
        return dict.fromkeys(("GibbsOracle", "Samplable", "Smoothable", "HypergraphProgram"), reason) if reason else {}

    @property
    def varies_between_instances(self) -> bool:
        return "weights" in self.bound

    @property
    def _is_matrix(self) -> bool:
        return bool(self.weights) and isinstance(cast(Any, self.weights)[0], tuple)

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: tuple[int]) -> Hypergraph:
        if reason := self._beyond_states():
            raise UnsupportedError(f"knapsack: {reason}")
        graph = HypergraphBuilder(event_shape)
        weights, capacity = self._matrix_and_capacities()
        return graph.build(int(add_items(graph, weights, capacity[None])[0]))

    def _matrix_and_capacities(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the options as weights (m, d) and capacities (m,); InvalidInputError without them."""
        for name in ("weights", "capacity"):
            if getattr(self, name) is None:
                _raise_missing(name)
        capacities = self.capacity if isinstance(self.capacity, tuple) else (self.capacity,)
        weights = np.array(self.weights, np.int64).reshape(len(capacities), -1)
        return weights, np.array([min(int(cast(int, c)), LARGEST_SUM) for c in capacities], np.int64)

    # -- weights and capacities of instances ----------------------------------------------------

    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights (B, m, d) and the capacities (B, m) of the instances."""
        batch = len(next(iter(self.bound.values())))
        data = self.data_on_cpu()
        weights, capacity = data.get("weights"), data.get("capacity")
        for name, given in (("weights", weights), ("capacity", capacity)):
            if given is None and getattr(self, name) is None:
                _raise_missing(name)
        rows = np.array([self.weights]) if weights is None else weights.numpy()
        limits = np.array([self.capacity]) if capacity is None else capacity.numpy()
        if rows.shape[1:-1] != limits.shape[1:]:
            wanted = f"a number for each of {rows.shape[1]} rows of weights" if rows.ndim == 3 else "one number"
            received = f"{limits.shape[1]} numbers" if limits.ndim == 2 else "one number"
            raise InvalidInputError(f"capacity must hold {wanted} for each instance, got {received}")
        if rows.ndim == 2:
            rows, limits = rows[:, None], limits[:, None]
        elif not rows.shape[1]:
            raise InvalidInputError("weights must have at least one row for each instance, got shape (..., 0, d)")
        limits = np.minimum(limits, LARGEST_SUM).astype(np.int64)
        return np.broadcast_to(rows, (batch, *rows.shape[1:])), np.broadcast_to(limits, (batch, limits.shape[1]))

    def _problems(self) -> KnapsackProblems:
        """Return the hypergraph of all problems of the batch, or of a batch that this batch is a part of."""
        known: tuple[Any, KnapsackProblems] | None = vars(self).get("_of_batch")
        if known is not None and known[0] is self.bound:
            return known[1]
        table, keys = self._keyed_table()
        shape = self._tables()[0].shape[1:]
        found = find_problems(shape, keys)
        if found is None:
            if reason := self._beyond_states():
                raise UnsupportedError(f"knapsack: {reason}")
            found = KnapsackProblems.of(table, keys, shape)
        object.__setattr__(self, "_of_batch", (self.bound, found))
        return found

    def _keyed_table(self) -> tuple[np.ndarray, list[bytes]]:
        """Return the weights and, in the last columns, the capacities of each instance, (B, m d + m), and its bytes."""
        weights, capacity = self._tables()
        table = np.ascontiguousarray(
            np.concatenate([weights.reshape(len(weights), np.prod(weights.shape[1:])), capacity], 1), np.int64
        )
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

    def _check_feasible(self, value: Tensor) -> None:
        pass  # the empty knapsack is a structure of score 0

    def _check_goals_and_values(self, value: Tensor, graph: Hypergraph) -> None:
        pass

    # -- large instances -------------------------------------------------------------------------

    def _large(self) -> Bool[np.ndarray, " instances"]:
        """Return which instances have too many states for the dynamic program; one element without instance data."""
        if not self.bound:
            return self._options_are_large
        return exceeds_states(*self._tables(), MOST_STATES)

    def _beyond_states(self) -> str | None:
        """Return the reason why the dynamic program cannot take the instances, or None."""
        large = np.flatnonzero(self._large()).tolist()
        return f"{_BEYOND}{f', at {list_instances(large)}' if self.bound else ''}{_REMEDY}" if large else None

    @functools.cached_property
    def _options_are_large(self) -> Bool[np.ndarray, " one"]:
        weights, capacity = self._matrix_and_capacities()
        return exceeds_states(weights[None], capacity[None], MOST_STATES)

    def _integer_program(self) -> MILP:
        if self.bound:
            weights, capacity = (torch.from_numpy(table.astype(np.float64)) for table in self._tables())
            return MILP().bind(A=weights, upper=capacity)
        weights, capacity = self._matrix_and_capacities()
        return MILP(weights, upper=capacity)

    def _answers(self, theta: Tensor, dim: int, method: str, *arguments: Any) -> tuple[Tensor, ...]:
        """Return the result of the dynamic program or, for large instances, of the search or the integer program.

        Parameters
        ----------
        theta : (B | 1, d) Tensor
            Scores.
        dim : int
            The batch dimension of the results.
        method : str
            The name of a method of both programs.
        *arguments
            The further arguments of the method.
        """
        large = self._large()
        if not large.any():
            return as_tuple(getattr(HypergraphProgram, method)(self, theta, *arguments))
        theta = theta.expand(len(large), -1) if self.bound else theta
        if large.all():
            if method == "argmax":
                return (self._search(theta),)
            return as_tuple(getattr(self._integer_program(), method)(theta, *arguments))
        groups = [torch.from_numpy(np.flatnonzero(mask)).to(theta.device) for mask in (large, ~large)]
        found = []
        for rows in groups:
            with renumber_instances(rows):
                found.append(self[rows]._answers(theta[rows], dim, method, *arguments))
        place = torch.cat(groups).argsort()
        return tuple(torch.cat(pieces, dim).index_select(dim, place) for pieces in zip(*found, strict=True))

    def _search(self, theta: Tensor) -> Tensor:
        """Return the argmax for large instances (B, d), by branch and bound, or by HiGHS if the search takes long."""
        weights, capacity = self._tables() if self.bound else (t[None] for t in self._matrix_and_capacities())
        (scores,) = to_numpy(theta.detach().double())
        batch = len(scores)
        tables = (
            np.broadcast_to(weights, (batch, *weights.shape[1:])),
            np.broadcast_to(capacity, (batch, capacity.shape[1])),
        )
        found, solved = best_subsets(scores, *tables)
        y, rows = torch.from_numpy(found).to(theta), torch.from_numpy(np.flatnonzero(~solved)).to(theta.device)
        if len(rows):
            with renumber_instances(rows):
                y[rows] = self[rows]._integer_program().argmax(theta[rows])
        return y

    def argmax(self, theta: Tensor) -> Tensor:
        return self._answers(theta, 0, "argmax")[0]

    def topk(self, theta: Tensor, k: int) -> tuple[Parts, Tensor, Tensor]:
        structures, scores, valid = self._answers(theta, 1, "topk", k)
        return structures, scores, valid

    def linear_constraints(self, event_shape: Any) -> LinearConstraints:
        # HiGHS solves a row for each capacity about 1,000 times as fast as the flow of the dynamic program.
        weights, capacity = (t[0] for t in self._tables()) if self.bound else self._matrix_and_capacities()
        items = weights.shape[1]
        # Each item occurs at most once.
        rows, upper = np.concatenate([weights, np.eye(items)]), np.append(capacity, np.ones(items))
        row, item = rows.nonzero()
        return LinearConstraints.of((row, item, rows[row, item]), items, np.full(len(upper), -np.inf), upper)

    # -- shapes and labels -----------------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        for name, values in self.data_on_cpu().items():
            check_instances(name, values, len(theta))
            check_integer_amounts(name, values)
        items = self._tables()[0].shape[2] if self.bound else self._matrix_and_capacities()[0].shape[1]
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
            tables = [torch.tensor(table, device="cpu") for table in self._tables()]
            weights, capacity = (table.to(labels.device, non_blocking=True) for table in tables)
            heavy = (y.unsqueeze(1) * weights).sum(2) > capacity
            reject_labels(heavy, labels, "the items weigh more than the capacity", defers=True)
            return y.to(like.dtype)
        weights, capacity = _options_on(_without_cache(self), labels.device)
        heavy = (y.unsqueeze(1) * weights).sum(2) > capacity
        reject_labels(heavy, labels, f"the items weigh more than the capacity of {self.capacity}", defers=True)
        return y.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return (y != 0).long()

    def contains(self, y: Tensor) -> Tensor | None:
        if self.bound:
            return None
        weights, capacity = _options_on(_without_cache(self), y.device)
        if has_numpy_view(y):
            # Operations of numpy on small arrays take less time than those of torch.
            parts = y.detach().numpy()
            is_binary = np.logical_and.reduce((parts == 0) | (parts == 1), axis=1)
            has_room = np.logical_and.reduce((parts != 0) @ weights.numpy().T <= capacity.numpy(), axis=1)
            return torch.from_numpy(is_binary & has_room)
        load = ((y != 0).unsqueeze(1) * weights).sum(2)
        return (y == y * y).all(1) & (load <= capacity).all(1)

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs that count the items wrongly packed or left."""
        return cost_of_wrong_elements(y)


@functools.lru_cache(maxsize=16)
def _options_on(oracle: Knapsack, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the weights (m, d) and the capacities (m,) of an oracle's options, copied to ``device`` once."""
    tables = [torch.tensor(table, device="cpu") for table in oracle._matrix_and_capacities()]
    weights, capacity = (table.to(device, non_blocking=True) for table in tables)
    return weights, capacity


def _raise_missing(name: str) -> NoReturn:
    raise InvalidInputError(f"knapsack needs {name}, as an option or with the scores as instance data")


def _without_cache(oracle: Knapsack) -> Knapsack:
    """Return the oracle without the hypergraph of an earlier batch, which is no option."""
    return Knapsack(oracle.weights, oracle.capacity) if "_of_batch" in vars(oracle) else oracle
