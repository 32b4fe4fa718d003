"""Triton kernel of smoothed sums over tag sequences whose matrices fit into one tile: DP_Ω and its derivatives.

The recursions are those of :mod:`.log_domain`. A program computes
the forward and the backward pass of one instance, so that a value, a gradient or a Hessian product is one launch. A
matrix shared by all steps stays in registers, as do v, the probabilities of the states, and the sum of the transitions
over the steps.

Tensors are unary (B | 1, T, S) and transition (B | 1, P, S, S), with the distances ``u_stride`` and ``a_stride``
between instances, 0 for a tensor shared by the batch. ``SHARED`` is P = 1. Lengths are (B,) int64, and values (B,)
float64. The results are nodes (B, T, S) and edges (B, P, S, S), written as a whole, also beyond the lengths.

The scratch memory ``tables`` is (B, K, T, S): v, max x and τ, and for derivatives also dv and m. v is stored before
its largest number is subtracted, and readers subtract the number. Step 0 has no maximum over predecessors, so the
first numbers of its rows of max x, τ and m belong to the maximum over the last states. The backward pass reads max x
and τ, since to recompute them it would repeat Newton's method, or two reductions of each tile for the negative entropy.

The forward pass reads nothing that it writes, so that one barrier between the passes is enough. Each number is a sum
of one program in a fixed order. Results therefore repeat bit for bit and do not depend on the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from structinf.kernels.gpu.triton_smooth_max import curved

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

__all__ = ["forward", "sums"]


@triton.jit(do_not_specialize=["u_stride", "du_stride", "T", "P"])
def sums(
    unary, transition, lengths, values, tables, weight, nodes, edges, d_unary, d_transition,
    u_stride, a_stride, du_stride, da_stride, T, S, P,
    SP: tl.constexpr, ALPHA: tl.constexpr, SHARED: tl.constexpr, TABLES: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Write DP_Ω, and its gradient times ``weight`` (B,) or with ``TANGENT`` its Hessian times v.

    ``TABLES`` is the number of tables, 0 for the value alone. Tensors that are not used are None.
    """
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b)
    u, a, size, table, d_u, d_a = unary + b * u_stride, transition + b * a_stride, T * S, tables, unary, transition
    if TABLES > 0:
        table = tables + b * TABLES * size
    if TANGENT:
        d_u, d_a = d_unary + b * du_stride, d_transition + b * da_stride
    value = forward(u, a, table, size, n, S, d_u, d_a, SP, ALPHA, SHARED, TABLES, TANGENT)
    tl.store(values + b, value)
    if nodes is not None:
        mass = 1.0
        if weight is not None:
            mass = tl.load(weight + b)
        tl.debug_barrier()
        node, edge = nodes + b * size, edges + b * P * S * S
        _backward(a, table, size, n, mass, node, edge, T, S, d_a, SP, ALPHA, SHARED, TANGENT)


