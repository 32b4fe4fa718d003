"""Subsets of a given size, scored by their elements and by pairs of neighbouring elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError
from structinf.parts import Parts

from .common.labels import reject_labels
from .common.subsets import (
    check_size_option,
    check_sizes,
    cost_of_wrong_elements,
    elements_within,
    index_by_size,
    largest_size,
    single_size,
    sizes_of,
    taken_elements,
)

__all__ = ["CorrelatedSubset"]


@dataclass(frozen=True)
class CorrelatedSubset(HypergraphProgram):
    """Exactly k of d elements, where neighbouring elements attract or repel each other.

    - Scores θ, a tuple of ``unary``, shape (..., d), and ``pair``, shape (..., d − 1), any sign. ``unary`` has the
      score of each element. ``pair[i]`` is added if the elements i and i + 1 are both taken. A ``pair`` without batch
      dimensions, or with batch dimensions of 1, is shared by the batch. −inf forbids an element or a pair.
    - Structure y, a tuple of the same shapes: 1 for each element taken, and 1 for each pair of neighbours taken.
    - Labels, shape (..., d): 1 for each element taken, 0 for the others.
    - Instance data ``lengths``, shape (...): the number of elements in use, an integer in [k, d]. Default: d. In y
      all parts beyond the length are 0.
    - Instance data ``k``, shape (...): the k of each instance, an integer. Default: the option ``k``. In a call, a
      tensor or a list is instance data, and a number is the option.

    Parameters
    ----------
    k : int, optional
        The number of elements to take, in [0, d]. Needed without instance data ``k``.

    Notes
    -----
    Ties go to leaving an element, decided from the last element backwards. Time and memory are O(dk).

    References
    ----------
    M. B. Paulus, D. Choi, D. Tarlow, A. Krause & C. J. Maddison, Gradient estimation with stochastic softmax tricks,
    NeurIPS 2020, §3.

    Examples
    --------
    >>> unary = torch.tensor([[1.0, 0.5, 0.0, 1.0]])
    >>> pair = torch.tensor([[0.0, 2.0, 0.0]])
    >>> two = CorrelatedSubset(2)
    >>> two.argmax((unary, pair))
    (tensor([[0., 1., 1., 0.]]), tensor([[0., 1., 0.]]))
    """

    name: ClassVar[str] = "correlated_subset"
    event_ndim: ClassVar[int | tuple[int, ...]] = (1, 1)
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0, "k": 0})
    label_ndim: ClassVar[int] = 1

    k: int | None = None

    def __post_init__(self) -> None:
        check_size_option(self.k)

    def has_binary_parts(self, theta: Parts) -> bool:
        return True

    def build(self, event_shape: Any) -> Hypergraph:
        graph, k = HypergraphBuilder(event_shape), single_size(self)
        unary, pair = graph.parts
        # [i, j]: j of the first i elements are taken. The i-th element is left (``left``), taken (``took``), or taken
        # with its unary score still to be added (``takes``).
        left, took, takes = graph.nodes(3, len(unary) + 1, k + 1)
        goal = self._goals_of(graph.nodes(len(unary) + 1, k + 1))
        graph.add(left[0, 0])
        graph.add(left[1:], left[:-1])
        graph.add(left[1:], took[:-1])
        graph.add(takes[1:, 1:], left[:-1, :-1])
        graph.add(takes[2:, 1:], took[1:-1, :-1], part=pair[:, None])
        graph.add(took[1:], takes[1:], part=unary[:, None])
        is_goal = goal >= 0
        graph.add(goal[is_goal], left[is_goal])
        graph.add(goal[is_goal], took[is_goal])
        return graph.build(self._of_lengths(goal), prune=True)

    def _goals_of(self, nodes: np.ndarray) -> np.ndarray:
        """Return the ``nodes`` [length, size] with −1 for sizes beyond the length, and sizes other than k."""
        length, size = np.indices(nodes.shape)
        return np.where((size > length) | (size < nodes.shape[1] - 1), -1, nodes)

    def _of_lengths(self, goals: np.ndarray) -> np.ndarray:
        """Return the goals [length] of size k."""
        return goals[:, -1]

    def _hypergraph_of(self, event_shape: Any) -> Hypergraph:
        if "k" not in self.bound:
            return super()._hypergraph_of(event_shape)
        return _SubsetsOfAllSizes(largest_size(self, event_shape[0][0]))._hypergraph_of(event_shape)

    def goal_index(self, graph: Hypergraph) -> Tensor | None:
        return index_by_size(self, graph)

    def validate(self, theta: tuple[Tensor, Tensor]) -> None:
        unary, pair = theta
        size = unary.shape[1]
        if size < 1 or pair.shape[1] != size - 1:
            raise InvalidInputError(
                "theta: correlated_subset takes unary (d,) and pair (d - 1,) with d at least 1, got "
                f"{tuple(unary.shape[1:])} and {tuple(pair.shape[1:])} after the batch dimensions"
            )
        check_sizes(self, unary)

    def valid_parts(self, theta: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        lengths = self.bound.get("lengths")
        if lengths is None:
            return None
        used = elements_within(lengths, theta[0].shape[1])
        of_elements, of_pairs = (used if len(t) == len(used) else used.any(0, keepdim=True) for t in theta)
        return of_elements, of_pairs[:, 1:]

    def readout(self, y: Parts) -> Tensor:
        """Return the indicators of the elements."""
        return y[0]

    def hamming_cost(self, y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return costs that count the elements wrongly taken or left. Pairs cost 0, with a batch dimension of 1."""
        return cost_of_wrong_elements(y[0]), torch.zeros_like(y[1][:1])

    def encode(self, labels: Tensor, like: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y = taken_elements(labels, self.bound.get("lengths"), like[0].shape[1])
        shown = "k" if "k" in self.bound else self.k
        wrong = y.sum(1, keepdim=True) != sizes_of(self, y)
        reject_labels(wrong, labels, f"exactly {shown} elements must be taken", defers=True)
        return y.to(like[0].dtype), (y[:, 1:] & y[:, :-1]).to(like[1].dtype)

    def decode(self, y: Parts) -> Tensor:
        return (y[0] != 0).long()


class _SubsetsOfAllSizes(CorrelatedSubset):
    """The hypergraph of subsets of each size up to k, with the goals [length, size]."""

    def _goals_of(self, nodes: np.ndarray) -> np.ndarray:
        length, size = np.indices(nodes.shape)
        return np.where(size > length, -1, nodes)

    def _of_lengths(self, goals: np.ndarray) -> np.ndarray:
        return goals
