"""Triton kernel of walks back through the choices of :mod:`.triton_sums`: the best segmentation, and samples.

The rules are those of :mod:`.walks`. A program follows one walk of an instance, reads the tables that are the work of
another launch, and writes a structure in the form of θ. A barrier follows the zeros that all threads write first.
Counts are read and written by one thread of the program, so that no other barrier is necessary.
"""

from __future__ import annotations

import triton
import triton.language as tl

from structinf.kernels.gpu.triton_smooth_max import finite

from .triton_choices import duration_tile, exp_of, load_row

__all__ = ["segment_walks"]

_NONE: tl.constexpr = tl.constexpr(2147483647)


@triton.jit(do_not_specialize=["N", "T"])
def segment_walks(
    durations, transition, lengths, tables, uniforms, out_steps, out_boundaries, out_durations, out_transition,
    d_stride, a_stride, size, rows, N, T, S, D,
    SP: tl.constexpr, K: tl.constexpr, W: tl.constexpr, HARD: tl.constexpr,
):  # fmt: skip
    """Write the segmentations (n, B, *event) for ``uniforms`` (n, B, 2 T) in [0, 1), or with ``HARD`` the best one.

    ``W`` is the number of durations or steps that a walk visits at a time. N is the size of the batch.
    """
    b, walk = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64) * N + tl.program_id(0)
    n, s, i = tl.load(lengths + b).to(tl.int32), tl.arange(0, SP), tl.arange(0, W)
    d, table, width = durations + b * d_stride, tables + b * size, (b * 0 + rows) * S
    labels, sides, counts = out_steps + walk * T * S, out_boundaries + walk * 2 * T * S, out_durations + walk * D * S
    one = tl.full([], 1.0, out_steps.dtype.element_ty)
    _clear(labels, T * S)
    _clear(sides, 2 * T * S)
    _clear(counts, D * S)
    if transition is not None:
        _clear(out_transition + walk * S * S, S * S)
    tl.debug_barrier()
    end, after = n - 1, n * 0
    while end >= 0:
        x, row = load_row(table + width + end * S, S, SP, float("-inf")), table + end * S
        if transition is not None:
            column = tl.load(transition + b * a_stride + s * S + after, mask=s < S, other=0.0).to(tl.float64)
            x += tl.where(end < n - 1, column, 0.0)
        if HARD:
            label, longer = _best(x, d, table, width, end, S, D, SP, K, transition is not None)
        else:
            u = uniforms + walk * 2 * T + 2 * end
            label = _draw(exp_of(x - finite(tl.max(x, 0)), d), tl.load(u), SP)
            since = tl.load(row + 6 * width + label).to(tl.int32)
            top, rest = tl.load(row + 2 * width + label), tl.load(row + 3 * width + label)
            count = tl.minimum(D, end + 1 - since)
            longer = _draw_duration(table, d, end, label, count, top, rest, tl.load(u + 1), S, W)
        label, longer = tl.minimum(label, S - 1), tl.minimum(longer, tl.minimum(end, D - 1))
        first = end - longer
        for step in range(first, end + 1, W):
            t = step + i
            tl.store(labels + t * S + label, tl.full([W], 1.0, out_steps.dtype.element_ty), mask=t <= end)
        tl.store(sides + 2 * first * S + label, one)
        tl.store(sides + (2 * end + 1) * S + label, one)
        place = counts + longer * S + label
        tl.store(place, tl.load(place) + one)
        if transition is not None:
            move = out_transition + walk * S * S + label * S + after
            tl.store(move, tl.load(move) + one, mask=end < n - 1)
        end, after = first - 1, label


@triton.jit
def _clear(out, size):
    """Set ``size`` numbers to 0."""
    i = tl.arange(0, 1024)
    for first in range(0, size, 1024):
        tl.store(out + first + i, tl.zeros([1024], out.dtype.element_ty), mask=first + i < size)


@triton.jit
def _best(x, d, table, width, end, S, D, SP: tl.constexpr, K: tl.constexpr, LABEL_FIRST: tl.constexpr):
    """Return the label and the duration, less 1, of the best segment that ends at a step; ties as in :mod:`.walks`."""
    s = tl.arange(0, SP)
    is_best = x == tl.max(x, 0)
    if LABEL_FIRST:
        is_best = s == tl.min(tl.where(is_best, s, SP), 0)
    top = load_row(table + 2 * width + end * S, S, SP, 0.0)
    since = load_row(table + 6 * width + end * S, S, SP, float("inf"))
    found = tl.full([], _NONE, tl.int32)
    for first in range(0, tl.minimum(end + 1, D), K):
        scores = duration_tile(table, d, end, first, since, -1, S, D, K, SP)
        key = (first + tl.arange(0, K)[:, None]) * SP + s[None, :]
        is_found = (scores == top[None, :]) & is_best[None, :]
        found = tl.minimum(found, tl.min(tl.min(tl.where(is_found, key, _NONE), 1), 0))
    return found % SP, found // SP


@triton.jit
def _level(total, uniform):
    """Return the cumulative weight that ``uniform`` selects, strictly below the ``total``."""
    return total * uniform * (1 - 2.0**-52)


@triton.jit
def _draw(q, uniform, SP: tl.constexpr):
    """Return the first label whose cumulative weight exceeds ``uniform`` times the total; never a label of weight 0."""
    s, cumulative = tl.arange(0, SP), tl.cumsum(q, 0)
    found = tl.min(tl.where((cumulative > _level(tl.max(cumulative, 0), uniform)) & (q > 0), s, SP), 0)
    return tl.where(found < SP, found, tl.max(tl.where(q > 0, s, 0), 0))


@triton.jit
def _draw_duration(table, d, end, label, count, top, rest, uniform, S, W: tl.constexpr):
    """Return a duration, less 1, by the rule of :func:`_draw`: one pass for the total, and one for the place."""
    i, total = tl.arange(0, W), tl.full([], 0.0, tl.float64)
    for first in range(0, count, W):
        total += tl.sum(_weights(table, d, end, label, first, count, top, rest, S, W), 0)
    level, below = _level(total, uniform), tl.full([], 0.0, tl.float64)
    found, last = tl.full([], _NONE, tl.int32), tl.full([], 0, tl.int32)
    for first in range(0, count, W):
        q = _weights(table, d, end, label, first, count, top, rest, S, W)
        is_found = (below + tl.cumsum(q, 0) > level) & (q > 0)
        found = tl.minimum(found, tl.min(tl.where(is_found, first + i, _NONE), 0))
        last = tl.maximum(last, tl.max(tl.where(q > 0, first + i, 0), 0))
        below += tl.sum(q, 0)
    return tl.where(found < _NONE, found, last)


@triton.jit
def _weights(table, d, end, label, first, count, top, rest, S, W: tl.constexpr):
    """Return the probabilities of ``W`` durations from ``first`` on."""
    k = first + tl.arange(0, W)
    own = tl.load(table + (end - k) * S + label, mask=k < count, other=float("-inf"))
    x = own + tl.load(d + k * S + label, mask=k < count, other=0.0).to(tl.float64)
    return exp_of((x - top) - rest, d)
