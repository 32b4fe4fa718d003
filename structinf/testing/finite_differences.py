"""Comparison of derivatives with central differences in a random direction.

Unlike ``torch.autograd.gradcheck``, the comparison allows scores of −inf, and keeps them fixed. At points without a
derivative, the check does not apply instead of failing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..parts import Parts, as_tuple, differentiate, pack_like
from .comparisons import NotApplicable, expect, fail

__all__ = ["expect_derivative"]

STEPS = 1e-5, 1e-6
TOLERANCE = 1e-6  # relative to the size of the values and derivatives


def expect_derivative(
    function: Callable[[Parts], Parts], theta: Parts, generator: torch.Generator, what: str, order: int = 1
) -> None:
    """Raise CheckFailed unless the derivative of ``function`` at ``theta`` (float64) agrees with finite differences.

    ``order`` n checks the derivative of the (n − 1)-th derivative. If the function has a kink within the step, so that
    the differences to both sides disagree, raise NotApplicable. ``what`` names the function in errors.
    """
    scalar = _projected(function, theta, generator, order)
    directions = [
        torch.where(t.isneginf(), 0.0, torch.randn(t.shape, generator=generator, dtype=torch.float64, device="cpu"))
        for t in as_tuple(theta)
    ]
    leaves = [t.detach().clone().requires_grad_() for t in as_tuple(theta)]
    value = scalar(leaves)
    here, gradients = value.item(), differentiate(value, leaves)
    for g, t in zip(gradients, leaves, strict=True):
        expect(g.isfinite().all(), f"the derivative of order {order} of {what} is not finite")
        expect(not g[t.isneginf()].any(), f"the derivative of order {order} of {what} is not 0 at a score of −inf")
    by_autograd = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
    for step in STEPS:
        forward, backward = (
            scalar([(t.detach() + by * d).requires_grad_() for t, d in zip(leaves, directions, strict=True)]).item()
            for by in (step, -step)
        )
        by_differences = (forward - backward) / (2 * step)
        difference = abs(by_autograd - by_differences)
        if difference <= TOLERANCE * (1 + abs(by_differences) + abs(here)):
            return
        # A kink on one side, at any distance, makes the second difference 2 · step · difference. Without a kink, it is
        # of order step².
        if abs(forward - 2 * here + backward) > step * difference:
            raise NotApplicable("a kink lies within the step of the finite differences")
        # Kinks on both sides may cancel in the second difference, so the check fails only at the smaller step.
        if step == STEPS[-1]:
            fail(
                f"the derivative of order {order} of {what} is {by_autograd:.9g} in a random direction, "
                f"finite differences give {by_differences:.9g}"
            )


def _projected(
    function: Callable[[Parts], Parts], theta: Parts, generator: torch.Generator, order: int
) -> Callable[[list[Tensor]], Tensor]:
    """Return the inner product of the (order − 1)-th derivative of ``function`` with random weights, as a function."""
    weights: dict[tuple[int, int], Tensor] = {}

    def project(level: int, tensors: tuple[Tensor, ...]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device="cpu")
        for i, t in enumerate(tensors):
            if (level, i) not in weights:
                weights[level, i] = torch.randn(t.shape, generator=generator, dtype=torch.float64, device="cpu")
            total = total + (t * weights[level, i]).sum()
        return total

    def scalar(leaves: list[Tensor]) -> Tensor:
        value = project(0, as_tuple(function(pack_like(leaves, theta))))
        for level in range(1, order):
            value = project(level, tuple(differentiate(value, leaves, create_graph=True)))
        return value

    return scalar
