"""Triton kernel of the k best tag sequences, by the rule of :mod:`.k_best`, in one launch.

For each state j, the K best prefixes are drawn one by one from the lists of its predecessors, which are sorted. A tile
holds the best remaining score of each predecessor i, and ``rank`` counts how many prefixes of i are taken. Equal scores
go to the lowest state. Scores are summed in float64.

The arguments are those of :mod:`.triton_sums`. The scratch memory is ``best`` (B, 2, S, K) float64, the lists of two
steps, and ``origins`` (B, T, S, K) int32, the predecessor of each prefix: state · K + rank. The first K numbers of step
0, which has no predecessors, are the ends of the sequences. All lists of the step before pass through memory. A barrier
at the start of each step separates its reads from the writes of the step before, and its writes from the reads of the
step before. The barrier after the last step does so for the end, and the next one for the backtrace.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_smooth_step import load_row, load_tile, place_of_matrix

__all__ = ["k_best"]


@triton.jit(do_not_specialize=["u_stride", "B", "T", "K"])
def k_best(
    unary, transition, lengths, best, origins, tags, scores, u_stride, a_stride, B, T, S, K,
    SP: tl.constexpr, BJ: tl.constexpr, KP: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Write ``tags`` (K, B, T) int64, 0 in the padding, and ``scores`` (K, B) float64, −inf if there is no sequence."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b)
    u, a, lists, origin = unary + b * u_stride, transition + b * a_stride, best + b * 2 * S * K, origins + b * T * S * K
    i = tl.arange(0, SP)
    never = tl.full([SP], float("-inf"), tl.float64)
    tl.store(lists + i * K, load_row(u, 0, S, SP, float("-inf")).to(tl.float64), mask=i < S)
    for r in range(1, K):
        tl.store(lists + i * K + r, never, mask=i < S)
    for t in range(1, n):
        tl.debug_barrier()
        old, new, matrix = lists + ((t - 1) % 2) * S * K, lists + (t % 2) * S * K, a + place_of_matrix(t, S, SHARED)
        for first in range(0, S, BJ):
            j = first + tl.arange(0, BJ)
            step = load_tile(matrix, first, S, SP, BJ, float("-inf")).to(tl.float64)
            node = load_row(u + t * S, first, S, BJ, float("-inf")).to(tl.float64)
            _merge(old, step, node, new + j * K, 1, origin + t * S * K + j * K, j < S, S, K, SP)
    tl.debug_barrier()
    here = tl.arange(0, 1)
    step = tl.where(i < S, 0.0, float("-inf")).to(tl.float64)[:, None]
    end = tl.zeros([1], tl.float64)
    _merge(lists + ((n - 1) % 2) * S * K, step, end, scores + b + here, B, origin + here, here < 1, S, K, SP)
    tl.debug_barrier()
    r = tl.arange(0, KP)
    inside, walk = r < K, (r.to(tl.int64) * B + b) * T
    valid = inside & (tl.load(scores + r.to(tl.int64) * B + b, mask=inside, other=float("-inf")) > float("-inf"))
    place = tl.load(origin + r, mask=valid, other=0)
    tl.store(tags + walk + n - 1, (place // K).to(tl.int64), mask=inside)
    for back in range(1, n):
        t = n - back
        place = tl.load(origin + t * S * K + place, mask=valid, other=0)
        tl.store(tags + walk + t - 1, (place // K).to(tl.int64), mask=inside)
    for t in range(n, T):
        tl.store(tags + walk + t, tl.zeros([KP], tl.int64), mask=inside)


@triton.jit
def _merge(old, step, node, out, out_stride, origin, inside, S, K, SP: tl.constexpr):
    """Write the K best sums of a number of the lists ``old`` (S, K), ``step`` (i, j) and ``node`` (j) of each column j.

    The lists of column j start at ``out`` and ``origin``.
    """
    i = tl.arange(0, SP)[:, None]
    rank = tl.zeros_like(step).to(tl.int32)
    x = tl.load(old + i * K, mask=i < S, other=float("-inf")) + step
    for r in range(K):
        top = tl.max(x, 0)
        exists = top > float("-inf")
        winner = tl.min(tl.where(x == top[None, :], i, SP), 0)
        taken = (i == winner[None, :]) & exists[None, :]
        place = tl.sum(tl.where(taken, i * K + rank, 0), 0)
        tl.store(out + r * out_stride, top + node, mask=inside)
        tl.store(origin + r, place, mask=inside)
        rank += taken.to(tl.int32)
        following = tl.load(old + i * K + rank, mask=taken & (rank < K), other=float("-inf"))
        x = tl.where(taken, following + step, x)
