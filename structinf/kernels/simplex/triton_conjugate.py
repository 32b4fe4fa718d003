"""The conjugate of Tsallis entropies, by one launch of a Triton kernel. Importing this module imports triton.

The formula is in `structinf.kernels.simplex.tsallis_conjugate`. Sums and products are in float64, so that losses far
below 1 keep their digits. Logarithms and powers have the dtype of p; the value is stationary in p, and their rounding
errors are relative to each summand. The kernel reads x and p once, in tiles of at most 2,048 numbers, and allocates no
memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...shapes import Float
from ..gpu import launch
from ..gpu.triton_exp_log import exp_minus_1
from .triton_rows import (
    LINEAR,
    SOFTMAX,
    SQUARE,
    alpha_arguments,
    alpha_of,
    load_tile,
    row_starts,
    rows_of,
)

__all__ = ["tsallis_conjugate"]


def tsallis_conjugate(
    x: Float[Tensor, "*rows n"], p: Float[Tensor, "*rows n"], origin: Float[Tensor, "*rows"], alpha: float
) -> Float[Tensor, "*rows"]:
    """Return ⟨p, x − origin⟩ + (1 − Σ p^α) / (α (α − 1)) in float64, for the maximizer p in the dtype of x."""
    rows = rows_of(p, 2)
    out = p.new_empty(origin.shape, dtype=torch.float64)
    arguments, case, _ = alpha_arguments(alpha)
    grid, constants = rows.blocks()
    tensors = rows.like(x), rows.tensor, origin.contiguous(), out
    launch(_conjugate, grid, *tensors, *arguments, rows.count, rows.n, *rows.strides, CASE=case, **constants)
    return out


@triton.jit(do_not_specialize=["bits", "rows", "n", "inner", "outer_stride"])
def _conjugate(
    x, p, origins, out, alphas, alpha_stride, bits, rows, n, inner, outer_stride, inner_stride, item,
    CASE: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    start = row_starts(row, inner, outer_stride, inner_stride)
    origin = tl.load(origins + row, mask=inside, other=0.0).to(tl.float64)
    alpha = alpha_of(alphas, alpha_stride, bits, row, inside, CASE)[:, None]
    # With ratio = (p^a − 1) / a, H is −Σ p ratio / α, and ⟨p, ∇H⟩ is −Σ p (ratio + 1 / α).
    total = tl.zeros([ROWS], tl.float64)
    value, slope = total, total
    for begin in range(0, n, SIZE):
        q = load_tile(p, start, item, begin, n, inside, 0.0, SIZE)
        positive = q != 0
        scores = load_tile(x, start, item, begin, n, inside, 0.0, SIZE).to(tl.float64)
        gain = tl.where(positive, scores, origin[:, None]) - origin[:, None]
        if CASE == LINEAR:
            ratio = q.to(tl.float64) - 1.0
        elif CASE == SQUARE:
            ratio = 2.0 * tl.sqrt(q.to(tl.float64)) - 2.0
        else:
            log_q = tl.log(tl.where(positive, q, 1.0))
            if CASE == SOFTMAX:
                ratio = log_q.to(tl.float64)
            else:
                a = alpha - 1.0
                ratio = exp_minus_1((a * log_q).to(q.dtype)).to(tl.float64) / a
        q = q.to(tl.float64)
        total += tl.sum(q, 1)
        if CASE == SOFTMAX:
            value += tl.sum(q * (gain - ratio), 1)
            slope += tl.sum(q * (gain - (ratio + 1.0)), 1)
        elif CASE == SQUARE:
            value += tl.sum(q * (gain - ratio / 1.5), 1)
            slope += tl.sum(q * (gain - (ratio + 1.0 / 1.5)), 1)
        elif CASE == LINEAR:
            value += tl.sum(q * (gain - 0.5 * ratio), 1)
            slope += tl.sum(q * (gain - (ratio + 0.5)), 1)
        else:
            value += tl.sum(q * (gain - ratio / alpha), 1)
            slope += tl.sum(q * (gain - (ratio + 1.0 / alpha)), 1)
    # Changes of p along p change the value by `slope`. Removing the excess of Σ p over 1 leaves second-order errors.
    conjugate = value - slope * ((total - 1.0) / tl.where(total != 0, total, 1.0))
    tl.store(out + row, tl.where(total != 0, conjugate, 0.0), mask=inside)
