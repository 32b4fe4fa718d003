"""Knapsacks: subsets of items of limited total weight."""

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

_LARGEST = 2**53
"""The largest sum of weights. Sums of indices and weights stay within 64 bits."""

_SEVERAL = "; for several limits, one for each row of a matrix of weights, use the structure milp"


@dataclass(frozen=True)
class Knapsack(HypergraphProgram):
    """Subsets of items with a total weight of at most a capacity.

    - Scores θ, shape (..., d), any sign: the value of each item. −inf forbids an item.
    - Structure y, shape (..., d): 1 for each packed item. The empty knapsack is always a structure.
    - Labels, shape (..., d): y as integers.

    Parameters
    ----------
    weights : sequence of int, or integer array or Tensor, shape (d,)
        The weight of each item, at least 0.
    capacity : int
        The largest total weight, at least 0.

    Notes
    -----
    The recursion is Bellman's, over the items and the remaining capacity. Only the remaining capacities that can
    occur are stored. All capacities large enough for the remaining items share one state. For the first i of d items
    the number of states is at most the least of 2^(d − i), the capacity + 1, and the total weight of the i items + 1.
    A larger capacity thus need not cost time.

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
        total = np.cumsum([0, *self.weights])  # [i]: the largest capacity that the first i items can use
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
                f"theta: knapsack takes a value for each of the {len(self.weights)} weights, shape "
                f"({len(self.weights)},), got {tuple(theta.shape[1:])} after the batch dimensions"
            )

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        y = taken_elements(labels, None, len(self.weights))
        weight = (y * labels.new_tensor(self.weights)).sum(1, keepdim=True)
        reject_labels(
            weight > min(self.capacity, _LARGEST), labels, f"the items weigh more than the capacity of {self.capacity}"
        )
        return y.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return (y != 0).long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs that count the items wrongly packed or left."""
        return cost_of_wrong_elements(y)


def _checked(weights: Any) -> tuple[int, ...]:
    shape = getattr(weights, "shape", None)
    numbers: Any = weights.tolist() if hasattr(weights, "tolist") else weights
    is_sequence = isinstance(numbers, Sequence) and not isinstance(numbers, str | bytes)
    if not is_sequence or (shape is not None and len(shape) != 1):
        received = repr(weights) if shape is None else f"shape {tuple(shape)}"
        raise InvalidInputError(f"weights must be a sequence of one integer for each item, got {received}{_SEVERAL}")
    for i, weight in enumerate(numbers):
        if isinstance(weight, bool) or not isinstance(weight, Integral) or int(weight) < 0:
            remedy = ""
            if isinstance(weight, float):
                remedy = "; scale and round fractional weights, and scale the capacity alike"
            elif isinstance(weight, Sequence) and not isinstance(weight, str):
                remedy = _SEVERAL
            raise InvalidInputError(f"weights must be integers of at least 0, got {weight!r} for item {i}{remedy}")
    total = sum(map(int, numbers))
    if total > _LARGEST:
        raise InvalidInputError(
            f"weights must have a sum of at most 2^53, got {total}; divide all weights and the capacity by a common "
            "number and round"
        )
    return tuple(int(weight) for weight in numbers)
