"""Gradients of solver results: optimal values, piecewise linear maps, and weighted means of structures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..kernels.arrays import has_numpy_view, is_small
from ..parts import Parts, as_tuple, pack, pack_like, sum_to_batch_of, zeros_for_missing
from ..shapes import Float
from .function import Function

__all__ = [
    "WeightedMean",
    "attach_envelope_gradient",
    "attach_jacobian",
    "attach_vjp",
    "attach_vjp_to_mean",
    "raise_on_backward",
]


# ----------------------------------------------------------------------------- optimal values, piecewise linear maps


def attach_envelope_gradient(
    value: Tensor,
    theta: Parts,
    mean: Parts,
    differentiable_mean: Callable[[Parts], Parts] | None = None,
    reduced: tuple[int, torch.dtype] | None = None,
) -> Float[Tensor, "*batch"]:
    """Return ``value`` = max ⟨θ, μ⟩ − Ω(μ), (B,), with the gradient μ of the envelope theorem.

    The solver is not differentiated. The Hessian comes from the gradient rule of ``mean``.

    Parameters
    ----------
    value : (B,) Tensor
        The maximum. It may have another dtype than ``theta``.
    theta : (B | 1, *event) Parts
        The scores θ.
    mean : (B, *event) Parts
        The mean μ.
    differentiable_mean : callable, optional
        Returns the mean with its gradient rule, given θ. Only second derivatives call the function, so that first
        derivatives need no rule for the mean.
    reduced : tuple, optional
        The divisor of the sum of the B maxima, B for their mean and 1 for their sum, and the dtype of the result. The
        result is then (), so that autograd records one node instead of three.
    """
    is_tuple = isinstance(theta, tuple)
    return _Envelope.apply(value, is_tuple, reduced, differentiable_mean, *as_tuple(theta), *as_tuple(mean))


class _Envelope(Function):
    @staticmethod
    def forward(
        value: Tensor,
        is_tuple: bool,
        reduced: tuple[int, torch.dtype] | None,
        differentiable_mean: Callable[[Parts], Parts] | None,
        *theta_mean: Tensor,
    ) -> Tensor:
        if reduced is None:
            return value.clone()
        count, dtype = reduced
        if is_small(value):
            return torch.from_numpy(np.asarray(np.add.reduce(value.numpy()) / count)).to(dtype)
        return (value.sum() / count).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.is_tuple, reduced, ctx.differentiable_mean, *theta_mean = inputs
        ctx.count = None if reduced is None else reduced[0]
        n = len(theta_mean) // 2
        ctx.shared = [t.shape[0] for t in theta_mean[:n]]
        ctx.save_for_backward(*theta_mean[n if ctx.differentiable_mean is None else 0 :])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        n, saved = len(ctx.shared), ctx.saved_tensors
        means = saved[-n:]
        if ctx.differentiable_mean is not None and torch.is_grad_enabled():
            means = as_tuple(ctx.differentiable_mean(pack(saved[:n], ctx.is_tuple)))
        gradients, scale = [], g
        if ctx.count is not None:
            reads = has_numpy_view(g) and not torch.is_grad_enabled()
            scale = (g.item() if reads else g.double()) / ctx.count
        for mean, rows in zip(means, ctx.shared, strict=True):
            each = mean * g.view(-1, *[1] * (mean.ndim - 1)) if ctx.count is None else mean.double() * scale
            gradients.append(each.sum(0, keepdim=True) if rows == 1 and mean.shape[0] != 1 else each)
        return None, None, None, None, *gradients, *[None] * n


def attach_jacobian(value: Tensor, theta: Tensor, jvp: Callable[..., Tensor], vjp: Callable[..., Tensor]) -> Tensor:
    """Return ``value`` of a piecewise linear map at ``theta``, with gradients from products with the Jacobian."""
    return _PiecewiseLinear.apply(value, theta, jvp, vjp) if torch.is_grad_enabled() and theta.requires_grad else value


class _PiecewiseLinear(Function):
    @staticmethod
    def forward(value: Tensor, theta: Tensor, jvp: Callable[..., Tensor], vjp: Callable[..., Tensor]) -> Tensor:
        return value

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *_, ctx.jvp, ctx.vjp = inputs

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return None, attach_jacobian(ctx.vjp(g), g, ctx.vjp, ctx.jvp), None, None  # linear in g, constant in θ


# ----------------------------------------------------------------------------- means of a few structures


class WeightedMean(Protocol):
    """The result μ = Σ_k p_k y_k of a solver, with products of the transposed Jacobian."""

    @property
    def mean(self) -> Parts: ...

    @property
    def weights(self) -> Tensor: ...

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts: ...


_SECOND_ORDER_HINT = "for second derivatives, use a Fenchel-Young loss of this relaxation, or the relaxation marginals"


def attach_vjp(
    result: WeightedMean, theta: Parts, solver_name: str, alternative: str = _SECOND_ORDER_HINT
) -> tuple[Parts, Tensor]:
    """Return the mean and weights of ``result``, with ``result.vjp`` as the gradient for ``theta``.

    A second derivative raises UnsupportedError with ``solver_name`` and the ``alternative``.
    """
    *mean, weights = _AttachVJP.apply(
        result, isinstance(theta, tuple), True, _first_derivatives_only(solver_name, alternative), *as_tuple(theta)
    )
    return pack_like(mean, theta), weights


def attach_vjp_to_mean(
    result: WeightedMean, theta: Parts, solver_name: str, alternative: str = _SECOND_ORDER_HINT
) -> Parts:
    """Return the mean of :func:`attach_vjp`, without the time for the weights."""
    mean = _AttachVJP.apply(
        result, isinstance(theta, tuple), False, _first_derivatives_only(solver_name, alternative), *as_tuple(theta)
    )
    return pack_like(mean, theta)


def _first_derivatives_only(solver_name: str, alternative: str) -> str:
    return f"{solver_name} offers first derivatives only; {alternative}"


class _AttachVJP(Function):
    @staticmethod
    def forward(
        result: WeightedMean, is_tuple: bool, with_weights: bool, second_order_message: str, *theta: Tensor
    ) -> tuple[Tensor, ...]:
        mean = tuple([m.clone() for m in as_tuple(result.mean)])
        return (*mean, result.weights.clone()) if with_weights else mean

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.result, ctx.is_tuple, ctx.with_weights, ctx.second_order_message, *theta = inputs
        ctx.save_for_backward(*theta)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        theta = ctx.saved_tensors
        if all(c is None for c in cotangents):  # the second derivative of an envelope has no gradient here
            return None, None, None, None, *[None] * len(theta)
        mean = as_tuple(ctx.result.mean)
        *v, weights = cotangents if ctx.with_weights else (*cotangents, None)
        v_mean = pack(zeros_for_missing(tuple(v), mean), ctx.is_tuple) if any(c is not None for c in v) else None
        with torch.no_grad():
            gradients = as_tuple(sum_to_batch_of(ctx.result.vjp(v_mean, weights), pack(theta, ctx.is_tuple)))
        if torch.is_grad_enabled():
            sources = [t for t in (*theta, *cotangents) if t is not None]
            gradients = _RaiseOnBackward.apply(ctx.second_order_message, len(gradients), *gradients, *sources)
        return None, None, None, None, *gradients


class _RaiseOnBackward(Function):
    """The identity on the first ``n`` tensors. Its backward pass raises UnsupportedError."""

    @staticmethod
    def forward(message: str, n: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.clone() for t in tensors[:n])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.message, ctx.count = inputs[0], len(inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        if all(c is None for c in cotangents):  # a slope of an envelope, in the first backward pass
            return (None,) * ctx.count
        raise UnsupportedError(ctx.message)


def raise_on_backward(value: Tensor, theta: Parts, message: str) -> Tensor:
    """Return ``value``, computed from ``theta`` without gradients; its backward pass raises UnsupportedError."""
    return _RaiseOnBackward.apply(message, 1, value, *as_tuple(theta))[0]
