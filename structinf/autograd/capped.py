"""The nearest point of the capped simplex, with its derivatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.simplex import dispatch as compiled
from ..kernels.simplex import torch_backend
from .simplex import SimplexMap, fixed_or_given

__all__ = ["CappedSimplexMap"]


@dataclass(frozen=True)
class CappedSimplexMap(SimplexMap):
    """argmin ‖p − x‖² over 0 ≤ p ≤ 1 with Σ p = k. k is its parameter if None here."""

    k: float | None = None

    def point(self, x: Tensor, parameter: Tensor | None) -> Tensor:
        return (compiled if x.is_cpu else torch_backend).capped(x, fixed_or_given(self.k, parameter))

    def pull_back(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        if not p.is_cpu:
            return self.differentiable_vjp(p, parameter, g, with_parameter_grad)
        product, slope = compiled.pull_back(p, g, 2.0, is_capped=True, with_parameter_grad=with_parameter_grad)
        return product, slope if slope is None or parameter is None else slope.to(parameter.dtype)

    def differentiable_vjp(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        edges_between = ((p > 0) & (p < 1)) | p.isnan()
        v = torch.where(edges_between, g, 0.0)
        mean = (v + 0 * p).sum(-1, keepdim=True) / edges_between.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(edges_between, v - mean, 0.0), mean if with_parameter_grad else None
