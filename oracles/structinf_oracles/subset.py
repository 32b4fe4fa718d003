"""Subsets of a given size, or of at most that size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.oracle import Projectable, check_feasible, check_flag

from .label_lists import refuse
from .subset_form import check_number, check_sizes, cost_of_errors, in_use, taken

if TYPE_CHECKING:
    import jaxtyping

__all__ = ["Subset"]


@dataclass(frozen=True)
class Subset(HypergraphProgram, Projectable):
    """Exactly, or at most, k of d elements.

    θ is (..., d), the score of each element, and y has a 1 for each one taken: ⟨θ, y⟩ is the sum of the scores taken.
    −inf forbids an element.

    Instance data: ``lengths`` (...), integers, the elements in use, of which there must be k, unless fewer may be
    taken; parts beyond are 0. Labels are y in integers, (..., d).

    Parameters
    ----------
    k : int
        At least 0.
    at_most : bool
        Whether fewer may be taken. ``k`` may then be more than d.

    Notes
    -----
    The best structure is a selection, in O(d): ties go to the lowest indices, and if fewer may be taken, elements of
    score 0 or less are left. Sums go through all elements and numbers taken so far, in O(dk). The projection onto the
    convex hull, the simplex capped at 1, sorts the scores.

    References
    ----------
    D. Tarlow, K. Swersky, R. S. Zemel, R. P. Adams & B. J. Frey, Fast exact inference for recursive cardinality models,
    UAI 2012. W. Wang & C. Lu, Projection onto the capped simplex, arXiv:1503.01002, 2015.

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
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    structure_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    label_ndim: ClassVar[int] = 1

    k: int
    at_most: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_number("k", self.k)
        check_flag("at_most", self.at_most)

    def build(self, event_shape: tuple[int]) -> Hypergraph:
        graph, most = HypergraphBuilder(event_shape), min(self.k, event_shape[0])
        best = graph.nodes(event_shape[0] + 1, most + 1)  # [i, j]: j, or up to j, of the first i elements
        graph.add(best[0] if self.at_most else best[0, 0])
        graph.add(best[1:], best[:-1])
        graph.add(best[1:, 1:], best[:-1, :-1], part=graph.parts[:, None])
        goals = best[:, most].copy()
        goals[: self._least] = -1
        return graph.build(goals, prune=True)

    @property
    def _least(self) -> int:
        """The elements that are needed."""
        return 0 if self.at_most else self.k

    def validate(self, theta: Tensor) -> None:
        check_sizes(self.label(), self._least, theta.shape[1], self.bound.get("lengths"))

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return in_use(self.bound.get("lengths"), theta)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        y = taken(labels, self.bound.get("lengths"), like.shape[1])
        count = y.sum(1, keepdim=True)
        refuse(count > self.k, labels, f"more than {self.k} elements are taken")
        refuse(count < self._least, labels, f"fewer than {self.k} elements are taken")
        return y.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return (y != 0).long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Costs of 1 for each element wrongly taken or left."""
        return cost_of_errors(y)

    def argmax(self, theta: Tensor) -> jaxtyping.Float[Tensor, "batch d"]:
        scores = self._scores(theta)
        if self.at_most:
            scores = torch.where(scores > 0, scores, -torch.inf)
        last, _ = self._last_and_next(scores)
        above, tied = scores > last, (scores == last) & (last > -torch.inf)
        return (above | (tied & (tied.cumsum(1) <= self.k - above.sum(1, keepdim=True)))).to(theta.dtype)

    def project(self, theta: Tensor) -> jaxtyping.Float[Tensor, "batch d"]:
        """argmin ‖θ − μ‖² over 0 ≤ μ ≤ 1 with Σ μ = k, or Σ μ <= k; μ = clip(θ − τ, 0, 1) for some τ."""
        scores = self._scores(theta)
        if scores.numel() == 0:
            return scores.clone()
        if not self.at_most:
            return self._project_exactly(scores)
        within = scores.clamp(0, 1)
        exact = self._project_exactly(scores.clamp(min=0))
        return torch.where(within.detach().double().sum(1, keepdim=True) <= self.k, within, exact)

    def _project_exactly(self, scores: Tensor) -> Tensor:
        last, following = self._last_and_next(scores.detach())
        # From the k-th highest score on, τ lies between −1 and 0, and the sum is that of the scores within 1 of it.
        z = (scores - last).double()
        tau = _where_the_sum_is(self.k, z.detach().clamp(-1, 1))
        # If the next score is lower by 1, the k highest are all there is; the sum is k for many τ.
        is_vertex = following - last <= -1
        ones = torch.where(is_vertex, z >= 0, z - tau >= 1).detach()
        free = ((z > tau) & ~ones & ~is_vertex).detach()
        # The same τ, by what is 1 and what is between, which stay the same around almost every θ.
        tau = (torch.where(free, z, 0.0).sum(1, keepdim=True) + ones.sum(1, keepdim=True) - self.k) / free.sum(
            1, keepdim=True
        ).clamp(min=1)
        return torch.where(free, (z - tau).clamp(0, 1), ones.double()).to(scores.dtype)

    def _scores(self, theta: Tensor) -> Tensor:
        """−inf for what is not in use."""
        mask = self.valid_parts(theta)
        return theta if mask is None else torch.where(mask, theta, -torch.inf)

    def _last_and_next(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The k-th and the (k + 1)-th highest score, (B, 1) each, +inf for the 0-th, −inf for more than there are."""
        size = scores.shape[1]
        k = min(self.k, size)
        top = pad(scores.topk(min(k + 1, size), dim=1).values, (1, 1), value=-torch.inf)
        top[:, 0] = torch.inf
        if not self.at_most:
            check_feasible(top[:, k], f"choice of {self.k} elements")
        return top[:, k : k + 1], top[:, k + 1 : k + 2]


def _where_the_sum_is(k: int, z: jaxtyping.Float[Tensor, "batch d"]) -> jaxtyping.Float[Tensor, "batch 1"]:
    """The τ at which Σ clip(z − τ, 0, 1), which falls from d to 0, is ``k``."""
    size = z.shape[1]
    bend, order = torch.cat([z, z - 1], 1).sort(dim=1)
    slope = torch.where(order < size, 1, -1).cumsum(1)  # after each bend
    fall = (slope[:, :-1] * bend.diff(dim=1)).cumsum(1)
    total = size + pad(fall, (1, 0))
    at = ((total >= k).sum(1, keepdim=True) - 1).clamp(min=0)
    return bend.gather(1, at) + (k - total.gather(1, at)) / slope.gather(1, at).clamp(max=-1)
