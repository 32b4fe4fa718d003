"""The way up through the nodes of any hypergraph, in a Triton kernel. Importing this module imports triton.

The kernel computes v, max x and t of each node, and for Hessian products v̇ and m, with the formulas of
:mod:`.smoothed_passes`. A program processes one instance, level after level. If instances are few and levels wide,
several programs share the nodes of an instance, and each wide level takes a launch of its own, because programs cannot
wait for each other.

Barriers: the nodes of a level read v and v̇ of other levels, which other threads of the program have written, so a
barrier follows each level. Every node is written once, so no barrier is needed before a write.

The arguments are those of :mod:`.triton_passes`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import launch
from ..gpu.triton_smooth_max import curved, finite, log_of_positive, start_of_t

__all__ = ["SIZES", "inside", "probabilities", "runs", "scores"]

# A level is wide from this number of nodes, and a batch small below this size: half of the multiprocessors of an H100.
# Both are estimates.
_WIDE = 513
_SMALL_BATCH = 66
_LARGEST_INT32 = tl.constexpr(2**31 - 1)
SIZES = ["goal_stride", "first_level", "last_level", "blocks", "N", "P", "count"]

# ----------------------------------------------------------------------------- hyperedges


@triton.jit
def scores(theta, v, links, count, k, ok, N, P):
    """Return the scores x of the entries ``k`` of ``links`` in float64, and −inf where not ``ok``."""
    part = tl.load(links + k, mask=ok, other=0)
    one = tl.load(links + count + k, mask=ok, other=0)
    two = tl.load(links + 2 * count + k, mask=ok, other=0)
    x = tl.load(v + one, mask=ok & (one < N), other=0.0)
    x += tl.load(theta + part, mask=ok & (part < P), other=0.0).to(tl.float64)
    x += tl.load(v + two, mask=ok & (two < N), other=0.0)
    return tl.where(ok, x, float("-inf"))


@triton.jit
def probabilities(x, top, t, kind, ALPHA: tl.constexpr):
    """Return q and s, of the dtype ``kind``, of scores ``x``, given the maximum and t of their nodes."""
    return curved(((x - finite(top)) - t).to(kind), ALPHA)


# ----------------------------------------------------------------------------- inside


@triton.jit(do_not_specialize=SIZES)
def _inside(
    theta, direction, goal, goal_stride, level_of, level_offset, offset, links, value, v, top, t, v_dot, m,
    first_level, last_level, blocks, N, P, count,
    ALPHA: tl.constexpr, IS_SINGLE: tl.constexpr, KEEP: tl.constexpr, TANGENT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write DP_Ω to ``value`` and v of each node; with KEEP also max x and t, and with TANGENT v̇ and m."""
    b = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    end = tl.load(goal + b * goal_stride).to(tl.int32)
    tl.store(value + b, float("-inf"), mask=end < 0)
    theta += b * P
    direction += b * P
    v += b * N
    top += b * N
    t += b * N
    v_dot += b * N
    m += b * N
    kind = theta.dtype.element_ty
    r = tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    stop = tl.minimum(last_level, tl.load(level_of + end, mask=end >= 0, other=-1) + 1)
    for level in range(first_level, stop):
        low = tl.load(level_offset + level)
        high = tl.minimum(tl.load(level_offset + level + 1), end + 1)
        for start in range(low + block * ROWS, high, blocks * ROWS):
            node = start + r
            is_node = node < high
            lo = tl.load(offset + node, mask=is_node, other=0)
            hi = tl.load(offset + node + 1, mask=is_node, other=0)
            # With IS_SINGLE, the scores of all hyperedges stay in registers; otherwise each loop gathers them again.
            most = COLUMNS
            if not IS_SINGLE:
                most = tl.max(hi - lo, 0)
            k = lo[:, None] + c[None, :]
            x = scores(theta, v, links, count, k, k < hi[:, None], N, P)
            peak = tl.max(x, 1)
            if ALPHA > 2:
                best = tl.min(tl.where(x == peak[:, None], k, _LARGEST_INT32), 1)
                for done in range(COLUMNS, most, COLUMNS):
                    k = lo[:, None] + done + c[None, :]
                    x = scores(theta, v, links, count, k, k < hi[:, None], N, P)
                    new = tl.max(x, 1)
                    first = tl.min(tl.where(x == new[:, None], k, _LARGEST_INT32), 1)
                    best = tl.where(new > peak, first, best)
                    peak = tl.maximum(peak, new)
                smooth = peak
                if KEEP:
                    tl.store(t + node, best, mask=is_node)
            else:
                for done in range(COLUMNS, most, COLUMNS):
                    k = lo[:, None] + done + c[None, :]
                    peak = tl.maximum(peak, tl.max(scores(theta, v, links, count, k, k < hi[:, None], N, P), 1))
                anchor = finite(peak)
                if ALPHA == 1:
                    total = tl.zeros([ROWS], kind)
                    for done in range(0, most, COLUMNS):
                        if not IS_SINGLE:
                            k = lo[:, None] + done + c[None, :]
                            x = scores(theta, v, links, count, k, k < hi[:, None], N, P)
                        total += tl.sum(tl.exp((x - anchor[:, None]).to(kind)), 1)
                    gain = log_of_positive(total).to(tl.float64)
                    smooth = anchor + gain
                    threshold = finite(gain)
                else:
                    # Newton's method for Σ q = 1, as in `structinf.kernels.smooth_max`.
                    below = tl.zeros([ROWS], kind) + start_of_t(ALPHA)
                    step = 1
                    while step > 0:
                        total = tl.zeros([ROWS], kind)
                        slope = tl.zeros([ROWS], kind)
                        for done in range(0, most, COLUMNS):
                            if not IS_SINGLE:
                                k = lo[:, None] + done + c[None, :]
                                x = scores(theta, v, links, count, k, k < hi[:, None], N, P)
                            q, s = curved((x - anchor[:, None]).to(kind) - below[:, None], ALPHA)
                            total += tl.sum(q, 1)
                            slope += tl.sum(s, 1)
                        higher = below + tl.maximum((total - 1.0) / tl.maximum(slope, 1e-30), 0.0)
                        moves = tl.max((higher > below).to(tl.int32), 0)
                        below = higher
                        step = tl.where((moves > 0) & (step < 100), step + 1, 0)
                    threshold = below.to(tl.float64)
                    exact = tl.zeros([ROWS], tl.float64)
                    support = tl.zeros([ROWS], tl.float64)
                    extent = tl.zeros([ROWS], tl.float64)
                    for done in range(0, most, COLUMNS):
                        if not IS_SINGLE:
                            k = lo[:, None] + done + c[None, :]
                            x = scores(theta, v, links, count, k, k < hi[:, None], N, P)
                        q, s = curved((x - anchor[:, None]) - threshold[:, None], ALPHA)
                        exact += tl.sum(q, 1)
                        support += tl.sum(s, 1)
                        if ALPHA == 2:
                            extent += tl.sum(q * q, 1)
                        else:
                            extent += tl.sum(q * s, 1)
                    smooth = anchor + (threshold + (extent - start_of_t(ALPHA)) / ALPHA)
                    smooth = tl.where(peak > float("-inf"), smooth, peak)
                    threshold += tl.where(support > 0, (exact - 1.0) / tl.maximum(support, 1e-30), 0.0)
                if KEEP:
                    tl.store(top + node, peak, mask=is_node)
                    tl.store(t + node, threshold, mask=is_node)
                if TANGENT:
                    # Averages of differences from the first hyperedge need no more than θ's dtype.
                    pivot = scores(direction, v_dot, links, count, lo, is_node, N, P)
                    pivot = tl.where(is_node, pivot, 0.0)
                    mean = tl.zeros([ROWS], kind)
                    middle = tl.zeros([ROWS], kind)
                    weight = tl.zeros([ROWS], kind)
                    for done in range(0, most, COLUMNS):
                        k = lo[:, None] + done + c[None, :]
                        ok = k < hi[:, None]
                        if not IS_SINGLE:
                            x = scores(theta, v, links, count, k, ok, N, P)
                        q, s = probabilities(x, peak[:, None], threshold[:, None], kind, ALPHA)
                        x_dot = tl.where(ok, scores(direction, v_dot, links, count, k, ok, N, P) - pivot[:, None], 0.0)
                        mean += tl.sum(q * x_dot.to(kind), 1)
                        middle += tl.sum(s * x_dot.to(kind), 1)
                        weight += tl.sum(s, 1)
                    tl.store(v_dot + node, pivot + mean.to(tl.float64), mask=is_node)
                    middle = middle / tl.maximum(weight, 1e-30)
                    tl.store(m + node, pivot + middle.to(tl.float64), mask=is_node)
            tl.store(v + node, smooth, mask=is_node)
            tl.store(value + b + 0 * r, smooth, mask=is_node & (node == end))
        tl.debug_barrier()


