"""Predicted scores and true scores of the same batch, for losses and metrics of decisions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..parts import Parts, as_tuple, map_parts, pack_like
from .problem import Problem

__all__ = ["combine", "predicted_and_true"]


def predicted_and_true(problem: Problem, theta: Any, true_theta: Any) -> tuple[Parts, Parts]:
    """Return predicted and true scores, (B | 1, *event) each, in float64 and with the same parts of −inf.

    Raises InvalidInputError if ``true_theta`` has another form than ``theta``, or forbids a part that θ allows.

    Parameters
    ----------
    problem : Problem
        The problem of the predicted scores.
    theta, true_theta : Parts
        The user's arguments.
    """
    true, is_finite = problem.scores_like(theta, true_theta, "true_theta")
    # Losses and regrets are small differences of larger numbers.
    predicted, true = (map_parts(Tensor.double, parts) for parts in (problem.theta, true))
    if problem.is_finite and is_finite:
        return predicted, true
    forbidden = [p.isneginf() for p in as_tuple(predicted)]
    for t, closed in zip(as_tuple(true), forbidden, strict=True):
        if bool((t.isneginf() & ~closed).any()):
            raise InvalidInputError("true_theta is −inf at a part that theta allows; set the part to −inf in both")
    masked = [torch.where(closed, -torch.inf, t) for t, closed in zip(as_tuple(true), forbidden, strict=True)]
    return predicted, pack_like(masked, predicted)


def combine(problem: Problem, predicted: Parts, true: Parts, a: float, b: float) -> Parts:
    """Return a θ + b t, with −inf at the parts forbidden in both.

    Parameters
    ----------
    problem : Problem
        The problem of the predicted scores.
    predicted, true : (B | 1, *event) Parts
        θ and t.
    a, b : float
        The factors.
    """
    if problem.is_finite:
        return map_parts(lambda p, t: a * p + b * t, predicted, true)
    return map_parts(lambda p, t: torch.where(p.isneginf(), -torch.inf, a * p + b * t), predicted, true)
