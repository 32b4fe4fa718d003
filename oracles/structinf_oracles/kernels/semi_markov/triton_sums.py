"""Triton kernel of sums over segmentations scored by steps, boundaries and durations: log Z and its derivatives.

The recursions are those of :mod:`.sums`. A program computes the forward and the backward pass of one instance, so that
a value, a gradient or a Hessian product is one launch. It takes the steps one after another, and the durations and
labels of a step in tiles.

Tensors are steps (B | 1, T, S) and so on, with the distances ``*_stride`` between instances, 0 for a tensor shared by
the batch. Lengths are (B,) int64, and values (B,) float64. Results are written as a whole, also beyond the lengths.
``by_duration`` (B, D, S) and ``by_transition`` (B, S, S) are float64, since they are sums over all steps.

The scratch memory ``tables`` is float64, (B, ``size``): tables of ``rows`` · S numbers in the order g, w, top and t of
w, top and t of v, the first start that a segment through the step may have, in whose place the backward pass writes
the probabilities of ends; for derivatives along a direction dg, dw, m of w, m of v, and the derivatives of the
probabilities of ends; and last 4 S numbers for the probabilities of starts. The value alone has g and w in ring
buffers of a power of 2 of rows.

A score of a step below the best one by more than ``margin`` counts as −inf, as in
:func:`structinf_oracles.common.segment_boundaries.without_masks`, whose torch operations would be 19 launches.

A barrier follows each store of a row that other threads read: of g and of w in the forward pass, and of the
probabilities of ends and of starts in the backward pass. At least one barrier lies between the last reader of a row
and the thread that overwrites the row, and between two additions to the same sum over steps, or its first value 0.
Each number is a sum of one program in a fixed order. Results therefore repeat bit for bit and do not depend on the
batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from structinf.kernels.gpu.triton_smooth_max import finite

from .triton_choices import (
    exp_of,
    load_allowed,
    load_row,
    mean_of_durations,
    mean_of_labels,
    scale_of,
    smooth_duration,
    smooth_label,
    smooth_row,
)

__all__ = ["segment_sums"]


@triton.jit(do_not_specialize=["u_stride", "o_stride", "du_stride", "do_stride", "T", "ring"])
def segment_sums(
    steps, boundaries, durations, transition, lengths, values, tables, out_steps, out_boundaries, by_duration,
    by_transition, d_steps, d_boundaries, d_durations, d_transition, u_stride, o_stride, d_stride, a_stride, du_stride,
    do_stride, dd_stride, da_stride, size, rows, ring, T, S, D,
    SP: tl.constexpr, K: tl.constexpr, L: tl.constexpr, R: tl.constexpr, HARD: tl.constexpr, KEEP: tl.constexpr,
    TANGENT: tl.constexpr,
):  # fmt: skip
    """Write log Z, or with ``HARD`` the largest score, and its gradient, or with ``TANGENT`` its Hessian times v.

    ``KEEP`` says whether tables have a row for each step. Without transitions and results, their tensors are None.
    """
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    u, o, d = steps + b * u_stride, boundaries + b * o_stride, durations + b * d_stride
    table, width = tables + b * size, (b * 0 + rows) * S
    a, d_u, d_o, d_d, d_a = transition, u, o, d, transition
    if transition is not None:
        a = transition + b * a_stride
        d_a = a
    if TANGENT:
        d_u, d_o, d_d = d_steps + b * du_stride, d_boundaries + b * do_stride, d_durations + b * dd_stride
        if transition is not None:
            d_a = d_transition + b * da_stride
    scale = tl.maximum(scale_of(o, 2 * T, S, R, SP), scale_of(d, D, S, R, SP))
    if transition is not None:
        scale = tl.maximum(scale, scale_of(a, S, S, R, SP))
    margin = 1e8 * (1 + scale)
    value = _forward(
        u, o, d, a, table, width, ring, margin, n, T, S, D, d_u, d_o, d_d, d_a, SP, K, L, HARD, KEEP, TANGENT
    )
    tl.store(values + b, value)
    if out_steps is not None:
        counts, moves = by_duration + b * D * S, by_transition
        if transition is not None:
            moves = by_transition + b * S * S
        _backward(
            u, d, a, table, width, margin, n, T, S, D, d_d, d_a, out_steps + b * T * S, out_boundaries + b * 2 * T * S,
            counts, moves, SP, K, L, TANGENT,
        )  # fmt: skip


@triton.jit
def _forward(
    u, o, d, a, table, width, ring, margin, n, T, S, D, d_u, d_o, d_d, d_a,
    SP: tl.constexpr, K: tl.constexpr, L: tl.constexpr, HARD: tl.constexpr, KEEP: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Fill the tables of an instance; return DP_Ω, −inf if no segmentation is allowed."""
    s = tl.arange(0, SP)
    inside, total = s < S, tl.full([], 0.0, tl.float64)
    v, sums_of_steps, w = tl.zeros([SP], tl.float64), tl.zeros([SP], tl.float64), tl.zeros([SP], tl.float64)
    d_v, d_sums = tl.zeros([SP], tl.float64), tl.zeros([SP], tl.float64)
    since = tl.zeros([SP], tl.int32)
    for t in range(n):
        at = (t & ring) * S + s
        scores = load_allowed(u + t * S, margin, S, SP)
        tl.store(table + at, v + load_row(o + 2 * t * S, S, SP, 0.0) - sums_of_steps, mask=inside)
        if TANGENT:
            d_g = d_v + load_row(d_o + 2 * t * S, S, SP, 0.0) - d_sums
            tl.store(table + 7 * width + at, d_g, mask=inside)
        tl.debug_barrier()
        is_allowed, peak = scores > float("-inf"), tl.max(scores, 0)
        total += peak
        sums_of_steps += tl.where(is_allowed, scores - finite(peak), 0.0)
        since = tl.where(is_allowed, since, t + 1)
        best, top, rest = smooth_duration(table, d, t, since, ring, S, D, K, SP, HARD)
        w = best + sums_of_steps + load_row(o + (2 * t + 1) * S, S, SP, 0.0)
        tl.store(table + width + at, w, mask=inside)
        if KEEP:
            tl.store(table + 2 * width + at, top, mask=inside)
            tl.store(table + 3 * width + at, rest, mask=inside)
            tl.store(table + 6 * width + at, since.to(tl.float64), mask=inside)
        if TANGENT:
            d_sums += tl.where(is_allowed, load_row(d_u + t * S, S, SP, 0.0), 0.0)
            mean = mean_of_durations(table, table + 7 * width, d, d_d, t, since, top, rest, S, D, K, SP)
            d_w = mean + d_sums + load_row(d_o + (2 * t + 1) * S, S, SP, 0.0)
            tl.store(table + 8 * width + at, d_w, mask=inside)
            tl.store(table + 9 * width + at, mean, mask=inside)
        tl.debug_barrier()
        row, after = table + width + (t & ring) * S, inside & (at + S < T * S)
        if a is not None:
            v, before, extra = smooth_label(row, a, S, L, SP, HARD)
        else:
            one, one_before, one_extra = smooth_row(w, d, HARD)
            v, before, extra = _in_all(one, SP), _in_all(one_before, SP), _in_all(one_extra, SP)
        if KEEP:
            tl.store(table + 4 * width + at + S, before, mask=after)
            tl.store(table + 5 * width + at + S, extra, mask=after)
        if TANGENT:
            d_row = table + 8 * width + t * S
            if a is not None:
                d_v = mean_of_labels(row, d_row, a, d_a, before, extra, S, L, SP)
            else:
                q = exp_of((w - before) - extra, d)
                d_v = _in_all(tl.sum(q * tl.where(inside, d_w, 0.0), 0), SP)
            tl.store(table + 10 * width + at + S, d_v, mask=after)
    last, _top, _rest = smooth_row(w, d, HARD)
    return total + last


