"""Smoothed sums over chains of two states and one transition, with 16 instances in the lanes of a vector.

Only the difference of the two scores matters. With φ(y) = max_Ω(0, y), q = φ'(y) and κ = φ''(y),

    Ω = Σ q log q       φ = log(1 + eʸ),  q = eʸ / (1 + eʸ),  κ = q (1 − q)
    Ω = ½ (‖q‖² − 1)    φ = q²,           q = (1 + y) / 2,    κ = ½               for |y| < 1, else max(y, 0)

the recursion v_t(j) = max_Ω over i of v_{t−1}(i) + A(i, j), + u_t(j) needs only d_t = v_t(1) − v_t(0). From the
better state b of step t − 1,

    v_t(j) = v_{t−1}(b) + A(b, j) + φ(y_j) + u_t(j),   y_j = ±(d_{t−1} + A(1, j) − A(0, j)), − for b = 1.

So no difference of large numbers occurs, and q_j = q(y_j) is the probability of the other state before state j. A tag
of −inf is a d of ±∞, for which all formulas hold. Transitions of −inf, and infeasible instances, are left to
:mod:`.log_domain`; their DP_Ω is nan.

``power`` is as in :mod:`.smooth_step`, infinite or 1. Arrays are as in :mod:`.log_domain`. Kernels process the blocks
``start:stop`` of 16 instances. The algorithms are 3 and 4 of A. Mensch & M. Blondel, ICML 2018.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.simd.exp_log import exp, log
from structinf.kernels.simd.memory import address, cast
from structinf.kernels.simd.vector import LANES, load, maximum, minimum, store, where_less

__all__ = ["hessian_product", "mean", "value"]

# Tables of the workspace, with a row of lanes for each step: u; v, later results; q and 1 − q of each state j; dq.
U0, U1, V0, V1, Q0, Q1, R0, R1, K0, K1 = range(10)


# ----------------------------------------------------------------------------- one step


@jit(inline=True)
def _smooth_max_of_two(y, power):
    """Return φ, q and 1 − q."""
    if power == np.inf:
        e = exp(0.0 - maximum(y, 0.0 - y))
        most = 1.0 / (1.0 + e)
        gain, least = maximum(y, 0.0) + log(1.0 + e), e * most
        return gain, where_less(0.0, y, most, least), where_less(0.0, y, least, most)
    q = minimum(maximum(0.5 + 0.5 * y, 0.0), 1.0)
    gain = where_less(y, 1.0, q * q, y)
    return gain, q, minimum(maximum(0.5 - 0.5 * y, 0.0), 1.0)


@jit(inline=True)
def _curvature(q, r, power):
    """Return κ for q and r = 1 − q."""
    return q * r if power == np.inf else where_less(0.0, q, where_less(0.0, r, 0.5, 0.0), 0.0)


@jit(inline=True)
def _is_number(d):
    """Return 1, or 0 for nan."""
    return where_less(d, 0.5, 1.0, where_less(0.0, d, 1.0, 0.0))


# ----------------------------------------------------------------------------- to lanes and back


@jit
def _gather(first, batch, x, steps, workspace, table):
    """Copy 16 instances of x (B | 1, T, 2) to two tables."""
    size = steps * LANES
    for k in range(LANES):
        b = min(min(first + k, batch - 1), len(x) - 1)
        for t in range(steps):
            workspace[table * size + t * LANES + k] = x[b, t, 0]
            workspace[(table + 1) * size + t * LANES + k] = x[b, t, 1]


@jit
def _gather_matrices(first, batch, x, out):
    """Copy 16 instances of x (B | 1, 1, 2, 2) to four rows, 00, 01, 10, 11."""
    for k in range(LANES):
        b = min(min(first + k, batch - 1), len(x) - 1)
        for i in range(2):
            for j in range(2):
                out[(2 * i + j) * LANES + k] = x[b, 0, i, j]


@jit
def _gather_lengths(first, batch, lengths, out):
    """Copy 16 lengths to a row; return the largest."""
    longest = 0
    for k in range(LANES):
        length = lengths[min(first + k, batch - 1)]
        out[k] = length
        longest = max(longest, length)
    return longest


@jit
def _scatter(first, batch, lengths, value, steps, workspace, matrix, out_unary, out_transition):
    """Write the tables V0 and V1, and the matrices, of all instances with a value."""
    size = steps * LANES
    for k in range(min(LANES, batch - first)):
        b = first + k
        if value[b] > -np.inf:
            for t in range(lengths[b]):
                out_unary[b, t, 0] = workspace[V0 * size + t * LANES + k]
                out_unary[b, t, 1] = workspace[V1 * size + t * LANES + k]
            for i in range(2):
                for j in range(2):
                    out_transition[b, 0, i, j] = matrix[(2 * i + j) * LANES + k]


# ----------------------------------------------------------------------------- forward and backward passes


@jit
def _forward(first, batch, unary, transition, lengths, power, workspace, matrix, ends, total, last, value):
    """Fill ``last``, ``value`` and the tables Q and R: probabilities of states 1 and 0 at t − 1 given each at t.

    Returns the largest length. Lanes beyond the batch repeat its last instance.
    """
    steps = unary.shape[1]
    size = steps * LANES
    _gather(first, batch, unary, steps, workspace, U0)
    _gather_matrices(first, batch, transition, matrix)
    longest, wide = _gather_lengths(first, batch, lengths, ends), address(total)
    length = load(ends, 0)
    a00, a01, a10, a11 = load(matrix, 0), load(matrix, LANES), load(matrix, 2 * LANES), load(matrix, 3 * LANES)
    c0, c1, all_of_them = a10 - a00, a11 - a01, (a00 + a01) + (a10 + a11)
    is_valid = where_less(maximum(all_of_them, 0.0 - all_of_them), np.inf, _is_number(all_of_them), 0.0)
    u0, u1 = load(workspace, U0 * size), load(workspace, U1 * size)
    d = u1 - u0
    is_valid = minimum(is_valid, _is_number(d))
    value_so_far = cast(where_less(0.0, d, u1, u0), wide)
    for t in range(1, longest):
        at = t * LANES
        x0, x1 = d + c0, d + c1
        gain0, q0, r0 = _smooth_max_of_two(where_less(0.0, d, 0.0 - x0, x0), power)
        gain1, q1, r1 = _smooth_max_of_two(where_less(0.0, d, 0.0 - x1, x1), power)
        store(workspace, Q0 * size + at, where_less(0.0, d, r0, q0))
        store(workspace, Q1 * size + at, where_less(0.0, d, r1, q1))
        store(workspace, R0 * size + at, where_less(0.0, d, q0, r0))
        store(workspace, R1 * size + at, where_less(0.0, d, q1, r1))
        v0 = (where_less(0.0, d, a10, a00) + gain0) + load(workspace, U0 * size + at)
        v1 = (where_less(0.0, d, a11, a01) + gain1) + load(workspace, U1 * size + at)
        new = v1 - v0
        value_so_far += cast(where_less(t, length, where_less(0.0, new, v1, v0), 0.0), wide)
        d = where_less(t, length, new, d)
        is_valid = minimum(is_valid, _is_number(d))
    gain, _, _ = _smooth_max_of_two(0.0 - maximum(d, 0.0 - d), power)
    store(last, 0, d)
    store(total, 0, where_less(0.5, cast(is_valid, wide), value_so_far + cast(gain, wide), np.nan))
    for k in range(min(LANES, batch - first)):
        value[first + k] = total[k]
    return longest


@jit(inline=True)
def _empty_workspace(unary):
    """Return scratch memory: the tables, a matrix, the lengths, DP_Ω in float64, and the last d."""
    dtype = unary.dtype
    tables = np.empty(10 * unary.shape[1] * LANES, dtype)
    return tables, np.empty(4 * LANES, dtype), np.empty(LANES, dtype), np.empty(LANES), np.empty(LANES, dtype)


@jit
def value(start, stop, unary, transition, lengths, power, out):
    """Write DP_Ω to ``out`` (B,) float64."""
    workspace, matrix, ends, total, last = _empty_workspace(unary)
    for block in range(start, stop):
        _forward(
            block * LANES, len(lengths), unary, transition, lengths, power, workspace, matrix, ends, total, last, out
        )


@jit
def mean(start, stop, unary, transition, lengths, power, weight, value, out_unary, out_transition):
    """Write expected structures times ``weight`` (B,); ``out_transition`` is (B, 1, 2, 2)."""
    steps, batch = unary.shape[1], len(lengths)
    (workspace, matrix, ends, total, last), size = _empty_workspace(unary), steps * LANES
    weights = np.empty_like(ends)
    for block in range(start, stop):
        first = block * LANES
        longest = _forward(first, batch, unary, transition, lengths, power, workspace, matrix, ends, total, last, value)
        for k in range(LANES):
            weights[k] = weight[min(first + k, batch - 1)]
        d, length, mass = load(last, 0), load(ends, 0), load(weights, 0)
        _, q, r = _smooth_max_of_two(d, power)
        p0, p1 = r * mass, q * mass
        wide, narrow = address(total), address(workspace)
        e00 = e01 = e10 = e11 = cast(0.0 * mass, wide)
        for t in range(longest - 1, 0, -1):
            at = t * LANES
            store(workspace, V0 * size + at, p0)
            store(workspace, V1 * size + at, p1)
            m10, m11 = load(workspace, Q0 * size + at) * p0, load(workspace, Q1 * size + at) * p1
            m00, m01 = load(workspace, R0 * size + at) * p0, load(workspace, R1 * size + at) * p1
            e00 += cast(where_less(t, length, m00, 0.0), wide)
            e01 += cast(where_less(t, length, m01, 0.0), wide)
            e10 += cast(where_less(t, length, m10, 0.0), wide)
            e11 += cast(where_less(t, length, m11, 0.0), wide)
            # Rescale, as rounding errors of Σ q would add up over long sequences.
            new0, new1 = m00 + m01, m10 + m11
            total_mass = new0 + new1
            factor = where_less(0.0, maximum(total_mass, 0.0 - total_mass), mass / total_mass, 1.0)
            p0, p1 = where_less(t, length, new0 * factor, p0), where_less(t, length, new1 * factor, p1)
        store(workspace, V0 * size, p0)
        store(workspace, V1 * size, p1)
        store(matrix, 0, cast(e00, narrow))
        store(matrix, LANES, cast(e01, narrow))
        store(matrix, 2 * LANES, cast(e10, narrow))
        store(matrix, 3 * LANES, cast(e11, narrow))
        _scatter(first, batch, lengths, value, steps, workspace, matrix, out_unary, out_transition)


@jit
def hessian_product(
    start, stop, unary, transition, lengths, power, v_unary, v_transition, value, out_unary, out_transition
):
    """Write ∇²DP_Ω times v, in the forms of θ; ``out_transition`` is (B, 1, 2, 2)."""
    steps, batch = unary.shape[1], len(lengths)
    (workspace, matrix, ends, total, last), size = _empty_workspace(unary), steps * LANES
    for block in range(start, stop):
        first = block * LANES
        longest = _forward(first, batch, unary, transition, lengths, power, workspace, matrix, ends, total, last, value)
        d, length = load(last, 0), load(ends, 0)
        _gather(first, batch, v_unary, steps, workspace, V0)
        _gather_matrices(first, batch, v_transition, matrix)
        a00, a01, a10, a11 = load(matrix, 0), load(matrix, LANES), load(matrix, 2 * LANES), load(matrix, 3 * LANES)
        # Derivatives of d, and of q_j into the tables K.
        z = load(workspace, V1 * size) - load(workspace, V0 * size)
        for t in range(1, longest):
            at = t * LANES
            q0, q1 = load(workspace, Q0 * size + at), load(workspace, Q1 * size + at)
            x0, x1 = z + (a10 - a00), z + (a11 - a01)
            store(workspace, K0 * size + at, _curvature(q0, load(workspace, R0 * size + at), power) * x0)
            store(workspace, K1 * size + at, _curvature(q1, load(workspace, R1 * size + at), power) * x1)
            new = ((a01 - a00) + (q1 * x1 - q0 * x0)) + (
                load(workspace, V1 * size + at) - load(workspace, V0 * size + at)
            )
            z = where_less(t, length, new, z)
        _, p1, p0 = _smooth_max_of_two(d, power)
        g = _curvature(p1, p0, power) * z  # the derivative of p1; that of p0 is −g
        wide, narrow = address(total), address(workspace)
        e00 = e01 = e10 = e11 = cast(0.0 * p0, wide)
        for t in range(longest - 1, 0, -1):
            at = t * LANES
            store(workspace, V0 * size + at, 0.0 - g)
            store(workspace, V1 * size + at, g)
            q0, q1 = load(workspace, Q0 * size + at), load(workspace, Q1 * size + at)
            r0, r1 = load(workspace, R0 * size + at), load(workspace, R1 * size + at)
            k0, k1 = load(workspace, K0 * size + at) * p0, load(workspace, K1 * size + at) * p1
            m10, m11 = k0 - q0 * g, k1 + q1 * g
            e00 += cast(where_less(t, length, (0.0 - k0) - r0 * g, 0.0), wide)
            e01 += cast(where_less(t, length, r1 * g - k1, 0.0), wide)
            e10 += cast(where_less(t, length, m10, 0.0), wide)
            e11 += cast(where_less(t, length, m11, 0.0), wide)
            new0, new1 = r0 * p0 + r1 * p1, q0 * p0 + q1 * p1
            factor = 1.0 / (new0 + new1)
            p0, p1 = where_less(t, length, new0 * factor, p0), where_less(t, length, new1 * factor, p1)
            g = where_less(t, length, m10 + m11, g)
        store(workspace, V0 * size, 0.0 - g)
        store(workspace, V1 * size, g)
        store(matrix, 0, cast(e00, narrow))
        store(matrix, LANES, cast(e01, narrow))
        store(matrix, 2 * LANES, cast(e10, narrow))
        store(matrix, 3 * LANES, cast(e11, narrow))
        _scatter(first, batch, lengths, value, steps, workspace, matrix, out_unary, out_transition)
