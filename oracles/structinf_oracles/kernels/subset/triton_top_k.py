"""The k highest numbers of rows of scores, in one launch, with the ties of :func:`.top_k.highest`.

A row stays in the registers of a program. Bisection over the bits of floating-point numbers finds the number at the
k-th place, in at most 32 or 64 counts of the row. A cumulative sum chooses the first of the numbers that are equal to
it. A program reads nothing that it writes, so that no barrier is necessary. NaN is never chosen, so that a program ends
for all scores. Importing this module imports triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from structinf.kernels.gpu import launch
from structinf.kernels.simplex.triton_above_2 import key_to_number, number_to_key
from structinf.kernels.simplex.triton_rows import load_tile, row_starts, rows_of, store_tile

__all__ = ["fits", "highest", "usable"]


def fits(scores: Tensor) -> bool:
    """Return whether a row of ``scores`` (B, d) fits into the registers of a program: 8,192 numbers of float32."""
    return rows_of(scores).fits


def highest(
    scores: Tensor, k: int | Tensor, lengths: Tensor | None = None, *, at_most: bool = False
) -> tuple[Tensor, Tensor]:
    """Return 1 for the k highest scores and 0 elsewhere, (B, d), and the number of scores to choose from, (B,).

    Parameters
    ----------
    scores : (B, d) Tensor
        The scores, −inf for forbidden elements, in rows of a size that :func:`fits`.
    k : int, or (B, 1) int64 Tensor
        The number of elements to take.
    lengths : (B,) int64 Tensor, optional
        The number of elements in use.
    at_most : bool
        Whether only scores above 0 are taken.
    """
    sizes, option = (k.contiguous(), 0) if isinstance(k, Tensor) else (None, k)
    return _launch(scores, lengths, sizes, option, AT_MOST=at_most, TAKES=True)


def usable(scores: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the scores with −inf beyond the lengths, and the number of scores above −inf; see :func:`highest`."""
    return _launch(scores, lengths, None, 0, AT_MOST=False, TAKES=False)


def _launch(
    scores: Tensor, lengths: Tensor | None, sizes: Tensor | None, k: int, **constants: bool
) -> tuple[Tensor, Tensor]:
    rows, counts = rows_of(scores), scores.new_empty(len(scores), dtype=torch.int64)
    out = rows.empty() if constants["TAKES"] or lengths is not None else None
    grid, blocks = rows.blocks()
    lengths = None if lengths is None else lengths.contiguous()
    arguments = out, counts, sizes, lengths, k, rows.count, rows.n, *rows.strides
    launch(_choose, grid, rows.tensor, *arguments, **constants, **blocks)
    return rows.tensor if out is None else out, counts


@triton.jit(do_not_specialize=["option", "rows", "n", "inner", "outer_stride"])
def _choose(
    x, out, counts, sizes, lengths, option, rows, n, inner, outer_stride, inner_stride, item,
    AT_MOST: tl.constexpr, TAKES: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Write the chosen elements, or with ``TAKES`` False the scores of the elements in use."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside, start = row < rows, row_starts(row, inner, outer_stride, inner_stride)
    scores = load_tile(x, start, item, 0, n, inside, float("-inf"), SIZE)
    if lengths is not None:
        length = tl.load(lengths + row, mask=inside, other=0)
        scores = tl.where(tl.arange(0, SIZE)[None, :] < length[:, None], scores, float("-inf"))
    k = tl.zeros([ROWS], tl.int64) + option
    if sizes is not None:
        k = tl.load(sizes + row, mask=inside, other=0)
    allowed = scores > (0.0 if AT_MOST else float("-inf"))
    count = tl.sum(allowed.to(tl.int32), 1)
    tl.store(counts + row, count.to(tl.int64), mask=inside)
    if TAKES:
        is_full = count <= k
        active = (is_full == 0) & (k > 0)
        top = tl.max(tl.where(allowed, scores, float("-inf")), 1)
        bottom = tl.min(tl.where(allowed, scores, float("inf")), 1)
        # At least k numbers reach `low`, and fewer reach `high`.
        low = number_to_key(tl.where(active, bottom, 0.0))
        high = number_to_key(tl.where(active, top, 0.0)) + 1
        middle = (low & high) + ((low ^ high) >> 1)
        while tl.max((middle > low).to(tl.int32), 0) > 0:
            reached = tl.sum((allowed & (scores >= key_to_number(middle)[:, None])).to(tl.int32), 1) >= k
            low, high = tl.where(reached, middle, low), tl.where(reached, high, middle)
            middle = (low & high) + ((low ^ high) >> 1)
        last = key_to_number(low)[:, None]
        above, tied = allowed & (scores > last), allowed & (scores == last)
        spare = k - tl.sum(above.to(tl.int32), 1)
        first = tied & (tl.cumsum(tied.to(tl.int32), 1) <= spare[:, None])
        taken = (allowed & is_full[:, None]) | ((above | first) & active[:, None])
        scores = taken.to(x.dtype.element_ty)
    if out is not None:
        store_tile(out, scores, start, item, 0, n, inside, SIZE)