def runs(tables: Any, batch: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Yield first and last level (excluded) of each launch, from the first level up, and the programs an instance."""
    if batch >= _SMALL_BATCH or max(tables.widths) < _WIDE:
        yield 0, len(tables.widths), 1
        return
    levels = enumerate(tables.widths)
    # Consecutive narrow levels share a launch; a wide level has its own.
    for _, run in itertools.groupby(levels, lambda item: item[0] if item[1] >= _WIDE else -1):
        (first, width), *others = run
        yield first, first + 1 + len(others), -(-width // rows) if width >= _WIDE else 1


def inside(
    tables: Any, theta: Tensor, goal: Tensor, alpha: float, keep: bool, direction: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Return DP_Ω (B,), and a list of v, max x, t, v̇ and m, (B, N) each, all float64.

    For α = inf, t (int32) is the number of the best hyperedge of each node, and max x equals v. Without ``keep``, max x
    and t are not computed, and without ``direction`` (B, P), v̇ and m. Numbers that are not computed are replaced by
    v.
    """
    batch, incidence, is_hard = len(theta), tables.by_head, alpha == math.inf
    value = torch.empty(batch, dtype=torch.float64, device=theta.device)
    v = value.new_empty(batch, tables.nodes)
    top = torch.empty_like(v) if keep and not is_hard else v
    t = torch.empty_like(v, dtype=torch.int32 if is_hard else None) if keep else v
    v_dot, m = (torch.empty_like(v), torch.empty_like(v)) if direction is not None else (v, v)
    rows, columns, is_single, warps = incidence.tile
    for first, last, blocks in runs(tables, batch, rows):
        launch(
            _inside, (batch * blocks,), theta, theta if direction is None else direction, goal, goal.stride(0),
            tables.level, tables.level_offset, *incidence[:2], value, v, top, t, v_dot, m, first, last, blocks,
            tables.nodes, tables.parts, incidence.links.shape[1], warps=warps, ALPHA=alpha, IS_SINGLE=is_single,
            KEEP=keep, TANGENT=direction is not None, ROWS=rows, COLUMNS=columns,
        )  # fmt: skip
    return value, [v, top, t, v_dot, m]
