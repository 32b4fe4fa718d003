"""Smoothed sums over tag sequences for any Ω: values, expected structures and Hessian-vector products.

One instance has ``unary`` (T, S), ``transition`` (P, S, S) and a length, where P = T − 1, or 1 for a transition
shared by all steps. With v the smoothed scores of a prefix,

    v_t(j) = max_Ω over i of v_{t−1}(i) + A_t(i, j),  + u_t(j) − c_t,   where c_t makes the largest v_t(j) 0,

and DP_Ω = Σ_t c_t + max_Ω v_T. q_t(i, j) is the probability of state i at t − 1 given state j at t. Every other
quantity is a backward walk along q. The c_t keep v near 0, so that float32 remains accurate for long sequences. The
c_t are summed in float64. :mod:`.smooth_step` computes one step.

A batch has ``unary`` (B | 1, T, S), ``transition`` (B | 1, P, S, S) and ``lengths`` (B,). A kernel processes a range
of rows. ``power`` is the exponent p of :mod:`.smooth_step`. Result arrays must be zeros on entry. Only results for a
matrix of each step may be uninitialised, unless they are sums over instances.

The algorithms are 3 and 4 of A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and
attention, ICML 2018.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.simd.vector import LANES, largest, load, maximum, reduce_sum, store, where_less

from .padded_rows import (
    add_row,
    clear,
    copy_in,
    copy_out,
    filled,
    load_row,
    matrix_offset,
    padded,
    store_row,
    stride_of,
    width_of,
)
from .smooth_step import D_NODE, D_V, NODE, V, advance, advance_tangent, backward, backward_tangent

__all__ = ["end_matrix", "forward", "hessian_product", "make_workspace", "mean", "value"]


# ----------------------------------------------------------------------------- one instance


@jit
def make_workspace(unary, transition, rows, tables):
    """Return the ``workspace`` of :mod:`.smooth_step`, and the ``size`` of its tables of ``rows`` + 2 rows."""
    stride, width = stride_of(transition), width_of(unary.shape[2])
    size = (rows + 2) * width
    workspace = filled(tables * size // LANES, 0, unary.dtype)
    for at in range(width, size, LANES):
        store(workspace, V * size + at, -np.inf)
    for k in range(width):
        workspace[k] = 0 if width - LANES <= k < width - LANES + width - stride else 1
    return workspace, size


@jit
def end_matrix(transition, padding):
    """Return the matrix, without scores, of the step from the last states to the end, in rows of one vector."""
    states = transition.shape[3]
    matrix = filled(states, padding, transition.dtype).reshape((1, 1, states, LANES))
    for i in range(states):
        matrix[0, 0, i, 0] = 0
    return matrix


@jit
def _shift(workspace, row, best, width, level):
    """Subtract the largest number of ``row``, among positions where ``best`` is at least ``level``, and return it."""
    top = -np.inf
    for at in range(0, width, LANES):
        top = maximum(top, where_less(load(workspace, best + at), level, -np.inf, load(workspace, row + at)))
    peak = largest(top)
    if peak > -np.inf:
        for at in range(0, width, LANES):
            store(workspace, row + at, load(workspace, row + at) - peak)
    return peak


@jit
def _balance(workspace, row, width, mass):
    """Scale probabilities to the sum ``mass``; return the factor.

    The rounding error of Σ q − 1 always has the same sign, since τ is found from the left. Without the scaling, the
    error would add up over long sequences.
    """
    total = 0.0
    for at in range(0, width, LANES):
        total += load(workspace, row + at)
    total_mass = reduce_sum(total)
    factor = mass / total_mass if total_mass != 0 else total_mass
    _scale(workspace, row, width, factor)
    return factor


@jit
def _scale(workspace, row, width, factor):
    for at in range(0, width, LANES):
        store(workspace, row + at, load(workspace, row + at) * factor)


@jit(inline=True)
def forward(b, unary, transition, length, power, workspace, size, matrix, end):
    """Fill the tables of v, max x and τ, or their last rows; return DP_Ω, −inf if no sequence is allowed."""
    states, u = unary.shape[2], min(b, len(unary) - 1)
    width, stride, count = width_of(states), stride_of(transition), transition.shape[1]
    end_row, total, new, is_copied = size - width, np.float64(0), 0, stride != states
    for t in range(length):
        old, new = new, width + t * width % (end_row - width)
        if t > 0:
            start = 0 if is_copied else matrix_offset(b, t, len(transition), count, states)
            if is_copied and (t == 1 or count > 1):
                copy_in(transition, b, t, matrix)
            advance(workspace, size, old, new, states, stride, matrix, start, power)
            add_row(unary, u, t, workspace, new)
        else:
            load_row(unary, u, t, workspace, new)
        peak = _shift(workspace, V * size + new, V * size + new, width, -np.inf)
        if peak == -np.inf:
            return np.float64(peak)
        total += peak
    advance(workspace, size, new, end_row, states, LANES, end, 0, power)
    return total + workspace[V * size + end_row]


@jit(inline=True)
def _backward(b, transition, length, power, workspace, size, matrix, end, weight, out, g, part, add):
    """Compute probabilities times ``weight``: μ_t(i, j) = q_t(i, j) μ_t(j) and μ_{t−1}(i) = Σ_j μ_t(i, j).

    The probabilities of transitions are written to the instance ``g`` of ``out``, or added if ``add`` is set.
    ``part`` is scratch memory.
    """
    count, states = transition.shape[1:3]
    width, stride = width_of(states), stride_of(transition)
    end_row, last, is_copied = size - width, length * width, stride != states
    workspace[NODE * size + end_row] = weight
    backward(workspace, size, last, end_row, states, LANES, end, 0, power, np.empty_like(end), 0, False)
    for t in range(length - 1, 0, -1):
        old, new = t * width, (t + 1) * width
        start, first = 0, 0
        if not is_copied:
            start, first = (
                matrix_offset(b, t, len(transition), count, states),
                matrix_offset(g, t, len(out), count, states),
            )
        elif count > 1:
            copy_in(transition, b, t, matrix)
        adds = count == 1 or (add and not is_copied)
        backward(workspace, size, old, new, states, stride, matrix, start, power, part, first, adds)
        _balance(workspace, NODE * size + old, width, weight)
        if is_copied and (t == 1 or count > 1):
            copy_out(part, out, g, t, add)
    if count > 1 and not add:
        clear(out, g, length)


@jit(inline=True)
def _forward_tangent(
    b, unary, transition, v_unary, v_transition, length, power, workspace, size, matrix, end, d_matrix, d_end
):
    """Run :func:`forward` with derivatives.

    Each dv is relative to the dv of a best state, since only differences matter.
    """
    states, u, d_u = unary.shape[2], min(b, len(unary) - 1), min(b, len(v_unary) - 1)
    width, stride, count = width_of(states), stride_of(transition), transition.shape[1]
    end_row, total, new, is_copied = size - width, np.float64(0), 0, stride != states
    for t in range(length):
        old, new = new, (t + 1) * width
        if t > 0:
            start, d_start = 0, 0
            if not is_copied:
                start = matrix_offset(b, t, len(transition), count, states)
                d_start = matrix_offset(b, t, len(v_transition), count, states)
            elif t == 1 or count > 1:
                copy_in(transition, b, t, matrix)
                copy_in(v_transition, b, t, d_matrix)
            advance(workspace, size, old, new, states, stride, matrix, start, power)
            advance_tangent(workspace, size, old, new, states, stride, matrix, start, d_matrix, d_start, power)
            add_row(unary, u, t, workspace, new)
            add_row(v_unary, d_u, t, workspace, D_V * size + new)
        else:
            load_row(unary, u, t, workspace, new)
            load_row(v_unary, d_u, t, workspace, D_V * size + new)
        peak = _shift(workspace, V * size + new, V * size + new, width, -np.inf)
        if peak == -np.inf:
            return np.float64(peak)
        total += peak
        _shift(workspace, D_V * size + new, V * size + new, width, 0)
    advance(workspace, size, new, end_row, states, LANES, end, 0, power)
    advance_tangent(workspace, size, new, end_row, states, LANES, end, 0, d_end, 0, power)
    return total + workspace[V * size + end_row]


@jit(inline=True)
def _backward_tangent(
    b, transition, v_transition, length, power, workspace, size, matrix, end, d_matrix, d_end, out, part
):
    """Compute the derivative of :func:`_backward`, for weight 1 and without adding."""
    count, states = transition.shape[1:3]
    width, stride = width_of(states), stride_of(transition)
    end_row, last, is_copied = size - width, length * width, stride != states
    workspace[NODE * size + end_row] = 1
    none = np.empty_like(end)
    backward_tangent(workspace, size, last, end_row, states, LANES, end, 0, d_end, 0, power, none, 0, False)
    for t in range(length - 1, 0, -1):
        old, new = t * width, (t + 1) * width
        start, d_start, first = 0, 0, 0
        if not is_copied:
            start, first = (
                matrix_offset(b, t, len(transition), count, states),
                matrix_offset(b, t, len(out), count, states),
            )
            d_start = matrix_offset(b, t, len(v_transition), count, states)
        elif count > 1:
            copy_in(transition, b, t, matrix)
            copy_in(v_transition, b, t, d_matrix)
        backward_tangent(
            workspace, size, old, new, states, stride, matrix, start, d_matrix, d_start, power, part, first, count == 1
        )
        _scale(workspace, D_NODE * size + old, width, _balance(workspace, NODE * size + old, width, 1))
        if is_copied and (t == 1 or count > 1):
            copy_out(part, out, b, t, False)
    if count > 1:
        clear(out, b, length)


# ----------------------------------------------------------------------------- batches


@jit
def value(start, stop, rows, unary, transition, lengths, power, out):
    """Write DP_Ω of the instances ``rows[start:stop]`` to ``out`` (B,) float64."""
    (workspace, size), matrix, end = (
        make_workspace(unary, transition, 2, 3),
        padded(transition, -np.inf),
        end_matrix(transition, -np.inf),
    )
    for k in range(start, stop):
        b = rows[k]
        out[b] = forward(b, unary, transition, lengths[b], power, workspace, size, matrix, end)


@jit
def mean(start, stop, groups, rows, unary, transition, lengths, power, weight, value, out_unary, out_transition):
    """Write expected structures times ``weight`` (B,) for the groups ``start:stop`` of the instances ``rows``.

    ``out_transition`` is (B, P, S, S), or (groups, P, S, S) for sums over the instances of each group.
    """
    workspace, size = make_workspace(unary, transition, unary.shape[1], 4)
    matrix, end, part = padded(transition, -np.inf), end_matrix(transition, -np.inf), padded(out_transition, 0)
    width, is_summed = width_of(unary.shape[2]), len(out_transition) != len(lengths)
    for g in range(start, stop):
        for k in range(len(rows) * g // groups, len(rows) * (g + 1) // groups):
            b = rows[k]
            length, out = lengths[b], g if is_summed else b
            value[b] = forward(b, unary, transition, length, power, workspace, size, matrix, end)
            if value[b] > -np.inf:
                _backward(
                    b,
                    transition,
                    length,
                    power,
                    workspace,
                    size,
                    matrix,
                    end,
                    weight[b],
                    out_transition,
                    out,
                    part,
                    is_summed,
                )
                for t in range(length):
                    store_row(workspace, NODE * size + (t + 1) * width, out_unary, b, t)


@jit
def hessian_product(
    start, stop, rows, unary, transition, lengths, power, v_unary, v_transition, value, out_unary, out_transition
):
    """Write ∇²DP_Ω times v, in the forms of θ, for the instances ``rows[start:stop]``."""
    workspace, size = make_workspace(unary, transition, unary.shape[1], 7)
    matrix, end, part = padded(transition, -np.inf), end_matrix(transition, -np.inf), padded(out_transition, 0)
    d_matrix, d_end, width = padded(v_transition, 0), end_matrix(v_transition, 0), width_of(unary.shape[2])
    for k in range(start, stop):
        b = rows[k]
        length = lengths[b]
        value[b] = _forward_tangent(
            b, unary, transition, v_unary, v_transition, length, power, workspace, size, matrix, end, d_matrix, d_end
        )
        if value[b] > -np.inf:
            _backward_tangent(
                b, transition, v_transition, length, power, workspace, size, matrix, end, d_matrix, d_end,
                out_transition, part,
            )  # fmt: skip
            for t in range(length):
                store_row(workspace, D_NODE * size + (t + 1) * width, out_unary, b, t)
