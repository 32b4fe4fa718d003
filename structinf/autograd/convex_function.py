"""Differentiable values and gradients of convex functions of θ with algorithms for derivatives.

A function f has the gradient μ and the Hessian H. For example, log Z has the gradient E[Y] and the Hessian Cov[Y].
The backward pass of each Function below calls the other Functions, which gives two derivatives of μ (three of f).
Autograd computes later derivatives through the differentiable value of f.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..compile.torch_private import functorch_is_active, set_grad_enabled
from ..deferred_checks import without_checks
from ..parts import (
    Parts,
    as_tuple,
    batch_size,
    differentiate,
    inner_product,
    map_parts,
    pack,
    pack_like,
    scale_per_instance,
    sum_to_batch_of,
    total_inner_product,
    zeros_for_missing,
)
from ..shapes import Float
from ..validation.function_values import check_function_values, versions_of
from .function import Function

__all__ = ["ConvexFunction", "Gradient", "float64_value", "gradient", "value", "value_and_gradient"]


@dataclass(frozen=True)
class ConvexFunction:
    """A convex function f of each instance of θ, given by five maps for the value and the derivatives.

    All maps except ``value`` are called under no_grad.

    Attributes
    ----------
    value : callable
        θ ↦ f(θ), (B,); differentiable by autograd to any order if an entry of θ requires grad.
    gradient : callable or None
        θ ↦ ∇f, (B, *event); None if no algorithm is faster than ``value_and_gradient``.
    value_and_gradient : callable
        θ ↦ (f(θ), ∇f), in a single pass if possible.
    vjp : callable
        (θ, weight) ↦ Σ_b weight_b ∇f_b in the form of θ. Needs no array per instance for tensors shared by the batch.
    hessian_product : callable
        (θ, v) ↦ ∇²f v, (B, *event).
    """

    value: Callable[[Any], Tensor]
    gradient: Callable[[Any], Parts] | None
    value_and_gradient: Callable[[Any], tuple[Tensor, Parts]]
    vjp: Callable[[Any, Tensor], Parts]
    hessian_product: Callable[[Any, Any], Parts]


def value(function: ConvexFunction, theta: Parts) -> Float[Tensor, " batch"]:
    """Return f(θ), (B,), with gradient ∇f."""
    tensors = as_tuple(theta)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return _checked_value(function, theta)
    if any(len(t) == 1 for t in tensors) and batch_size(theta) != 1:
        # A gradient per instance would be B times as large as the gradient of a shared tensor.
        return _Value.apply(function, isinstance(theta, tuple), *tensors)
    return value_and_gradient(function, theta)[0]


def float64_value(function: ConvexFunction, theta: Parts, dtype: torch.dtype) -> Float[Tensor, " batch"]:
    """Return :func:`value` in float64, for a loss that subtracts almost the same number.

    The maps for derivatives run in ``dtype`` where they do not compute the value.
    """
    if dtype == torch.float64:
        return value(function, map_parts(Tensor.double, theta))

    def cast(parts: Parts) -> Parts:
        return map_parts(lambda t: t.to(dtype), parts)

    def value_and_gradient(t: Parts) -> tuple[Tensor, Parts]:
        found, slope = function.value_and_gradient(map_parts(Tensor.double, t))
        return found, cast(slope)

    exact = ConvexFunction(
        value=functools.update_wrapper(lambda t: function.value(map_parts(Tensor.double, t)), function.value),
        gradient=None if function.gradient is None else lambda t: cast(function.gradient(cast(t))),  # type: ignore
        value_and_gradient=value_and_gradient,
        vjp=lambda t, weight: function.vjp(cast(t), weight.to(dtype)),
        hessian_product=lambda t, v: function.hessian_product(cast(t), cast(v)),
    )
    return value(exact, theta)


def gradient(function: ConvexFunction, theta: Parts) -> Parts:
    """Return ∇f, (B, *event). The Jacobian is the Hessian of f."""
    tensors = as_tuple(theta)
    is_recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if is_recorded or functorch_is_active():
        return pack_like(Gradient.apply(function, isinstance(theta, tuple), *tensors), theta)
    is_grad_enabled = torch.is_grad_enabled()
    set_grad_enabled(False)
    try:
        return _plain_gradient(function, theta)
    finally:
        set_grad_enabled(is_grad_enabled)


def value_and_gradient(function: ConvexFunction, theta: Parts) -> tuple[Tensor, Parts]:
    """Return :func:`value` and :func:`gradient`, in a single pass if possible."""
    result, *gradients = _ValueAndGradient.apply(function, isinstance(theta, tuple), *as_tuple(theta))
    return result, pack_like(gradients, theta)


def _checked_value(function: ConvexFunction, theta: Parts) -> Tensor:
    tensors = as_tuple(theta)
    versions = versions_of(tensors)
    result = function.value(theta)
    check_function_values(function.value, result, batch_size(theta), tensors, versions)
    return result


class _Value(Function):
    @staticmethod
    def forward(function: ConvexFunction, is_tuple: bool, *theta: Tensor) -> Tensor:
        return _checked_value(function, pack(theta, is_tuple))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.is_tuple, *theta = inputs
        ctx.save_for_backward(*theta)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Any:
        gradients = _Vjp.apply(ctx.function, ctx.is_tuple, weight, *ctx.saved_tensors)
        return None, None, *gradients


class _Vjp(Function):
    """Σ_b w_b μ_b in the form of θ."""

    @staticmethod
    def forward(function: ConvexFunction, is_tuple: bool, weight: Tensor, *theta: Tensor) -> tuple[Tensor, ...]:
        with without_checks(weight):
            return as_tuple(function.vjp(pack(theta, is_tuple), weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.is_tuple, weight, *theta = inputs
        ctx.save_for_backward(weight, *theta)

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> Any:
        # ⟨v, Σ_b w_b μ_b⟩ has gradient Σ_b w_b H_b v in θ, and ⟨v, μ_b⟩ in w_b.
        weight, *theta = ctx.saved_tensors
        form = pack(tuple(theta), ctx.is_tuple)
        with without_checks(weight):
            grad_weight = (
                inner_product(pack(v, ctx.is_tuple), gradient(ctx.function, form)) if ctx.needs_input_grad[2] else None
            )
        if not any(ctx.needs_input_grad[3:]):
            return None, None, grad_weight, *[None] * len(theta)
        products = _HessianProduct.apply(ctx.function, ctx.is_tuple, len(theta), *theta, *v)
        weighted = scale_per_instance(pack(products, ctx.is_tuple), weight)
        return None, None, grad_weight, *as_tuple(sum_to_batch_of(weighted, form))


def _plain_gradient(function: ConvexFunction, theta: Parts) -> Parts:
    return function.value_and_gradient(theta)[1] if function.gradient is None else function.gradient(theta)


class Gradient(Function):
    """∇f; ``Gradient.apply(f, isinstance(theta, tuple), *as_tuple(theta))`` returns the tuple of its tensors."""

    @staticmethod
    def forward(function: ConvexFunction, is_tuple: bool, *theta: Tensor) -> tuple[Tensor, ...]:
        return as_tuple(_plain_gradient(function, pack(theta, is_tuple)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.is_tuple, *theta = inputs
        ctx.save_for_backward(*theta)

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> Any:
        theta = ctx.saved_tensors
        products = _HessianProduct.apply(ctx.function, ctx.is_tuple, len(theta), *theta, *v)
        return None, None, *as_tuple(sum_to_batch_of(pack(products, ctx.is_tuple), pack(theta, ctx.is_tuple)))


class _ValueAndGradient(Function):
    @staticmethod
    def forward(function: ConvexFunction, is_tuple: bool, *theta: Tensor) -> tuple[Tensor, ...]:
        versions = versions_of(theta)
        result, gradients = function.value_and_gradient(pack(theta, is_tuple))
        check_function_values(function.value, result, as_tuple(gradients)[0].shape[0], theta, versions)
        return result, *as_tuple(gradients)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.is_tuple, *theta = inputs
        ctx.save_for_backward(*theta, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, weight: Tensor | None, *v: Tensor | None) -> Any:
        n = len(v)
        saved = ctx.saved_tensors  # read once, since checkpointing refuses a second read
        theta, gradients = saved[:n], saved[n:]
        total = None if weight is None else as_tuple(scale_per_instance(gradients, weight))
        if any(z is not None for z in v):
            products = _HessianProduct.apply(ctx.function, ctx.is_tuple, n, *theta, *zeros_for_missing(v, gradients))
            total = products if total is None else tuple(map(torch.add, total, products))
        if total is None:
            return None, None, *[None] * n
        return None, None, *as_tuple(sum_to_batch_of(tuple(total), tuple(theta)))


class _HessianProduct(Function):
    """H v. The transpose of H is H, since H is symmetric."""

    @staticmethod
    def forward(function: ConvexFunction, is_tuple: bool, n: int, *theta_v: Tensor) -> tuple[Tensor, ...]:
        theta, v = pack(theta_v[:n], is_tuple), pack(theta_v[n:], is_tuple)
        with without_checks(theta_v[0]):
            return as_tuple(function.hessian_product(theta, v))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, ctx.is_tuple, ctx.n, *theta_v = inputs
        ctx.save_for_backward(*theta_v)

    @staticmethod
    def backward(ctx: Any, *w: Tensor) -> Any:
        # ⟨w, H v⟩ is differentiated by autograd, through the value of the function in torch.
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad(), without_checks(w[0]):
            # Aliases stop gradients here, except in a graph of higher order.
            inputs = [t.view_as(t) if create_graph else t.detach() for t in ctx.saved_tensors]
            for t in inputs:
                t.requires_grad_()
            theta, v = inputs[: ctx.n], inputs[ctx.n :]
            size = w[0].shape[0]
            expanded = [t.expand(size, *t.shape[1:]) for t in theta]
            versions = versions_of(expanded)
            found = ctx.function.value(pack(tuple(expanded), ctx.is_tuple))
            is_empty = expanded[0].numel() == 0
            check_function_values(ctx.function.value, found, size, expanded, versions, differentiable=not is_empty)
            means = differentiate(found.sum(), expanded, create_graph=True)
            products = differentiate(total_inner_product(means, v), expanded, create_graph=True)
            gradients = differentiate(total_inner_product(products, w), inputs, create_graph=create_graph)
        return None, None, None, *gradients
