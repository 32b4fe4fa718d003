"""gapped_straight_through: a sample of one choice, with the Jacobian of a softmax whose best choice is the sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..validation import check_nonnegative
from .categorical_sample import CategoricalSample

__all__ = ["GappedStraightThrough"]


@dataclass(frozen=True, kw_only=True)
class GappedStraightThrough(CategoricalSample):
    """A sample y of softmax(θ / temperature), with the gradient Jᵀv of a softmax at scores that prefer y.

    Let s = θ / temperature. The softmax is taken at scores t / backward_temperature: t is max s at the sampled choice,
    and min(s, max s − gap) at the others. The sample is then the best choice of t, by at least the gap. No noise is
    drawn besides the sample, so that the variance is below the variance of straight-through Gumbel. The gradient is
    biased.

    Parameters
    ----------
    gap : float
        The least difference between the score of the sample and the other scores, at least 0.
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
    Fan, Chi, Rudnicky & Ramadge 2022, Training Discrete Deep Generative Models via Gapped Straight-Through Estimator,
    §3.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[0.0, -9.0, -9.0]], requires_grad=True)
    >>> relaxation = GappedStraightThrough(gap=1.0)
    >>> y = si.relax(theta, "categorical", relaxation)
    >>> y.backward(torch.tensor([[1.0, 0.0, 0.0]]))
    >>> y.detach(), theta.grad[0, 0] > 0
    (tensor([[1., 0., 0.]]), tensor(True))
    """

    gap: float = 1.0

    name = "gapped_straight_through"
    search_terms: ClassVar[tuple[str, ...]] = ("gst",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_nonnegative("gap", self.gap)

    def surrogate_scores(self, scores: Tensor, y: Tensor) -> Tensor:
        best = scores.amax(1, keepdim=True)
        return torch.where(y > 0, best, torch.minimum(scores, best - self.gap))[None]
