"""Triton kernels for the arguments of a call: scores without padding, checks of scores, and lengths in their range.

=================  ========  ==========================================================================
function           launches  instead of
=================  ========  ==========================================================================
keep_valid         1         for each tensor, an inverted mask, a copy with 0 in the padding, and a maximum
clamp_lengths      1         the smallest and the largest length, and a copy inside the range
=================  ========  ==========================================================================

Programs share no numbers, so that no barrier is necessary. No function synchronises.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch

__all__ = ["clamp_lengths", "keep_valid"]

_TENSORS = 4
"""How many tensors of scores a launch takes."""

_BLOCK = 4096
_MOST_PROGRAMS = 264
"""Two programs for each multiprocessor of an H100 or H200: each returns a number, which Python reads."""

_SHAPES = [f"{name}{i}" for i in range(_TENSORS) for name in ("size", "rows", "columns", "above", "row", "column")]


def keep_valid(tensors: Sequence[Tensor], masks: Sequence[Tensor] | None) -> tuple[list[Tensor], Tensor]:
    """Return contiguous copies with 0 where a mask is False, and numbers that are 0 unless valid scores are wrong.

    Parameters
    ----------
    tensors : sequence of Tensor
        Scores on one device, in any floating-point dtype.
    masks : sequence of bool Tensor, or None
        A mask for each tensor, which broadcasts to the tensor. By default all scores are valid, and the tensors
        themselves are returned.

    Returns
    -------
    kept : list of Tensor
        The scores without padding.
    wrong : (n,) float64 Tensor
        Above 0 if a program has found NaN or +inf among valid scores. Values of sums are float64 too, so that one
        launch joins the numbers of all checks.
    """
    kept = list(tensors) if masks is None else [t.new_empty(t.shape) for t in tensors]
    flags = []
    for first in range(0, len(tensors), _TENSORS):
        group = range(first, min(first + _TENSORS, len(tensors)))
        blocks = max(-(-tensors[i].numel() // _BLOCK) for i in group)
        flags.append(tensors[first].new_empty(min(blocks, _MOST_PROGRAMS), dtype=torch.float64))
        scores, valid, out, shapes = [], [], [], []
        for i in group:
            scores.append(tensors[i].contiguous())
            mask = None if masks is None else masks[i].expand(tensors[i].shape)
            mask, shape = (None, (1, 1, 0, 0, 0)) if mask is None else _as_matrices(mask)
            valid.append(mask)
            out.append(None if mask is None else kept[i])
            shapes += [tensors[i].numel(), *shape]
        missing = _TENSORS - len(group)
        arrays = [x + [None] * missing for x in (scores, valid, out)]
        arguments = *itertools.chain(*arrays), flags[-1], len(flags[-1]), *shapes, *[0] * (6 * missing)
        launch(_keep, (len(flags[-1]),), *arguments, warps=8, BLOCK=_BLOCK)
    return kept, flags[0] if len(flags) == 1 else torch.cat(flags)


def clamp_lengths(columns: Sequence[Tensor], low: int, highs: Sequence[int], *, nested: bool = False) -> Tensor:
    """Move one or two columns of lengths in place into [``low``, ``highs[i]``]; return (1,) whether any moved.

    Parameters
    ----------
    columns : sequence of (B,) int64 Tensor
        The lengths, not empty.
    low : int
        The least valid length.
    highs : sequence of int
        The largest valid length of each column.
    nested : bool
        Whether a length of the second column must not exceed the length of the first column.
    """
    wrong = columns[0].new_empty(1, dtype=torch.float64)
    second, has_second = columns[-1], len(columns) == 2
    arrays = columns[0], second if has_second else None, wrong, columns[0].stride(0), second.stride(0)
    sizes = len(second), low, highs[0], highs[-1]
    launch(_clamp, (1,), *arrays, *sizes, NESTED=nested and has_second, BLOCK=1024)
    return wrong


def _as_matrices(mask: Tensor) -> tuple[Tensor, tuple[int, int, int, int, int]]:
    """Return a mask, and (rows, columns) and strides of matrices into which its dimensions merge; a copy if need be."""
    sizes, strides = [1], [0]
    for size, stride in zip(mask.shape, mask.stride(), strict=True):
        if size == 1:
            continue
        if strides[-1] == size * stride and len(sizes) > 1:
            sizes[-1], strides[-1] = sizes[-1] * size, stride
        else:
            sizes.append(size)
            strides.append(stride)
    sizes, strides = sizes[1:], strides[1:]
    if len(sizes) > 3:
        return mask.contiguous(), (1, max(mask.numel(), 1), 0, 0, 1)
    sizes, strides = [1] * (3 - len(sizes)) + sizes, [0] * (3 - len(strides)) + strides
    return mask, (sizes[1], sizes[2], *strides)


@triton.jit(do_not_specialize=["programs", *_SHAPES])
def _keep(
    x0, x1, x2, x3, mask0, mask1, mask2, mask3, out0, out1, out2, out3, wrong, programs, size0, rows0, columns0,
    above0, row0, column0, size1, rows1, columns1, above1, row1, column1, size2, rows2, columns2, above2, row2,
    column2, size3, rows3, columns3, above3, row3, column3, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy valid scores, and write for each program whether one of them is NaN or +inf."""
    found = tl.zeros([BLOCK], tl.float64)
    found = _keep_one(found, x0, mask0, out0, programs, size0, rows0, columns0, above0, row0, column0, BLOCK)
    if x1 is not None:
        found = _keep_one(found, x1, mask1, out1, programs, size1, rows1, columns1, above1, row1, column1, BLOCK)
    if x2 is not None:
        found = _keep_one(found, x2, mask2, out2, programs, size2, rows2, columns2, above2, row2, column2, BLOCK)
    if x3 is not None:
        found = _keep_one(found, x3, mask3, out3, programs, size3, rows3, columns3, above3, row3, column3, BLOCK)
    tl.store(wrong + tl.program_id(0), tl.max(found, 0))


