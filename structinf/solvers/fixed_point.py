"""Damped fixed-point iteration of a batch: x ← (1 − d) F(x) + d x."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["MOST_DAMPING", "ROUNDING", "WINDOW", "FixedPoint", "find_fixed_point", "raise_damping", "rounding_limit"]

WINDOW = 32
MOST_DAMPING = 0.95
ROUNDING = 64 * torch.finfo(torch.float64).eps


class FixedPoint(NamedTuple):
    """The result of :func:`find_fixed_point`.

    Attributes
    ----------
    x : list of (c, B, n) Tensor
        The last iterate.
    residual : (B,) Tensor
        The change of the last step.
    converged : (B,) bool Tensor
        Whether the residual is within the limit.
    """

    x: list[Tensor]
    residual: Tensor
    converged: Tensor

    def replace(self, mask: Tensor, other: FixedPoint) -> FixedPoint:
        """Return the status without x, that of ``other`` for the instances of the ``mask``, (B,) bool."""
        return FixedPoint(
            [],
            torch.where(mask, other.residual, self.residual),
            torch.where(mask, other.converged, self.converged),
        )


def rounding_limit(tolerance: float, scale: Tensor) -> Tensor:
    """Return ``tolerance``, or the rounding error of numbers of size ``scale`` (B,) if it is larger."""
    return (ROUNDING * (1 + scale)).clamp(min=tolerance)


def raise_damping(damping: Tensor, residual: Tensor, last: Tensor, done: Tensor) -> Tensor:
    """Return the damping (B,), moved half of the way to 1 for instances whose residual is above half of the ``last``.

    Instances that are ``done``, (B,) bool, keep their damping.
    """
    stalled = ~done & ~(residual <= last / 2)
    return torch.where(stalled, ((1 + damping) / 2).clamp(max=MOST_DAMPING), damping)


def find_fixed_point(
    step: Callable[[list[Tensor]], list[Tensor]],
    x: list[Tensor],
    size: int,
    device: torch.device,
    limit: Callable[[list[Tensor]], Tensor],
    max_iter: int,
    damping: float | None,
    patience: int = 0,
    measure: Callable[[list[Tensor], list[Tensor]], Tensor] | None = None,
) -> FixedPoint:
    """Repeat ``step`` until it changes no instance by more than the limit.

    An instance keeps its values once it has converged, so that its result does not depend on the other instances.

    Parameters
    ----------
    step : callable
        F, a map of lists of tensors (c, B, n).
    x : list of (c, B, n) Tensor
        The start.
    size : int
        The batch size B.
    device : torch.device
        The device of x.
    limit : callable
        Maps an iterate to the accepted change of each instance, (B,).
    max_iter : int
        Maximal number of steps.
    damping : float or None
        d, the share of the old values. None starts with 0, and moves d half of the way to 1, up to 0.95, for each
        instance whose change has not fallen by half within 32 steps.
    patience : int
        The number of steps before the first of these changes of d.
    measure : callable, optional
        Maps x and F(x) to the change of each instance, (B,). The default is the largest entry of |F(x) − x|.
    """
    residual = torch.zeros(size, dtype=torch.float64, device=device)
    done = torch.zeros(size, dtype=torch.bool, device=device)
    kept = torch.full((size,), damping or 0.0, dtype=torch.float64, device=device)
    last, next_look = torch.full_like(residual, torch.inf), max(patience, WINDOW)
    plain = not damping
    if not size or not x:
        return FixedPoint(x, residual, ~done)
    for iteration in range(1, max_iter + 1):
        new = step(x)
        if measure is None:
            change = torch.stack([(b - a).abs_().amax((0, 2)) for a, b in zip(x, new, strict=True)]).amax(0)
        else:
            change = measure(x, new)
        residual = torch.where(done, residual, change)
        within = done | (change <= limit(new))
        if plain and not bool(done.any()):
            x = new
        else:
            share = torch.where(done, 1.0, kept).unsqueeze(1)
            x = [torch.lerp(b, a, share) for a, b in zip(x, new, strict=True)]
        done = within
        if bool(done.all()):
            break
        if damping is None and iteration >= next_look:
            next_look += WINDOW
            kept = raise_damping(kept, residual, last, done)
            last = residual
            plain = plain and not bool(kept.any())
    return FixedPoint(x, residual, done)
