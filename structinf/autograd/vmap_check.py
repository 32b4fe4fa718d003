"""Checks of tensor values that also work inside torch.func.vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .function import Function

__all__ = ["check_under_vmap"]


def check_under_vmap(t: Tensor, check: Callable[[Tensor], None]) -> Tensor:
    """Call ``check`` with ``t``, including the batch dimensions that vmap hides, and return ``t``."""
    return _CheckUnderVmap.apply(t, check)


class _CheckUnderVmap(Function):
    @staticmethod
    def forward(t: Tensor, check: Callable[[Tensor], None]) -> Tensor:
        check(t)
        return t.view_as(t)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, None

    @staticmethod
    def vmap(info: Any, dims: Any, t: Tensor, check: Callable[[Tensor], None]) -> Any:
        return check_under_vmap(t.movedim(dims[0], 0), check), 0
