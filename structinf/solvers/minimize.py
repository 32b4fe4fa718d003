"""Minimisation of a smooth loss of one tensor by scipy's L-BFGS."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Minimum", "minimize_by_lbfgs"]


class Minimum(NamedTuple):
    """The best point, the losses at the start and after each iteration, and the reason of a failure, or ""."""

    point: Tensor
    losses: list[float]
    failure: str


def minimize_by_lbfgs(
    loss: Callable[[Tensor], Tensor], start: Tensor, *, max_iter: int, tolerance: float, cost: float, spread: float
) -> Minimum:
    """Minimise a differentiable ``loss`` of a tensor like ``start``, which is in float64.

    It stops when an iteration changes the loss by less than ``tolerance`` times the loss or ``cost``. ``cost`` and
    ``spread`` are the typical sizes of a loss and of an entry of the tensor; L-BFGS works on numbers divided by them.
    """
    from scipy.optimize import minimize

    latest = math.nan

    def to_point(flat: Any) -> Tensor:
        return torch.tensor(flat, device=start.device).reshape(start.shape) * spread

    def value_and_gradient(flat: Any) -> tuple[float, Any]:
        """The loss and its gradient, in units of ``cost`` and ``spread``."""
        nonlocal latest
        z = to_point(flat).requires_grad_()
        value = loss(z)
        (gradient,) = torch.autograd.grad(value, z)
        latest = value.item()
        return latest / cost, (gradient * (spread / cost)).flatten().cpu().numpy()

    flat = (start / spread).flatten().cpu().numpy()
    value_and_gradient(flat)
    losses = [latest]
    result = minimize(
        value_and_gradient,
        flat,
        jac=True,
        method="L-BFGS-B",
        callback=lambda _: losses.append(latest),  # at the point that was evaluated last
        options={"maxiter": max_iter, "ftol": tolerance, "gtol": tolerance},
    )
    failure = {0: "", 1: "max_iter was reached"}.get(result.status, "the line search failed")
    return Minimum(to_point(result.x), losses, failure)
