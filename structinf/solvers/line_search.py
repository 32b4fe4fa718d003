"""The best point on a segment, for a concave objective of known slopes."""

from __future__ import annotations

import torch
from torch import Tensor

from .mean_regularizers import MeanRegularizer

__all__ = ["INSIDE", "line_search"]

INSIDE = 0.999
"""The share of the way to the boundary that a step goes at most if it may not reach it."""


def line_search(
    omega: MeanRegularizer, along: Tensor, x: Tensor, move: Tensor, bound: Tensor, longest: float, precision: float
) -> tuple[Tensor, Tensor]:
    """argmax along · t − Ω(x + t · move) over 0 <= t <= bound, for each instance.

    Newton's method on the slope, which falls with t, or halving of the interval that holds its zero where a step of
    Newton's leaves it. A quadratic takes one step.

    Parameters
    ----------
    along : (n,) Tensor
        ⟨θ, move⟩.
    x, move : (n, D) Tensor
    bound : (n,) Tensor
    longest : float
        The longest step that is of interest, taken where it is good enough.
    precision : float
        The search ends on a slope of this share of the first one, or at rounding.

    Returns
    -------
    step : (n,) Tensor
    blocked : (n,) bool Tensor
        Whether it is the bound.
    """

    def slope_at(t: Tensor) -> Tensor:
        return (along - omega.slope(x, move, t)).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)

    low, high = torch.zeros_like(bound), bound.clamp(max=longest)
    first = slope_at(low)
    rising = first > 0
    last = slope_at(high)
    blocked = rising & (bound <= longest) & (last >= 0)
    whole = rising & (bound > longest) & (last >= -precision * first)
    seeking = rising & ~blocked & ~whole
    end, step, slope = high, low, first
    for _ in range(200):
        if not bool(seeking.any()):
            break
        bend = omega.gram(x + step[:, None] * move, move[:, None])[:, 0, 0]
        ahead = step + slope / bend
        ahead = torch.where((ahead > low) & (ahead < high), ahead, (low + high) / 2)
        step, gone = torch.where(seeking, ahead, step), (ahead - step).abs()
        slope = slope_at(step)
        low, high = torch.where(slope >= 0, step, low), torch.where(slope < 0, step, high)
        seeking = seeking & (slope.abs() > precision * first) & (gone > 1e-14 * step)
    if omega.open:
        step = torch.minimum(step, INSIDE * bound)
    return torch.where(blocked | whole, end, torch.where(rising, step, 0.0)), blocked
