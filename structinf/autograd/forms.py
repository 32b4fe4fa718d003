"""Functions take and give tensors alone: the way from them to potentials and back."""

from __future__ import annotations

import torch
from torch import Tensor

from ..parts import Parts

__all__ = ["pack", "zeros_for_missing"]


def pack(tensors: tuple[Tensor, ...], is_tuple: bool) -> Parts:
    """``tensors`` as a tuple, or the only one."""
    return tensors if is_tuple else tensors[0]


def zeros_for_missing(cotangents: tuple[Tensor | None, ...], like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """``cotangents`` with zeros for None, of the shapes of ``like``."""
    return tuple(torch.zeros_like(t) if c is None else c for c, t in zip(cotangents, like, strict=True))
