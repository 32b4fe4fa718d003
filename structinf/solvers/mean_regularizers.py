"""Convex functions Ω of a mean, on float64 vectors of coordinates.

A solver works on x = lift(μ), the coordinates that Ω is a function of: μ itself, or μ and 1 − μ side by side, so that
a part near 1 is known as exactly as one near 0.
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

_MAX_NUMBERS = 2**22  # numbers in the rows of one Hessian product


class MeanRegularizer(abc.ABC):
    """A convex Ω of x, smooth inside its domain.

    Attributes
    ----------
    steep : bool
        Ω may have infinite slopes at the boundary of conv(Y): solvers start and stay in its relative interior.
    """

    steep: ClassVar[bool] = True

    @abc.abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """Ω, (n,), of x (n, D)."""

    @abc.abstractmethod
    def gradient(self, x: Tensor) -> Tensor:
        """∇Ω, (n, D); any number, inf or nan at coordinates that are the same in all structures."""

    @abc.abstractmethod
    def hessian_products(self, x: Tensor, rows: Tensor) -> Tensor:
        """∇²Ω(x) r for each row r of (n, K, D); rows are 0 at coordinates that are the same in all structures."""

    def hessian_gram(self, x: Tensor, rows: Tensor) -> Tensor:
        """R ∇²Ω(x) Rᵀ, (n, K, K), for rows R as in :meth:`hessian_products`."""
        gram = self.hessian_products(x, rows) @ rows.mT
        return (gram + gram.mT) / 2

    def slope_along(self, x: Tensor, move: Tensor, step: Tensor) -> Tensor:
        """⟨∇Ω(x + step · move), move⟩, (n,); +∞ or NaN outside the domain."""
        return torch.where(move == 0, 0.0, self.gradient(x + step[:, None] * move) * move).sum(1)

    def parts_to_cover(self, low: Tensor, high: Tensor) -> Tensor:
        """1 for parts (n, d) of which a further structure should have more, −1 for less, 0 if neither matters.

        ``low`` and ``high`` are the least and the largest value of each part in the structures met so far. Once no
        further structure has more or less where this asks for it, the mean of all structures met lies in the relative
        interior of Ω's domain.
        """
        return torch.where(low != high, 0.0, torch.where(low == 0, 1.0, -1.0))

    def needs_slope(self, low: Tensor, high: Tensor) -> Tensor:
        """The coordinates x, (n, D) bool, in which structures differ, so that Ω must have a finite slope there."""
        return low != high

    def has_slope(self, x: Tensor, needed: Tensor) -> Tensor:
        """Whether Ω has a finite slope at x in all ``needed`` coordinates, (n,)."""
        return (self.gradient(x).isfinite() | ~needed).all(1)

    def lift(self, y: Tensor) -> Tensor:
        """The coordinates x, (..., D), of parts (..., d); x begins with the parts."""
        return y

    def lift_transpose(self, gradient: Tensor) -> Tensor:
        """The gradient in the parts, (..., d), of a gradient in x, (..., D)."""
        return gradient

    def check(self, x: Tensor, rows: Tensor, oracle: Oracle) -> None:
        """Raise InvalidInputError if a structure, lifted, of one of the instances ``rows`` is outside the domain."""


class SquaredNorm(MeanRegularizer):
    """½ ‖x‖²."""

    steep = False

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * x.square().sum(1)

    def gradient(self, x: Tensor) -> Tensor:
        return x

    def hessian_products(self, x: Tensor, rows: Tensor) -> Tensor:
        return rows


class Entropy(MeanRegularizer):
    """Σ x log x. Coordinates of 0 are those that no structure uses."""

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
        # In halves, whose products are in range wherever x is.
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
                f"regularizer: {self.needs}, which a structure of {oracle.label()} for batch index {index} has not; "
                'take "squared_l2", or a function of your own'
            )


class BinaryEntropy(Entropy):
    """Σ μ log μ + (1 − μ) log (1 − μ), as the entropy of μ and 1 − μ."""

    needs = "binary_entropy needs parts between 0 and 1"

    def parts_to_cover(self, low: Tensor, high: Tensor) -> Tensor:
        return (high == 0).to(low) - (low == 1).to(low)

    def lift(self, y: Tensor) -> Tensor:
        return torch.cat([y, 1 - y], -1)

    def lift_transpose(self, gradient: Tensor) -> Tensor:
        of_parts, of_rest = gradient.chunk(2, -1)
        return of_parts - of_rest


class CallableRegularizer(MeanRegularizer):
    """A user's function of means (B, *event), each instance by itself, to (B,), differentiated by autograd."""

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
        """∇²Ω(x) v, row by row."""
        with enable_autograd():
            leaf = _leaf(x)
            (gradient,) = differentiate(self._call(leaf).sum(), [leaf], create_graph=True)
            # Where v is 0, a slope may be infinite.
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
    """Ω by name or from a function, for vectors that ``flattening`` makes."""
    return CallableRegularizer(omega, flattening) if callable(omega) else _NAMED[omega]()
