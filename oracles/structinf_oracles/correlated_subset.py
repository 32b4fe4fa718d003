"""Subsets of a given size, scored by their elements and by pairs of neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InvalidInputError
from structinf.parts import Parts
from structinf.validation import check_natural

from .common.labels import reject_labels
from .common.subsets import check_sizes, cost_of_wrong_elements, elements_in_use, taken_elements

__all__ = ["CorrelatedSubset"]


@dataclass(frozen=True)
class CorrelatedSubset(HypergraphProgram):
    """Exactly k of d elements, of which neighbours may attract or repel each other.

    θ is unary (..., d) and pair (..., d − 1), and so is y: which elements are taken, and of which pairs of neighbours,
    i and i + 1, both are. Pair scores with a batch dimension of 1, or none, are shared by the batch. −inf forbids an
    element or a pair.

    Instance data: ``lengths`` (...), integers from k to d, the elements in use; parts beyond are 0. Labels have a 1 for
    each element taken and a 0 for each other one, (..., d).

    Parameters
    ----------
    k : int
        At least 0, and at most d.

    Notes
    -----
    Ties go to leaving an element, from the last one backwards. Time and memory are O(dk).

    References
    ----------
    M. B. Paulus, D. Choi, D. Tarlow, A. Krause & C. J. Maddison, Gradient estimation with stochastic softmax tricks,
    NeurIPS 2020, §3.

    Examples
    --------
    >>> unary, pair = torch.tensor([[1.0, 0.5, 0.0, 1.0]]), torch.tensor([[0.0, 2.0, 0.0]])
    >>> two = CorrelatedSubset(2)
    >>> two.argmax((unary, pair))
    (tensor([[0., 1., 1., 0.]]), tensor([[0., 1., 0.]]))
    """

    name: ClassVar[str] = "correlated_subset"
    event_ndim: ClassVar[int | tuple[int, ...]] = (1, 1)
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    label_ndim: ClassVar[int] = 1

    k: int

    def __post_init__(self) -> None:
        check_natural("k", self.k, 0)

    def has_binary_parts(self, theta: Parts) -> bool:
        return True

    def build(self, event_shape: Any) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        unary, pair = graph.parts
        # [i, j]: j of the first i elements, the last of them left, taken, or taken but for its own score.
        left, took, takes = graph.nodes(3, len(unary) + 1, self.k + 1)
        goal = graph.nodes(len(unary) + 1)
        graph.add(left[0, 0])
        graph.add(left[1:], left[:-1])
        graph.add(left[1:], took[:-1])
        graph.add(takes[1:, 1:], left[:-1, :-1])
        graph.add(takes[2:, 1:], took[1:-1, :-1], part=pair[:, None])
        graph.add(took[1:], takes[1:], part=unary[:, None])
        graph.add(goal, left[:, self.k])
        graph.add(goal, took[:, self.k])
        goal[: self.k] = -1
        return graph.build(goal, prune=True)

    def validate(self, theta: tuple[Tensor, Tensor]) -> None:
        unary, pair = theta
        size = unary.shape[1]
        if size < 1 or pair.shape[1] != size - 1:
            raise InvalidInputError(
                "theta: correlated_subset takes unary (d,) and pair (d - 1,) with d at least 1, got "
                f"{tuple(unary.shape[1:])} and {tuple(pair.shape[1:])} after the batch dimensions"
            )
        check_sizes(self.label(), self.k, size, self.bound.get("lengths"))

    def valid_parts(self, theta: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        unary, pair = theta
        lengths = self.bound.get("lengths")
        if lengths is None:
            return None
        return elements_in_use(lengths, unary), elements_in_use(lengths - 1, pair)  # pyright: ignore[reportReturnType]

    def readout(self, y: Parts) -> Tensor:
        """The elements."""
        return y[0]

    def hamming_cost(self, y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Costs of 1 for each element wrongly taken or left; pairs cost nothing, whichever instance's they are."""
        return cost_of_wrong_elements(y[0]), torch.zeros_like(y[1][:1])

    def encode(self, labels: Tensor, like: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y = taken_elements(labels, self.bound.get("lengths"), like[0].shape[1])
        reject_labels(y.sum(1, keepdim=True) != self.k, labels, f"exactly {self.k} elements must be taken")
        return y.to(like[0].dtype), (y[:, 1:] & y[:, :-1]).to(like[1].dtype)

    def decode(self, y: Parts) -> Tensor:
        return (y[0] != 0).long()
