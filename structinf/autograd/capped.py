"""The nearest point of the capped simplex, with its derivatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.simplex import dispatch as compiled
from ..kernels.simplex import torch_backend
from .simplex import SimplexMap, one_of

__all__ = ["CappedMap"]


@dataclass(frozen=True)
class CappedMap(SimplexMap):
    """argmin ‖p − x‖² over 0 ≤ p ≤ 1 with Σ p = k. k is its parameter if None here."""

    k: float | None = None

    def point(self, x: Tensor, parameter: Tensor | None) -> Tensor:
        return (compiled if x.is_cpu else torch_backend).capped(x, one_of(self.k, parameter))

    def pull_back(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_slope: bool
    ) -> tuple[Tensor, Tensor | None]:
        if not p.is_cpu:
            return self.differentiable_pull_back(p, parameter, g, with_slope)
        product, slope = compiled.pull_back(p, g, 2.0, is_capped=True, with_slope=with_slope)
        return product, slope if slope is None or parameter is None else slope.to(parameter.dtype)

    def differentiable_pull_back(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_slope: bool
    ) -> tuple[Tensor, Tensor | None]:
        between = ((p > 0) & (p < 1)) | p.isnan()
        v = torch.where(between, g, 0.0)
        mean = (v + 0 * p).sum(-1, keepdim=True) / between.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(between, v - mean, 0.0), mean if with_slope else None
