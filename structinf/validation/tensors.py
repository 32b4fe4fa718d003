"""Checks of tensors: their dtype, and whether they have values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..compile.torch_private import is_fake_tensor
from ..errors import UnsupportedError

__all__ = ["FLOATING_DTYPES", "check_dense", "check_floating", "check_real", "check_values"]

FLOATING_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""The supported dtypes of scores. Torch has few operators for the 8-bit and 4-bit dtypes."""


def check_dense(name: str, t: Tensor) -> None:
    """Raise TypeError if the argument ``name`` is a nested or sparse tensor, which lacks many operators."""
    if t.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor, got a nested tensor; call .to_padded_tensor(0.0) first, and pass the "
            "lengths"
        )
    if t.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {t.layout}; call .to_dense() first")


def check_floating(name: str, value: Any, what: str = "a tensor") -> None:
    """Raise TypeError unless the argument ``name`` is a floating-point tensor, described by ``what`` in the message.

    Raises UnsupportedError for a tensor without values.
    """
    if not isinstance(value, Tensor) or value.dtype not in FLOATING_DTYPES:
        received, hint = type(value).__name__, ""
        if isinstance(value, Tensor):
            received = f"a tensor of {value.dtype}"
            hint = "; convert it to float16, bfloat16, float32 or float64" if value.is_floating_point() else ""
        raise TypeError(f"{name} must be {what} in floating point, got {received}{hint}")
    check_values(name, value)


def check_real(name: str, value: Any) -> None:
    """Raise TypeError if the argument ``name`` is a complex tensor or number, whose imaginary part would be lost.

    Raises UnsupportedError for a tensor without values.
    """
    if isinstance(value, Tensor) and value.is_complex():
        raise TypeError(f"{name} must be real, got a tensor of {value.dtype}; pass its real part, {name}.real")
    if isinstance(value, complex):
        raise TypeError(f"{name} must be real, got {value!r}")
    if isinstance(value, Tensor):
        check_values(name, value)


def check_values(name: str, t: Tensor) -> None:
    """Raise UnsupportedError if the argument ``name`` is a meta or fake tensor, which has a shape but no values."""
    if torch.compiler.is_compiling():
        return  # torch.compile and torch.export propagate shapes by fake tensors
    if t.is_meta or is_fake_tensor(t):
        raise UnsupportedError(
            f"{name} is a {'meta' if t.is_meta else 'fake'} tensor of shape {tuple(t.shape)}, without the values that "
            "the result depends on; pass a tensor with values (only torch.compile computes shapes alone)"
        )
