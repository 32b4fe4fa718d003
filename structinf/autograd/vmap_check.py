"""Checks of values that also work within torch.func's transforms, where a tensor stands for many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import Function

__all__ = ["check_under_vmap"]


def check_under_vmap(t: Tensor, check: Callable[[Tensor], None]) -> Tensor:
    """``t``, after ``check`` has seen it: with dimensions in front that vmap hides elsewhere."""
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
