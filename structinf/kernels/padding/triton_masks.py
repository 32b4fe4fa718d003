"""Triton kernels of masks of parts in use, and of the goals of hypergraphs, from lengths on a GPU: one launch each.

Each number is written once, by one program, so that no barrier is necessary. No function synchronises.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch

__all__ = ["ORDERS", "goals", "mask"]

ORDERS = {None: 0, "column <= row": 1, "row <= column": 2, "row < column": 3, "0 < column != row": 4}
"""The numbers of the conditions on cells."""

_BLOCK = 1024


def mask(
    shape: Sequence[int],
    device: torch.device,
    lengths: Tensor | None = None,
    rows: int | None = None,
    columns: int | None = None,
    *,
    order: str | None = None,
    more: int = 0,
) -> Tensor:
    """Return which cells of a grid are in use, (B, *shape) bool, or (1, *shape) without lengths.

    Parameters
    ----------
    shape : (n, m), or (n, m, S)
        The numbers of rows and of columns. In a third dimension, entries other than 0 need column < row.
    device : torch.device
        The device of the result.
    lengths : (B,) or (B, k) int64 Tensor, optional
        The lengths.
    rows : int, optional
        Which of the k lengths the rows in use are below.
    columns : int, optional
        Which of the k lengths the columns in use are below.
    order : str, optional
        A key of `ORDERS`, a condition on row and column.
    more : int
        A number that is added to the lengths.
    """
    batch = 1 if lengths is None else len(lengths)
    out = torch.empty(batch, *shape, dtype=torch.bool, device=device)
    at = lengths if lengths is None or lengths.ndim == 2 else lengths.unsqueeze(1)
    one, two = (None if at is None or i is None else at[:, i] for i in (rows, columns))
    stride = 0 if at is None else at.stride(0)
    size = out[0].numel() if batch else 0
    options = {"ORDER": ORDERS[order], "MORE": more, "FIRST": len(shape) == 3, "BLOCK": _BLOCK}
    sizes = stride, size, shape[1], shape[2] if len(shape) == 3 else 1
    launch(_mask, (batch, triton.cdiv(size, _BLOCK)), out, one, two, *sizes, **options)
    return out


def goals(table: Tensor, lengths: Tensor) -> Tensor:
    """Return the goal of each instance, (B,) int64, −1 for lengths outside of the table.

    Parameters
    ----------
    table : (n,) or (n, m) int64 Tensor
        The goals by length, with −1 at the end of each dimension.
    lengths : (B, 1) or (B, 2) int64 Tensor
        The lengths.
    """
    out, sizes = lengths.new_empty(len(lengths)), (1, *table.shape) if table.ndim == 1 else table.shape
    arrays = lengths, table.contiguous(), out, *lengths.stride(), len(lengths), *sizes
    grid = (triton.cdiv(len(lengths), _BLOCK),)
    launch(_goals, grid, *arrays, PAIRS=table.ndim == 2, BLOCK=_BLOCK)
    return out


@triton.jit(do_not_specialize=["stride", "size", "columns", "S"])
def _mask(
    out, row_length, column_length, stride, size, columns, S, ORDER: tl.constexpr, MORE: tl.constexpr,
    FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a block of the mask of an instance."""
    b, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row, column = i // S // columns, i // S % columns
    in_use = i < size
    if row_length is not None:
        in_use = in_use & (row < tl.load(row_length + b * stride) + MORE)
    if column_length is not None:
        in_use = in_use & (column < tl.load(column_length + b * stride) + MORE)
    if ORDER == 1:
        in_use = in_use & (column <= row)
    elif ORDER == 2:
        in_use = in_use & (row <= column)
    elif ORDER == 3:
        in_use = in_use & (row < column)
    elif ORDER == 4:
        in_use = in_use & (column > 0) & (row != column)
    if FIRST:
        in_use = in_use & ((i % S == 0) | (column < row))
    tl.store(out + b * size + i, in_use, mask=i < size)


@triton.jit(do_not_specialize=["stride", "column_stride", "batch", "rows", "columns"])
def _goals(
    lengths, table, out, stride, column_stride, batch, rows, columns, PAIRS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Look up a block of goals."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = b < batch
    at = tl.load(lengths + b * stride, mask=inside, other=0)
    found = inside
    if PAIRS:
        found = found & (at >= 0) & (at < rows)
        column = tl.load(lengths + b * stride + column_stride, mask=inside, other=0)
        found = found & (column >= 0) & (column < columns)
        at = at * columns + column
    else:
        found = found & (at >= 0) & (at < columns)
    tl.store(out + b, tl.load(table + at, mask=found, other=-1), mask=inside)
