"""Minimisation of a smooth loss of one tensor, by scipy's L-BFGS or any optimizer of torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["MinimizationProblem", "Minimum", "minimize_by_lbfgs", "minimize_by_optimizer"]


class MinimizationProblem(NamedTuple):
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
        The typical sizes of a loss and of an entry of the tensor. The method works on numbers divided by these.
    """

    loss: Callable[[Tensor], Tensor]
    start: Tensor
    max_iter: int
    tolerance: float
    cost: float
    spread: float


class Minimum(NamedTuple):
    """The best point, the losses at the start and after each iteration, and why the method failed, if it did."""

    point: Tensor
    losses: list[float]
    trouble: str


def minimize_by_lbfgs(problem: MinimizationProblem) -> Minimum:
    """Minimise by scipy's L-BFGS."""
    from scipy.optimize import minimize

    start, spread, cost = problem.start, problem.spread, problem.cost
    latest = math.nan

    def to_point(flat: Any) -> Tensor:
        return torch.tensor(flat, device=start.device).reshape(start.shape) * spread

    def value_and_gradient(flat: Any) -> tuple[float, Any]:
        """The loss and its gradient in units of ``cost`` and ``spread``, for which the method's constants are made."""
        nonlocal latest
        z = to_point(flat).requires_grad_()
        value = problem.loss(z)
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
        options={"maxiter": problem.max_iter, "ftol": problem.tolerance, "gtol": problem.tolerance},
    )
    trouble = {0: "", 1: "max_iter was reached"}.get(result.status, "the line search failed")
    return Minimum(to_point(result.x), losses, trouble)


def minimize_by_optimizer(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], problem: MinimizationProblem
) -> Minimum:
    """Minimise by the torch optimizer that ``make`` makes of a list of one parameter."""
    z = problem.start.clone().requires_grad_()
    optimizer = make([z])

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = problem.loss(z)
        value.backward()
        return value

    best, losses, trouble = z.detach().clone(), [problem.loss(z).item()], "max_iter was reached"
    for _ in range(problem.max_iter):
        optimizer.step(closure)  # type: ignore[arg-type]
        with torch.no_grad():
            losses.append(problem.loss(z).item())
        if losses[-1] < min(losses[:-1]):
            best = z.detach().clone()
        if abs(losses[-2] - losses[-1]) <= problem.tolerance * max(problem.cost, abs(losses[-1])):
            trouble = ""
            break
    return Minimum(best, losses, trouble)
