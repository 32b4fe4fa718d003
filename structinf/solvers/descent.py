"""Descent on a smooth loss of one tensor: scipy's L-BFGS, or any optimizer of torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["DescentProblem", "Found", "minimize_lbfgs", "minimize_with_optimizer"]


class DescentProblem(NamedTuple):
    """A differentiable loss to minimise, and when to stop.

    Attributes
    ----------
    loss : callable
        From a tensor like ``start`` to a scalar.
    start : Tensor
        In float64.
    max_iter : int
    tolerance : float
        Stop where an iteration changes the loss by less than this share of it, or of ``cost``.
    cost, spread : float
        The sizes of losses and of entries in general, whose units the search is then free of.
    """

    loss: Callable[[Tensor], Tensor]
    start: Tensor
    max_iter: int
    tolerance: float
    cost: float
    spread: float


class Found(NamedTuple):
    """The best point, the losses at the start and after each iteration, and why the search failed, if it did."""

    point: Tensor
    losses: list[float]
    failure: str


def minimize_lbfgs(search: DescentProblem) -> Found:
    """By scipy's L-BFGS."""
    from scipy.optimize import minimize

    start, spread, cost = search.start, search.spread, search.cost
    latest = math.nan

    def to_point(flat: Any) -> Tensor:
        return torch.tensor(flat, device=start.device).reshape(start.shape) * spread

    def value_and_gradient(flat: Any) -> tuple[float, Any]:
        """Of numbers of the size of 1, which is where the method's own constants fit."""
        nonlocal latest
        z = to_point(flat).requires_grad_()
        value = search.loss(z)
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
        options={"maxiter": search.max_iter, "ftol": search.tolerance, "gtol": search.tolerance},
    )
    failure = {0: "", 1: "max_iter was reached"}.get(result.status, "the line search failed")
    return Found(to_point(result.x), losses, failure)


def minimize_with_optimizer(make: Callable[[list[Tensor]], torch.optim.Optimizer], search: DescentProblem) -> Found:
    """By the torch optimizer that ``make`` makes of a list of one parameter."""
    z = search.start.clone().requires_grad_()
    optimizer = make([z])

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = search.loss(z)
        value.backward()
        return value

    best, losses, failure = z.detach().clone(), [search.loss(z).item()], "max_iter was reached"
    for _ in range(search.max_iter):
        optimizer.step(closure)  # type: ignore[arg-type]
        with torch.no_grad():
            losses.append(search.loss(z).item())
        if losses[-1] < min(losses[:-1]):
            best = z.detach().clone()
        if abs(losses[-2] - losses[-1]) <= search.tolerance * max(search.cost, abs(losses[-1])):
            failure = ""
            break
    return Found(best, losses, failure)
