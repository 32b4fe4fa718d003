"""Derivatives against central differences, in a random direction, away from kinks.

Unlike ``torch.autograd.gradcheck`` this allows potentials of −inf (which no difference moves) and tells
a wrong derivative from a point that has none.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..parts import Parts, as_tuple, differentiate, pack_like
from .compare import NotApplicable, fail

__all__ = ["expect_derivative"]

Function = Callable[[Parts], Parts]


def expect_derivative(
    function: Function,
    theta: Parts,
    generator: torch.Generator,
    what: str,
    *,
    order: int = 1,
    step: float = 1e-5,
    tolerance: float = 1e-6,
) -> None:
    """Raise Broken unless the derivative of ``function`` at ``theta`` (float64) is that of its values.

    Parameters
    ----------
    function : callable
        Of Potentials, to a tensor or a tuple of them.
    what : str
        What ``function`` is, for messages.
    order : int
        2 checks the derivative of the first derivative, and so on.
    step, tolerance : float
        Of the differences; of the comparison, relative to the size of the values and derivatives.

    Raises
    ------
    NotApplicable
        If a kink lies within ``step``: the differences to both sides disagree.
    """
    scalar = _projected(function, theta, generator, order)
    along = [
        torch.where(t.isneginf(), 0.0, torch.randn(t.shape, generator=generator, dtype=torch.float64))
        for t in as_tuple(theta)
    ]
    leaves = [t.detach().clone().requires_grad_() for t in as_tuple(theta)]
    value = scalar(leaves)
    here, gradients = value.item(), differentiate(value, leaves)
    for g, t in zip(gradients, leaves, strict=True):
        if not bool(g.isfinite().all()):
            fail(f"the derivative of order {order} of {what} is not finite")
        if bool(g[t.isneginf()].any()):
            fail(f"the derivative of order {order} of {what} is not 0 at a part of −inf")
    claimed = sum((g * d).sum().item() for g, d in zip(gradients, along, strict=True))
    ahead, behind = (
        scalar([(t.detach() + sign * step * d).requires_grad_() for t, d in zip(leaves, along, strict=True)]).item()
        for sign in (1, -1)
    )
    measured = (ahead - behind) / (2 * step)
    size = 1 + abs(measured) + abs(here)
    if (wrong := abs(claimed - measured)) > tolerance * size:
        # A kink on one side, at any distance, makes this 2 · step · wrong; without one it is of order step².
        if abs(ahead - 2 * here + behind) > step * wrong:
            raise NotApplicable("a kink lies within the step of the finite differences")
        fail(
            f"the derivative of order {order} of {what} is {claimed:.9g} in a direction "
            f"in which finite differences give {measured:.9g}"
        )


def _projected(
    function: Function, theta: Parts, generator: torch.Generator, order: int
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
