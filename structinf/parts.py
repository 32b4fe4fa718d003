"""Functions of scores, structures, means and gradients: all are one tensor of parts, or a tuple of tensors.

Every tensor has one flat batch dimension of size B, or of size 1 if the batch shares the tensor.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from .compile.functorch import check_not_captured
from .compile.saved_tensors import bypass_saved_tensor_hooks
from .compile.torch_private import functorch_is_active, has_forward_derivative
from .deferred_checks import check_number, skips_checks
from .errors import InvalidInputError
from .kernels.arrays import LARGE_BYTES, empty
from .kernels.gpu import uses_triton
from .shapes import Float
from .validation.function_values import check_function_values, protocol_error, versions_of
from .validation.options import check_in_range

__all__ = [
    "AnyParts",
    "Parts",
    "PartsT",
    "as_tuple",
    "batch_size",
    "broadcast_shapes",
    "check_scale_now",
    "differentiate",
    "divide_by_temperature",
    "enable_autograd",
    "gradient_by_autograd",
    "hessian_product_by_autograd",
    "inner_product",
    "list_to_tuple",
    "map_parts",
    "multiply_by_temperature",
    "pack",
    "pack_like",
    "parts_to_vectors",
    "scale_per_instance",
    "select_rows",
    "sum_to_batch_of",
    "total_inner_product",
    "vectors_to_parts",
    "zeros_for_missing",
]

Parts: TypeAlias = Tensor | tuple[Tensor, ...]
"""Scores of the parts, or structures, means and gradients in the form of scores: a tensor, or a tuple of tensors."""

AnyParts: TypeAlias = Any
"""Parts as an argument of methods that oracles override. An override may declare a narrower type, such as Tensor."""

PartsT = TypeVar("PartsT", bound=Parts)
"""Parts of equal form, a tensor or a tuple, in several arguments and the result of a function."""


def as_tuple(theta: Parts) -> tuple[Tensor, ...]:
    """Return the tensors of ``theta`` as a tuple, of length 1 if ``theta`` is a tensor.

    Parameters
    ----------
    theta : Tensor, or tuple of Tensor
        Parts.
    """
    return theta if isinstance(theta, tuple) else (theta,)


def list_to_tuple(theta: Any) -> Any:
    """Return ``theta``, converted to a tuple if it is a list."""
    return tuple(theta) if isinstance(theta, list) else theta


def pack_like(tensors: Sequence[Tensor], theta: Parts) -> Parts:
    """Return ``tensors`` as a tuple if ``theta`` is a tuple, else the only tensor.

    Parameters
    ----------
    tensors : sequence of Tensor
        One tensor for each tensor of ``theta``.
    theta : Tensor, or tuple of Tensor
        Parts whose form the result takes.
    """
    return tuple(tensors) if isinstance(theta, tuple) else tensors[0]


def pack(tensors: tuple[Tensor, ...], is_tuple: bool) -> Parts:
    """Return ``tensors`` if ``is_tuple``, else the only tensor."""
    return tensors if is_tuple else tensors[0]


def parts_to_vectors(y: Parts) -> Tensor:
    """Return the parts (B, *event) of all tensors as vectors (B, D), possibly in the memory of a single tensor."""
    if isinstance(y, Tensor) and y.ndim > 1:
        return y.flatten(1)
    return torch.cat([t.flatten(1) if t.ndim > 1 else t[:, None] for t in as_tuple(y)], 1)


def vectors_to_parts(vectors: Tensor, like: Parts) -> Parts:
    """Return vectors (..., D) in the form and the dtype of ``like``, (..., *event)."""
    if isinstance(like, Tensor):
        return vectors.reshape(*vectors.shape[:-1], *like.shape[1:]).to(like.dtype)
    tensors = as_tuple(like)
    pieces = vectors.split([math.prod(t.shape[1:]) for t in tensors], -1)
    shaped = [p.reshape(*p.shape[:-1], *t.shape[1:]).to(t.dtype) for p, t in zip(pieces, tensors, strict=True)]
    return pack_like(shaped, like)


def select_rows(theta: Parts, rows: Tensor) -> Parts:
    """Return the instances ``rows`` of ``theta``; tensors shared by the batch stay shared."""
    return map_parts(lambda t: t if t.shape[0] == 1 else t[rows], theta)


def map_parts(function, theta: Parts, *others: Parts) -> Parts:
    """Apply ``function`` to each tensor of ``theta``, with the corresponding tensors of ``others`` as arguments.

    Parameters
    ----------
    function : callable
        Maps one tensor of each argument to a tensor.
    theta : Tensor, or tuple of Tensor
        Parts.
    *others : Tensor, or tuple of Tensor
        Parts in the form of ``theta``.
    """
    if isinstance(theta, Tensor) and tuple not in map(type, others):
        return function(theta, *others)
    columns = zip(as_tuple(theta), *map(as_tuple, others), strict=True)
    return pack_like([function(*column) for column in columns], theta)


def batch_size(theta: Parts) -> int:
    """Return the size B of the flat batch, 1 if all tensors have a batch dimension of size 1.

    Parameters
    ----------
    theta : (B | 1, *event) Tensor, or tuple of them
        Parts.
    """
    if not isinstance(theta, tuple):
        return theta.shape[0]
    sizes = [t.shape[0] for t in theta]
    return next((size for size in sizes if size != 1), 1)


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """Return the common broadcast shape. Raises ValueError if the shapes do not broadcast.

    numpy computes the shape, since torch.broadcast_shapes imports sympy, which takes a third of a second.
    """
    return torch.Size(np.broadcast_shapes(*map(tuple, shapes)))


def inner_product(theta: Parts, y: Parts) -> Float[Tensor, " batch"]:
    """Return the inner product ⟨θ, y⟩ of each instance, with −inf · 0 = 0.

    Parameters
    ----------
    theta, y : (B | 1, *event) Tensor, or tuple of them
        Parts of the same form.

    Returns
    -------
    (B,) Tensor
        The inner products, summed over the tensors of a tuple.
    """
    if _fits_kernel(as_tuple(theta), as_tuple(y)):
        from .kernels.padding import triton_products

        return triton_products.inner_products(as_tuple(theta), as_tuple(y))
    total = _row_inner_products(as_tuple(theta)[0], as_tuple(y)[0])
    for t, z in zip(as_tuple(theta)[1:], as_tuple(y)[1:], strict=True):
        total = total + _row_inner_products(t, z)
    return total


def _fits_kernel(tensors: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    """Return whether the Triton kernel of inner products serves, without a derivative to record."""
    if not uses_triton(tensors[0]) or functorch_is_active():
        return False
    from .kernels.padding import triton_products

    return len(tensors) <= triton_products.MOST_TENSORS and all(
        t.dtype in (torch.float32, torch.float64)
        and t.shape[1:].numel() <= triton_products.MOST_PARTS
        and not (t.requires_grad and torch.is_grad_enabled())
        and not has_forward_derivative(t)
        for t in (*tensors, *others)
    )


def _row_inner_products(t: Tensor, z: Tensor) -> Tensor:
    """Return ⟨t, z⟩ over all dimensions except the first. The first dimension of t or z may have size 1."""
    if t.ndim != 2:
        t, z = t.unsqueeze(-1).flatten(1), z.unsqueeze(-1).flatten(1)
    if not t.is_cpu:  # without a look at the result, which would wait for the device
        unused = (z == 0) & t.isinf() if z.requires_grad else z == 0
        return _broadcast_vecdot(t.masked_fill(unused, 0), z)
    value = _broadcast_vecdot(t, z)
    if math.isnan(value.detach().sum().item()):  # also if infinite values of both signs add to NaN
        # ∞ · 0 is NaN, but a part that is 0 in the structure adds nothing to the score.
        value = _broadcast_vecdot(torch.where((z == 0) & t.isinf(), 0.0, t), z)
    return value


def _broadcast_vecdot(t: Tensor, z: Tensor) -> Tensor:
    """Return the inner product of each row of t with the same row of z. A single row is paired with every row."""
    if t.shape[0] == 1 and z.shape[0] != 1:
        return z @ t[0]
    if z.shape[0] == 1 and t.shape[0] != 1:
        return t @ z[0]
    return torch.linalg.vecdot(t, z)


def total_inner_product(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Return the scalar Σ ⟨t, z⟩ over all instances, with a gradient at every entry.

    Unlike :func:`inner_product`, the function does not replace −inf · 0 by 0.
    """
    return torch.stack([(t * z).sum() for t, z in zip(tensors, others, strict=True)]).sum()


