"""Subsets of exactly k, or of at most k, elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.kernels import parallel_rows, to_numpy
from structinf.oracle import EntropyProjectable, Projectable
from structinf.shapes import Float, Int
from structinf.validation import check_feasible, check_flag

from .common import capped_simplex
from .common.labels import reject_labels
from .common.subsets import (
    check_size_option,
    check_sizes,
    cost_of_wrong_elements,
    elements_in_use,
    fits_kernel,
    index_by_size,
    largest_size,
    mask_unusable_cells,
    single_size,
    sizes_of,
    taken_elements,
)

__all__ = ["Subset"]


@dataclass(frozen=True)
class Subset(HypergraphProgram, Projectable, EntropyProjectable):
    """Subsets of exactly k, or of at most k, of d elements.

    - Scores θ, shape (..., d), any sign: the score of each element. −inf forbids an element.
    - Structure y, shape (..., d): 1 for each element taken.
    - Labels, shape (..., d): y as integers.
    - Instance data ``lengths``, shape (...): the number of elements in use, an integer in [k, d], or in [0, d] with
      ``at_most``. Default: d. In y all parts beyond the length are 0.
    - Instance data ``k``, shape (...): the k of each instance, an integer. Default: the option ``k``. In a call, a
      tensor or a list is instance data, and a number is the option.

    Parameters
    ----------
    k : int, optional
        The number of elements to take, at least 0. Without ``at_most``, ``k`` must not exceed d. Needed without
        instance data ``k``.
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
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0, "k": 0})
    label_ndim: ClassVar[int] = 1

    k: int | None = None
    at_most: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_size_option(self.k)
        check_flag("at_most", self.at_most)

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def build(self, event_shape: tuple[int]) -> Hypergraph:
        graph, k = HypergraphBuilder(event_shape), single_size(self)
        most = min(k, event_shape[0])
        best = graph.nodes(event_shape[0] + 1, most + 1)  # [i, j]: subsets of j, or up to j, of the first i elements
        graph.add(best[0] if self.at_most else best[0, 0])
        graph.add(best[1:], best[:-1])
        graph.add(best[1:, 1:], best[:-1, :-1], part=graph.parts[:, None])
        return graph.build(self._goals_of(best, k), prune=True)

    def _goals_of(self, best: np.ndarray, k: int) -> np.ndarray:
        """Return the goals [length] of the nodes ``best`` [length, size], or −1 where a subset has no structure."""
        goals = best[:, -1].copy()
        goals[: 0 if self.at_most else k] = -1
        return goals

    def _hypergraph_of(self, event_shape: Any) -> Hypergraph:
        if "k" not in self.bound:
            return super()._hypergraph_of(event_shape)
        return _SubsetsOfAllSizes(largest_size(self, event_shape[0]), at_most=self.at_most)._hypergraph_of(event_shape)

    def goal_index(self, graph: Hypergraph) -> Tensor | None:
        return index_by_size(self, graph)

    @property
    def known_set(self) -> Literal["k_of_n"] | None:
        return None if self.at_most else "k_of_n"

    def sizes(self, like: Tensor) -> Tensor:
        """Return k of each instance, (B | 1, 1) int64 on the device of ``like`` (B, d)."""
        return sizes_of(self, like)

    def validate(self, theta: Tensor) -> None:
        check_sizes(self, theta, at_most=self.at_most)

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return elements_in_use(self.bound.get("lengths"), theta)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        y = taken_elements(labels, self.bound.get("lengths"), like.shape[1])
        count, k = y.sum(1, keepdim=True), self.sizes(like)
        shown = "k" if self.k is None or "k" in self.bound else f"{self.k}"
        reject_labels(count > k, labels, f"more than {shown} elements are taken", defers=True)
        if not self.at_most:
            reject_labels(count < k, labels, f"fewer than {shown} elements are taken", defers=True)
        return y.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return (y != 0).long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs that count the elements wrongly taken or left."""
        return cost_of_wrong_elements(y)

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        theta, lengths = theta.detach(), self.bound.get("lengths")
        if fits_kernel(lengths, theta):
            from .kernels.subset import triton_top_k

            taken, usable = triton_top_k.highest(self._rows(theta), self._size(theta), lengths, at_most=self.at_most)
            self._check_enough(usable)
            return taken
        if theta.is_cpu:
            return self._highest(mask_unusable_cells(lengths, theta))
        scores = self._scores(theta)
        if self.at_most:
            scores = torch.where(scores > 0, scores, -torch.inf)
        k = self._size(theta)
        last = capped_simplex.lowest_of(scores, k)
        above, tied = scores > last, (scores == last) & (last > -torch.inf)
        return (above | (tied & (tied.cumsum(1) <= k - above.sum(1, keepdim=True)))).to(theta.dtype)

    def argmax_indices(self, theta: Tensor) -> Int[Tensor, "batch k"] | None:
        if not theta.is_cpu:
            return None
        scores = mask_unusable_cells(self.bound.get("lengths"), theta)
        size = scores.shape[1]
        most = min(largest_size(self, size) if "k" in self.bound else single_size(self), size)
        return self._find_highest(
            "highest_indices", scores, torch.empty(len(scores), most, dtype=torch.int32, device="cpu")
        )

    def _highest(self, scores: Tensor) -> Tensor:
        """Return :meth:`argmax` computed by compiled CPU loops."""
        return self._find_highest("highest", scores, torch.empty_like(scores, memory_format=torch.contiguous_format))

    def _find_highest(self, kernel: str, scores: Tensor, taken: Tensor) -> Tensor:
        """Return ``taken``, filled by a kernel of :mod:`.kernels.subset.top_k`."""
        from .kernels.subset import top_k

        row, floor = scores.shape[1], 0.0 if self.at_most else -math.inf
        integers = np.empty(0, f"i{scores.element_size()}")
        above = torch.empty(len(scores), dtype=torch.int64, device="cpu")
        sizes = self.sizes(scores).clamp(max=row)[:, 0].numpy()
        arrays = *to_numpy(scores), integers, sizes, floor, taken.numpy(), above.numpy()
        parallel_rows(getattr(top_k, kernel), len(scores), *arrays, work=8 * scores.numel())
        self._check_enough(above)
        return taken

    def sum_bounds(self) -> tuple[float, float] | None:
        """Return the bounds of the size of a subset; None with instance data."""
        if self.bound:
            return None
        return 0 if self.at_most else single_size(self), single_size(self)

    def project(self, theta: Tensor) -> Float[Tensor, "batch d"]:
        """Return argmin ‖θ − μ‖² over 0 ≤ μ ≤ 1 with Σ μ = k, or Σ μ ≤ k: μ = clip(θ − τ, 0, 1) for some τ."""
        return capped_simplex.nearest(self._scores(theta), self._size(theta), at_most=self.at_most)

    def project_entropy(self, theta: Tensor, *, binary: bool) -> Float[Tensor, "batch d"]:
        """Return min(1, exp(θ − τ)) or, if ``binary``, the sigmoid of θ − τ, for the τ that fits Σ μ."""
        k = self._size(theta)
        return capped_simplex.entropic(self._scores(theta), k, at_most=self.at_most, binary=binary)

    def _size(self, theta: Tensor) -> int | Tensor:
        """Return the option k, or the instance data k (B, 1)."""
        return self.sizes(theta) if "k" in self.bound else single_size(self)

    def _scores(self, theta: Tensor) -> Tensor:
        """Return θ with −inf for elements beyond the length.

        Raises InfeasibleError if fewer elements remain than a subset needs.
        """
        lengths = self.bound.get("lengths")
        if fits_kernel(lengths, theta):
            from .kernels.subset import triton_top_k

            scores, usable = triton_top_k.usable(theta, lengths)
        else:
            scores = mask_unusable_cells(lengths, theta)
            usable = (scores > -torch.inf).sum(1)
        self._check_enough(usable)
        return self._rows(scores)

    def _rows(self, scores: Tensor) -> Tensor:
        """Return the scores with a row for each k of the instance data."""
        return scores.expand(len(self.bound["k"]), -1) if "k" in self.bound else scores

    def _check_enough(self, usable: Tensor) -> None:
        """Raise InfeasibleError if an instance has fewer ``usable`` elements (B,) than a subset needs."""
        if not self.at_most and (self.k != 0 or "k" in self.bound):
            shown = "k" if "k" in self.bound else self.k
            k = self._size(usable)
            check_feasible(usable >= (k[:, 0] if isinstance(k, Tensor) else k), f"choice of {shown} elements")


class _SubsetsOfAllSizes(Subset):
    """The hypergraph of subsets of each size up to k, with the goals [length, size]."""

    def _goals_of(self, best: np.ndarray, k: int) -> np.ndarray:
        goals, (rows, columns) = best.copy(), np.indices(best.shape)
        return goals if self.at_most else np.where(columns > rows, -1, goals)
