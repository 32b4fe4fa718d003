"""Projection onto the capped simplex, by one launch of a Triton kernel. Importing this module imports triton.

    p = clip(x − τ, 0, 1)  for the τ with Σ p = k.

The sum decreases in τ. Bisection over the bits of floating-point numbers finds two adjacent numbers around τ, without a
sort. Bisection of their distance follows, for the differences z of the scores to the upper number, which are exact near
τ. (The distance exceeds the rounding error of the result where scores are far from 0.) The scores with 0 < p < 1 then
determine the exact τ, as in `structinf.kernels.simplex.torch_backend.capped_simplex`. The sums over p = 1 and p < 1 are
separate, so that the smaller sum keeps its digits.

A row stays in the registers of a program, which reads x once and writes p once. A pass takes up to 32 + 26 steps for
float32, and 64 + 55 for float64, of one or two sums each. Rows of more than 8,192 numbers (4,096 in float64) use torch
operations. The kernel allocates no memory and needs no barrier.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float
from ..arrays import upcast_half
from ..gpu import launch
from . import torch_backend
from .triton_above_2 import key_to_number, number_to_key
from .triton_rows import (
    ANY,
    LINEAR,
    alpha_arguments,
    alpha_of,
    load_tile,
    row_starts,
    rows_of,
    store_tile,
)

__all__ = ["capped_simplex"]


def capped_simplex(x: Float[Tensor, "*rows n"], k: float | Tensor) -> Float[Tensor, "*rows n"]:
    """Return the projection onto the capped simplex with sum ``k``, a number or (..., 1), in float32 or float64."""
    rows = rows_of(x)
    if not rows.fits:
        return torch_backend.capped_simplex(x, k)
    out = rows.empty()
    arguments, _, _ = alpha_arguments(upcast_half(k) if isinstance(k, Tensor) else float(k))
    case = ANY if isinstance(k, Tensor) else LINEAR
    grid, constants = rows.blocks()
    least = torch.finfo(x.dtype).eps / 4
    tensors = rows.tensor, out
    launch(_project, grid, *tensors, *arguments, rows.count, rows.n, *rows.strides, CASE=case, LEAST=least, **constants)
    return out


@triton.jit
def _excess(z, k):
    """Return Σ clip(z, 0, 1) − k, and the number of entries between 0 and 1."""
    between = (z > 0) & (z < 1)
    ones = tl.sum((z >= 1).to(tl.int32), 1).to(tl.float64) - k
    count = tl.sum(between.to(tl.int32), 1)
    return tl.sum(tl.where(between, z, 0.0), 1) + ones.to(z.dtype), count


@triton.jit(do_not_specialize=["bits", "rows", "n", "inner", "outer_stride"])
def _project(
    x, out, sums, sum_stride, bits, rows, n, inner, outer_stride, inner_stride, item,
    CASE: tl.constexpr, LEAST: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    start = row_starts(row, inner, outer_stride, inner_stride)
    k = alpha_of(sums, sum_stride, bits, row, inside, CASE)
    scores = load_tile(x, start, item, 0, n, inside, float("-inf"), SIZE)
    invalid = tl.max(tl.where(scores < float("inf"), 0, 1), 1) > 0
    scores = tl.where(scores < float("inf"), scores, float("-inf"))
    allowed = scores > float("-inf")
    is_full = tl.sum(allowed.to(tl.int32), 1).to(tl.float64) <= k
    active = (is_full == 0) & (k > 0)
    top = tl.where(active, tl.max(scores, 1), 0.0)
    bottom = tl.where(active, tl.min(tl.where(allowed, scores, float("inf")), 1), 0.0)

    # The sum is at least k at `low`, and below k at `high`.
    low, high = number_to_key(bottom - 1.0) - 1, number_to_key(top)
    middle = (low & high) + ((low ^ high) >> 1)
    while tl.max((middle > low).to(tl.int32), 0) > 0:
        excess, _ = _excess(scores - key_to_number(middle)[:, None], k)
        low, high = tl.where(excess >= 0, middle, low), tl.where(excess >= 0, high, middle)
        middle = (low & high) + ((low ^ high) >> 1)
    anchor = key_to_number(high)
    z = scores - anchor[:, None]
    t = tl.maximum(key_to_number(low) - anchor, -1.0)  # τ is between anchor + t and anchor
    width = -t
    while tl.max((active & (width > LEAST)).to(tl.int32), 0) > 0:
        width *= 0.5
        excess, _ = _excess(z - (t + width)[:, None], k)
        t = tl.where(excess > 0, t + width, t)
    # The entries between 0 and 1 determine the exact τ.
    rough = z - t[:, None]
    between = (rough > 0) & (rough < 1)
    ones = tl.sum((rough >= 1).to(tl.int32), 1).to(tl.float64) - k
    count = tl.maximum(tl.sum(between.to(tl.int32), 1), 1).to(z.dtype)
    tau = (tl.sum(tl.where(between, z, 0.0), 1) + ones.to(z.dtype)) / count
    p = tl.where(between, tl.minimum(tl.maximum(z - tau[:, None], 0.0), 1.0), tl.where(rough >= 1, 1.0, 0.0))
    p = tl.where(active[:, None], p, tl.where(is_full[:, None] & allowed, 1.0, 0.0))
    store_tile(out, tl.where(invalid[:, None], float("nan"), p), start, item, 0, n, inside, SIZE)
