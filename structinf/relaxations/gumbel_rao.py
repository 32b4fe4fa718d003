"""gumbel_rao: straight-through Gumbel, with the mean gradient over the noise that leads to the same sample."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ..noise import Exponential
from ..oracle import Oracle
from ..parts import Parts, as_tuple
from ..solvers.conditional_noise import gumbel_scores_given_choice
from ..solvers.perturbation import NoisyCopies
from ..validation import check_natural
from .categorical_sample import CategoricalSample
from .surrogate import SampledArgmax

__all__ = ["GumbelRao"]


@dataclass(frozen=True, kw_only=True)
class GumbelRao(CategoricalSample):
    """A sample y of softmax(θ / temperature), with the gradient of straight-through Gumbel, averaged given y.

    Straight-through Gumbel differentiates softmax((s + G) / backward_temperature) for s = θ / temperature and the
    Gumbel noise G whose argmax is y. Here the backward pass draws this noise ``resamples`` times given y, and returns
    the mean of the gradients. The expectation of the gradient, and its bias, are those of straight-through Gumbel, and
    its variance is at most as large (Rao-Blackwell).

    Parameters
    ----------
    resamples : int
        The number of draws of the noise given y, at least 1. With 1, the estimator is straight-through Gumbel.
    backward_temperature : float, or Tensor with one number
        The temperature of the softmax in the backward pass, above 0. A tensor gets no gradient.
    temperature : float, or Tensor with one number
        The divisor of the scores of the distribution, above 0. The gradient with respect to a tensor is that of
        θ / temperature.
    samples : int
        The number of samples, at least 1.
    reduction : "mean" or "none"
        "mean" returns the mean of the samples. "none" returns all samples in a leading dimension, (samples, ...,
        *event).

    References
    ----------
    Paulus, Maddison & Krause 2021, Rao-Blackwellizing the Straight-Through Gumbel-Softmax Gradient Estimator, §3 and
    Equation 10 (the noise given the sample).

    Examples
    --------
    >>> import structinf as si, torch
    >>> theta = torch.tensor([[0.3, -0.2, 0.1]], requires_grad=True)
    >>> y = si.relax(theta, "categorical", GumbelRao(resamples=100))
    >>> y.backward(torch.tensor([[1.0, 0.0, 0.0]]))
    >>> y.detach().sum(), theta.grad[0, 0] > 0
    (tensor(1.), tensor(True))
    """

    resamples: int = 10

    name = "gumbel_rao"
    search_terms: ClassVar[tuple[str, ...]] = ("rao_blackwell", "conditional_gumbel")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_natural("resamples", self.resamples)

    def _draw(self, oracle: Oracle, theta: Parts, perturbed: NoisyCopies) -> SampledArgmax:
        drawn = super()._draw(oracle, theta, perturbed)
        (y,) = as_tuple(drawn.argmax_result.y)
        # Drawn in the forward pass, so that each backward pass through the same graph has the same gradient.
        noise = Exponential().sample(
            (self.resamples, *y.shape), dtype=y.dtype, device=y.device, generator=self.generator
        )
        with_noise = copy.copy(drawn.argmax_result.surrogate)
        object.__setattr__(with_noise, "_log_exponential", noise.log())
        return replace(drawn, argmax_result=replace(drawn.argmax_result, surrogate=with_noise))

    def surrogate_scores(self, scores: Tensor, y: Tensor) -> Tensor:
        noise: Tensor = self._log_exponential  # type: ignore[attr-defined]
        return gumbel_scores_given_choice(scores, y, noise)