@triton.jit
def _keep_one(found, x, mask, out, programs, size, rows, columns, above, row, column, BLOCK: tl.constexpr):
    """Process a tensor, and return ``found`` with 1 where a lane has met NaN or +inf."""
    start = tl.program_id(0).to(size.dtype) * BLOCK  # 64 bits only for more than 2³¹ scores
    for first in range(start, size, programs * BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < size
        score = tl.load(x + i, mask=inside, other=0.0)
        if mask is not None:
            matrix, rest = i // columns // rows, i // columns % rows
            valid = tl.load(mask + matrix * above + rest * row + i % columns * column, mask=inside, other=0)
            score = tl.where(valid, score, 0.0)
            tl.store(out + i, score, mask=inside)
        found = tl.where(score < float("inf"), found, 1.0)
    return found


@triton.jit(do_not_specialize=["stride0", "stride1", "batch", "low", "high0", "high1"])
def _clamp(
    column0, column1, wrong, stride0, stride1, batch, low, high0, high1, NESTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Clamp the lengths, and write whether a length has changed."""
    found = tl.zeros([BLOCK], tl.float64)
    for first in range(0, batch, BLOCK):
        b = first + tl.arange(0, BLOCK)
        length = tl.load(column0 + b * stride0, mask=b < batch, other=low)
        clamped = tl.minimum(tl.maximum(length, low), high0)
        tl.store(column0 + b * stride0, clamped, mask=b < batch)
        found = tl.where(clamped == length, found, 1.0)
        if column1 is not None:
            other = tl.load(column1 + b * stride1, mask=b < batch, other=low)
            moved = tl.minimum(tl.maximum(other, low), high1)
            if NESTED:
                moved = tl.minimum(moved, clamped)
            tl.store(column1 + b * stride1, moved, mask=b < batch)
            found = tl.where(moved == other, found, 1.0)
    tl.store(wrong, tl.max(found, 0))
