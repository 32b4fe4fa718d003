"""Convex functions Ω of a mean, on float64 vectors of coordinates.

Solvers use the coordinates x = lift(μ), on which Ω is defined. They are μ itself, or μ and 1 − μ side by side; the
latter represent a part near 1 as exactly as a part near 0.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, differentiate, enable_autograd
from .flattening import Flattening

__all__ = ["MeanRegularizer", "RegularizerName", "make_regularizer"]

RegularizerName = Literal["squared_l2", "entropy", "binary_entropy"]

_MAX_NUMBERS = 2**22  # largest number of tensor entries in one batch of Hessian-vector products


class MeanRegularizer(abc.ABC):
    """A convex function Ω of x, smooth inside its domain.

    Attributes
    ----------
    steep : bool
        Whether Ω may have infinite slopes at the boundary of conv(Y). If so, solvers start in the relative interior
        of conv(Y) and stay there.
    """

    steep: ClassVar[bool] = True

    @abc.abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """Return Ω, (n,), of x (n, D)."""

    @abc.abstractmethod
    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇Ω, (n, D); coordinates equal in all structures may have any value, also inf or nan."""

    @abc.abstractmethod
    def hessian_products(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return ∇²Ω(x) r for each row r of ``rows`` (n, K, D).

        The rows are 0 at coordinates equal in all structures.
        """

    def hessian_gram(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return R ∇²Ω(x) Rᵀ, (n, K, K), for rows R as in :meth:`hessian_products`."""
        gram = self.hessian_products(x, rows) @ rows.mT
        return (gram + gram.mT) / 2

    def slope_along(self, x: Tensor, move: Tensor, step: Tensor) -> Tensor:
        """Return ⟨∇Ω(x + step · move), move⟩, (n,); +∞ or NaN outside the domain."""
        return torch.where(move == 0, 0.0, self.gradient(x + step[:, None] * move) * move).sum(1)

    def parts_to_cover(self, low: Tensor, high: Tensor) -> Tensor:
        """Return 1 for each part (n, d) that a further structure should increase, −1 for decrease, and 0 for neither.

        ``low`` and ``high`` are the least and the largest value of each part in the structures found so far. Law:
        once no further structure can increase or decrease a part as requested, the mean of all found structures
        lies in the relative interior of Ω's domain.
        """
        return torch.where(low != high, 0.0, torch.where(low == 0, 1.0, -1.0))

    def needs_slope(self, low: Tensor, high: Tensor) -> Tensor:
        """Return whether Ω needs a finite slope in each coordinate of x, (n, D) bool: where structures differ."""
        return low != high

    def has_slope(self, x: Tensor, needed: Tensor) -> Tensor:
        """Return whether Ω has a finite slope at x in all ``needed`` coordinates, (n,) bool."""
        return (self.gradient(x).isfinite() | ~needed).all(1)

    def lift(self, y: Tensor) -> Tensor:
        """Return the coordinates x, (..., D), of parts (..., d); x begins with the parts."""
        return y

    def lift_transpose(self, gradient: Tensor) -> Tensor:
        """Map a gradient with respect to x, (..., D), to the gradient with respect to the parts, (..., d)."""
        return gradient

    def check(self, x: Tensor, rows: Tensor, oracle: Oracle) -> None:
        """Raise InvalidInputError if a lifted structure ``x`` of the instances ``rows`` is outside the domain."""


class SquaredNorm(MeanRegularizer):
    """The regularizer ½ ‖x‖²."""

    steep = False

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * x.square().sum(1)

    def gradient(self, x: Tensor) -> Tensor:
        return x

    def hessian_products(self, x: Tensor, rows: Tensor) -> Tensor:
        return rows


class Entropy(MeanRegularizer):
    """The regularizer Σ x log x. A coordinate is 0 only if no structure uses it."""

    needs: ClassVar[str] = "entropy needs parts of at least 0"

    def value(self, x: Tensor) -> Tensor:
        return torch.xlogy(x, x).sum(1)

    def gradient(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x.log() + 1, 0.0)

    def slope_along(self, x: Tensor, move: Tensor, step: Tensor) -> Tensor:
        return torch.where(x > 0, ((x + step[:, None] * move).log() + 1) * move, 0.0).sum(1)

    def hessian_products(self, x: Tensor, rows: Tensor) -> Tensor:
        return rows * torch.where(x > 0, x.reciprocal(), 0.0)[:, None]

    def hessian_gram(self, x: Tensor, rows: Tensor) -> Tensor:
        # Two factors x^(−1/2), so that no intermediate result overflows for tiny x.
        half = rows * torch.where(x > 0, x.rsqrt(), 0.0)[:, None]
        return half @ half.mT

    def parts_to_cover(self, low: Tensor, high: Tensor) -> Tensor:
        return (high == 0).to(low)

    def needs_slope(self, low: Tensor, high: Tensor) -> Tensor:
        return self.lift(high).maximum(self.lift(low)) > 0

    def has_slope(self, x: Tensor, needed: Tensor) -> Tensor:
        return ((x > 0) | ~needed).all(1)

    def check(self, x: Tensor, rows: Tensor, oracle: Oracle) -> None:
        outside = (x < 0).any(1)
        if bool(outside.any()):
            index = int(rows[outside.nonzero()[0, 0]])
            raise InvalidInputError(
                f"regularizer: {self.needs}, but a structure of {oracle.label()} at batch index {index} has a part out "
                'of this range; use "squared_l2" or a function of your own'
            )


class BinaryEntropy(Entropy):
    """The regularizer Σ μ log μ + (1 − μ) log (1 − μ), computed as the entropy of μ and 1 − μ."""

    needs = "binary_entropy needs parts between 0 and 1"

    def parts_to_cover(self, low: Tensor, high: Tensor) -> Tensor:
        return (high == 0).to(low) - (low == 1).to(low)

    def lift(self, y: Tensor) -> Tensor:
        return torch.cat([y, 1 - y], -1)

    def lift_transpose(self, gradient: Tensor) -> Tensor:
        of_parts, of_rest = gradient.chunk(2, -1)
        return of_parts - of_rest


class CallableRegularizer(MeanRegularizer):
    """A user's function, differentiated by autograd.

    Parameters
    ----------
    function : callable
        Maps means (B, *event) to (B,), each instance independently.
    flattening : Flattening
        The order of the coordinates.
    """

    def __init__(self, function: Callable[[Parts], Tensor], flattening: Flattening) -> None:
        self.function, self.flattening = function, flattening

    def value(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self._call(x).detach()

    def gradient(self, x: Tensor) -> Tensor:
        with enable_autograd():
            leaf = _leaf(x)
            return differentiate(self._call(leaf).sum(), [leaf])[0]

    def hessian_products(self, x: Tensor, rows: Tensor) -> Tensor:
        if rows.numel() == 0:
            return rows
        n, count, width = rows.shape
        products = torch.empty_like(rows)
        group = max(1, _MAX_NUMBERS // max(n * width, 1))
        for low in range(0, count, group):
            along = rows[:, low : low + group]
            points = x[:, None].expand_as(along).reshape(-1, width)
            products[:, low : low + group] = self._products(points, along.reshape(-1, width)).view_as(along)
        same = (rows == 0).all(1, keepdim=True)
        return torch.where(same & ~products.isfinite(), 0.0, products)

    def _products(self, x: Tensor, v: Tensor) -> Tensor:
        """Return ∇²Ω(x) v for each row of x and v."""
        with enable_autograd():
            leaf = _leaf(x)
            (gradient,) = differentiate(self._call(leaf).sum(), [leaf], create_graph=True)
            # A slope may be infinite where v is 0, and inf · 0 would be NaN.
            along = torch.where(v == 0, 0.0, gradient)
            return differentiate((along * v).sum(), [leaf])[0]

    def _call(self, x: Tensor) -> Tensor:
        if not len(x):
            return x.sum(1)
        value = self.function(self.flattening.as_parts(self.flattening.split(x)))
        if not isinstance(value, Tensor) or value.shape != (len(x),):
            received = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidInputError(
                f"regularizer must map means of {len(x)} instances to a tensor of shape ({len(x)},), got {received}"
            )
        return value


def _leaf(x: Tensor) -> Tensor:
    return (x.clone() if x.is_inference() else x.detach()).requires_grad_()


_NAMED: dict[str, Callable[[], MeanRegularizer]] = {
    "squared_l2": SquaredNorm,
    "entropy": Entropy,
    "binary_entropy": BinaryEntropy,
}


def make_regularizer(omega: RegularizerName | Callable[[Parts], Tensor], flattening: Flattening) -> MeanRegularizer:
    """Return the regularizer ``omega``, a name or a function, for vectors made by ``flattening``."""
    return CallableRegularizer(omega, flattening) if callable(omega) else _NAMED[omega]()