@triton.jit
def _in_all(number, SP: tl.constexpr):
    """Return a row with a number in all places."""
    return tl.zeros([SP], tl.float64) + number


@triton.jit
def _backward(
    u, d, a, table, width, margin, n, T, S, D, d_d, d_a, out_steps, out_boundaries, counts, moves,
    SP: tl.constexpr, K: tl.constexpr, L: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Walk back along the probabilities q of both choices. Without ``TANGENT``, only probabilities are computed."""
    s = tl.arange(0, SP)
    inside = s < S
    _clear(counts, D, S, K, SP)
    if a is not None:
        _clear(moves, S, S, L, SP)
    ended, d_ended, starts = table + 6 * width, table + 11 * width, table + 7 * width
    if TANGENT:
        starts = table + 12 * width
    started, d_started = tl.zeros([SP], tl.float64), tl.zeros([SP], tl.float64)
    covered, stop = tl.zeros([SP], tl.float64), tl.zeros([SP], tl.int32) + n
    for back in range(n):
        t = n - 1 - back
        at = t * S + s
        w = tl.load(table + width + at, mask=inside, other=float("-inf"))
        d_end = started
        if back == 0:
            _value, last_top, last_rest = smooth_row(w, d, False)
            end = exp_of((w - last_top) - last_rest, d)
            if TANGENT:
                d_last = tl.load(table + 8 * width + at, mask=inside, other=0.0)
                d_end = end * (d_last - tl.sum(end * d_last, 0))
        elif a is not None:
            # Rows of the tile are the labels after, columns the labels before.
            end, d_end = _spread_over_labels(table, width, a, d_a, moves, starts, t, w, S, L, SP, TANGENT)
        else:
            top = tl.load(table + 4 * width + at + S, mask=inside, other=0.0)
            rest = tl.load(table + 5 * width + at + S, mask=inside, other=0.0)
            q = exp_of((w - top) - rest, d)
            flow = tl.sum(started, 0)
            end = q * flow
            if TANGENT:
                d_w = tl.load(table + 8 * width + at, mask=inside, other=0.0)
                mean = tl.load(table + 10 * width + at + S, mask=inside, other=0.0)
                d_end = q * ((d_w - mean) * flow + tl.sum(d_started, 0))
        tl.store(ended + at, end, mask=inside)
        if TANGENT:
            tl.store(d_ended + at, d_end, mask=inside)
        tl.debug_barrier()
        is_allowed = load_allowed(u + t * S, margin, S, SP) > float("-inf")
        stop = tl.where(is_allowed, stop, t)
        if TANGENT:
            covered = tl.where(is_allowed, covered - d_started + d_end, 0.0)
            shown, shown_end = covered, d_end
        else:
            covered = tl.where(is_allowed, covered - started + end, 0.0)
            shown, shown_end = tl.maximum(covered, 0.0), end
        started, d_started = _spread_over_durations(
            table, width, d, d_d, counts, ended, d_ended, t, stop, S, D, K, SP, TANGENT
        )
        shown_start = started
        if TANGENT:
            shown_start = d_started
        side = (t & 1) * 2 * S + s
        tl.store(starts + side, started, mask=inside)
        tl.store(starts + side + S, d_started, mask=inside)
        tl.store(out_steps + at, shown, mask=inside)
        tl.store(out_boundaries + 2 * t * S + s, shown_start, mask=inside)
        tl.store(out_boundaries + (2 * t + 1) * S + s, shown_end, mask=inside)
        tl.debug_barrier()
    for t in range(n, T):
        nothing = tl.zeros([SP], tl.float64)
        tl.store(out_steps + t * S + s, nothing, mask=inside)
        tl.store(out_boundaries + 2 * t * S + s, nothing, mask=inside)
        tl.store(out_boundaries + (2 * t + 1) * S + s, nothing, mask=inside)


@triton.jit
def _clear(out, R, S, K: tl.constexpr, SP: tl.constexpr):
    """Set a matrix (R, S) to 0, in the tiles that later add to it."""
    s = tl.arange(0, SP)[None, :]
    for first in range(0, R, K):
        r = first + tl.arange(0, K)[:, None]
        tl.store(out + r * S + s, tl.zeros([K, SP], tl.float64), mask=(r < R) & (s < S))


@triton.jit
def _add(out, place, mask, flow):
    tl.store(out + place, tl.load(out + place, mask=mask, other=0.0) + flow, mask=mask)


@triton.jit
def _spread_over_labels(
    table, width, a, d_a, moves, starts, t, w, S, L: tl.constexpr, SP: tl.constexpr, TANGENT: tl.constexpr
):
    """Return the probabilities of ends at step t, given those of starts at t + 1, and add those of the transitions."""
    r = tl.arange(0, SP)[None, :]
    end, d_end = tl.zeros([SP], tl.float64), tl.zeros([SP], tl.float64)
    source = starts + ((t + 1) & 1) * 2 * S
    if TANGENT:
        d_w = tl.load(table + 8 * width + t * S + r, mask=r < S, other=0.0)
    for first in range(0, S, L):
        s = first + tl.arange(0, L)[:, None]
        is_choice, after = (r < S) & (s < S), (t + 1) * S + s
        x = w[None, :] + tl.load(a + r * S + s, mask=is_choice, other=float("-inf")).to(tl.float64)
        top = tl.load(table + 4 * width + after, mask=s < S, other=0.0)
        rest = tl.load(table + 5 * width + after, mask=s < S, other=0.0)
        q = exp_of((x - top) - rest, a)
        flow = q * tl.load(source + s, mask=s < S, other=0.0)
        end += tl.sum(flow, 0)
        if TANGENT:
            dx = d_w + tl.load(d_a + r * S + s, mask=is_choice, other=0.0).to(tl.float64)
            mean = tl.load(table + 10 * width + after, mask=s < S, other=0.0)
            change = (dx - mean) * flow + q * tl.load(source + S + s, mask=s < S, other=0.0)
            d_end += tl.sum(change, 0)
            _add(moves, r * S + s, is_choice, change)
        else:
            _add(moves, r * S + s, is_choice, flow)
    return end, d_end


@triton.jit
def _spread_over_durations(
    table, width, d, d_d, counts, ended, d_ended, t, stop, S, D, K: tl.constexpr, SP: tl.constexpr,
    TANGENT: tl.constexpr,
):  # fmt: skip
    """Return the probabilities of starts at step t, given those of ends from t on, and add those of the durations."""
    s = tl.arange(0, SP)[None, :]
    start, d_start = tl.zeros([SP], tl.float64), tl.zeros([SP], tl.float64)
    g = tl.load(table + t * S + s, mask=s < S, other=float("-inf"))
    if TANGENT:
        d_g = tl.load(table + 7 * width + t * S + s, mask=s < S, other=0.0)
    for first in range(0, tl.minimum(tl.max(stop, 0) - t, D), K):
        k = first + tl.arange(0, K)[:, None]
        is_choice, place, at = (k < D) & (t + k < stop[None, :]) & (s < S), k * S + s, (t + k) * S + s
        x = g + tl.load(d + place, mask=is_choice, other=0.0).to(tl.float64)
        top = tl.load(table + 2 * width + at, mask=is_choice, other=0.0)
        rest = tl.load(table + 3 * width + at, mask=is_choice, other=0.0)
        q = exp_of(tl.where(is_choice, (x - top) - rest, float("-inf")), d)
        flow = q * tl.load(ended + at, mask=is_choice, other=0.0)
        start += tl.sum(flow, 0)
        if TANGENT:
            dx = d_g + tl.load(d_d + place, mask=is_choice, other=0.0).to(tl.float64)
            mean = tl.load(table + 9 * width + at, mask=is_choice, other=0.0)
            change = (dx - mean) * flow + q * tl.load(d_ended + at, mask=is_choice, other=0.0)
            d_start += tl.sum(change, 0)
            _add(counts, place, is_choice, change)
        else:
            _add(counts, place, is_choice, flow)
    return start, d_start
