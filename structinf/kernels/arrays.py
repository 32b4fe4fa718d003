"""Tensors as the arrays that CPU kernels take, and in the dtypes that kernels have."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["HALF_DTYPES", "empty", "to_numpy", "upcast_half", "zeros"]


def to_numpy(*tensors: Tensor) -> list[Any]:
    """C-contiguous arrays on the CPU: views of the tensors' own memory where possible, copies where not."""
    return [t.detach().cpu().contiguous().numpy() for t in tensors]


def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU, from memory that the system clears as it is used: torch would wake its threads to fill it."""
    return torch.from_numpy(np.zeros(shape, _numpy_dtype(dtype)))


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """Memory on the CPU that fresh results cost less in than in torch's: numpy keeps it, or asks for huge pages."""
    return torch.from_numpy(np.empty(shape, _numpy_dtype(dtype)))


HALF_DTYPES = (torch.float16, torch.bfloat16)


def upcast_half(t: Tensor) -> Tensor:
    """``t``, in float32 if it has half the bits."""
    return t.float() if t.dtype in HALF_DTYPES else t


def _numpy_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