@triton.jit
def forward(
    u, a, tables, size, n, S, d_u, d_a,
    SP: tl.constexpr, ALPHA: tl.constexpr, SHARED: tl.constexpr, TABLES: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Fill the tables of an instance, which are v for ``TABLES`` = 1; return DP_Ω, −inf if no sequence is allowed."""
    i = tl.arange(0, SP)
    row, total = load_row(u, 0, S, SP, float("-inf")), tl.full([], 0.0, tl.float64)
    if TABLES > 0:
        tl.store(tables + i, row, mask=i < S)
    if TANGENT:
        d_row = load_row(d_u, 0, S, SP, 0.0)
        tl.store(tables + 3 * size + i, d_row, mask=i < S)
    if SHARED:
        tile = load_tile(a, 0, S, SP, SP, float("-inf"))
    for t in range(1, n):
        at = t * S + i
        scores = load_row(u + t * S, 0, S, SP, float("-inf"))
        if not SHARED:
            tile = load_tile(a + (t - 1) * S * S, 0, S, SP, SP, float("-inf"))
        old, peak = relative(row)
        total += peak.to(tl.float64)
        x = old[:, None] + tile
        smooth, top, tau = smooth_max(x, ALPHA)
        row = smooth + scores
        if TABLES > 0:
            tl.store(tables + at, row, mask=i < S)
        if TABLES > 1:
            tl.store(tables + size + at, top, mask=i < S)
            tl.store(tables + 2 * size + at, tau, mask=i < S)
        if TANGENT:
            y = relative_tangent(old, d_row)[:, None] + load_tile(
                d_a + place_of_matrix(t, S, SHARED), 0, S, SP, SP, 0.0
            )
            d_row, mean = tangent(x, y, top, tau, ALPHA)
            d_row += load_row(d_u + t * S, 0, S, SP, 0.0)
            tl.store(tables + 3 * size + at, d_row, mask=i < S)
            tl.store(tables + 4 * size + at, mean, mask=i < S)
    d_last = row
    if TANGENT:
        d_last = d_row
    return total + finish(row, d_last, tables, size, ALPHA, TABLES, TANGENT)


@triton.jit
def finish(row, d_row, tables, size, ALPHA: tl.constexpr, TABLES: tl.constexpr, TANGENT: tl.constexpr):
    """Return max_Ω of the last states in float64, and store its max x, τ and m."""
    old, peak = relative(row)
    x, here = old[:, None], tl.arange(0, 1)
    smooth, top, tau = smooth_max(x, ALPHA)
    if TABLES > 1:
        tl.store(tables + size + here, top)
        tl.store(tables + 2 * size + here, tau)
    if TANGENT:
        _, mean = tangent(x, relative_tangent(old, d_row)[:, None], top, tau, ALPHA)
        tl.store(tables + 4 * size + here, mean)
    return peak.to(tl.float64) + tl.max(smooth, 0).to(tl.float64)


@triton.jit
def start(tables, size, n, mass, S, SP: tl.constexpr, ALPHA: tl.constexpr, TANGENT: tl.constexpr):
    """Return the probabilities of the last states times ``mass``, and with ``TANGENT`` their derivatives."""
    at = tables + (n - 1) * S
    old, _ = relative(load_row(at, 0, S, SP, float("-inf")))
    q, s = curved((old - tl.load(tables + size)) - tl.load(tables + 2 * size), ALPHA)
    factor = balance(q, mass)
    node = q * factor
    d_node = node
    if TANGENT:
        dv = relative_tangent(old, load_row(at + 3 * size, 0, S, SP, 0.0))
        d_node = s * (dv - tl.load(tables + 4 * size)) * factor
    return node, d_node


@triton.jit
def _backward(
    a, tables, size, n, mass, nodes, edges, T, S, d_a,
    SP: tl.constexpr, ALPHA: tl.constexpr, SHARED: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Walk back along q: μ_t(i, j) = q_t(i, j) μ_t(j) and μ_{t−1}(i) = Σ_j μ_t(i, j).

    Without ``TANGENT``, dμ is μ. Only dμ is written. The rows of a step are loaded one step ahead.
    """
    i = tl.arange(0, SP)
    square, inside = i[:, None] * S + i[None, :], (i < S)[:, None] & (i < S)[None, :]
    if SHARED:
        tile = load_tile(a, 0, S, SP, SP, float("-inf"))
        total = tl.zeros_like(tile)
    node, d_node = start(tables, size, n, mass, S, SP, ALPHA, TANGENT)
    tl.store(nodes + (n - 1) * S + i, d_node, mask=i < S)
    row, top, tau = _rows_of_step(tables, size, n - 1, S, SP)
    for back in range(1, n):
        t = n - back
        next_row, next_top, next_tau = _rows_of_step(tables, size, t - 1, S, SP)
        if not SHARED:
            tile = load_tile(a + (t - 1) * S * S, 0, S, SP, SP, float("-inf"))
        old, _ = relative(row)
        x = old[:, None] + tile
        y, mean = x, top
        if TANGENT:
            d_old = relative_tangent(old, load_row(tables + 3 * size + (t - 1) * S, 0, S, SP, 0.0))
            y = d_old[:, None] + load_tile(d_a + place_of_matrix(t, S, SHARED), 0, S, SP, SP, 0.0)
            mean = load_row(tables + 4 * size + t * S, 0, S, SP, 0.0)
        flow, edge = flows(x, y, top, tau, mean, node, d_node, ALPHA, TANGENT)
        if SHARED:
            total += edge
        else:
            tl.store(edges + (t - 1) * S * S + square, edge, mask=inside)
        node = tl.sum(flow, 1)
        factor = balance(node, mass)
        node *= factor
        d_node = node
        if TANGENT:
            d_node = tl.sum(edge, 1) * factor
        tl.store(nodes + (t - 1) * S + i, d_node, mask=i < S)
        row, top, tau = next_row, next_top, next_tau
    for t in range(n, T):
        tl.store(nodes + t * S + i, tl.zeros_like(node), mask=i < S)
        if not SHARED:
            tl.store(edges + (t - 1) * S * S + square, tl.zeros([SP, SP], edges.dtype.element_ty), mask=inside)
    if SHARED:
        tl.store(edges + square, total, mask=inside)


@triton.jit
def _rows_of_step(tables, size, t, S, SP: tl.constexpr):
    """Return v of the step t − 1, and max x and τ of the step t; any numbers for t = 0."""
    count = tl.where(t > 0, S, 0)
    at = tables + t * S
    row = load_row(at - S, 0, count, SP, float("-inf"))
    return row, load_row(at + size, 0, count, SP, 0.0), load_row(at + 2 * size, 0, count, SP, 0.0)
