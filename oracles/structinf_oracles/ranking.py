"""Rankings: who is first, second, ..., last."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from structinf.autograd import attach_jacobian
from structinf.errors import InvalidInputError
from structinf.kernels.permutahedron import projection
from structinf.oracle import Enumerable, Projectable
from structinf.shapes import Float
from structinf.validation import check_enumerable, check_feasible, check_instances, check_lengths

from .common.labels import reject_labels
from .common.subsets import elements_in_use

__all__ = ["Ranking"]


@dataclass(frozen=True)
class Ranking(Projectable, Enumerable):
    """All orders of n elements.

    θ is (..., n), the score of each element, and y (..., n) their ranks: the element of the highest score has rank n,
    that of the lowest rank 1, so that ⟨θ, y⟩ is highest among all orders of 1, ..., n, the vertices of the
    permutahedron. Of equal scores the first one in θ has the lowest rank. As every rank is at least 1, a single −inf
    forbids all rankings.

    Instance data: ``lengths`` (...), integers, the elements in use; ranks of others are 0. Labels are y in integers.

    Notes
    -----
    The projection onto the convex hull gives soft ranks, which :func:`structinf.soft_rank` takes along any dimension: a
    sort and an isotonic regression, O(n) for each instance. There is no log-partition: the sum over rankings is the
    permanent of the matrix with entries exp(θ_i j), for which no algorithm of polynomial time is known.

    References
    ----------
    M. Blondel, O. Teboul, Q. Berthet & J. Djolonga, Fast differentiable sorting and ranking, ICML 2020, §3-4.

    Examples
    --------
    >>> theta = torch.tensor([[5.0, 1.0, 2.0, 2.5]])
    >>> Ranking().argmax(theta), Ranking().project(theta)
    (tensor([[4., 1., 2., 3.]]), tensor([[4.0000, 1.1667, 2.1667, 2.6667]]))
    """

    name: ClassVar[str] = "ranking"
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    label_ndim: ClassVar[int] = 1
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "the sum over all rankings is the permanent of exp(θ_i j), and no fast way to it is known",
            "Samplable": "exact samples are as hard as exact sums over all rankings",
            "Smoothable": "a best ranking is no recursion of maxima",
        }
    )

    def validate(self, theta: Tensor) -> None:
        lengths = self.bound.get("lengths")
        if lengths is not None:
            check_instances("lengths", lengths, len(theta), shared=False)
            check_lengths(lengths, 0, theta.shape[1], f"n = {theta.shape[1]} elements")

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        return elements_in_use(self.bound.get("lengths"), theta)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        if labels.shape[1:] != like.shape[1:]:
            raise InvalidInputError(
                f"labels: the rank of each of {like.shape[1]} elements is needed, (..., {like.shape[1]}); "
                f"got {tuple(labels.shape)} with the batch flat"
            )
        ascending, mask = torch.arange(1, labels.shape[1] + 1, device=labels.device), self.valid_parts(labels)
        ranks = labels if mask is None else torch.where(mask, labels, 0)
        # In order, zeros of the padding first, these are 1, 2, ... up to the length.
        expected_ranks = ascending if mask is None else ascending - (~mask).sum(1, keepdim=True)
        reject_labels(ranks.sort(1).values != expected_ranks.clamp(min=0), labels, "each rank from 1 on is needed once")
        return ranks.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return y.long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Costs by which a ranking is worse by half the squared distance of its ranks.

        The number of elements that are ranked wrong is no sum of the parts' costs.
        """
        return -y

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch n"]:
        return self._project(theta, 0.0)[0]

    def project(self, theta: Tensor) -> Float[Tensor, "batch n"]:
        """argmin ‖θ − μ‖² over the permutahedron; in blocks of elements, μ is θ and a constant."""
        value, jacobian = self._project(theta, 1.0)
        return attach_jacobian(value, theta, jacobian.jvp, jacobian.vjp)

    def _project(self, theta: Tensor, temperature: float) -> tuple[Tensor, projection.Jacobian]:
        check_feasible((theta > -torch.inf).all(1), "ranking")
        return projection.project(theta, temperature, self.bound.get("lengths"))

    def enumerate(self, event_shape: Any) -> Tensor:
        """All rankings, (n!, n) in float64, in lexicographic order; at most a million."""
        (size,) = event_shape
        lengths = self.bound.get("lengths")
        length = size if lengths is None else int(lengths[0])
        check_enumerable(math.factorial(length), f"rankings of {length} elements")
        y = torch.zeros(math.factorial(length), size, dtype=torch.float64)
        y[:, :length] = torch.tensor(list(itertools.permutations(range(1, length + 1))), dtype=torch.float64)
        return y
