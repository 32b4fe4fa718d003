"""Triton kernels of smoothed sums over tag sequences in tiles, for more states than :mod:`.triton_sums`.

The arguments and tables are those of :mod:`.triton_sums`. A program computes the forward and the backward pass of one
instance, tile by tile. A tile has all rows i and ``BJ`` columns j, so that a smoothed maximum over i needs no other
tile. The probabilities of transitions are left to a second launch, :func:`edge_sums`, which computes all tiles at
once. If only the value is computed, ``RING`` is set, and the table of v has 2 rows in place of T. For derivatives, a
sixth table has the probabilities of the states.

All threads of a program need all of v of the step before, or all probabilities of the step after. These rows pass
through memory. A barrier at the start of each step separates its reads from the writes of the step before. Each step
writes one row, and reads other rows. With ``RING``, a step writes the row that the step before has read, and the
barrier separates these accesses too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_smooth_step import (
    balance,
    flows,
    load_row,
    load_tile,
    place_of_matrix,
    relative,
    relative_tangent,
    smooth_max,
    tangent,
)
from .triton_sums import finish, start

__all__ = ["edge_sums", "tiled_forward", "tiled_sums"]


@triton.jit(do_not_specialize=["u_stride", "du_stride", "T"])
def tiled_sums(
    unary, transition, lengths, values, tables, weight, nodes, d_unary, d_transition,
    u_stride, a_stride, du_stride, da_stride, T, S,
    SP: tl.constexpr, BJ: tl.constexpr, ALPHA: tl.constexpr, SHARED: tl.constexpr, TABLES: tl.constexpr,
    RING: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Write DP_Ω, and the nodes of its gradient times ``weight`` (B,), or with ``TANGENT`` of its Hessian times v."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b)
    u, a, size, d_u, d_a = unary + b * u_stride, transition + b * a_stride, T * S, unary, transition
    table = tables + b * TABLES * size
    if RING:
        table = tables + b * 2 * S
    if TANGENT:
        d_u, d_a = d_unary + b * du_stride, d_transition + b * da_stride
    value = tiled_forward(u, a, table, size, n, S, d_u, d_a, SP, BJ, ALPHA, SHARED, TABLES, RING, TANGENT)
    tl.store(values + b, value)
    if nodes is not None:
        mass = 1.0
        if weight is not None:
            mass = tl.load(weight + b)
        tl.debug_barrier()
        _backward(a, table, size, n, mass, nodes + b * size, T, S, d_a, SP, BJ, ALPHA, SHARED, TANGENT)


@triton.jit
def tiled_forward(
    u, a, tables, size, n, S, d_u, d_a,
    SP: tl.constexpr, BJ: tl.constexpr, ALPHA: tl.constexpr, SHARED: tl.constexpr, TABLES: tl.constexpr,
    RING: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Fill the tables of an instance, which are v for ``TABLES`` = 1; return DP_Ω, −inf if no sequence is allowed."""
    i = tl.arange(0, SP)
    tl.store(tables + i, load_row(u, 0, S, SP, float("-inf")), mask=i < S)
    if TANGENT:
        tl.store(tables + 3 * size + i, load_row(d_u, 0, S, SP, 0.0), mask=i < S)
    total = tl.full([], 0.0, tl.float64)
    for t in range(1, n):
        tl.debug_barrier()
        before, now = tables + _place(t - 1, S, RING), tables + _place(t, S, RING)
        old, peak = relative(load_row(before, 0, S, SP, float("-inf")))
        total += peak.to(tl.float64)
        step = place_of_matrix(t, S, SHARED)
        d_old = old
        if TANGENT:
            d_old = relative_tangent(old, load_row(before + 3 * size, 0, S, SP, 0.0))
        for first in range(0, S, BJ):
            j = first + tl.arange(0, BJ)
            x = old[:, None] + load_tile(a + step, first, S, SP, BJ, float("-inf"))
            smooth, top, tau = smooth_max(x, ALPHA)
            tl.store(now + j, smooth + load_row(u + t * S, first, S, BJ, float("-inf")), mask=j < S)
            if TABLES > 1:
                tl.store(now + size + j, top, mask=j < S)
                tl.store(now + 2 * size + j, tau, mask=j < S)
            if TANGENT:
                y = d_old[:, None] + load_tile(d_a + step, first, S, SP, BJ, 0.0)
                dv, mean = tangent(x, y, top, tau, ALPHA)
                tl.store(now + 3 * size + j, dv + load_row(d_u + t * S, first, S, BJ, 0.0), mask=j < S)
                tl.store(now + 4 * size + j, mean, mask=j < S)
    tl.debug_barrier()
    last = tables + _place(n - 1, S, RING)
    row = load_row(last, 0, S, SP, float("-inf"))
    d_row = row
    if TANGENT:
        d_row = load_row(last + 3 * size, 0, S, SP, 0.0)
    return total + finish(row, d_row, tables, size, ALPHA, TABLES, TANGENT)


