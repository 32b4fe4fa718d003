"""gumbel_crf: relaxed samples of dynamic programs, by a softmax of noisy scores at each choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..dp import HypergraphProgram
from ..oracle import Oracle
from ..parts import Parts, map_parts
from ..regularizers import check_temperature
from ..relaxation import Relaxation
from ..solution import Solution
from ..validation import check_choice, check_flag, check_natural

__all__ = ["GumbelCRF"]


@dataclass(frozen=True, kw_only=True)
class GumbelCRF(Relaxation):
    """A relaxed sample of p(y) ∝ exp(⟨θ, y⟩ / temperature): the choices of the recursion by softmax instead of argmax.

    An exact sample takes, at each node of the recursion from the goal down, the choice of highest score plus Gumbel
    noise, where the scores include the sums over the rest of the structure. The relaxed sample divides each node among
    its choices by softmax(noisy scores / relaxation_temperature). It lies in conv(Y), approaches an exact sample as
    ``relaxation_temperature`` falls, and is differentiable in θ. The gradient is that of the relaxed sample. As an
    approximation of the gradient of E[g(Y)], it is biased.

    Parameters
    ----------
    relaxation_temperature : float, or Tensor with one number
        The temperature of the softmax at each choice, above 0. The relaxed samples are differentiable in a tensor.
    temperature : float, or Tensor with one number
        The divisor of the scores of the distribution, above 0. The relaxed samples are differentiable in a tensor.
    straight_through : bool
        Whether the forward pass returns the exact sample. The backward pass is then the gradient of the relaxed sample.
    samples : int
        The number of samples, at least 1.
    reduction : "mean" or "none"
        "mean" returns the mean of the samples. "none" returns all samples in a leading dimension, (samples, ...,
        *event).

    References
    ----------
    Fu, Tan, Bi, Chen, Feng & Rush 2020, Latent Template Induction with Gumbel-CRFs, Algorithm 2.

    Examples
    --------
    >>> import structinf as si, torch
    >>> theta = torch.zeros(1, 3, 2), torch.eye(2)
    >>> relaxation = GumbelCRF(relaxation_temperature=0.5)
    >>> tags, transitions = si.relax(theta, "chain", relaxation)
    >>> tags.sum(2)
    tensor([[1., 1., 1.]])
    """

    relaxation_temperature: float | Tensor = 1.0
    temperature: float | Tensor = 1.0
    straight_through: bool = False
    samples: int = 1
    reduction: Literal["mean", "none"] = "mean"

    name = "gumbel_crf"
    search_terms: ClassVar[tuple[str, ...]] = ("gumbel_ffbs", "relaxed_ancestral_sampling", "gumbel_softmax_crf")
    requires = HypergraphProgram

    def __post_init__(self) -> None:
        check_temperature(self.relaxation_temperature, allow_tensor=True, name="relaxation_temperature")
        check_temperature(self.temperature, allow_tensor=True)
        check_flag("straight_through", self.straight_through)
        check_natural("samples", self.samples)
        check_choice("reduction", self.reduction, ("mean", "none"))

    @property
    def is_stochastic(self) -> bool:
        return True

    @property
    def sample_ndim(self) -> int:
        return int(self.reduction == "none")

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        if isinstance(oracle, HypergraphProgram):
            return super().unsupported_reason(oracle)
        hint = (
            '; for one choice among n, use stochastic with base_relaxation="marginals" (Gumbel-softmax)'
            if oracle.known_set == "one_of_n"
            else ""
        )
        return f"{oracle.label()} has no hypergraph whose choices could be relaxed{hint}"

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        mean = self.mean(oracle, theta)
        if self.reduction == "none":
            return Solution(mean=mean, value=_stack_scores(oracle, theta, mean))
        return Solution(mean=mean, value=oracle.score(theta, mean))

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        program: Any = oracle
        samples = program.relaxed_sample(
            theta,
            self.samples,
            self.generator,
            temperature=self.temperature,
            relaxation_temperature=self.relaxation_temperature,
            straight_through=self.straight_through,
        )
        return samples if self.reduction == "none" else map_parts(lambda t: t.mean(0), samples)


def _stack_scores(oracle: Oracle, theta: Parts, samples: Any) -> Tensor:
    count = len(samples[0]) if isinstance(samples, tuple) else len(samples)
    return torch.stack([oracle.score(theta, map_parts(lambda t, i=i: t[i], samples)) for i in range(count)])
