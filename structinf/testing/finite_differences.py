"""Derivatives against central differences, in a random direction, away from kinks.

Unlike ``torch.autograd.gradcheck`` this allows potentials of −inf, which no difference moves. It tells a wrong
derivative from a point that has none.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..parts import Parts, as_tuple, differentiate, pack_like
from .comparisons import NotApplicable, expect, fail

__all__ = ["expect_derivative"]

STEP = 1e-5
TOLERANCE = 1e-6  # relative to the size of the values and derivatives


def expect_derivative(
    function: Callable[[Parts], Parts], theta: Parts, generator: torch.Generator, what: str, order: int = 1
) -> None:
    """Raise CheckFailed unless the derivative of ``function`` at ``theta`` (float64) is that of its values.

    ``order`` 2 checks the derivative of the first derivative, and so on. NotApplicable is raised if a kink lies within
    the step, so that the differences to both sides disagree.
    """
    scalar = _projected(function, theta, generator, order)
    directions = [
        torch.where(t.isneginf(), 0.0, torch.randn(t.shape, generator=generator, dtype=torch.float64))
        for t in as_tuple(theta)
    ]
    leaves = [t.detach().clone().requires_grad_() for t in as_tuple(theta)]
    value = scalar(leaves)
    here, gradients = value.item(), differentiate(value, leaves)
    for g, t in zip(gradients, leaves, strict=True):
        expect(g.isfinite().all(), f"the derivative of order {order} of {what} is not finite")
        expect(not g[t.isneginf()].any(), f"the derivative of order {order} of {what} is not 0 at a part of −inf")
    by_autograd = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
    forward, backward = (
        scalar([(t.detach() + step * d).requires_grad_() for t, d in zip(leaves, directions, strict=True)]).item()
        for step in (STEP, -STEP)
    )
    by_differences = (forward - backward) / (2 * STEP)
    difference = abs(by_autograd - by_differences)
    if difference > TOLERANCE * (1 + abs(by_differences) + abs(here)):
        # A kink on one side, at any distance, makes this 2 · STEP · difference; without one it is of order STEP².
        if abs(forward - 2 * here + backward) > STEP * difference:
            raise NotApplicable("a kink lies within the step of the finite differences")
        fail(
            f"the derivative of order {order} of {what} is {by_autograd:.9g} in a direction "
            f"in which finite differences give {by_differences:.9g}"
        )


def _projected(
    function: Callable[[Parts], Parts], theta: Parts, generator: torch.Generator, order: int
) -> Callable[[list[Tensor]], Tensor]:
    """⟨w, ·⟩ of the (order − 1)-th derivative of ``function``, for random w."""
    weights: dict[tuple[int, int], Tensor] = {}

    def project(level: int, tensors: tuple[Tensor, ...]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for i, t in enumerate(tensors):
            if (level, i) not in weights:
                weights[level, i] = torch.randn(t.shape, generator=generator, dtype=torch.float64)
            total = total + (t * weights[level, i]).sum()
        return total

    def scalar(leaves: list[Tensor]) -> Tensor:
        value = project(0, as_tuple(function(pack_like(leaves, theta))))
        for level in range(1, order):
            value = project(level, tuple(differentiate(value, leaves, create_graph=True)))
        return value

    return scalar
