"""Convex combinations of a few structures, batched: the programs that Frank-Wolfe methods solve between two answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .line_search import INSIDE, line_search
from .mean_regularizers import MeanRegularizer

__all__ = ["Corral", "Step"]

_ROOM = 8  # slots to begin with


@dataclass
class Corral:
    """max ⟨θ, x⟩ − Ω(x) over x = Σ_k p_k v_k for each instance, with the weights p as they stand.

    Attributes
    ----------
    theta : (n, D) Tensor
        Lifted; finite, with 0 at parts of −inf, which no structure uses.
    movable : (n, D) bool Tensor
        Coordinates at which Ω must keep a slope; the others are the same in all structures, or bounded away from where
        it has none.
    vertex : (n, K, D) Tensor
        Lifted structures, slot by slot.
    weight : (n, K) Tensor
        Summing to 1 over the slots in use.
    used, taken : (n, K) bool Tensor
        Slots in use; slots in which new vertices may not be put.
    keep : bool
        Whether slots stay taken by vertices that have left.
    """

    omega: MeanRegularizer
    theta: Tensor
    movable: Tensor
    vertex: Tensor
    weight: Tensor
    used: Tensor
    taken: Tensor
    keep: bool = False

    @classmethod
    def empty(cls, omega: MeanRegularizer, theta: Tensor, *, keep: bool = False) -> Corral:
        """Without vertices yet."""
        n, width = theta.shape
        vertex, weight = theta.new_zeros(n, _ROOM, width), theta.new_zeros(n, _ROOM)
        used, taken = (torch.zeros_like(weight, dtype=torch.bool) for _ in range(2))
        return cls(omega, theta, torch.ones_like(theta, dtype=torch.bool), vertex, weight, used, taken, keep)

    def __len__(self) -> int:
        return len(self.theta)

    def take(self, rows: Tensor) -> Corral:
        """That of the instances ``rows``."""
        names = ("theta", "movable", "vertex", "weight", "used", "taken")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def put(self, rows: Tensor, part: Corral) -> None:
        """Take over the vertices and weights of ``part``, whose instances are the ``rows`` here."""
        if part is self:
            return
        more = part.weight.shape[1] - self.weight.shape[1]
        if more > 0:
            self._grow(more)
        slots = part.weight.shape[1]
        for name in ("vertex", "weight", "used", "taken"):
            getattr(self, name)[rows, :slots] = getattr(part, name)

    # -- the objective -----------------------------------------------------------------------

    def point(self) -> Tensor:
        """x, (n, D)."""
        return (self.weight[:, None] @ self.vertex)[:, 0]

    def value(self, x: Tensor) -> Tensor:
        """The objective, (n,)."""
        return (self.theta * x).sum(1) - self.omega.value(x)

    def slopes(self, x: Tensor) -> Tensor:
        """∇Ω(x), (n, D), 0 where it is infinite at a coordinate that is the same in all structures."""
        slopes = self.omega.gradient(x)
        return torch.where(self.movable | slopes.isfinite(), slopes, 0.0)

    def rise(self, gradient: Tensor) -> Tensor:
        """⟨gradient, v_k − x⟩ of each vertex, (n, K): how the objective changes with its weight; −∞ for empty slots."""
        price = (self.vertex @ gradient[:, :, None])[:, :, 0]
        average = (self.weight * price).sum(1, keepdim=True)
        return torch.where(self.used, price - average, -torch.inf)

    # -- vertices ----------------------------------------------------------------------------

    def enter(self, vertex: Tensor, which: Tensor) -> Tensor:
        """Take in a vertex (n, D) each, with weight 0 if it is new, for the instances ``which``.

        Returns
        -------
        (n,) int64 Tensor
            Its slot.
        """
        if bool(self.taken.all(1)[which].any()):
            self._grow(self.taken.shape[1])
        same = self.taken & (self.vertex == vertex[:, None]).all(2)
        slot = torch.where(same.any(1), same.to(torch.int8).argmax(1), (~self.taken).to(torch.int8).argmax(1))
        rows, slots = which.nonzero()[:, 0], slot[which]
        self.weight[rows, slots] = torch.where(self.used[rows, slots], self.weight[rows, slots], 0.0)
        self.vertex[rows, slots] = vertex[rows]
        self.used[rows, slots] = True
        self.taken[rows, slots] = True
        return slot

    def drop(self, which: Tensor) -> None:
        """Let the vertices in the slots ``which`` (n, K) go."""
        self.used = self.used & ~which
        self.weight = torch.where(self.used, self.weight, 0.0)
        if not self.keep:
            self.taken = self.used.clone()

    def _grow(self, more: int) -> None:
        self.weight, self.used, self.taken = (pad(t, (0, more)) for t in (self.weight, self.used, self.taken))
        self.vertex = pad(self.vertex, (0, 0, 0, more))

    # -- moves -------------------------------------------------------------------------------

    def move(self, x: Tensor, change: Tensor, longest: float, precision: float) -> Step:
        """Go from x along ``change`` (n, K) of the weights to the best point, or until a weight is spent.

        Parameters
        ----------
        longest : float
            The longest step.
        precision : float
            As for :func:`line_search`.
        """
        falling = change < 0
        until = torch.where(falling, -self.weight / change, torch.inf)
        bound = until.amin(1)
        shift = (change[:, None] @ self.vertex)[:, 0]
        along = (self.theta * shift).sum(1)
        step, blocked = line_search(self.omega, along, x, shift, bound, longest, precision)
        before, self.weight = (
            self.weight,
            _moved(self.weight, step, change, blocked[:, None] & (until <= step[:, None])),
        )
        share = blocked.to(step)
        if self.omega.open:
            # A slope that is infinite where a weight is spent may look finite a rounding error away from there.
            outside = blocked & ~self.omega.inside(self.point(), self.movable)
            short = outside | (~blocked & (step >= INSIDE * bound))
            step, share = torch.where(short, INSIDE * bound, step), torch.where(short, INSIDE, share)
            shorter = _moved(before, step, change, torch.zeros_like(falling))
            self.weight = torch.where(outside[:, None], shorter, self.weight)
        return Step(step, share)


class Step(NamedTuple):
    """How far a move went, (n,), and which share of the way until a weight is spent that is; 0 if the best point."""

    length: Tensor
    share: Tensor


def _moved(weight: Tensor, step: Tensor, change: Tensor, spent: Tensor) -> Tensor:
    moved = torch.where(spent, 0.0, (weight + step[:, None] * change).clamp(min=0))
    return moved / moved.sum(1, keepdim=True)
