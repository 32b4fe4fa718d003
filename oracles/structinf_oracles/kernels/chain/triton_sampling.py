"""Triton kernel of random walks along q, from the last tag to the first, by the rule of :mod:`.sampling`.

A program draws ``W`` walks of an instance, and reads the tables of :mod:`.triton_sums`, which are the work of another
launch. A walk reads the S scores that lead to its tag, and sums their probabilities in float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from structinf.kernels.gpu.triton_smooth_max import curved

from .triton_smooth_step import load_row, place_of_matrix, relative

__all__ = ["walks"]


@triton.jit(do_not_specialize=["N", "B", "T"])
def walks(
    transition, lengths, tables, uniforms, tags, a_stride, N, B, T, S,
    SP: tl.constexpr, W: tl.constexpr, ALPHA: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Write ``tags`` (N, B, T) int64, 0 in the padding, for ``uniforms`` (N, B, T) in [0, 1)."""
    b, w = tl.program_id(0).to(tl.int64), tl.program_id(1) * W + tl.arange(0, W)
    n, i, size = tl.load(lengths + b), tl.arange(0, SP)[None, :], T * S
    a, v, walk, inside = transition + b * a_stride, tables + b * 3 * size, (w.to(tl.int64) * B + b) * T, w < N
    # Variables of a loop keep their shapes, so that both blocks have names of their own.
    last, _last_peak = relative(load_row(v + (n - 1) * S, 0, S, SP, float("-inf")))
    d = (last.to(tl.float64) - tl.load(v + size)) - tl.load(v + 2 * size)
    last_q, _last_s = curved(d.to(last.dtype), ALPHA)
    tag = _draw(tl.broadcast_to(last_q[None, :], [W, SP]), tl.load(uniforms + walk + n - 1, mask=inside, other=0.0), SP)
    tl.store(tags + walk + n - 1, tag.to(tl.int64), mask=inside)
    for back in range(1, n):
        t = n - back
        old, _peak = relative(load_row(v + (t - 1) * S, 0, S, SP, float("-inf")))
        scores = a + place_of_matrix(t, S, SHARED) + i * S + tag[:, None]
        x = old.to(tl.float64)[None, :] + tl.load(scores, mask=i < S, other=float("-inf"))
        top, tau = tl.load(v + size + t * S + tag), tl.load(v + 2 * size + t * S + tag)
        q, _s = curved(((x - top[:, None]) - tau[:, None]).to(old.dtype), ALPHA)
        tag = _draw(q, tl.load(uniforms + walk + t - 1, mask=inside, other=0.0), SP)
        tl.store(tags + walk + t - 1, tag.to(tl.int64), mask=inside)
    for t in range(n, T):
        tl.store(tags + walk + t, tl.zeros([W], tl.int64), mask=inside)


@triton.jit
def _draw(q, uniform, SP: tl.constexpr):
    """Return the first state whose cumulative weight exceeds ``uniform`` times the total; never a state of weight 0.

    The parallel sum is not monotone to the last bit, so that states of weight 0 are excluded.
    """
    i = tl.arange(0, SP)[None, :]
    cumulative = tl.cumsum(q.to(tl.float64), 1)
    # The level stays strictly below the total.
    level = tl.max(cumulative, 1) * uniform * (1 - 2.0**-52)
    found = tl.min(tl.where((cumulative > level[:, None]) & (q > 0), i, SP), 1)
    last = tl.max(tl.where(q > 0, i, 0), 1)
    return tl.where(found < SP, found, last)
