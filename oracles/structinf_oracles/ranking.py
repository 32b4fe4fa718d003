"""Rankings: orders of n elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.autograd import attach_jacobian
from structinf.errors import InvalidInputError
from structinf.kernels import parallel_rows, to_numpy
from structinf.kernels.gpu import uses_triton
from structinf.kernels.permutahedron import projection
from structinf.oracle import Enumerable, KBest, Projectable, computed_on_cpu
from structinf.shapes import Float
from structinf.validation import check_enumerable, check_feasible, check_instances, check_k, check_lengths

from .common.labels import reject_labels
from .common.subsets import elements_in_use

__all__ = ["Ranking"]


@dataclass(frozen=True)
class Ranking(KBest, Projectable, Enumerable):
    """All orders of n elements, as vectors of ranks.

    The structures are the orders of 1, ..., n, the vertices of the permutahedron.

    - Scores θ, shape (..., n), any sign: the score of each element. As every rank is at least 1, a single −inf makes
      the instance infeasible.
    - Structure y, shape (..., n): the rank of each element. In the best ranking the highest score has rank n, and the
      lowest score rank 1. Of equal scores, the first in θ has the lowest rank.
    - Labels, shape (..., n): y as integers.
    - Instance data ``lengths``, shape (...): the number of elements in use, an integer in [0, n]. Default: n. Ranks
      beyond the length are 0.

    Notes
    -----
    The projection onto the convex hull gives soft ranks, by a sort and an isotonic regression in O(n). The
    function :func:`structinf.soft_rank` computes soft ranks along any dimension. There is no log-partition function:
    the sum over rankings is the permanent of the matrix with entries exp(θ_i j). No polynomial-time algorithm for
    this permanent is known.

    References
    ----------
    M. Blondel, O. Teboul, Q. Berthet & J. Djolonga, Fast differentiable sorting and ranking, ICML 2020, §3-4.

    Examples
    --------
    >>> theta = torch.tensor([[5.0, 1.0, 2.0, 2.5]])
    >>> Ranking().argmax(theta)
    tensor([[4., 1., 2., 3.]])
    >>> Ranking().project(theta)
    tensor([[4.0000, 1.1667, 2.1667, 2.6667]])
    """

    name: ClassVar[str] = "ranking"
    search_terms: ClassVar[tuple[str, ...]] = ("permutahedron", "sort", "argsort")
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 0})
    label_ndim: ClassVar[int] = 1
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "the sum over all rankings is the permanent of exp(θ_i j), and no polynomial-time algorithm "
            "is known",
            "Samplable": "exact sampling is as hard as exact sums over all rankings",
            "Smoothable": "a best ranking is found by sorting, not by a dynamic program (a recursion of maxima)",
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
                f"labels must be the rank of each of {like.shape[1]} elements, shape (..., {like.shape[1]}); "
                f"got {tuple(labels.shape)} with the batch dimensions flattened"
            )
        ascending = torch.arange(1, labels.shape[1] + 1, device=labels.device)
        mask = elements_in_use(self.bound.get("lengths"), labels)
        ranks = labels if mask is None else torch.where(mask, labels, 0)
        # The sorted ranks must be zeros for the padding, then 1, 2, ... up to the length.
        expected_ranks = ascending if mask is None else ascending - (~mask).sum(1, keepdim=True)
        reject_labels(
            ranks.sort(1).values != expected_ranks.clamp(min=0),
            labels,
            "each rank from 1 to the length must occur once",
            defers=True,
        )
        return ranks.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return y.long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return −y: costs by which another ranking adds half the squared distance of the ranks.

        The number of wrongly ranked elements is not a sum of costs of the parts.
        """
        return -y

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch n"]:
        if uses_triton(theta):
            from structinf.kernels.permutahedron import triton_ranks

            if theta.shape[1] <= triton_ranks.MOST_ELEMENTS:
                y, allowed = triton_ranks.ranks(theta, self.bound.get("lengths"))
                check_feasible(allowed.all(1), "ranking")
                return y
        return self._project(theta, 0.0)[0]

    @computed_on_cpu
    def topk(self, theta: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the k best assignments of ranks to elements, with the scores θ_i j of element i at rank j."""
        check_feasible((theta > -torch.inf).all(1), "ranking")
        from .kernels.assignment import k_best
        from .kernels.assignment.rectangular import OTHER, UNUSED

        check_k(k)
        batch, n = theta.shape
        ranks = torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
        (scores,) = to_numpy(theta.double()[:, :, None] * ranks)
        used = elements_in_use(self.bound.get("lengths"), theta)
        groups = np.where(True if used is None else used.numpy(), OTHER, UNUSED).astype(np.int8)
        groups = np.broadcast_to(groups, (batch, n)).copy()
        pairs = torch.empty(k, batch, n, n, dtype=torch.float64, device="cpu")
        value = torch.empty(k, batch, dtype=torch.float64, device="cpu")
        work = 8 * pairs.numel()
        parallel_rows(k_best.topk, batch, scores, groups, groups, n, pairs.numpy(), value.numpy(), work=work)
        return (pairs @ ranks).to(theta), value.to(theta), ~value.isneginf()

    def project(self, theta: Tensor) -> Float[Tensor, "batch n"]:
        """Return argmin ‖θ − μ‖² over the permutahedron; within blocks of elements, μ is θ plus a constant."""
        value, jacobian = self._project(theta, 1.0)
        return attach_jacobian(value, theta, jacobian.jvp, jacobian.vjp)

    def _project(self, theta: Tensor, temperature: float) -> tuple[Tensor, projection.Jacobian]:
        check_feasible((theta > -torch.inf).all(1), "ranking")
        return projection.project(theta, temperature, self.bound.get("lengths"))

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all rankings, (n!, n) in float64, in lexicographic order; at most a million."""
        (size,) = event_shape
        lengths = self.bound.get("lengths")
        length = size if lengths is None else int(lengths[0])
        check_enumerable(math.factorial(length), f"rankings of {length} elements")
        y = torch.zeros(math.factorial(length), size, dtype=torch.float64, device="cpu")
        y[:, :length] = torch.tensor(
            list(itertools.permutations(range(1, length + 1))), dtype=torch.float64, device="cpu"
        )
        return y
