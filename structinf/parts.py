"""Potentials, structures and means alike: one tensor of parts, or a tuple of several kinds.

Tensors here have one flat batch dimension, of size 1 where all instances share them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from .compile.saved_tensors import bypass_saved_tensor_hooks
from .errors import InvalidInputError
from .kernels.arrays import empty
from .shapes import Float

__all__ = [
    "AnyParts",
    "Parts",
    "PartsT",
    "as_tuple",
    "batch_size",
    "broadcast_shapes",
    "differentiate",
    "divide_by_temperature",
    "enable_autograd",
    "gradient_by_autograd",
    "hessian_product_by_autograd",
    "inner_product",
    "list_to_tuple",
    "map_parts",
    "pack",
    "pack_like",
    "scale_per_instance",
    "sum_to_batch_of",
    "total_inner_product",
    "zeros_for_missing",
]

Parts: TypeAlias = Tensor | tuple[Tensor, ...]
"""Scores of the parts, or anything of that form (structures, means, gradients)."""

AnyParts: TypeAlias = Any
"""Parts as an argument of methods that oracles override: each may declare the form that it takes, such as Tensor."""

PartsT = TypeVar("PartsT", bound=Parts)
"""Parts whose form, a tensor or a tuple, is that of another argument or of the result."""

_LARGE_BYTES = 2**19  # bytes


def as_tuple(theta: Parts) -> tuple[Tensor, ...]:
    """The tensors of ``theta``, also when it is a single one."""
    return theta if isinstance(theta, tuple) else (theta,)


def list_to_tuple(theta: Any) -> Any:
    """``theta``, a list of tensors as the tuple that it stands for."""
    return tuple(theta) if isinstance(theta, list) else theta


def pack_like(tensors: Sequence[Tensor], theta: Parts) -> Parts:
    """``tensors`` as a tuple if ``theta`` is one, else the only tensor."""
    return tuple(tensors) if isinstance(theta, tuple) else tensors[0]


def pack(tensors: tuple[Tensor, ...], is_tuple: bool) -> Parts:
    """Return ``tensors`` as a tuple if ``is_tuple``, else the only tensor."""
    return tensors if is_tuple else tensors[0]


def map_parts(function, theta: Parts, *others: Parts) -> Parts:
    """Apply ``function`` to each tensor of ``theta`` (and to its fellows in ``others``)."""
    columns = zip(as_tuple(theta), *map(as_tuple, others), strict=True)
    return pack_like([function(*column) for column in columns], theta)


def batch_size(theta: Parts) -> int:
    """Size of the flat batch: that of the tensors that are not shared, else 1."""
    sizes = [t.shape[0] for t in as_tuple(theta)]
    return next((size for size in sizes if size != 1), 1)


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """The shape that these are broadcast to; ValueError if they cannot be.

    By numpy: torch's own way imports sympy, which takes a third of a second.
    """
    return torch.Size(np.broadcast_shapes(*map(tuple, shapes)))


def inner_product(theta: Parts, y: Parts) -> Float[Tensor, " batch"]:
    """⟨θ, y⟩ for each instance, with −inf · 0 = 0.

    Parameters
    ----------
    theta, y : (B | 1, *event) tensors, or tuples of them

    Returns
    -------
    Tensor
        (B,)
    """
    total = _row_inner_products(as_tuple(theta)[0], as_tuple(y)[0])
    for t, z in zip(as_tuple(theta)[1:], as_tuple(y)[1:], strict=True):
        total = total + _row_inner_products(t, z)
    return total


def _row_inner_products(t: Tensor, z: Tensor) -> Tensor:
    """⟨t, z⟩ along all dimensions but the first, of which either may be 1."""
    t, z = t.unsqueeze(-1).flatten(1), z.unsqueeze(-1).flatten(1)
    value = _broadcast_vecdot(t, z)
    if bool(value.isnan().any()):
        # ∞ · 0: a part that no structure uses adds nothing, however it is scored.
        value = _broadcast_vecdot(torch.where((z == 0) & t.isinf(), 0.0, t), z)
    return value


def _broadcast_vecdot(t: Tensor, z: Tensor) -> Tensor:
    """Row by row; a single row of either goes with all rows of the other."""
    if t.shape[0] == 1 and z.shape[0] != 1:
        return z @ t[0]
    if z.shape[0] == 1 and t.shape[0] != 1:
        return t @ z[0]
    return torch.linalg.vecdot(t, z)


def total_inner_product(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Σ ⟨t, z⟩ over all instances, a scalar to differentiate: other than :func:`inner_product`, also where a z is 0."""
    return torch.stack([(t * z).sum() for t, z in zip(tensors, others, strict=True)]).sum()


