"""Reduction of the losses of a batch, as in torch.nn."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from ..validation import check_choice

__all__ = ["Reduction", "check_reduction", "describe_rules", "reduce_losses", "without_negative_rounding"]

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


def without_negative_rounding(losses: Tensor) -> Tensor:
    """Return ``losses`` with 0 in place of negative numbers, and the gradients of all losses unchanged."""
    return losses - losses.detach().clamp(max=0)
