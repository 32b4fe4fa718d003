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
    """An entropy H with the conjugate max_p ⟨p, x⟩ + H(p)."""

    def conjugate(self, x: Tensor, p: Tensor, origin: Tensor) -> Tensor:
        """Return ⟨p, x − origin⟩ + H(p), (...), for the maximizer p (..., n); called without autograd."""
        ...


def loss_at_maximizer(
    entropy: Conjugate,
    x: Float[Tensor, "*rows n"],
    p: Float[Tensor, "*rows n"],
    target_score: Float[Tensor, "*rows"],
    target_entropy: Float[Tensor, "*rows"],
) -> Float[Tensor, "*rows"]:
    """Return ⟨p, x⟩ + H(p) − ⟨x, y⟩ − H(y) for the maximizer p of the first two terms and any target y.

    ``target_score`` is ⟨x, y⟩ and ``target_entropy`` is H(y). By the envelope theorem the gradient in x is p − y, and
    the Hessian is the Jacobian of p. If ``target_score`` is −inf, the loss is infinite with gradient 0.
    """
    return _LossAtMaximizer.apply(entropy, x, p, target_score, target_entropy)


class _LossAtMaximizer(Function):
    @staticmethod
    def forward(entropy: Conjugate, x: Tensor, p: Tensor, target_score: Tensor, target_entropy: Tensor) -> Tensor:
        is_infinite = target_score.isneginf()
        # Subtracting the score of the target first keeps the digits of losses far smaller than the scores.
        loss = entropy.conjugate(x, p, target_score.masked_fill(is_infinite, 0.0)) - target_entropy
        loss = torch.maximum(loss, torch.zeros_like(loss))  # the loss is 0 for p = y
        return loss.masked_fill(is_infinite, torch.inf).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, _, p, target_score, _ = inputs
        ctx.save_for_backward(p, target_score.isneginf())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        p, is_infinite = ctx.saved_tensors
        g = g.masked_fill(is_infinite, 0.0)
        return None, g.unsqueeze(-1) * p, None, -g, -g

    @staticmethod
    def vmap(info: Any, dims: Any, entropy: Conjugate, *tensors: Tensor) -> Any:
        moved = (move_vmap_dim(t, d, info.batch_size) for t, d in zip(tensors, dims[1:], strict=True))
        return loss_at_maximizer(entropy, *moved), 0
