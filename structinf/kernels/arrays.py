"""Tensors as the arrays that CPU kernels take."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["to_numpy"]


def to_numpy(*tensors: Tensor) -> list[Any]:
    """C-contiguous arrays on the CPU: views of the tensors' own memory where possible, copies where not."""
    return [t.detach().cpu().contiguous().numpy() for t in tensors]
