"""Sums over segmentations scored by steps, boundaries and durations, in time O(T D S) and memory O(T S).

One instance has ``steps`` u (T, S), ``boundaries`` (T, 2, S), the scores of the first and the last step of a segment,
``durations`` (D, S), and ``transition`` A (S, S), or (0, 0) without transitions. Let c(t) be the largest u(t, s), which
every segmentation gains at step t, and C(i, s) = Σ_{t < i} (u(t, s) − c(t)). With v(i, s) the smoothed score of the
first i steps if a segment of label s follows, and w(t, s) of the steps up to t if a segment of label s ends there,

    v(i, s) = max_Ω over r of w(i − 1, r) + A(r, s),         g(i, s) = v(i, s) + first(i, s) − C(i, s),
    w(t, s) = max_Ω over d of g(t − d, s) + durations(d, s), + C(t + 1, s) + last(t, s),

so that the score of a segment is never stored. DP_Ω = Σ_t c(t) + max_Ω over s of w(n − 1, s). The value alone needs g
of the last D starts: a ring buffer of O(D S). Expected structures walk back along the probabilities of both choices,
recomputed from g, w, top and t (:mod:`.choices`). The probability that label s covers step t is the number of segments
that have started less the number that have ended.

A step of score −inf is left out of C, and segments start after it. The table ``first`` of each (t, s) has the first
start that a segment of label s through t may have.

The recursion is that of S. Sarawagi & W. W. Cohen, Semi-Markov conditional random fields for information extraction,
NIPS 2004, §3, with the scores of steps in cumulative form.

A batch has ``steps`` (B | 1, T, S) and so on, float64, and ``lengths`` (B,). Result arrays must be zeros on entry.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.simd.vector import LANES

from .choices import mean_change, smooth_max, spread_flow, spread_flow_tangent

__all__ = ["Scores", "Tables", "forward", "hessian_product", "make_tables", "mean", "read_scores", "value"]


class Scores(NamedTuple):
    """The scores of an instance that are read 16 at a time.

    ``durations`` are ordered by label, and ``transition`` by the label after, of which there is 1 without transitions.
    """

    durations: Any
    transition: Any
    none: Any
    lanes: Any


class Tables(NamedTuple):
    """Tables of an instance: g by label, from the last start to the first, and others by step and label.

    ``top`` and ``t`` are those of w, ``top_before`` and ``t_before`` those of v. With fewer rows than steps, a row is
    overwritten, and g is a ring buffer.
    """

    g: Any
    w: Any
    top: Any
    t: Any
    top_before: Any
    t_before: Any
    first: Any
    sums: Any
    rows: int
    span: int


# ----------------------------------------------------------------------------- one instance


@jit
def read_scores(b, durations, transition):
    """Return the scores of instance b; also serves for directions."""
    d, a, labels = min(b, len(durations) - 1), min(b, len(transition) - 1), durations.shape[2]
    count, arrivals = durations.shape[1], max(transition.shape[1], 1)
    by_label, by_arrival = np.zeros(labels * count + LANES), np.zeros(arrivals * labels + LANES)
    for s in range(labels):
        for k in range(count):
            by_label[s * count + k] = durations[d, k, s]
    for s in range(transition.shape[1]):
        for r in range(labels):
            by_arrival[s * labels + r] = transition[a, r, s]
    lanes = np.empty(LANES)
    for k in range(LANES):
        lanes[k] = k
    return Scores(by_label, by_arrival, np.zeros(labels + LANES), lanes)


@jit
def make_tables(steps, durations, transition, rows):
    """Return tables of ``rows`` steps: all, or 1 for the value alone."""
    labels, arrivals = steps.shape[2], max(transition.shape[1], 1)
    span = steps.shape[1] if rows == steps.shape[1] else 4 * durations.shape[1] + 64
    size = rows * labels
    return Tables(
        np.zeros(labels * span + LANES), np.zeros(size + LANES), np.zeros(size), np.zeros(size),
        np.zeros(rows * arrivals), np.zeros(rows * arrivals), np.zeros(size, np.int64), np.zeros(labels), rows, span,
    )  # fmt: skip


@jit
def _advance_place(place, tables, labels, durations):
    """Return the place of the next start in g. At the end of a ring buffer, move the last starts to its beginning."""
    if place > 0:
        return place - 1
    kept, span, g = durations - 1, tables.span, tables.g
    for s in range(labels):
        for k in range(kept):
            g[s * span + span - kept + k] = g[s * span + k]
    return span - kept - 1


@jit
def _keep(top, t, tops, ts, at):
    """Store top and t, with 0 in place of −inf; return max_Ω."""
    tops[at] = top if top > -np.inf else 0.0
    ts[at] = t
    return top + t


@jit
def forward(b, steps, boundaries, length, scores, tables, is_hard):
    """Fill the tables; return DP_Ω without its last choice, and top and t of the last choice, −inf if impossible."""
    labels, u, o = steps.shape[2], min(b, len(steps) - 1), min(b, len(boundaries) - 1)
    durations, arrivals = (len(scores.durations) - LANES) // labels, (len(scores.transition) - LANES) // labels
    lanes, none, sums, rows, span = scores.lanes, scores.none, tables.sums, tables.rows, tables.span
    total, place = 0.0, span
    for s in range(labels):
        sums[s] = 0.0
    for t in range(length):
        row, place = t % rows, _advance_place(place, tables, labels, durations)
        v = 0.0
        for s in range(labels):
            if t > 0 and s < arrivals:
                top, rest = smooth_max(
                    tables.w, (t - 1) % rows * labels, scores.transition, s * labels, labels, lanes, is_hard
                )
                v = _keep(top, rest, tables.top_before, tables.t_before, row * arrivals + s)
            tables.g[s * span + place] = v + boundaries[o, t, 0, s] - sums[s]
        peak = -np.inf
        for s in range(labels):
            peak = max(peak, steps[u, t, s])
        if peak == -np.inf:
            return 0.0, peak, 0.0
        total += peak
        for s in range(labels):
            at = row * labels + s
            tables.first[at] = tables.first[(t - 1) % rows * labels + s] if t > 0 else 0
            if steps[u, t, s] == -np.inf:
                tables.first[at] = t + 1
            else:
                sums[s] += steps[u, t, s] - peak
        for s in range(labels):
            at = row * labels + s
            count = min(durations, t + 1 - tables.first[at])
            top, rest = smooth_max(tables.g, s * span + place, scores.durations, s * durations, count, lanes, is_hard)
            tables.w[at] = _keep(top, rest, tables.top, tables.t, at) + sums[s] + boundaries[o, t, 1, s]
    top, rest = smooth_max(tables.w, (length - 1) % rows * labels, none, 0, labels, lanes, is_hard)
    return total, top, rest


@jit
def _backward(length, scores, tables, top, rest, labels, started, ended, by_duration, by_arrival):
    """Add the probabilities of starts and ends, ordered as g and w, of durations and of transitions."""
    durations, arrivals = (len(scores.durations) - LANES) // labels, (len(scores.transition) - LANES) // labels
    lanes, span, last = scores.lanes, tables.span, length - 1
    spread_flow(tables.w, last * labels, scores.none, 0, labels, lanes, top, rest, 1.0, ended, np.zeros(labels + LANES))
    for t in range(last, -1, -1):
        place = span - 1 - t
        for s in range(labels):
            at = t * labels + s
            if ended[at] != 0:
                count = min(durations, t + 1 - tables.first[at])
                spread_flow(
                    tables.g, s * span + place, scores.durations, s * durations, count, lanes, tables.top[at],
                    tables.t[at], ended[at], started, by_duration,
                )  # fmt: skip
        if t > 0:
            for k in range(arrivals):
                flow = _arriving(started, k, arrivals, labels, span, place)
                if flow != 0:
                    at = t * arrivals + k
                    spread_flow(
                        tables.w, (t - 1) * labels, scores.transition, k * labels, labels, lanes,
                        tables.top_before[at], tables.t_before[at], flow, ended, by_arrival,
                    )  # fmt: skip


@jit
def _arriving(started, k, arrivals, labels, span, place):
    """Return the sum over starts of the label k, or without transitions of all labels."""
    if arrivals == labels:
        return started[k * span + place]
    total = 0.0
    for s in range(labels):
        total += started[s * span + place]
    return total


@jit
def _write(
    b, steps, length, tables, started, ended, by_duration, by_arrival, least, out_steps, out_boundaries, out_durations,
    out_transition,
):  # fmt: skip
    """Write results in the form of θ. Rounding leaves the numbers of steps above ``least``."""
    labels, u, span = steps.shape[2], min(b, len(steps) - 1), tables.span
    durations = (len(by_duration) - LANES) // labels
    for s in range(labels):
        inside = 0.0
        for t in range(length):
            start, end = started[s * span + span - 1 - t], ended[t * labels + s]
            inside = 0.0 if steps[u, t, s] == -np.inf else inside + start
            out_boundaries[b, t, 0, s], out_boundaries[b, t, 1, s] = start, end
            out_steps[b, t, s] = max(inside, least)
            inside -= end
        for d in range(durations):
            out_durations[b, d, s] = by_duration[s * durations + d]
        for k in range(out_transition.shape[1]):
            out_transition[b, s, k] = by_arrival[k * labels + s]


# ----------------------------------------------------------------------------- derivatives along a direction


@jit
def _tangents(
    b, steps, v_steps, v_boundaries, length, scores, d_scores, tables, top, rest, dg, dw, m, m_before
):  # fmt: skip
    """Fill dg, dw and the mean changes m of both choices; return m of the last choice."""
    labels, u = steps.shape[2], min(b, len(steps) - 1)
    du, do = min(b, len(v_steps) - 1), min(b, len(v_boundaries) - 1)
    durations, arrivals = (len(scores.durations) - LANES) // labels, (len(scores.transition) - LANES) // labels
    lanes, span, sums = scores.lanes, tables.span, np.zeros(labels)
    for t in range(length):
        place, v = span - 1 - t, 0.0
        for s in range(labels):
            if t > 0 and s < arrivals:
                at = t * arrivals + s
                v = mean_change(
                    tables.w, (t - 1) * labels, scores.transition, s * labels, labels, lanes, tables.top_before[at],
                    tables.t_before[at], dw, d_scores.transition,
                )  # fmt: skip
                m_before[at] = v
            dg[s * span + place] = v + v_boundaries[do, t, 0, s] - sums[s]
        for s in range(labels):
            at = t * labels + s
            if steps[u, t, s] > -np.inf:
                sums[s] += v_steps[du, t, s]
            count = min(durations, t + 1 - tables.first[at])
            m[at] = mean_change(
                tables.g, s * span + place, scores.durations, s * durations, count, lanes, tables.top[at], tables.t[at],
                dg, d_scores.durations,
            )  # fmt: skip
            dw[at] = m[at] + sums[s] + v_boundaries[do, t, 1, s]
    return mean_change(
        tables.w, (length - 1) * labels, scores.none, 0, labels, lanes, top, rest, dw, d_scores.none
    )  # fmt: skip


@jit
def _backward_tangent(
    length, scores, d_scores, tables, top, rest, last_m, labels, dg, dw, m, m_before, started, ended, d_started,
    d_ended, by_duration, by_arrival,
):  # fmt: skip
    """Add the derivatives of :func:`_backward`, beside the probabilities of starts and ends."""
    durations, arrivals = (len(scores.durations) - LANES) // labels, (len(scores.transition) - LANES) // labels
    lanes, span, last = scores.lanes, tables.span, length - 1
    spread_flow_tangent(
        tables.w, last * labels, scores.none, 0, labels, lanes, top, rest, dw, d_scores.none, last_m, 1.0, 0.0, ended,
        d_ended, np.zeros(labels + LANES),
    )  # fmt: skip
    for t in range(last, -1, -1):
        place = span - 1 - t
        for s in range(labels):
            at = t * labels + s
            if ended[at] != 0 or d_ended[at] != 0:
                count = min(durations, t + 1 - tables.first[at])
                spread_flow_tangent(
                    tables.g, s * span + place, scores.durations, s * durations, count, lanes, tables.top[at],
                    tables.t[at], dg, d_scores.durations, m[at], ended[at], d_ended[at], started, d_started,
                    by_duration,
                )  # fmt: skip
        if t > 0:
            for k in range(arrivals):
                at = t * arrivals + k
                flow = _arriving(started, k, arrivals, labels, span, place)
                d_flow = _arriving(d_started, k, arrivals, labels, span, place)
                if flow != 0 or d_flow != 0:
                    spread_flow_tangent(
                        tables.w, (t - 1) * labels, scores.transition, k * labels, labels, lanes,
                        tables.top_before[at], tables.t_before[at], dw, d_scores.transition, m_before[at], flow,
                        d_flow, ended, d_ended, by_arrival,
                    )  # fmt: skip


# ----------------------------------------------------------------------------- batches


@jit
def value(start, stop, steps, boundaries, durations, transition, lengths, out):
    """Write log Z of the instances ``start:stop`` to ``out`` (B,)."""
    tables = make_tables(steps, durations, transition, 1)
    for b in range(start, stop):
        scores = read_scores(b, durations, transition)
        total, top, rest = forward(b, steps, boundaries, lengths[b], scores, tables, False)
        out[b] = total + top + rest


@jit
def mean(
    start, stop, steps, boundaries, durations, transition, lengths, out, out_steps, out_boundaries, out_durations,
    out_transition,
):  # fmt: skip
    """Write log Z to ``out`` (B,), and its gradient in the form of θ, with a batch dimension of B."""
    tables, labels = make_tables(steps, durations, transition, steps.shape[1]), steps.shape[2]
    started, ended = np.empty_like(tables.g), np.empty_like(tables.w)
    for b in range(start, stop):
        scores = read_scores(b, durations, transition)
        total, top, rest = forward(b, steps, boundaries, lengths[b], scores, tables, False)
        out[b] = total + top + rest
        if top == -np.inf:
            continue
        by_duration, by_arrival = np.zeros_like(scores.durations), np.zeros_like(scores.transition)
        started[:] = 0
        ended[:] = 0
        _backward(lengths[b], scores, tables, top, rest, labels, started, ended, by_duration, by_arrival)
        _write(
            b, steps, lengths[b], tables, started, ended, by_duration, by_arrival, 0.0, out_steps, out_boundaries,
            out_durations, out_transition,
        )  # fmt: skip


@jit
def hessian_product(
    start, stop, steps, boundaries, durations, transition, lengths, v_steps, v_boundaries, v_durations, v_transition,
    out, out_steps, out_boundaries, out_durations, out_transition,
):  # fmt: skip
    """Write log Z to ``out`` (B,), and its Hessian times v in the form of θ, with a batch dimension of B."""
    tables, labels = make_tables(steps, durations, transition, steps.shape[1]), steps.shape[2]
    dg, started, d_started = np.zeros_like(tables.g), np.empty_like(tables.g), np.empty_like(tables.g)
    dw, ended, d_ended = np.zeros_like(tables.w), np.empty_like(tables.w), np.empty_like(tables.w)
    m, m_before = np.empty_like(tables.top), np.empty_like(tables.top_before)
    for b in range(start, stop):
        scores, d_scores = read_scores(b, durations, transition), read_scores(b, v_durations, v_transition)
        total, top, rest = forward(b, steps, boundaries, lengths[b], scores, tables, False)
        out[b] = total + top + rest
        if top == -np.inf:
            continue
        by_duration, by_arrival = np.zeros_like(scores.durations), np.zeros_like(scores.transition)
        started[:] = 0
        ended[:] = 0
        d_started[:] = 0
        d_ended[:] = 0
        last_m = _tangents(
            b, steps, v_steps, v_boundaries, lengths[b], scores, d_scores, tables, top, rest, dg, dw, m, m_before
        )
        _backward_tangent(
            lengths[b], scores, d_scores, tables, top, rest, last_m, labels, dg, dw, m, m_before, started, ended,
            d_started, d_ended, by_duration, by_arrival,
        )  # fmt: skip
        _write(
            b, steps, lengths[b], tables, d_started, d_ended, by_duration, by_arrival, -np.inf, out_steps,
            out_boundaries, out_durations, out_transition,
        )  # fmt: skip
