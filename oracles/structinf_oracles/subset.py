"""Subsets of exactly k, or of at most k, elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.kernels import parallel_rows, to_numpy
from structinf.oracle import EntropyProjectable, Projectable
from structinf.shapes import Float
from structinf.validation import check_feasible, check_flag, check_natural

from .common import capped_simplex
from .common.labels import reject_labels
from .common.subsets import check_sizes, cost_of_wrong_elements, elements_in_use, mask_unusable_cells, taken_elements

__all__ = ["Subset"]


@dataclass(frozen=True)
class Subset(HypergraphProgram, Projectable, EntropyProjectable):
    """Subsets of exactly k, or of at most k, of d elements.

    - Scores θ, shape (..., d), any sign: the score of each element. −inf forbids an element.
    - Structure y, shape (..., d): 1 for each element taken.
    - Labels, shape (..., d): y as integers.
    - Instance data ``lengths``, shape (...): the number of elements in use, an integer in [k, d], or in [0, d] with
      ``at_most``. Default: d. In y all parts beyond the length are 0.

    Parameters
    ----------
    k : int
        The number of elements to take, at least 0. Without ``at_most``, ``k`` must not exceed d.
    at_most : bool, default False
        Whether subsets of fewer than ``k`` elements are structures too.

    Notes
    -----
    ``argmax`` is a selection in O(d). Ties go to the lowest indices. With ``at_most``, elements of score 0 or less
    are left. Sums over subsets are a recursion over the elements and the number taken so far, in O(dk). The convex
    hull is the capped simplex {0 ≤ μ ≤ 1, Σ μ = k}. Projections onto the hull sort the scores; with the binary
    entropy, Newton's method finds the threshold τ.

    References
    ----------
    D. Tarlow, K. Swersky, R. S. Zemel, R. P. Adams & B. J. Frey, Fast exact inference for recursive cardinality
    models, UAI 2012. W. Wang & C. Lu, Projection onto the capped simplex, arXiv:1503.01002, 2015.

    Examples
    --------
    >>> theta = torch.tensor([[0.0, 0.25, 0.5, 0.75]])
    >>> pair = Subset(2)
    >>> pair.argmax(theta), pair.count(theta)
    (tensor([[0., 0., 1., 1.]]), [6])
    >>> pair.marginals(theta)
    tensor([[0.3775, 0.4575, 0.5425, 0.6225]])
    >>> pair.project(theta)
    tensor([[0.1250, 0.3750, 0.6250, 0.8750]])
    """

    name: ClassVar[str] = "subset"
    search_terms: ClassVar[tuple[str, ...]] = ("top_k", "k_subset", "k_hot", "cardinality")
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    label_ndim: ClassVar[int] = 1

    k: int
    at_most: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_natural("k", self.k, 0)
        check_flag("at_most", self.at_most)

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: tuple[int]) -> Hypergraph:
        graph, most = HypergraphBuilder(event_shape), min(self.k, event_shape[0])
        best = graph.nodes(event_shape[0] + 1, most + 1)  # [i, j]: subsets of j, or up to j, of the first i elements
        graph.add(best[0] if self.at_most else best[0, 0])
        graph.add(best[1:], best[:-1])
        graph.add(best[1:, 1:], best[:-1, :-1], part=graph.parts[:, None])
        goals = best[:, most].copy()
        goals[: self._least] = -1
        return graph.build(goals, prune=True)

    @property
    def known_set(self) -> Literal["k_of_n"] | None:
        return None if self.at_most else "k_of_n"

    @property
    def _least(self) -> int:
        """The least number of elements in a subset."""
        return 0 if self.at_most else self.k

    def validate(self, theta: Tensor) -> None:
        check_sizes(self.label(), self._least, theta.shape[1], self.bound.get("lengths"))

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return elements_in_use(self.bound.get("lengths"), theta)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        y = taken_elements(labels, self.bound.get("lengths"), like.shape[1])
        count = y.sum(1, keepdim=True)
        reject_labels(count > self.k, labels, f"more than {self.k} elements are taken")
        reject_labels(count < self._least, labels, f"fewer than {self.k} elements are taken")
        return y.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return (y != 0).long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs that count the elements wrongly taken or left."""
        return cost_of_wrong_elements(y)

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        if theta.is_cpu:
            return self._highest(mask_unusable_cells(self.bound.get("lengths"), theta))
        scores = self._scores(theta)
        if self.at_most:
            scores = torch.where(scores > 0, scores, -torch.inf)
        last, _ = capped_simplex.last_and_next(scores, self.k)
        above, tied = scores > last, (scores == last) & (last > -torch.inf)
        return (above | (tied & (tied.cumsum(1) <= self.k - above.sum(1, keepdim=True)))).to(theta.dtype)

    def _highest(self, scores: Tensor) -> Tensor:
        """Return :meth:`argmax` computed by compiled CPU loops."""
        from .kernels.subset.top_k import highest

        taken = torch.empty_like(scores, memory_format=torch.contiguous_format)
        row, floor = scores.shape[1], 0.0 if self.at_most else -math.inf
        integers = np.empty(0, f"i{scores.element_size()}")
        above = torch.empty(len(scores), dtype=torch.int64, device="cpu")
        arrays = *to_numpy(scores), integers, min(self.k, row), floor, taken.numpy(), above.numpy()
        parallel_rows(highest, len(scores), *arrays, work=8 * scores.numel())
        self._check_enough(above)
        return taken

    def project(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        """Return argmin ‖θ − μ‖² over 0 ≤ μ ≤ 1 with Σ μ = k, or Σ μ ≤ k: μ = clip(θ − τ, 0, 1) for some τ."""
        return capped_simplex.nearest(self._scores(theta), self.k, at_most=self.at_most)

    def project_entropy(self, theta: Tensor, *, binary: bool) -> Float[Tensor, "batch d"]:
        """Return min(1, exp(θ − τ)) or, if ``binary``, the sigmoid of θ − τ, for the τ that fits Σ μ."""
        return capped_simplex.entropic(self._scores(theta), self.k, at_most=self.at_most, binary=binary)

    def _scores(self, theta: Tensor) -> Tensor:
        """Return θ with −inf for elements beyond the length.

        Raises InfeasibleError if fewer than :attr:`_least` elements remain.
        """
        scores = mask_unusable_cells(self.bound.get("lengths"), theta)
        if self._least:
            self._check_enough((scores > -torch.inf).sum(1))
        return scores

    def _check_enough(self, usable: Tensor) -> None:
        """Raise InfeasibleError if an instance has fewer ``usable`` elements (B,) than a subset needs."""
        if self._least:
            check_feasible(usable >= self._least, f"choice of {self._least} elements")
