"""Knapsacks: subsets whose total weight is limited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError
from structinf.validation import check_natural

from .common.labels import reject_labels
from .common.subsets import cost_of_wrong_elements, taken_elements

__all__ = ["Knapsack"]


@dataclass(frozen=True)
class Knapsack(HypergraphProgram):
    """Items whose weights sum up to at most a capacity.

    θ is (..., d), the value of each item, any sign, and y has a 1 for each item that is packed. −inf forbids an item;
    the empty knapsack is always a structure. Labels are y in integers, (..., d).

    Parameters
    ----------
    weights : sequence of int, or integer array or Tensor
        Of the d items, at least 0.
    capacity : int
        At least 0.

    Notes
    -----
    Bellman's recursion over the items and the capacity that is left. Of the latter only those values are kept that can
    come up, and those that hold all remaining items count as one: beside the first i of d items there are at most
    2^(d − i), the capacity + 1, and the total weight of the i items + 1. A large capacity alone costs nothing.

    Ties go to leaving an item, from the last one backwards.

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
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    label_ndim: ClassVar[int] = 1
    padding_stays_in_place: ClassVar[bool] = True

    weights: Sequence[int]
    capacity: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _checked(self.weights))
        check_natural("capacity", self.capacity, 0)

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: tuple[int]) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        total = np.cumsum([0, *self.weights])  # more capacity makes no difference to the first i items
        head, left = graph.nodes(1), np.minimum([self.capacity], total[-1])
        goal = int(head[0])
        for i in reversed(range(len(self.weights))):
            fits = left >= self.weights[i]
            capacities_left = np.concatenate([left, left[fits] - self.weights[i]])
            capacities_left, place = np.unique(np.minimum(capacities_left, total[i]), return_inverse=True)
            tail = graph.nodes(len(capacities_left))
            graph.add(head, tail[place[: len(head)]])
            graph.add(head[fits], tail[place[len(head) :]], part=graph.parts[i])
            head, left = tail, capacities_left
        graph.add(head)
        return graph.build(goal)

    def validate(self, theta: Tensor) -> None:
        if theta.shape[1] != len(self.weights):
            raise InvalidInputError(
                f"theta: knapsack of {len(self.weights)} weights takes the values of as many items, "
                f"({len(self.weights)},), got {tuple(theta.shape[1:])} after the batch dimensions"
            )

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        y = taken_elements(labels, None, len(self.weights))
        weight = (y * labels.new_tensor(self.weights)).sum(1, keepdim=True)
        reject_labels(weight > self.capacity, labels, f"the items weigh more than the capacity of {self.capacity}")
        return y.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return (y != 0).long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Costs of 1 for each item wrongly packed or left."""
        return cost_of_wrong_elements(y)


def _checked(weights: Any) -> tuple[int, ...]:
    numbers = weights.tolist() if hasattr(weights, "tolist") else weights
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        raise InvalidInputError(f"weights: one integer for each item is needed, got {weights!r}")
    for i, weight in enumerate(numbers):
        if isinstance(weight, bool) or not isinstance(weight, Integral) or weight < 0:
            raise InvalidInputError(
                f"weights must be integers of at least 0, got {weight!r} for item {i}; scale and round fractions, and "
                "the capacity with them"
            )
    return tuple(int(weight) for weight in numbers)
