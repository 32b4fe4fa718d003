"""Fenchel-Young losses on the simplex with a known maximizer."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ..shapes import Float
from .function import Function
from .simplex_map import move_vmap_dim

__all__ = ["Conjugate", "loss_at_maximizer"]


class Conjugate(Protocol):
    """An entropy H with the conjugate max_p ⟨p, x⟩ + H(p), and at most one parameter for each row."""

    def at(self, parameter: Tensor) -> Conjugate:
        """Return the entropy with the parameter (..., 1), without checks."""
        ...

    def parameter_gradient(self, p: Tensor) -> Tensor:
        """Return ∂H(p) / ∂parameter, (...), for p (..., n), by operations that autograd can differentiate."""
        ...

    def conjugate(self, x: Tensor, p: Tensor, origin: Tensor) -> Tensor:
        """Return ⟨p, x − origin⟩ + H(p), (...), for the maximizer p (..., n); called without autograd."""
        ...


def loss_at_maximizer(
    entropy: Conjugate,
    x: Float[Tensor, "*rows n"],
    p: Float[Tensor, "*rows n"],
    target_score: Float[Tensor, "*rows"],
    target_entropy: Float[Tensor, "*rows"],
    parameter: Float[Tensor, "*rows 1"] | None = None,
) -> Float[Tensor, "*rows"]:
    """Return ⟨p, x⟩ + H(p) − ⟨x, y⟩ − H(y) for the maximizer p of the first two terms and any target y.

    ``target_score`` is ⟨x, y⟩ and ``target_entropy`` is H(y). By the envelope theorem the gradient in x is p − y, the
    gradient in the entropy's ``parameter`` is the one of H at a fixed p, and the Hessian is the Jacobian of p. If
    ``target_score`` is −inf, the loss is infinite with gradient 0.
    """
    return _LossAtMaximizer.apply(entropy, x, p, target_score, target_entropy, parameter)


class _LossAtMaximizer(Function):
    @staticmethod
    def forward(
        entropy: Conjugate,
        x: Tensor,
        p: Tensor,
        target_score: Tensor,
        target_entropy: Tensor,
        parameter: Tensor | None,
    ) -> Tensor:
        entropy = entropy if parameter is None else entropy.at(parameter)
        is_infinite = target_score.isneginf()
        # Subtracting the score of the target first keeps the digits of losses far smaller than the scores.
        loss = entropy.conjugate(x, p, target_score.masked_fill(is_infinite, 0.0)) - target_entropy
        loss = torch.maximum(loss, torch.zeros_like(loss))  # the loss is 0 for p = y
        return loss.masked_fill(is_infinite, torch.inf).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.entropy, _, p, target_score, _, parameter = inputs
        ctx.save_for_backward(p, target_score.isneginf(), parameter)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        p, is_infinite, parameter = ctx.saved_tensors
        g = g.masked_fill(is_infinite, 0.0)
        in_parameter = None
        if ctx.needs_input_grad[5]:
            in_parameter = (g * ctx.entropy.at(parameter).parameter_gradient(p)).unsqueeze(-1)
        return None, g.unsqueeze(-1) * p, None, -g, -g, in_parameter

    @staticmethod
    def vmap(info: Any, dims: Any, entropy: Conjugate, *tensors: Tensor | None) -> Any:
        moved: Any = [
            None if t is None else move_vmap_dim(t, d, info.batch_size) for t, d in zip(tensors, dims[1:], strict=True)
        ]
        return loss_at_maximizer(entropy, *moved), 0
