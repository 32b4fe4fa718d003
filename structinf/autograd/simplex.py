"""Points of the simplex, with derivatives of all orders in the scores and in one parameter of each row."""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..shapes import Float

__all__ = ["SimplexMap", "apply_simplex_map", "batched", "fixed_or_given"]


class SimplexMap(abc.ABC):
    """A map from scores x (..., n) and a parameter (..., 1) to points p (..., n) that its derivatives are made of.

    The first two methods are called under no_grad; the parameter is None where the map has its own.
    """

    @abc.abstractmethod
    def point(self, x: Tensor, parameter: Tensor | None) -> Tensor:
        """p, (..., n)."""

    def pull_back(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The products of g (..., n) with the derivatives of p in x, (..., n), and in the parameter, (..., 1).

        Override it where compiled loops are faster than :meth:`differentiable_vjp`.
        """
        return self.differentiable_vjp(p, parameter, g, with_parameter_grad)

    @abc.abstractmethod
    def differentiable_vjp(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The same in torch operations that autograd can follow."""


def fixed_or_given(own: float | None, given: Tensor | None) -> float | Tensor:
    """The parameter of a map: its own, or where it has none that of each row."""
    found = given if own is None else own
    assert found is not None
    return found


def apply_simplex_map(
    function: SimplexMap, x: Float[Tensor, "*rows n"], parameter: Tensor | None = None
) -> Float[Tensor, "*rows n"]:
    """``function``'s point for x; the derivative in the ``parameter`` (..., 1), of as many dimensions, is its own."""
    return _Point.apply(function, x, parameter)


class _Point(Function):
    @staticmethod
    def forward(function: SimplexMap, x: Tensor, parameter: Tensor | None) -> Tensor:
        return function.point(x, parameter)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function, _, parameter = inputs
        ctx.save_for_backward(output, parameter)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        if g is None:  # from losses, whose first derivative goes by way of the scores alone
            return None, None, None
        # The derivatives are functions of the point, which is this Function's output: all orders follow.
        p, parameter = ctx.saved_tensors
        with_parameter_grad = ctx.needs_input_grad[2]
        if torch.is_grad_enabled():
            product, slope = ctx.function.differentiable_vjp(p, parameter, g, with_parameter_grad)
        else:
            product, slope = ctx.function.pull_back(p, parameter, g, with_parameter_grad)
        return None, product, slope

    @staticmethod
    def vmap(info: Any, dims: Any, function: SimplexMap, x: Tensor, parameter: Tensor | None) -> Any:
        _, x_dim, parameter_dim = dims
        x = batched(x, x_dim, info.batch_size)
        if parameter is not None:
            parameter = batched(parameter, parameter_dim, info.batch_size)
        return apply_simplex_map(function, x, parameter), 0


def batched(t: Tensor, dim: int | None, size: int) -> Tensor:
    """``t`` as vmap gives it, with the batch, which is in dimension ``dim`` or the same all over, in front."""
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
