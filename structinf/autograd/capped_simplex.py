"""The projection onto the capped simplex, with its derivatives."""

from __future__ import annotations

from torch import Tensor

from ..kernels.simplex import dispatch, torch_backend
from .simplex_map import Parameter, SimplexMap

__all__ = ["CappedSimplexMap"]


class CappedSimplexMap(SimplexMap):
    """argmin ‖p − x‖² over 0 ≤ p ≤ 1 with Σ p = k. The parameter is k."""

    def forward(self, x: Tensor, parameter: Parameter) -> Tensor:
        return dispatch.capped_simplex(x, parameter)

    def vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        return torch_backend.capped_simplex_vjp(p, g)

    def compiled_vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        return dispatch.vjp(p, g, 2.0, is_capped=True, with_parameter_grad=with_parameter_grad)
