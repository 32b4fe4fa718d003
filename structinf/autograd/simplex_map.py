"""Maps to the simplex, with derivatives of every order in the scores and in a parameter per row."""

from __future__ import annotations

import abc
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..kernels.simplex.dispatch import has_kernels
from ..shapes import Float
from .function import Function

__all__ = ["Parameter", "SimplexMap", "apply_simplex_map", "move_vmap_dim"]

Parameter: TypeAlias = float | Tensor
"""A number for all rows, or a tensor (..., 1) with a number for each row."""


class SimplexMap(abc.ABC):
    """A map from scores x (..., n) and a parameter to a point p (..., n). The derivatives are functions of p."""

    @abc.abstractmethod
    def forward(self, x: Tensor, parameter: Parameter) -> Tensor:
        """Return the point p, (..., n); called without autograd."""

    @abc.abstractmethod
    def vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return products of the cotangent g (..., n) with the Jacobians of p: in x, (..., n), and in the parameter,
        (..., 1).

        The second product is required with ``with_parameter_grad``, and may be None otherwise. Both products consist of
        torch operations, so autograd can differentiate the products.
        """

    def compiled_vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the result of :meth:`vjp` without autograd, for tensors on a device with kernels.

        Override the method with a kernel.
        """
        return self.vjp(p, parameter, g, with_parameter_grad)


def apply_simplex_map(
    simplex_map: SimplexMap, x: Float[Tensor, "*rows n"], parameter: Parameter
) -> Float[Tensor, "*rows n"]:
    """Return the point of ``simplex_map`` for x, with gradients for x and a ``parameter`` (..., 1) of the same rank."""
    return _ApplySimplexMap.apply(simplex_map, x, parameter)


class _ApplySimplexMap(Function):
    @staticmethod
    def forward(simplex_map: SimplexMap, x: Tensor, parameter: Parameter) -> Tensor:
        return simplex_map.forward(x, parameter)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.simplex_map, _, parameter = inputs
        is_tensor = isinstance(parameter, Tensor)
        ctx.number = None if is_tensor else parameter
        ctx.save_for_backward(output, parameter if is_tensor else None)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        if g is None:  # in a loss: the first derivative needs the point, but not the Jacobian
            return None, None, None
        # The derivatives are functions of the output p, so derivatives of every order follow.
        p, saved = ctx.saved_tensors
        parameter = ctx.number if saved is None else saved
        uses_kernel = has_kernels(p) and not torch.is_grad_enabled()
        vjp = ctx.simplex_map.compiled_vjp if uses_kernel else ctx.simplex_map.vjp
        in_x, in_parameter = vjp(p, parameter, g, ctx.needs_input_grad[2])
        return None, in_x, None if saved is None or in_parameter is None else in_parameter.to(saved.dtype)

    @staticmethod
    def vmap(info: Any, dims: Any, simplex_map: SimplexMap, x: Tensor, parameter: Parameter) -> Any:
        _, x_dim, parameter_dim = dims
        x = move_vmap_dim(x, x_dim, info.batch_size)
        if isinstance(parameter, Tensor):
            parameter = move_vmap_dim(parameter, parameter_dim, info.batch_size)
        return apply_simplex_map(simplex_map, x, parameter), 0


def move_vmap_dim(t: Tensor, dim: int | None, size: int) -> Tensor:
    """Return ``t`` with the vmap dimension in front: moved from ``dim``, or expanded to ``size`` if ``dim`` is None."""
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