@contextlib.contextmanager
def enable_autograd() -> Iterator[None]:
    """Record operations for autograd inside the context, even under no_grad or inference_mode.

    Under inference_mode, torch.enable_grad alone records nothing.
    """
    with torch.inference_mode(False), torch.enable_grad(), bypass_saved_tensor_hooks():
        yield


def sum_to_batch_of(gradient: Parts, theta: Parts) -> Parts:
    """Sum a (B, *event) gradient over the batch for each tensor of ``theta`` shared by the batch.

    Parameters
    ----------
    gradient : (B, *event) Tensor, or tuple of them
        The gradient of each instance.
    theta : (B | 1, *event) Tensor, or tuple of them
        Parts whose batch dimensions the result takes.
    """
    return map_parts(lambda g, t: g.sum(0, keepdim=True) if t.shape[0] == 1 and g.shape[0] != 1 else g, gradient, theta)


def scale_per_instance(parts: Parts, weight: Float[Tensor, " batch"]) -> Parts:
    """Multiply the ``parts`` (B, *event) of each instance by the instance's ``weight``."""
    return map_parts(lambda t: _multiply_rows(t, weight.view(-1, *[1] * (t.ndim - 1))), parts)


def _multiply_rows(t: Tensor, factors: Tensor) -> Tensor:
    records = torch.is_grad_enabled() and (t.requires_grad or factors.requires_grad)
    if records or not t.is_cpu or t.nbytes < LARGE_BYTES or t.shape[0] != factors.shape[0] or t.dtype != factors.dtype:
        return t * factors
    return torch.mul(t, factors, out=empty(*t.shape, dtype=t.dtype))


