"""Minimization of a smooth loss of one tensor by scipy's L-BFGS."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Minimum", "minimize_by_lbfgs"]


class Minimum(NamedTuple):
    """The result of :func:`minimize_by_lbfgs`.

    Attributes
    ----------
    point : Tensor
        The best point.
    losses : list of float
        The losses at the start and after each iteration.
    failure : str
        The reason of a failure, or "".
    """

    point: Tensor
    losses: list[float]
    failure: str


def minimize_by_lbfgs(
    loss: Callable[[Tensor], Tensor], start: Tensor, *, max_iter: int, tolerance: float, cost: float, spread: float
) -> Minimum:
    """Minimize a differentiable ``loss``.

    L-BFGS stops when an iteration changes the loss by less than ``tolerance`` times the loss or ``cost``.

    Parameters
    ----------
    loss : callable
        Maps a tensor of the shape of ``start`` to a scalar tensor.
    start : Tensor
        The starting point, in float64.
    max_iter : int
        Maximal number of iterations.
    tolerance : float
        Relative tolerance of the loss, and tolerance of the scaled gradient.
    cost : float
        Typical size of a loss. L-BFGS works on losses divided by ``cost``.
    spread : float
        Typical size of an entry of the tensor. L-BFGS works on entries divided by ``spread``.
    """
    from scipy.optimize import minimize

    latest = math.nan

    def to_point(flat: Any) -> Tensor:
        return torch.tensor(flat, device=start.device).reshape(start.shape) * spread

    def value_and_gradient(flat: Any) -> tuple[float, Any]:
        """Return the loss in units of ``cost``, and its gradient for entries in units of ``spread``."""
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
        callback=lambda _: losses.append(latest),  # the new point of an iteration is the last evaluated point
        options={"maxiter": max_iter, "ftol": tolerance, "gtol": tolerance},
    )
    failure = {0: "", 1: "max_iter was reached"}.get(result.status, "the line search failed")
    return Minimum(to_point(result.x), losses, failure)
