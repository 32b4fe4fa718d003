"""Noisy scores given the choice that they lead to, differentiable in the scores."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["gumbel_scores_given_choice", "logistic_scores_given_bits"]


def gumbel_scores_given_choice(theta: Tensor, y: Tensor, log_exponential: Tensor) -> Tensor:
    """Return θ + G for Gumbel noise G given that the choice ``y`` has the largest sum, (..., n).

    The maximum is a Gumbel variable with location log Σ exp θ, and the others are truncated at the maximum (Maddison,
    Tarlow & Minka 2014, A* Sampling, §3).

    Parameters
    ----------
    theta : (..., n) Tensor
        The scores; −inf for choices that are not allowed.
    y : (..., n) Tensor
        1 at the choice, else 0.
    log_exponential : (..., n) Tensor
        Logarithms of independent exponential variables.
    """
    is_allowed = theta > -torch.inf
    finite = torch.where(is_allowed, theta, 0.0)
    maximum = theta.logsumexp(-1, keepdim=True) - (log_exponential * y).sum(-1, keepdim=True)
    others = -torch.logaddexp(log_exponential - finite, -maximum)
    return torch.where(y > 0, maximum, torch.where(is_allowed, others, -torch.inf))


def logistic_scores_given_bits(theta: Tensor, bits: Tensor, uniform: Tensor) -> Tensor:
    """Return θ + L for logistic noise L given the signs of the sums, (..., n).

    For p = σ(θ) and uniform w, the sum given that it is positive is log(1 + e^θ) + log(1 − p w) − log w.

    Parameters
    ----------
    theta : (..., n) Tensor
        The scores, finite.
    bits : (..., n) Tensor
        1 for a positive sum, 0 for a negative sum.
    uniform : (..., n) Tensor
        Independent uniform variables in (0, 1).
    """
    sign = torch.where(bits > 0, 1.0, -1.0).to(theta.dtype)
    toward = sign * theta
    return sign * (softplus(toward) + torch.log1p(-toward.sigmoid() * uniform) - uniform.log())
