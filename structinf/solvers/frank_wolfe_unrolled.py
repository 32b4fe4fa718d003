"""Derivatives through the iterations of Frank-Wolfe's method, by autograd, at the vertices that were visited."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..parts import differentiate, enable_autograd
from .corral import Corral, Step
from .frank_wolfe_steps import Direction

__all__ = ["Round", "replayed_gradient"]


class Round(NamedTuple):
    """What a round did, for the instances ``rows``."""

    rows: Tensor
    direction: Direction
    step: Step


def replayed_gradient(corral: Corral, start: Tensor, rounds: list[Round], cotangent: Tensor) -> Tensor:
    """Product of a cotangent of the final weights, (n, K), with their Jacobian with respect to θ, (n, D).

    The rounds are gone through again from the weights ``start``. A step that a weight ended depends on the weights; any
    other is a zero t of the slope φ(t) = ⟨θ − ∇Ω(x + t v), v⟩, with derivative dt = dφ / ⟨v, ∇²Ω v⟩.
    """
    start = torch.nn.functional.pad(start, (0, corral.weight.shape[1] - start.shape[1]))
    with enable_autograd():
        theta = corral.theta.clone().requires_grad_()
        weight = start.clone()
        for at in rounds:
            part = weight[at.rows]
            change = at.direction.change(part)
            length = _length(corral.take(at.rows), theta[at.rows], part, change, at.step)
            weight = weight.index_copy(0, at.rows, part + length[:, None] * change)
        return differentiate((weight * cotangent).sum(), [theta])[0]


def _length(corral: Corral, theta: Tensor, weight: Tensor, change: Tensor, step: Step) -> Tensor:
    """The step's length (n,), as a function of θ and the weights."""
    x, move = ((w[:, None] @ corral.vertex)[:, 0] for w in (weight, change))
    with torch.no_grad():
        falling = change < 0
        until = torch.where(falling, -weight / change, torch.inf)
        spent = until.argmin(1, keepdim=True)
        bounded = (step.share > 0) & falling.any(1)
        z = x + step.length[:, None] * move
        gradient = theta - corral.slopes(z)
        bent = corral.omega.products(z, move[:, None])[:, 0]
        bend = (bent * move).sum(1)
        fixed = bounded | (step.length == 0) | ~(bend > 0)
    slope = (
        (gradient * move).sum(1) + (theta * move.detach()).sum(1) - (bent * (x + step.length[:, None] * move)).sum(1)
    )
    free = (slope - slope.detach()) / torch.where(fixed, 1.0, bend)
    bound = -weight.gather(1, spent) / torch.where(falling.gather(1, spent), change.gather(1, spent), -1.0)
    return torch.where(bounded, step.share * bound[:, 0], step.length + torch.where(fixed, 0.0, free))
