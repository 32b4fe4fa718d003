"""Fenchel-Young losses on the simplex, of which the maximiser is known."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from ..shapes import Float
from .simplex import batched

__all__ = ["EntropyMaximum", "fenchel_young_gap"]


class EntropyMaximum(Protocol):
    """An entropy H that knows the value of its maximum."""

    def maximum(self, x: Tensor, p: Tensor, origin: Tensor) -> Tensor:
        """⟨p, x − origin⟩ + H(p), (...), for the p (..., n) at which it is largest; called under no_grad."""
        ...


def fenchel_young_gap(
    function: EntropyMaximum,
    x: Float[Tensor, "*rows n"],
    p: Float[Tensor, "*rows n"],
    right: Float[Tensor, "*rows"],
    of_target: Float[Tensor, "*rows"],
) -> Float[Tensor, "*rows"]:
    """max ⟨p, x⟩ + H(p), which is at ``p``, less ⟨x, y⟩ = ``right`` and H(y) = ``of_target``, for any y.

    Its gradient in x is p, by the envelope theorem, and its Hessian the derivative of p. Infinite, with gradient 0,
    where ``right`` is −inf.
    """
    return _Gap.apply(function, x, p, right, of_target)


class _Gap(Function):
    @staticmethod
    def forward(function: EntropyMaximum, x: Tensor, p: Tensor, right: Tensor, of_target: Tensor) -> Tensor:
        impossible = right.isneginf()
        # What is right is taken off first, so that small losses are not lost beside large scores.
        value = function.maximum(x, p, right.masked_fill(impossible, 0.0)) - of_target
        value = torch.maximum(value, torch.zeros_like(value))  # which p = y has
        return value.masked_fill(impossible, torch.inf).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, _, p, right, _ = inputs
        ctx.save_for_backward(p, right.isneginf())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        p, impossible = ctx.saved_tensors
        g = g.masked_fill(impossible, 0.0)
        return None, g.unsqueeze(-1) * p, None, -g, -g

    @staticmethod
    def vmap(info: Any, dims: Any, function: EntropyMaximum, *tensors: Tensor) -> Any:
        return fenchel_young_gap(
            function, *(batched(t, d, info.batch_size) for t, d in zip(tensors, dims[1:], strict=True))
        ), 0
