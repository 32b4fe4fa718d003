"""Contenders for functions along the rows of a matrix, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .case import Contender

__all__ = ["forward_and_backward", "random_rows"]


def random_rows(batch: int, n: int) -> tuple[Tensor, Tensor]:
    """Return normal numbers (batch, n), and weights of the same shape for the results."""
    numbers, weight = torch.randn(2, batch, n, generator=torch.Generator().manual_seed(0))
    return numbers, weight


def forward_and_backward(
    name: str, function: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor, **options: Any
) -> Contender:
    """Return a contender: ``function`` of x, and the gradient of its product with ``weight``. Both are compared."""
    leaf = x.clone().requires_grad_()

    def run() -> tuple[Tensor, Tensor]:
        value = function(leaf)
        (gradient,) = torch.autograd.grad(value, leaf, weight)
        return value.detach(), gradient

    return Contender(name, run, **options)
