"""Reduction of the losses of a batch, as in torch.nn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from .. import autograd
from ..calls.problem import Problem
from ..parts import Parts
from ..validation import check_choice

__all__ = [
    "Reduction",
    "attach_gradient",
    "check_reduction",
    "describe_rules",
    "reduce_losses",
    "restore_losses",
    "without_negative_rounding",
]

Reduction = Literal["mean", "sum", "none"]


def check_reduction(reduction: Reduction) -> Reduction:
    """Return ``reduction``; raise InvalidInputError unless it is "mean", "sum" or "none"."""
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    return reduction


def describe_rules(loss: Any) -> str:
    """Return the options ``reduction`` and ``on_infeasible`` of a loss for its repr; a default "raise" is left out."""
    rule = "" if loss.on_infeasible == "raise" else f", on_infeasible={loss.on_infeasible!r}"
    return f"reduction={loss.reduction!r}{rule}"


def reduce_losses(losses: Tensor, reduction: Reduction) -> Tensor:
    """Return ``losses``, their sum or their mean, as ``reduction`` says; the mean of an empty batch is 0."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" and losses.numel() else losses.sum()


def attach_gradient(
    losses: Tensor,
    problem: Problem,
    reduction: Reduction,
    theta: Parts,
    gradient: Parts,
    differentiable_gradient: Callable[[Parts], Parts] | None = None,
) -> Tensor:
    """Return ``losses``, (B,) in float64, with the gradient of :func:`structinf.autograd.attach_envelope_gradient`.

    If no instance is left out, the result is the reduced loss, ().
    """
    if reduction == "none" or problem.solved is not None or not losses.numel():
        return autograd.attach_envelope_gradient(losses, theta, gradient, differentiable_gradient)
    reduced = len(losses) if reduction == "mean" else 1, problem.dtype
    return autograd.attach_envelope_gradient(losses, theta, gradient, differentiable_gradient, reduced)


def restore_losses(losses: Tensor, problem: Problem, reduction: Reduction) -> Tensor:
    """Return the result of a call in the user's shape and dtype, given the losses, (B,), or the reduced loss, ()."""
    if losses.ndim == 0:
        return losses
    if reduction == "none":
        return problem.restore(losses)
    return reduce_losses(problem.scatter(losses), reduction).to(problem.dtype)


def without_negative_rounding(losses: Tensor) -> Tensor:
    """Return ``losses`` with 0 in place of negative numbers, and the gradients of all losses unchanged."""
    return losses - losses.detach().clamp(max=0)
