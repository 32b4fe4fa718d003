"""Rows of a tensor for Triton kernels of maps to the simplex. Importing this module imports triton.

A kernel processes ``ROWS`` rows in each program, ``SIZE`` numbers of each row at a time. All tensors (..., n) of a
launch have the same strides, and the leading dimensions merge into at most two dimensions. So the maps along any
dimension of a contiguous tensor need no copy, if rows have at most 1,024 numbers (512 for α other than 1, 1.5 and 2).

``CASE`` is the range of α, so that each range compiles to a kernel without branches. α of `BELOW_2` and `ABOVE_2` is
given as the bits of a float64 number, since float arguments of a kernel are float32. α of `ANY` is a tensor with a
number for each row.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "ABOVE_2",
    "ANY",
    "BELOW_2",
    "LINEAR",
    "SOFTMAX",
    "SQUARE",
    "Rows",
    "alpha_arguments",
    "alpha_of",
    "load_tile",
    "row_starts",
    "rows_of",
    "store_tile",
]

SOFTMAX, SQUARE, LINEAR = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
BELOW_2, ABOVE_2, ANY = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)

_MOST_NUMBERS = 8192
"""The most numbers of a program: 16 of float32 for each thread of 16 warps."""


@dataclass(frozen=True)
class Rows:
    """A tensor (..., n) without gaps in memory, and the launch parameters for its rows."""

    tensor: Tensor
    strides: tuple[int, int, int, int]
    """The number of inner rows, the strides of outer and inner rows, and the stride of the numbers of a row."""
    level: int
    """How often the most numbers of a program are halved, for wide numbers and kernels that need many registers."""

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.tensor.shape[:-1].numel()

    @property
    def n(self) -> int:
        """The length of a row."""
        return self.tensor.shape[-1]

    @property
    def fits(self) -> bool:
        """Whether a row fits into the registers of a program."""
        return self.n <= _MOST_NUMBERS >> self.level

    def empty(self) -> Tensor:
        """Return an uninitialised tensor with the shape, the dtype and the strides of the rows."""
        return torch.empty_like(self.tensor)

    def like(self, other: Tensor) -> Tensor:
        """Return ``other`` with the dtype and the strides of the rows, a copy if they differ."""
        if other.stride() == self.tensor.stride() and other.dtype == self.tensor.dtype:
            return other
        return self.empty().copy_(other)

    def blocks(self) -> tuple[tuple[int], dict[str, Any]]:
        """Return the grid, and the constants of a kernel, including the number of warps.

        The constants depend on the row, and not on the number of rows, so results do not depend on the batch.
        """
        size = triton.next_power_of_2(max(self.n, 1)) if self.fits else _MOST_NUMBERS >> (self.level + 1)
        per_warp = 512 if self.fits and not self.level else 256
        side_by_side = 1 if self.strides[3] == 1 else _rows_of_sector(self.tensor.dtype)
        rows = max(2 * per_warp // size, side_by_side)
        warps = min(max(rows * size // per_warp, 4), 16)
        return (-(-self.count // rows),), {"warps": warps, "ROWS": rows, "SIZE": size}


def rows_of(x: Tensor, level: int = 0) -> Rows:
    """Return the rows of ``x``, copied if a kernel cannot read the strides of ``x``.

    Parameters
    ----------
    x : (..., n) Tensor
        Numbers in float32 or float64.
    level : int
        0 for a kernel with few numbers in registers for each entry, 1 for powers, and 2 for powers in float64.
    """
    level = min(level + (x.dtype == torch.float64), 2)
    strides = _merged_strides(x, _MOST_NUMBERS >> level)
    if strides is None:
        x = x.contiguous()
        strides = x.shape[:-1].numel(), 0, x.shape[-1], 1
    return Rows(x, strides, level)


def _rows_of_sector(dtype: torch.dtype) -> int:
    """Return how many numbers fill the 32 bytes that a device reads at once."""
    return 32 // dtype.itemsize


def _merged_strides(x: Tensor, most: int) -> tuple[int, int, int, int] | None:
    if x.is_contiguous():
        return x.shape[:-1].numel(), 0, x.shape[-1], 1
    merged: list[tuple[int, int]] = []
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        if size > 1 and merged and merged[-1][1] == size * stride:
            merged[-1] = merged[-1][0] * size, stride
        elif size > 1:
            merged.append((size, stride))
    if len(merged) > 2 or torch.empty_like(x).stride() != x.stride():
        return None
    (_, outer), (inner, step) = [(1, 0)] * (2 - len(merged)) + merged
    is_fast = x.stride(-1) == 1 or (step == 1 and x.shape[-1] * _rows_of_sector(x.dtype) <= most)
    return (inner, outer, step, x.stride(-1)) if is_fast else None


def alpha_arguments(alpha: float | Tensor) -> tuple[tuple[Tensor | None, int, int], Any, int]:
    """Return the arguments of α (a tensor, its stride, and the bits of a number), ``CASE`` and the kernel level."""
    if isinstance(alpha, Tensor):
        is_shared = not any(alpha.stride()) or alpha.numel() == 1
        return (alpha if is_shared else alpha.contiguous(), 0 if is_shared else 1, 0), ANY, 2
    usual = {1: SOFTMAX, 1.5: SQUARE, 2: LINEAR}
    case, level = (usual[alpha], 0) if alpha in usual else (BELOW_2, 1) if alpha < 2 else (ABOVE_2, 2)
    return (None, 0, struct.unpack("<q", struct.pack("<d", alpha))[0]), case, level


@triton.jit
def row_starts(row, inner, outer_stride, inner_stride):
    """Return the offsets of the rows with the numbers ``row``."""
    return (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * inner_stride


@triton.jit
def load_tile(x, start, item, begin, n, inside, other, SIZE: tl.constexpr):
    """Return ``SIZE`` numbers of each row from position ``begin`` on, with ``other`` beyond the end."""
    column = begin + tl.arange(0, SIZE)
    mask = inside[:, None] & (column < n)[None, :]
    return tl.load(x + start[:, None] + (column.to(tl.int64) * item)[None, :], mask=mask, other=other)


@triton.jit
def store_tile(x, values, start, item, begin, n, inside, SIZE: tl.constexpr):
    """Write ``SIZE`` numbers of each row from position ``begin`` on."""
    column = begin + tl.arange(0, SIZE)
    mask = inside[:, None] & (column < n)[None, :]
    tl.store(x + start[:, None] + (column.to(tl.int64) * item)[None, :], values, mask=mask)


@triton.jit
def alpha_of(alphas, alpha_stride, bits, row, inside, CASE: tl.constexpr):
    """Return α of each row, in float64."""
    if CASE == ANY:
        alpha = tl.load(alphas + row.to(tl.int64) * alpha_stride, mask=inside, other=1.0).to(tl.float64)
    else:
        alpha = tl.zeros(row.shape, tl.float64) + bits.to(tl.int64).to(tl.float64, bitcast=True)
    return alpha