def divide_by_temperature(theta: Parts, temperature: float | Tensor, name: str = "temperature") -> Parts:
    """Return θ / temperature, or θ itself at the number 1. Raises InvalidInputError if the division overflows.

    The result is differentiable in a tensor with one temperature. Messages call the option by its ``name``.
    """
    if isinstance(temperature, Tensor):
        scaled = map_parts(lambda t: _divide_by_tensor(t, temperature, name), theta)
    elif temperature == 1:
        return theta
    else:
        check_in_range(name, temperature, as_tuple(theta)[0].dtype)
        scaled = map_parts(lambda t: t / temperature, theta)
    if isinstance(temperature, Tensor) or temperature < 1:
        for t, s in zip(as_tuple(theta), as_tuple(scaled), strict=True):
            if not skips_checks(t):
                overflows = (s.isinf() != t.isinf()).any()
                check_number(overflows, operator.not_, functools.partial(_raise_overflow, temperature, t.dtype, name))
    return scaled


def multiply_by_temperature(value: Tensor, temperature: float | Tensor) -> Tensor:
    """Return value · temperature in the dtype of ``value``; ``value`` itself at the number 1."""
    if isinstance(temperature, Tensor):
        return value * temperature.reshape(()).to(value)
    return value if temperature == 1 else value * temperature


def check_scale_now(name: str, scale: Tensor) -> Tensor:
    """Return the number in a tensor, shape (); raise InvalidInputError unless it is finite and above 0.

    Parameters
    ----------
    name : str
        The name of the option.
    scale : Tensor
        A tensor with one number.
    """
    check_not_captured(name, scale)
    number = scale.reshape(())
    if not skips_checks(number):
        check_number(number.detach(), lambda n: 0 < n < math.inf, functools.partial(_raise_not_positive, number, name))
    return number


