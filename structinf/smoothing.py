"""Oracles whose recursion can be smoothed by any regularizer of the simplex."""

from __future__ import annotations

import abc
import functools
import math
from typing import Any

from torch import Tensor

from .autograd import ConvexFunction, smooth_argmax, smooth_max, smooth_max_with_backward, value
from .kernels.gpu import interprets_kernels, uses_triton
from .oracle import GibbsOracle, Oracle
from .parts import (
    AnyParts,
    Parts,
    as_tuple,
    hessian_product_by_autograd,
    scale_per_instance,
    sum_to_batch_of,
    value_and_gradient_by_autograd,
)
from .regularizers import NEGENTROPY, Regularizer
from .shapes import Float

__all__ = [
    "Smoothable",
    "SmoothableGibbs",
    "differentiable_log_partition",
    "kernel_alpha",
    "log_partition_function",
    "smooth_argmax",
    "smooth_max",
    "smooth_max_with_backward",
    "smoothed_function",
    "triton_alpha",
]


class Smoothable(Oracle):
    """An oracle whose best score is a recursion of maxima: with each a max_Ω it becomes DP_Ω(θ).

    One method is enough. Oracles with kernels override the others too. The temperature of a
    regularizer is ignored here, as if it were 1: DP_γΩ(θ) = γ DP_Ω(θ / γ), and the caller scales θ.

    References
    ----------
    A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018, §3.
    """

    @abc.abstractmethod
    def smoothed_value(self, theta: AnyParts, regularizer: Regularizer) -> Tensor:
        """DP_Ω(θ), (B,).

        Laws: convex in θ; differentiable by autograd, to any order, whenever an entry of θ requires grad (a
        kernel may serve otherwise); −inf parts have gradient 0; InfeasibleError if it is −inf.
        """

    def smoothed_mean(self, theta: AnyParts, regularizer: Regularizer) -> Parts:
        """∇DP_Ω(θ), the expected structure of a random walk through the recursion; (B, *event), in conv(Y)."""
        return self.smoothed_value_and_mean(theta, regularizer)[1]

    def smoothed_value_and_mean(self, theta: AnyParts, regularizer: Regularizer) -> tuple[Tensor, Parts]:
        """Both, (B,) and (B, *event); override it if one pass of an algorithm computes both.

        The default differentiates :meth:`smoothed_value`, or calls :meth:`smoothed_mean` if that is overridden.
        """
        if type(self).smoothed_mean is Smoothable.smoothed_mean:
            return value_and_gradient_by_autograd(
                functools.partial(self.smoothed_value, regularizer=regularizer), theta
            )
        return self.smoothed_value(theta, regularizer), self.smoothed_mean(theta, regularizer)

    def smoothed_vjp(self, theta: AnyParts, weight: Tensor, regularizer: Regularizer) -> Parts:
        """Σ_b weight_b ∇DP_Ω(θ)_b in θ's own form: the sum runs over the instances that share a tensor.

        Parameters
        ----------
        theta : (B | 1, *event) Tensor, or tuple of them
            Scores of the parts.
        weight : (B,) Tensor
            The factor of each instance.
        regularizer : Regularizer
            Ω of the choices in the recursion.
        """
        return sum_to_batch_of(scale_per_instance(self.smoothed_mean(theta, regularizer), weight), theta)

    def smoothed_hessian_product(self, theta: AnyParts, v: AnyParts, regularizer: Regularizer) -> Parts:
        """∇²DP_Ω(θ) v, (B, *event).

        Parameters
        ----------
        theta : (B | 1, *event) Tensor, or tuple of them
            Scores of the parts.
        v : (B | 1, *event) Tensor, or tuple of them
            The vector to multiply, in the form of θ.
        regularizer : Regularizer
            Ω of the choices in the recursion.
        """
        return hessian_product_by_autograd(functools.partial(self.smoothed_value, regularizer=regularizer), theta, v)


class SmoothableGibbs(GibbsOracle, Smoothable):
    """An oracle whose sums over structures are its own recursion, smoothed by the negative entropy."""

    def log_partition(self, theta: AnyParts) -> Tensor:
        return self.smoothed_value(theta, NEGENTROPY)

    def marginals(self, theta: AnyParts) -> Parts:
        return self.smoothed_mean(theta, NEGENTROPY)

    def log_partition_and_marginals(self, theta: AnyParts) -> tuple[Tensor, Parts]:
        return self.smoothed_value_and_mean(theta, NEGENTROPY)

    def log_partition_vjp(self, theta: AnyParts, weight: Tensor) -> Parts:
        return self.smoothed_vjp(theta, weight, NEGENTROPY)

    def covariance_product(self, theta: AnyParts, v: AnyParts) -> Parts:
        return self.smoothed_hessian_product(theta, v, NEGENTROPY)


def smoothed_function(oracle: Smoothable, regularizer: Regularizer) -> ConvexFunction:
    """DP_Ω of ``oracle``, with its derivatives."""
    return ConvexFunction(*(_bind_regularizer(oracle, name, regularizer) for name in _SMOOTHED_METHODS.values()))


def log_partition_function(oracle: GibbsOracle) -> ConvexFunction:
    """log Z of ``oracle``, with its derivatives: means and covariances of the Gibbs distribution.

    Methods that only forward to another one are skipped, since every call passes through them.
    """
    maps = []
    for name, smoothed_name in _SMOOTHED_METHODS.items():
        method = getattr(type(oracle), name)
        if method is getattr(SmoothableGibbs, name):
            maps.append(_bind_regularizer(oracle, smoothed_name, NEGENTROPY))
        else:
            maps.append(None if method is GibbsOracle.marginals else getattr(oracle, name))
    return ConvexFunction(*maps)


def _bind_regularizer(oracle: Oracle, name: str, regularizer: Regularizer) -> Any:
    """The method ``name`` for one regularizer; None for a mean that is the second result of another method."""
    if getattr(type(oracle), name) is Smoothable.smoothed_mean:
        return None
    return functools.partial(getattr(oracle, name), regularizer=regularizer)


def differentiable_log_partition(oracle: GibbsOracle, theta: Parts) -> Float[Tensor, " batch"]:
    """log Z, (B,), with the mean E[Y] as its gradient and derivatives of all orders, under any mode of autograd."""
    return value(log_partition_function(oracle), theta)


# The maps of a ConvexFunction in order, by the methods of GibbsOracle and of Smoothable.
_SMOOTHED_METHODS = {
    "log_partition": "smoothed_value",
    "marginals": "smoothed_mean",
    "log_partition_and_marginals": "smoothed_value_and_mean",
    "log_partition_vjp": "smoothed_vjp",
    "covariance_product": "smoothed_hessian_product",
}


def kernel_alpha(theta: Parts, regularizer: Regularizer) -> float | None:
    """The α by which compiled loops know the regularizer; None where they do not serve: on other devices, for others.

    So near to 1 that rounding outweighs the difference, it is 1.
    """
    first = as_tuple(theta)[0]
    if regularizer.alpha is None or first.device.type != "cpu" or interprets_kernels():
        return None
    return float(regularizer.alpha) if regularizer.alpha > 1 + 1e-8 else 1.0


def triton_alpha(theta: Parts, regularizer: Regularizer) -> float | None:
    """The α by which Triton kernels know the regularizer: 1, 1.5, 2 or inf; None where they do not serve."""
    if regularizer.alpha not in (1, 1.5, 2, math.inf) or not uses_triton(as_tuple(theta)[0]):
        return None
    return float(regularizer.alpha)
