"""Which weights a step of Frank-Wolfe's method moves, in three variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["RULES", "Direction"]


class Direction(NamedTuple):
    """A change of weights p (n, K): onto the slot ``to``, out of the slot ``out``, or into or out of all.

    Attributes
    ----------
    to, out : (n,) int64 Tensor
    gains, loses, keeps : (n,) Tensor
        The change is gains · e_to − loses · e_out − keeps · p.
    """

    to: Tensor
    out: Tensor
    gains: Tensor
    loses: Tensor
    keeps: Tensor

    def change(self, weight: Tensor) -> Tensor:
        """That of ``weight``, (n, K)."""
        change = -self.keeps[:, None] * weight
        change = change.scatter_add(1, self.to[:, None], self.gains[:, None])
        return change.scatter_add(1, self.out[:, None], -self.loses[:, None])


def _toward(weight: Tensor, rise: Tensor, to: Tensor, away: Tensor) -> Direction:
    """e_to − p: a share of all weight moves to the oracle's vertex."""
    one = torch.ones_like(weight[:, 0])
    return Direction(to, to, one, torch.zeros_like(one), one)


def _pairwise(weight: Tensor, rise: Tensor, to: Tensor, away: Tensor) -> Direction:
    """e_to − e_out: weight moves from the worst vertex to the oracle's."""
    found = torch.isfinite(away.amax(1))
    one, zero = torch.ones_like(weight[:, 0]), torch.zeros_like(weight[:, 0])
    return Direction(to, away.argmax(1), one, torch.where(found, one, zero), torch.where(found, zero, one))


def _away(weight: Tensor, rise: Tensor, to: Tensor, away: Tensor) -> Direction:
    """e_to − p, or p − e_out where that rises faster."""
    worst, out = away.max(1)
    ahead = rise.gather(1, to[:, None])[:, 0] >= worst
    one, zero = torch.ones_like(worst), torch.zeros_like(worst)
    return Direction(
        to, out, torch.where(ahead, one, zero), torch.where(ahead, zero, one), torch.where(ahead, one, -one)
    )


RULES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Direction]] = {
    "vanilla": _toward,
    "pairwise": _pairwise,
    "away_step": _away,
}
"""From weights, slopes (n, K), the oracle's slot (n,), and the slopes out of vertices that can be left (n, K)."""