def _divide_by_tensor(t: Tensor, temperature: Tensor, name: str) -> Tensor:
    """Return t / temperature for a tensor with one number above 0; scores of −inf have no influence on its gradient."""
    number = check_scale_now(name, temperature)
    is_forbidden = t.isinf()
    return torch.where(is_forbidden, t, t.masked_fill(is_forbidden, 0.0) / number.to(t))


def _raise_not_positive(number: Tensor, name: str) -> None:
    raise InvalidInputError(
        f"{name} must be a finite number above 0, but the tensor now holds {number.item():g}; learn its "
        f"logarithm, and pass {name}=log_{name}.exp()"
    )


def _raise_overflow(temperature: float | Tensor, dtype: torch.dtype, name: str) -> None:
    temperature = temperature.item() if isinstance(temperature, Tensor) else temperature
    raise InvalidInputError(
        f"{name} {temperature!r} is too small: theta / {name} overflows {dtype}; use a larger {name} or smaller scores"
    )


def differentiate(value: Tensor, inputs: Sequence[Tensor], create_graph: bool = False) -> list[Tensor]:
    """Return the gradients of the scalar ``value`` by autograd, zeros for inputs without influence on ``value``.

    Parameters
    ----------
    value : () Tensor
        The scalar to differentiate.
    inputs : sequence of Tensor
        The tensors to differentiate by.
    create_graph : bool
        Whether the gradients can be differentiated again.
    """
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    return list(torch.autograd.grad(value, tuple(inputs), create_graph=create_graph, materialize_grads=True))


def gradient_by_autograd(function: Callable[[Parts], Tensor], theta: Parts) -> Parts:
    """Return the gradient (B, *event) of ``function`` at θ, instance by instance. ``function`` maps θ to (B,)."""
    return value_and_gradient_by_autograd(function, theta)[1]


def value_and_gradient_by_autograd(function: Callable[[Parts], Tensor], theta: Parts) -> tuple[Tensor, Parts]:
    """Return the values (B,) of ``function`` and their gradients (B, *event), from one call of ``function``."""
    with enable_autograd():
        leaves = _leaves(theta)
        value = _differentiable_value(function, leaves, theta)
        return value.detach(), pack_like(differentiate(value.sum(), leaves), theta)


def hessian_product_by_autograd(function: Callable[[Parts], Tensor], theta: Parts, v: Parts) -> Parts:
    """Return the Hessian-vector product (B, *event) of ``function`` at θ with ``v``, instance by instance."""
    with enable_autograd():
        leaves = _leaves(theta)
        value = _differentiable_value(function, leaves, theta)
        gradients = differentiate(value.sum(), leaves, create_graph=True)
        return pack_like(differentiate(total_inner_product(gradients, as_tuple(v)), leaves), theta)


def _differentiable_value(function: Callable[[Parts], Tensor], leaves: list[Tensor], like: Parts) -> Tensor:
    """Return the value (B,) of ``function`` at ``leaves``, in the form of ``like``, after all checks of the value."""
    versions = versions_of(leaves)
    try:
        value = function(pack_like(leaves, like))
    except RuntimeError as error:
        if "leaf Variable that requires grad is being used in an in-place operation" in str(error):
            raise protocol_error(function) from error
        raise
    size, is_empty = leaves[0].shape[0], leaves[0].numel() == 0
    check_function_values(function, value, size, leaves, versions, differentiable=not is_empty)
    return value


def _leaves(theta: Parts) -> list[Tensor]:
    """Return leaf tensors (B, *event) with the values of θ, so that each instance has a gradient of its own."""
    size = batch_size(theta)
    own = [t.clone() if t.is_inference() else t.detach() for t in as_tuple(theta)]
    return [t.expand(size, *t.shape[1:]).requires_grad_() for t in own]


def zeros_for_missing(cotangents: tuple[Tensor | None, ...], like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Replace each None in ``cotangents`` by zeros of the shape of the corresponding tensor in ``like``."""
    return tuple(torch.zeros_like(t) if c is None else c for c, t in zip(cotangents, like, strict=True))
