"""Batched convex combinations of vertices: their weights, and moves of the weights with exact line search."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from .mean_regularizers import MeanRegularizer

__all__ = ["ConvexCombinations"]

_FIRST_SLOTS = 8  # initial number of slots

_SHARE_INSIDE = 0.999
"""The largest fraction of the way to the boundary that a step takes if Ω has no finite slope there."""


@dataclass
class ConvexCombinations:
    """Vertices v_k and weights p_k of each instance, for solvers of max ⟨θ, x⟩ − Ω(x) over x = Σ_k p_k v_k.

    Vertices are structures in the coordinates of Ω, ``omega.lift(y)``.

    Attributes
    ----------
    omega : MeanRegularizer
        The regularizer Ω.
    theta : (n, D) Tensor
        The lifted scores; finite, with 0 at parts of score −inf, which no structure uses.
    needs_slope : (n, D) bool Tensor
        Coordinates at which Ω must have a finite slope. At the other coordinates, all structures are equal, or
        bounded away from infinite slopes.
    vertex : (n, K, D) Tensor
        The vertices by slot.
    weight : (n, K) Tensor
        The weights by slot; they sum to 1 over the slots in use.
    used : (n, K) bool Tensor
        The slots in use.
    """

    omega: MeanRegularizer
    theta: Tensor
    needs_slope: Tensor
    vertex: Tensor
    weight: Tensor
    used: Tensor

    @classmethod
    def empty(cls, omega: MeanRegularizer, theta: Tensor) -> ConvexCombinations:
        """Return combinations without vertices, for the regularizer ``omega`` and lifted scores ``theta`` (n, D)."""
        n, width = theta.shape
        vertex, weight = theta.new_zeros(n, _FIRST_SLOTS, width), theta.new_zeros(n, _FIRST_SLOTS)
        used, needs_slope = torch.zeros_like(weight, dtype=torch.bool), torch.ones_like(theta, dtype=torch.bool)
        return cls(omega, theta, needs_slope, vertex, weight, used)

    def __len__(self) -> int:
        return len(self.theta)

    def select(self, rows: Tensor) -> ConvexCombinations:
        """Return a copy for the instances ``rows``."""
        names = ("theta", "needs_slope", "vertex", "weight", "used")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def write_back(self, rows: Tensor, part: ConvexCombinations) -> None:
        """Copy the vertices and weights of ``part``, a selection of the instances ``rows``, into these combinations."""
        if part is self:
            return
        slots = part.weight.shape[1]
        self._grow(slots - self.weight.shape[1])
        for name in ("vertex", "weight", "used"):
            getattr(self, name)[rows, :slots] = getattr(part, name)

    # -- the objective -----------------------------------------------------------------------

    def point(self) -> Tensor:
        """Return x, (n, D)."""
        return (self.weight[:, None] @ self.vertex)[:, 0]

    def value(self, x: Tensor) -> Tensor:
        """Return the objective at ``x``, (n,)."""
        return (self.theta * x).sum(1) - self.omega.value(x)

    def omega_gradient(self, x: Tensor) -> Tensor:
        """Return ∇Ω(x), (n, D), with 0 for infinite slopes at coordinates that do not need a finite slope."""
        gradient = self.omega.gradient(x)
        return torch.where(self.needs_slope | gradient.isfinite(), gradient, 0.0)

    def weight_gradient(self, gradient: Tensor) -> Tensor:
        """Return ⟨gradient, v_k − x⟩, (n, K), the objective's slope in each vertex's weight; −∞ for empty slots."""
        price = (self.vertex @ gradient[:, :, None])[:, :, 0]
        average = (self.weight * price).sum(1, keepdim=True)
        return torch.where(self.used, price - average, -torch.inf)

    # -- vertices ----------------------------------------------------------------------------

    def add(self, vertex: Tensor, which: Tensor) -> Tensor:
        """Add a ``vertex`` (n, D) to each of the instances ``which`` (n,) bool, and return its slot (n,).

        A new vertex has weight 0.
        """
        if bool(self.used.all(1)[which].any()):
            self._grow(self.used.shape[1])
        same = self.used & (self.vertex == vertex[:, None]).all(2)
        slot = torch.where(same.any(1), same.to(torch.int8).argmax(1), (~self.used).to(torch.int8).argmax(1))
        rows, slots = which.nonzero()[:, 0], slot[which]
        self.weight[rows, slots] = torch.where(self.used[rows, slots], self.weight[rows, slots], 0.0)
        self.vertex[rows, slots] = vertex[rows]
        self.used[rows, slots] = True
        return slot

    def remove(self, which: Tensor) -> None:
        """Remove the vertices in the slots ``which`` (n, K)."""
        self.used = self.used & ~which
        self.weight = torch.where(self.used, self.weight, 0.0)

    def _grow(self, more: int) -> None:
        if more > 0:
            self.weight, self.used = (pad(t, (0, more)) for t in (self.weight, self.used))
            self.vertex = pad(self.vertex, (0, 0, 0, more))

    # -- moves -------------------------------------------------------------------------------

    def move(self, x: Tensor, change: Tensor, longest: float, precision: float) -> tuple[Tensor, Tensor]:
        """Move the weights along ``change`` to the best point, or until a weight is 0.

        Parameters
        ----------
        x : (n, D) Tensor
            The current point.
        change : (n, K) Tensor
            The direction of the weights; each row sums to 0.
        longest : float
            The largest step of interest. The step has this length if the slope there meets ``precision`` or is
            still positive.
        precision : float
            The line search ends once the slope is at most this fraction of the initial slope, or at rounding.

        Returns
        -------
        step : (n,) Tensor
            The step lengths.
        bounded : (n,) bool Tensor
            Whether the step ends at or shortly before the boundary, instead of at the best point.
        """
        falling = change < 0
        until = torch.where(falling, -self.weight / change, torch.inf)
        bound = until.amin(1)
        shift = (change[:, None] @ self.vertex)[:, 0]
        along = (self.theta * shift).sum(1)
        step, bounded = _line_search(self.omega, along, x, shift, bound, longest, precision)
        before, self.weight = (
            self.weight,
            _moved(self.weight, step, change, bounded[:, None] & (until <= step[:, None])),
        )
        if self.omega.steep:
            # Rounding can make the slope finite near a point where a weight is 0 and the exact slope is infinite.
            outside = bounded & ~self.omega.has_slope(self.point(), self.needs_slope)
            short = outside | (~bounded & (step >= _SHARE_INSIDE * bound))
            step, bounded = torch.where(short, _SHARE_INSIDE * bound, step), bounded | short
            shorter = _moved(before, step, change, torch.zeros_like(falling))
            self.weight = torch.where(outside[:, None], shorter, self.weight)
        return step, bounded


def _moved(weight: Tensor, step: Tensor, change: Tensor, spent: Tensor) -> Tensor:
    moved = torch.where(spent, 0.0, (weight + step[:, None] * change).clamp(min=0))
    return moved / moved.sum(1, keepdim=True)


def _line_search(
    omega: MeanRegularizer, along: Tensor, x: Tensor, move: Tensor, bound: Tensor, longest: float, precision: float
) -> tuple[Tensor, Tensor]:
    """Return argmax along · t − Ω(x + t · move) over 0 <= t <= bound, and whether the argmax is the bound, (n,) each.

    Newton's method seeks the zero of the slope, which decreases with t. If a Newton step leaves the interval known
    to contain the zero, bisection replaces the step. A quadratic takes one step.

    Parameters
    ----------
    omega : MeanRegularizer
        The regularizer Ω.
    along : (n,) Tensor
        ⟨θ, move⟩.
    x : (n, D) Tensor
        The starting point.
    move : (n, D) Tensor
        The direction.
    bound : (n,) Tensor
        The largest step that keeps the weights at least 0.
    longest : float
        The largest step of interest, as for :meth:`ConvexCombinations.move`.
    precision : float
        Tolerance of the slope, relative to the initial slope.
    """

    def slope_at(t: Tensor) -> Tensor:
        return (along - omega.slope_along(x, move, t)).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)

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
        curvature = omega.hessian_gram(x + step[:, None] * move, move[:, None])[:, 0, 0]
        ahead = step + slope / curvature
        ahead = torch.where((ahead > low) & (ahead < high), ahead, (low + high) / 2)
        step, gone = torch.where(seeking, ahead, step), (ahead - step).abs()
        slope = slope_at(step)
        low, high = torch.where(slope >= 0, step, low), torch.where(slope < 0, step, high)
        seeking = seeking & (slope.abs() > precision * first) & (gone > 1e-14 * step)
    if omega.steep:
        step = torch.minimum(step, _SHARE_INSIDE * bound)
    return torch.where(blocked | whole, end, torch.where(rising, step, 0.0)), blocked
