"""soft_subset: relaxed subsets of k elements, by k softmaxes in a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import PluginError
from ..oracle import Oracle
from ..parts import Parts, divide_by_temperature
from ..regularizers import check_temperature
from ..relaxation import Relaxation
from ..solution import Solution
from ..validation import check_feasible

__all__ = ["SoftSubset"]


@dataclass(frozen=True, kw_only=True)
class SoftSubset(Relaxation):
    """The sum of k softmaxes, each of which lowers the scores of the elements that the earlier ones have chosen.

    μ = p₁ + ... + p_k with p_j = softmax(α_j / temperature), α₁ = θ and α_{j+1} = α_j + log(1 − p_j). At a low
    temperature, μ approaches the k best elements. The entries of μ sum to k, but an entry may exceed 1, so that μ may
    lie outside conv(Y). Use a temperature below 1: at 1, the score of an element of probability near 1 falls only to
    the second best score, and the element is chosen again.

    The relaxation works for ``subset`` with exactly k elements. With Gumbel noise, as ``stochastic`` with this
    relaxation, it is the relaxed subset sampling of Xie & Ermon: the best k elements of θ + G are k draws without
    replacement from softmax(θ).

    Parameters
    ----------
    temperature : float, or Tensor with one number
        The divisor of the scores, above 0. The result is differentiable in a tensor.

    References
    ----------
    Xie & Ermon 2019, Reparameterizable Subset Sampling via Continuous Relaxations, §3.
    Plötz & Roth 2018, Neural Nearest Neighbors Networks, §3.2.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[2.0, 1.0, 0.0, 1.5]])
    >>> mean = si.relax(theta, "subset", SoftSubset(temperature=0.1), k=2)
    >>> mean.round(decimals=4)
    tensor([[0.9933, 0.0072, 0.0000, 0.9995]])
    """

    temperature: float | Tensor = 1.0

    name = "soft_subset"
    search_terms: ClassVar[tuple[str, ...]] = ("relaxed_top_k", "neural_nearest_neighbors", "l2x")

    def __post_init__(self) -> None:
        check_temperature(self.temperature, allow_tensor=True)

    @property
    def mean_may_leave_hull(self) -> bool:
        return True

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        if oracle.known_set != "k_of_n":
            return (
                f"{self.label()} is defined for subsets of exactly k elements, such as the oracle subset without "
                "at_most"
            )
        return super().unsupported_reason(oracle)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        mean = self.mean(oracle, theta)
        return Solution(mean=mean, value=oracle.score(theta, mean))

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        if not isinstance(theta, Tensor):
            raise PluginError(f"{oracle.label()} must have scores in one tensor, as known_set says")
        subset: Any = oracle
        valid: Any = oracle.valid_parts(theta)
        allowed = theta.detach() > -torch.inf if valid is None else valid & (theta.detach() > -torch.inf)
        k = subset.sizes(theta) if "k" in oracle.bound else torch.tensor([[subset.k]], device=theta.device)
        check_feasible(allowed.sum(1) >= k[:, 0], f"subset of {subset.k if len(k) == 1 else 'k'} elements")
        scores, total = torch.where(allowed, theta, -torch.inf), torch.zeros_like(theta)
        most = int(k.max()) if len(k) else 0
        for j in range(most):
            scaled = divide_by_temperature(scores, self.temperature)
            assert isinstance(scaled, Tensor)
            p = scaled.softmax(1)
            total = total + (p if len(k) == 1 else torch.where(j < k, p, 0.0))
            if j + 1 < most:
                scores = scores + _log_complement(scaled, p, allowed)
        return torch.where(allowed, total, 0.0)


def _log_complement(scores: Tensor, p: Tensor, allowed: Tensor) -> Tensor:
    """Return log(1 − p) for p = softmax(scores), 0 where not allowed; as log(Σ of the others / Σ) for the largest p."""
    is_best = torch.zeros_like(allowed).scatter(1, p.detach().argmax(1, keepdim=True), True)
    others = scores.masked_fill(is_best, -torch.inf).logsumexp(1, keepdim=True)
    of_best = others - scores.logsumexp(1, keepdim=True)
    return torch.where(is_best, of_best, torch.log1p(-torch.where(allowed & ~is_best, p, 0.0)))