@contextlib.contextmanager
def enable_autograd() -> Iterator[None]:
    """Autograd records inside, also under no_grad and inference_mode (where enable_grad alone records nothing)."""
    with torch.inference_mode(False), torch.enable_grad(), bypass_saved_tensor_hooks():
        yield


def sum_to_batch_of(gradient: Parts, theta: Parts) -> Parts:
    """Sum a (B, *event) gradient over the batch wherever ``theta`` is shared by all instances."""
    return map_parts(lambda g, t: g.sum(0, keepdim=True) if t.shape[0] == 1 and g.shape[0] != 1 else g, gradient, theta)


def scale_per_instance(parts: Parts, weight: Float[Tensor, " batch"]) -> Parts:
    """``parts`` (B, *event), each instance's times its ``weight``."""
    return map_parts(lambda t: _multiply_rows(t, weight.view(-1, *[1] * (t.ndim - 1))), parts)


def _multiply_rows(t: Tensor, factors: Tensor) -> Tensor:
    records = torch.is_grad_enabled() and (t.requires_grad or factors.requires_grad)
    if records or not t.is_cpu or t.nbytes < _LARGE_BYTES or t.shape[0] != factors.shape[0] or t.dtype != factors.dtype:
        return t * factors
    return torch.mul(t, factors, out=empty(*t.shape, dtype=t.dtype))


def divide_by_temperature(theta: Parts, temperature: float) -> Parts:
    """θ / temperature; θ itself at 1. InvalidInputError if that overflows."""
    if temperature == 1:
        return theta
    scaled = map_parts(lambda t: t / temperature, theta)
    if temperature < 1:
        for t, s in zip(as_tuple(theta), as_tuple(scaled), strict=True):
            if bool((s.isinf() & ~t.isinf()).any()):
                raise InvalidInputError(
                    f"temperature {temperature!r} is too small: theta / temperature overflows {t.dtype}"
                )
    return scaled


def differentiate(value: Tensor, inputs: Sequence[Tensor], create_graph: bool = False) -> list[Tensor]:
    """The gradients of a scalar by autograd; zeros for inputs that it does not depend on."""
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    return list(torch.autograd.grad(value, tuple(inputs), create_graph=create_graph, materialize_grads=True))


def gradient_by_autograd(function: Callable[[Parts], Tensor], theta: Parts) -> Parts:
    """The gradient of each instance's value, (B, *event), of a ``function`` that maps θ to (B,)."""
    return value_and_gradient_by_autograd(function, theta)[1]


def value_and_gradient_by_autograd(function: Callable[[Parts], Tensor], theta: Parts) -> tuple[Tensor, Parts]:
    """Each instance's value, (B,), and its gradient, (B, *event), from one call of ``function``."""
    with enable_autograd():
        leaves = _leaves(theta)
        value = function(pack_like(leaves, theta))
        return value.detach(), pack_like(differentiate(value.sum(), leaves), theta)


def hessian_product_by_autograd(function: Callable[[Parts], Tensor], theta: Parts, v: Parts) -> Parts:
    """The product of the Hessian of each instance's value with ``v``, (B, *event)."""
    with enable_autograd():
        leaves = _leaves(theta)
        gradients = differentiate(function(pack_like(leaves, theta)).sum(), leaves, create_graph=True)
        return pack_like(differentiate(total_inner_product(gradients, as_tuple(v)), leaves), theta)


def _leaves(theta: Parts) -> list[Tensor]:
    """Each instance's own copy of θ, to differentiate with respect to."""
    size = batch_size(theta)
    own = [t.clone() if t.is_inference() else t.detach() for t in as_tuple(theta)]
    return [t.expand(size, *t.shape[1:]).requires_grad_() for t in own]


def zeros_for_missing(cotangents: tuple[Tensor | None, ...], like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Replace each None in ``cotangents`` by zeros of the shape of the same tensor of ``like``."""
    return tuple(torch.zeros_like(t) if c is None else c for c, t in zip(cotangents, like, strict=True))
