"""Inputs that the tests of transport share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

__all__ = ["backwards", "draw", "margins", "residual"]

backwards = pytest.mark.parametrize("backward", ["implicit", "unrolled"])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def margins(*shape: int, seed: int = 0) -> Tensor:
    drawn = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    return drawn / drawn.sum(-1, keepdim=True)


def residual(plan: Tensor, rows: Tensor | float = 1.0, columns: Tensor | float = 1.0) -> float:
    return max((plan.sum(-1) - rows).abs().max().item(), (plan.sum(-2) - columns).abs().max().item())
