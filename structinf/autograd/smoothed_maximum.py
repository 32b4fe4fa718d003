"""Smoothed maxima over the simplex along one dimension, differentiable to any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..regularizers import Regularizer, smooth_max_gradient, smooth_max_hessian_product, smooth_max_value
from .function import Function

__all__ = ["smooth_argmax", "smooth_max", "smooth_max_with_backward"]


def smooth_max(regularizer: Regularizer, x: Tensor, dim: int = -1) -> Tensor:
    """Return max ⟨x, q⟩ − Ω(q) over the simplex, without the dimension ``dim``; differentiable to any order."""
    return _SmoothMax.apply(regularizer, x.movedim(dim, -1))


def smooth_argmax(regularizer: Regularizer, x: Tensor, dim: int = -1) -> Tensor:
    """Return the gradient of :func:`smooth_max`, probabilities along ``dim``; differentiable to any order."""
    return _SmoothArgmax.apply(regularizer, x.movedim(dim, -1)).movedim(-1, dim)


class _SmoothMax(Function):
    @staticmethod
    def forward(regularizer: Regularizer, x: Tensor) -> Tensor:
        return smooth_max_value(regularizer, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.regularizer, x = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return None, g.unsqueeze(-1) * _SmoothArgmax.apply(ctx.regularizer, x)


class _SmoothArgmax(Function):
    @staticmethod
    def forward(regularizer: Regularizer, x: Tensor) -> Tensor:
        return smooth_max_gradient(regularizer, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.regularizer, _ = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, z: Tensor) -> Any:
        # The Hessian is a function of the output q, so derivatives of all orders follow.
        (q,) = ctx.saved_tensors
        return None, smooth_max_hessian_product(ctx.regularizer, q, z)


def smooth_max_with_backward(
    regularizer: Regularizer, x: Tensor, dim: int, backward_rule: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return :func:`smooth_max` with the backward pass ``backward_rule(x, g)``, (..., n), in place of g q.

    The backward pass draws samples of a recursion: the adjoint g (...) counts the samples that reach a node.
    First derivatives only.
    """
    return _SmoothMaxWithBackward.apply(regularizer, x.movedim(dim, -1), backward_rule)


class _SmoothMaxWithBackward(Function):
    @staticmethod
    def forward(regularizer: Regularizer, x: Tensor, backward_rule: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return smooth_max_value(regularizer, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, x, ctx.backward_rule = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "a random walk through a recursion has no derivative; differentiate the smoothed value or mean instead"
            )
        (x,) = ctx.saved_tensors
        return None, ctx.backward_rule(x, g), None
