"""The base class of solvers of stationary values, whose gradients are approximate marginals."""

from __future__ import annotations

import abc
from typing import Any

from torch import Tensor

from ..parts import Parts, scale_per_instance, sum_to_batch_of
from .fixed_point import FixedPoint

__all__ = ["StationaryValue"]


class StationaryValue(abc.ABC):
    """A stationary value of θ, its gradient, and the product of its Hessian, for the same θ in all calls."""

    @abc.abstractmethod
    def _solve(self, theta: Parts) -> Any:
        """Return the solution, with a ``status``, the same for all calls."""

    def status(self, theta: Parts) -> FixedPoint:
        """Return the residual and the convergence of each instance."""
        return self._solve(theta).status

    @abc.abstractmethod
    def value(self, theta: Parts) -> Tensor:
        """Return the value, (B,)."""

    @abc.abstractmethod
    def gradient(self, theta: Parts) -> Parts:
        """Return the gradient of the value, in the form of θ (B, *event)."""

    def value_and_gradient(self, theta: Parts) -> tuple[Tensor, Parts]:
        return self.value(theta), self.gradient(theta)

    def vjp(self, theta: Parts, weight: Tensor) -> Parts:
        """Return the gradient times ``weight`` (B,), summed over the batch for tensors shared by the batch."""
        return sum_to_batch_of(scale_per_instance(self.gradient(theta), weight), theta)

    @abc.abstractmethod
    def hessian_product(self, theta: Parts, v: Parts) -> Parts:
        """Return the derivative of the gradient in the direction ``v``, in the form of θ.

        Raises ConvergenceError if the gradient of an instance, or its derivative, has not converged.
        """
