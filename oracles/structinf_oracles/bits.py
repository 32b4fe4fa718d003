"""Any subset of d elements: the unit cube, where every relaxation has a closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.oracle import EntropyProjectable, GibbsOracle, Projectable
from structinf.parts import divide_by_temperature
from structinf.regularizers import Regularizer
from structinf.shapes import Float
from structinf.validation import check_count

from .common.capped_simplex import cube_entropic
from .common.subsets import (
    check_lengths_within,
    cost_of_wrong_elements,
    elements_in_use,
    mask_unusable_cells,
    taken_elements,
)

__all__ = ["Bits"]


@dataclass(frozen=True)
class Bits(HypergraphProgram, Projectable, EntropyProjectable):
    """Any of the 2^d subsets of d elements.

    - Scores θ, shape (..., d), any sign: the score of each element. −inf forbids an element.
    - Structure y, shape (..., d): 1 for each element taken. The best subset takes the elements of positive score.
    - Labels, shape (..., d): y as integers.
    - Instance data ``lengths``, shape (...): the number of elements in use, an integer in [0, d]. Default: d. In y
      all parts beyond the length are 0.

    Notes
    -----
    The elements are independent. log Z is the sum of log(1 + exp θ), and the marginals are the sigmoid of θ. The
    projection onto the convex hull, the cube [0, 1]^d, clips θ.

    Examples
    --------
    >>> theta = torch.tensor([[0.5, -1.0, 2.0]])
    >>> bits = Bits()
    >>> bits.argmax(theta), bits.project(theta)
    (tensor([[1., 0., 1.]]), tensor([[0.5000, 0.0000, 1.0000]]))
    >>> bits.marginals(theta), bits.count(theta)
    (tensor([[0.6225, 0.2689, 0.8808]]), [8])
    """

    name: ClassVar[str] = "bits"
    search_terms: ClassVar[tuple[str, ...]] = ("bernoulli", "sigmoid", "hypercube", "multilabel")
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    label_ndim: ClassVar[int] = 1

    @property
    def known_set(self) -> Literal["all_bits"]:
        return "all_bits"

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: tuple[int]) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        first = graph.nodes(event_shape[0] + 1)  # [i]: the subsets of the first i elements
        graph.add(first[0])
        graph.add(first[1:], first[:-1])
        graph.add(first[1:], first[:-1], part=graph.parts)
        return graph.build(first)

    def validate(self, theta: Tensor) -> None:
        check_lengths_within(self.bound.get("lengths"), 0, theta.shape[1])

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return elements_in_use(self.bound.get("lengths"), theta)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        return taken_elements(labels, self.bound.get("lengths"), like.shape[1]).to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return (y != 0).long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs that count the elements wrongly taken or left."""
        return cost_of_wrong_elements(y)

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        return (self._scores(theta) > 0).to(theta.dtype)

    def log_partition(self, theta: Tensor) -> Float[Tensor, " batch"]:
        # log(1 + exp θ) without a threshold, and with derivatives of 0 at −inf.
        return (-logsigmoid(-self._scores(theta))).sum(1)

    def marginals(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        return self._scores(theta).sigmoid()

    log_partition_and_marginals = GibbsOracle.log_partition_and_marginals
    log_partition_vjp = GibbsOracle.log_partition_vjp

    def covariance_product(self, theta: Tensor, v: Tensor) -> Tensor:
        p = self.marginals(theta)
        return p * (1 - p) * v

    def smoothed_sample(
        self, theta: Tensor, n: int, regularizer: Regularizer, generator: torch.Generator | None = None
    ) -> Tensor:
        check_count(n)
        scores = cast(Tensor, divide_by_temperature(theta, regularizer.temperature)).double()
        mean = self.marginals(scores) if regularizer.alpha == 1 else self.smoothed_mean(scores, regularizer)
        p = cast(Tensor, mean)
        device = p.device if generator is None else generator.device
        uniform = torch.rand(n, *p.shape, dtype=p.dtype, generator=generator, device=device)
        return (uniform.to(p.device) < p).to(theta.dtype)

    def project(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        """Return argmin ‖θ − μ‖² over 0 ≤ μ ≤ 1, which is θ clipped to [0, 1]."""
        return self._scores(theta).clamp(0, 1)

    def project_entropy(self, theta: Tensor, *, binary: bool) -> Float[Tensor, "batch d"]:
        """Return min(1, exp(θ − 1)) or, if ``binary``, the sigmoid of θ."""
        return cube_entropic(self._scores(theta), binary=binary)

    def _scores(self, theta: Tensor) -> Tensor:
        """Return θ with −inf for elements beyond the length."""
        return mask_unusable_cells(self.bound.get("lengths"), theta)
