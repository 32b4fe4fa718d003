"""A Triton kernel of inner products of scores and structures, in one launch for all tensors of a tuple.

A program handles an instance, and adds its products in a fixed order, in float64. No barrier is necessary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch

__all__ = ["MOST_PARTS", "MOST_TENSORS", "inner_products"]

MOST_TENSORS = 4
"""How many tensors a launch takes."""

MOST_PARTS = 1 << 17
"""The largest number of parts of a tensor of an instance, whose products one program adds."""

_BLOCK = 1024


def inner_products(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Return the sums of products of each instance, (B,), in the widest dtype of the tensors, with −inf · 0 = 0.

    Parameters
    ----------
    tensors, others : sequences of up to `MOST_TENSORS` (B | 1, *event) Tensor
        Scores, and structures or means. The tensors of a pair have the same event shape. A tensor of one instance is
        shared by all others.
    """
    pairs = list(zip(tensors, others, strict=True))
    batch = next((len(t) for t in (*tensors, *others) if len(t) != 1), 1)
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in (*tensors, *others)) else torch.float32
    out = pairs[0][0].new_empty(batch, dtype=dtype)
    arrays, sizes = [], []
    for pair in pairs:
        arrays.append([t.contiguous() for t in pair])
        parts = pair[0].shape[1:].numel()
        sizes += [parts, *(0 if len(t) == 1 else parts for t in pair)]
    missing = MOST_TENSORS - len(pairs)
    arguments = *itertools.chain(*arrays), *[None] * (2 * missing), out, *sizes, *[0] * (3 * missing)
    launch(_add_products, (batch,), *arguments, BLOCK=_BLOCK)
    return out


_SIZES = [f"{name}{i}" for i in range(MOST_TENSORS) for name in ("size", "x_row", "y_row")]


@triton.jit(do_not_specialize=_SIZES)
def _add_products(
    x0, y0, x1, y1, x2, y2, x3, y3, out, size0, x_row0, y_row0, size1, x_row1, y_row1, size2, x_row2, y_row2, size3,
    x_row3, y_row3, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the inner product of an instance."""
    b = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float64)
    total = _add_row(total, x0 + b * x_row0, y0 + b * y_row0, size0, BLOCK)
    if x1 is not None:
        total = _add_row(total, x1 + b * x_row1, y1 + b * y_row1, size1, BLOCK)
    if x2 is not None:
        total = _add_row(total, x2 + b * x_row2, y2 + b * y_row2, size2, BLOCK)
    if x3 is not None:
        total = _add_row(total, x3 + b * x_row3, y3 + b * y_row3, size3, BLOCK)
    tl.store(out + b, tl.sum(total, 0).to(out.dtype.element_ty))


@triton.jit
def _add_row(total, x, y, size, BLOCK: tl.constexpr):
    """Return ``total`` with the products of a row added to the lanes."""
    for first in range(0, size, BLOCK):
        i = first + tl.arange(0, BLOCK)
        weight = tl.load(y + i, mask=i < size, other=0.0).to(tl.float64)
        score = tl.load(x + i, mask=(i < size) & (weight != 0), other=0.0).to(tl.float64)
        total += score * weight
    return total