@triton.jit
def _place(t, S, RING: tl.constexpr):
    """Return the place of the row of the step t in the table of v."""
    place = t
    if RING:
        place = t % 2
    return place * S


@triton.jit
def _backward(
    a, tables, size, n, mass, nodes, T, S, d_a,
    SP: tl.constexpr, BJ: tl.constexpr, ALPHA: tl.constexpr, SHARED: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Walk back along q: μ_{t−1}(i) = Σ_j q_t(i, j) μ_t(j). Without ``TANGENT``, dμ is μ. ``nodes`` receives dμ."""
    i = tl.arange(0, SP)
    # The probabilities of the states; without ``TANGENT`` they are the results.
    inner = nodes
    if TANGENT:
        inner = tables + 5 * size
    node, d_node = start(tables, size, n, mass, S, SP, ALPHA, TANGENT)
    tl.store(inner + (n - 1) * S + i, node, mask=i < S)
    if TANGENT:
        tl.store(nodes + (n - 1) * S + i, d_node, mask=i < S)
    for back in range(1, n):
        t = n - back
        tl.debug_barrier()
        old, _ = relative(load_row(tables + (t - 1) * S, 0, S, SP, float("-inf")))
        d_old = old
        if TANGENT:
            d_old = relative_tangent(old, load_row(tables + 3 * size + (t - 1) * S, 0, S, SP, 0.0))
        step, at = place_of_matrix(t, S, SHARED), t * S
        node, d_node = tl.zeros_like(old), tl.zeros_like(old)
        for first in range(0, S, BJ):
            flow, edge = _tile_flows(
                old, d_old, a + step, d_a + step, tables + at, size, inner + at, nodes + at, first, S,
                SP, BJ, ALPHA, TANGENT,
            )  # fmt: skip
            node += tl.sum(flow, 1)
            if TANGENT:
                d_node += tl.sum(edge, 1)
        factor = balance(node, mass)
        tl.store(inner + (t - 1) * S + i, node * factor, mask=i < S)
        if TANGENT:
            tl.store(nodes + (t - 1) * S + i, d_node * factor, mask=i < S)
    for t in range(n, T):
        tl.store(nodes + t * S + i, tl.zeros_like(node), mask=i < S)


@triton.jit
def _tile_flows(
    old, d_old, a, d_a, now, size, inner, nodes, first, S,
    SP: tl.constexpr, BJ: tl.constexpr, ALPHA: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Return the ``flows`` of a tile of a step, whose rows of tables start at ``now``, ``inner`` and ``nodes``."""
    x = old[:, None] + load_tile(a, first, S, SP, BJ, float("-inf"))
    top, tau = load_row(now + size, first, S, BJ, 0.0), load_row(now + 2 * size, first, S, BJ, 0.0)
    node = load_row(inner, first, S, BJ, 0.0)
    y, mean, d_node = x, top, node
    if TANGENT:
        y = d_old[:, None] + load_tile(d_a, first, S, SP, BJ, 0.0)
        mean, d_node = load_row(now + 4 * size, first, S, BJ, 0.0), load_row(nodes, first, S, BJ, 0.0)
    return flows(x, y, top, tau, mean, node, d_node, ALPHA, TANGENT)


@triton.jit(do_not_specialize=["T", "P"])
def edge_sums(
    transition, lengths, tables, nodes, edges, d_transition, a_stride, da_stride, T, S, P,
    SP: tl.constexpr, BJ: tl.constexpr, ALPHA: tl.constexpr, SHARED: tl.constexpr, TABLES: tl.constexpr,
    TANGENT: tl.constexpr,
):  # fmt: skip
    """Write one tile of ``edges`` (B, P, S, S): of one step, or the sum over all steps if they share the matrix."""
    b, p = tl.program_id(0).to(tl.int64) // P, tl.program_id(0).to(tl.int64) % P
    first, n, size = tl.program_id(1) * BJ, tl.load(lengths + b), T * S
    a, table, node = transition + b * a_stride + p * S * S, tables + b * TABLES * size, nodes + b * size
    inner, d_a = node, a
    if TANGENT:
        inner, d_a = table + 5 * size, d_transition + b * da_stride + p * S * S
    stop = n
    if not SHARED:
        stop = tl.minimum(n, p + 2)
    total = tl.zeros([SP, BJ], edges.dtype.element_ty)
    for t in range(p + 1, stop):
        old, _ = relative(load_row(table + (t - 1) * S, 0, S, SP, float("-inf")))
        d_old, at = old, t * S
        if TANGENT:
            d_old = relative_tangent(old, load_row(table + 3 * size + (t - 1) * S, 0, S, SP, 0.0))
        _, edge = _tile_flows(
            old, d_old, a, d_a, table + at, size, inner + at, node + at, first, S, SP, BJ, ALPHA, TANGENT
        )
        total += edge
    i, j = tl.arange(0, SP)[:, None], first + tl.arange(0, BJ)[None, :]
    tl.store(edges + (b * P + p) * S * S + i * S + j, total, mask=(i < S) & (j < S))
