"""Triton kernel of the best tag sequence: Viterbi's forward pass and the backtrace, in one launch.

The rule is that of :mod:`.viterbi`, with the same sums, so that ties go to the same tags. The forward pass stores the
scores of the best prefixes. The backtrace computes each predecessor from them, with S operations per step. The
arguments are those of :mod:`.triton_sums`. A barrier separates the last stores of the forward pass from the backtrace.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_smooth_step import load_row, place_of_matrix
from .triton_sums import forward
from .triton_tiled_sums import tiled_forward

__all__ = ["viterbi"]


@triton.jit(do_not_specialize=["u_stride", "T"])
def viterbi(
    unary, transition, lengths, table, tags, feasible, u_stride, a_stride, T, S,
    SP: tl.constexpr, BJ: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Write ``tags`` (B, T) int64, 0 in the padding, and ``feasible`` (B,), whether a sequence is allowed."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b)
    u, a, v, out, size = unary + b * u_stride, transition + b * a_stride, table + b * T * S, tags + b * T, T * S
    if SP == BJ:
        value = forward(u, a, v, size, n, S, u, a, SP, float("inf"), SHARED, 1, False)
    else:
        value = tiled_forward(u, a, v, size, n, S, u, a, SP, BJ, float("inf"), SHARED, 1, False, False)
    tl.store(feasible + b, value > float("-inf"))
    tl.debug_barrier()
    tag = _lowest_best(load_row(v + (n - 1) * S, 0, S, SP, float("-inf")), SP)
    tl.store(out + n - 1, tag.to(tl.int64))
    i = tl.arange(0, SP)
    for back in range(1, n):
        t = n - back
        column = a + place_of_matrix(t, S, SHARED) + i * S + tag
        scores = tl.load(column, mask=i < S, other=float("-inf"))
        tag = _lowest_best(load_row(v + (t - 1) * S, 0, S, SP, float("-inf")) + scores, SP)
        tl.store(out + t - 1, tag.to(tl.int64))
    for first in range(n, T, SP):
        tl.store(out + first + i, tl.zeros([SP], tl.int64), mask=first + i < T)


@triton.jit
def _lowest_best(x, SP: tl.constexpr):
    """Return the lowest index of the largest number."""
    return tl.min(tl.where(x == tl.max(x, 0), tl.arange(0, SP), SP), 0)
