"""The optimality conditions of a quadratic program over the local polytope, on the supports of its factors.

With p the weights of the structures in the supports, X their coordinates, e their additional scores, C the matrix that
copies each coordinate μ to the factors' parts, and D the inverse curvature, the conditions are

    Xᵀ λ − 1ᵀ ν = −e,    X p = C μ,    1 p = 1 for each factor,    μ = D (θ − Cᵀ λ).

Elimination of μ leaves a symmetric linear system for (p, λ, ν):

    [ 0  Bᵀ ] [ p ]   [ −e  ]
    [ B  Q  ] [ y ] = [ C D θ, 1 ],    B = [X; 1],  y = (λ, −ν),  Q = C D Cᵀ on λ, 0 on ν.

The multipliers are not unique if copies of a coordinate are redundant, so a step solves the system with Q + δ, and the
residual of the step is corrected until it is down to rounding. The same system gives products with the Jacobian.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .factor_projections import FactorSupport, GroupScores

__all__ = ["FaceSystem", "Multipliers"]

_DELTA = 1e-6
"""δ times the curvature. A step has errors of about 1e-16 / δ, and each correction multiplies the error by δ."""

_MOST_CORRECTIONS = 10
_EXACT = 1e-14
"""Residuals below this number, relative to the right sides, are rounding errors."""


class Multipliers:
    """The multipliers y of the two groups of constraints, one tensor for each group of factors.

    Attributes
    ----------
    copies : list of (R, F, m) Tensor
        λ, of the constraints X p = C μ.
    sums : list of (R, F) Tensor
        −ν, of the constraints 1 p = 1.
    """

    def __init__(self, copies: list[Tensor], sums: list[Tensor]) -> None:
        self.copies, self.sums = copies, sums

    def __sub__(self, other: Multipliers) -> Multipliers:
        return Multipliers(
            [a - b for a, b in zip(self.copies, other.copies, strict=True)],
            [a - b for a, b in zip(self.sums, other.sums, strict=True)],
        )

    def add(self, other: Multipliers, factor: Tensor | float) -> Multipliers:
        """Return self + factor · other."""
        return Multipliers(
            [a + factor * b for a, b in zip(self.copies, other.copies, strict=True)],
            [a + factor * b for a, b in zip(self.sums, other.sums, strict=True)],
        )

    def largest(self) -> Tensor:
        """Return the largest absolute value of each instance, (R,)."""
        sizes = [t.abs().flatten(1).amax(1) for t in (*self.copies, *self.sums) if t.shape[1]]
        return torch.stack(sizes).amax(0)


class FaceSystem:
    """The linear system of R instances, with the factorised matrix.

    Parameters
    ----------
    groups : sequence of GroupScores
        The groups of factors.
    supports : sequence of FactorSupport
        The support of each group, for R instances.
    inverse_curvature : (R, n) Tensor
        The diagonal of D: 0 for coordinates fixed at 0.
    degree : (n,) Tensor
        The number of factor parts of each coordinate.
    used : list of (R, F, K) bool Tensor
        The structures of the system; all others have weight 0.

    Attributes
    ----------
    is_regular : (R,) bool Tensor
        Whether the factorisation succeeded.
    """

    def __init__(
        self,
        groups: Sequence[GroupScores],
        supports: Sequence[FactorSupport],
        inverse_curvature: Tensor,
        degree: Tensor,
        used: list[Tensor],
    ) -> None:
        self.groups, self.supports, self.used = groups, supports, used
        self.inverse, self.degree = inverse_curvature, degree
        self.size, self.count = inverse_curvature.shape
        # δ is relative to the curvature, the same for all coordinates of an instance.
        self.delta = (_DELTA * inverse_curvature.amax(1)).clamp(min=torch.finfo(torch.float64).tiny)
        self._number_structures()
        self.factor, self.is_regular = self._factorise()

    def _number_structures(self) -> None:
        """Number the structures of an instance consecutively. Unused structures get the last number."""
        flat = torch.cat([u.flatten(1) for u in self.used], 1)
        number = flat.cumsum(1) - 1
        self.width = int(number.amax()) + 1 if flat.numel() else 0
        number = number.masked_fill(~flat, self.width)
        sizes = [u[0].numel() for u in self.used]
        self.number = [p.view_as(u) for p, u in zip(number.split(sizes, 1), self.used, strict=True)]

    def _factorise(self) -> tuple[Tensor, Tensor]:
        r, w, n = self.size, self.width + 1, self.count
        rows = torch.arange(r, device=self.inverse.device)
        matrix = self.inverse.new_zeros(r, w, w)
        summed = self.inverse.new_zeros(r * w * n)  # the coordinates of each structure, copies added
        for scores, support, used, number in zip(self.groups, self.supports, self.used, self.number, strict=True):
            parts = support.parts * used[..., None]
            gram = parts @ parts.mT + 1.0  # the constraints 1 p = 1 add 1
            matrix[rows[:, None, None, None], number[..., :, None], number[..., None, :]] = gram
            place = (rows[:, None, None] * w + number)[..., None] * n + scores.index[:, None]
            summed.index_add_(0, place.flatten(), parts.flatten())
        summed = summed.view(r, w, n)[:, : self.width]
        weight = self.inverse / (self.delta[:, None] + self.inverse * self.degree)
        matrix = matrix[:, : self.width, : self.width] - (summed * weight[:, None]) @ summed.mT
        total = torch.cat([u.flatten(1) for u in self.used], 1).sum(1)
        padding = torch.arange(self.width, device=matrix.device) >= total[:, None]
        matrix.diagonal(dim1=1, dim2=2).add_(padding.to(matrix.dtype))
        factor, info = torch.linalg.cholesky_ex(matrix)
        return factor, info == 0

    # -- products ----------------------------------------------------------------------------

    def expand(self, weights: Tensor) -> list[Tensor]:
        """Return weights (R, width) by group, (R, F, K)."""
        padded = torch.cat([weights, weights.new_zeros(self.size, 1)], 1)
        return [padded.gather(1, number.flatten(1)).view_as(number) for number in self.number]

    def compress(self, weights: Sequence[Tensor]) -> Tensor:
        """Return weights by group, (R, F, K), as (R, width)."""
        out = weights[0].new_zeros(self.size, self.width + 1)
        for w, number in zip(weights, self.number, strict=True):
            out.scatter_(1, number.flatten(1), w.flatten(1))
        return out[:, : self.width]

    def collect(self, copies: Sequence[Tensor]) -> Tensor:
        """Return Cᵀ · copies: the sum over the parts (R, F, m) of each coordinate, (R, n)."""
        total = self.inverse.new_zeros(self.size, self.count)
        for scores, t in zip(self.groups, copies, strict=True):
            total.index_add_(1, scores.index.flatten(), t.flatten(1))
        return total

    def spread(self, coordinates: Tensor) -> list[Tensor]:
        """Return C · coordinates, (R, F, m) for each group."""
        return [coordinates[:, scores.index] for scores in self.groups]

    def image(self, weights: Tensor) -> Multipliers:
        """Return B p."""
        pieces = self.expand(weights)
        copies = [torch.einsum("rfk,rfkm->rfm", w, s.parts) for w, s in zip(pieces, self.supports, strict=True)]
        return Multipliers(copies, [w.sum(2) for w in pieces])

    def transposed(self, y: Multipliers) -> Tensor:
        """Return Bᵀ y, (R, width)."""
        return self.compress(
            [
                (torch.einsum("rfm,rfkm->rfk", c, s.parts) + total[..., None]) * used
                for c, total, s, used in zip(y.copies, y.sums, self.supports, self.used, strict=True)
            ]
        )

    def _curvature_product(self, y: Multipliers) -> Multipliers:
        """Return Q y."""
        return Multipliers(self.spread(self.inverse * self.collect(y.copies)), [torch.zeros_like(t) for t in y.sums])

    def _without_mean(self, y: Multipliers) -> Multipliers:
        """Return δ (Q + δ)⁻¹ y."""
        weight = self.inverse / (self.delta[:, None] + self.inverse * self.degree)
        means = self.spread(weight * self.collect(y.copies))
        return Multipliers([c - t for c, t in zip(y.copies, means, strict=True)], y.sums)

    # -- solutions ---------------------------------------------------------------------------

    def solve(
        self, first: Tensor, second: Multipliers, weights: Tensor, y: Multipliers
    ) -> tuple[Tensor, Multipliers, Tensor]:
        """Return the solution of Bᵀ y = first, B p + Q y = second, from a starting point.

        Returns
        -------
        weights : (R, width) Tensor
            p.
        y : Multipliers
            y.
        error : (R,) Tensor
            The largest residual of an equation, relative to the largest of the right sides and 1.
        """
        scale = torch.maximum(second.largest(), first.abs().amax(1) if self.width else second.largest()).clamp(min=1)
        delta = self.delta[:, None]
        best, error = (weights, y), torch.full_like(scale, torch.inf)
        for _ in range(_MOST_CORRECTIONS):
            left = first - self.transposed(y)
            right = second - self.image(weights) - self._curvature_product(y)
            found = torch.maximum(right.largest(), left.abs().amax(1) if self.width else right.largest()) / scale
            improved = found < error
            best = _choose(improved, (weights, y), best)
            goes_on = (found < 0.25 * error) & (found > _EXACT)
            error = torch.where(improved, found, error)
            if not bool(goes_on.any()):
                break
            side = self.transposed(self._without_mean(right)) - delta * left
            step = torch.cholesky_solve(side[..., None], self.factor)[..., 0]
            rest = self._without_mean(right - self.image(step))
            weights = weights + step
            y = Multipliers(
                [a + b / delta[..., None] for a, b in zip(y.copies, rest.copies, strict=True)],
                [a + b / delta for a, b in zip(y.sums, rest.sums, strict=True)],
            )
        return *best, error

    def mean(self, weights: Tensor) -> Tensor:
        """Return the coordinates of X p, averaged over copies, (R, n); 0 for coordinates of no factor."""
        return self.collect(self.image(weights).copies) / self.degree.clamp(min=1)

    def zeros(self) -> Multipliers:
        """Return multipliers 0."""
        return Multipliers(
            [s.parts.new_zeros(*s.parts.shape[:2], s.parts.shape[3]) for s in self.supports],
            [s.weights.new_zeros(s.weights.shape[:2]) for s in self.supports],
        )

    def vjp(self, mean_cotangent: Tensor, additional_cotangents: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the products of cotangents with the Jacobian of the solution.

        Parameters
        ----------
        mean_cotangent : (R, n) Tensor
            The cotangent of μ.
        additional_cotangents : list of (R, F, a) Tensor
            The cotangents of the additional parts.

        Returns
        -------
        theta : (R, n) Tensor
            The product for θ.
        additional : list of (R, F, a) Tensor
            The products for the additional scores.
        """
        copies = self.spread(mean_cotangent / self.degree.clamp(min=1))
        terms = zip(copies, additional_cotangents, self.supports, self.used, strict=True)
        first = self.compress(
            [(torch.einsum("rfm,rfkm->rfk", c, s.parts) + s.additional.dot(a)) * used for c, a, s, used in terms]
        )
        weights, y, _ = self.solve(first, self.zeros(), torch.zeros_like(first), self.zeros())
        pieces = zip(self.expand(weights), self.supports, strict=True)
        additional = [-s.additional.combine(w) for w, s in pieces]
        return self.inverse * self.collect(y.copies), additional


def _choose(
    mask: Tensor, one: tuple[Tensor, Multipliers], other: tuple[Tensor, Multipliers]
) -> tuple[Tensor, Multipliers]:
    """Return ``one`` for the instances of the mask, and ``other`` for the rest."""
    if bool(mask.all()):
        return one
    pick = lambda a, b: torch.where(mask.view(-1, *[1] * (a.ndim - 1)), a, b)  # noqa: E731
    return pick(one[0], other[0]), Multipliers(
        [pick(a, b) for a, b in zip(one[1].copies, other[1].copies, strict=True)],
        [pick(a, b) for a, b in zip(one[1].sums, other[1].sums, strict=True)],
    )
