"""Value, gradient and Hessian-vector product of smoothed alignments in a grid, by anti-diagonals.

One instance is a grid θ (n, m) with a band of w cells. Its paths lead from (0, 0) to (n − 1, m − 1). The recursion

    v(i, j) = θ(i, j) + max_Ω(v(i − 1, j − 1), v(i − 1, j), v(i, j − 1))

reads only the two anti-diagonals before i + j. The cells of an anti-diagonal are therefore computed side by side. If
an anti-diagonal is short, a group of instances shares the loop. v is float64, in a ring of three anti-diagonals. Only
the probabilities q of the predecessors are stored, as two numbers of θ's dtype per cell. Every backward pass is the
random walk from the last cell along q:

    E(n − 1, m − 1) = 1,    E(predecessor) += q E(cell).

The derivatives along z, with dv and dE for the derivatives of both recursions, are (A. Mensch & M. Blondel,
Differentiable dynamic programming for structured prediction and attention, ICML 2018, algorithm 4)

    dv(i, j) = z(i, j) + ⟨q, dv⟩,    dq = s (dv − ⟨s, dv⟩ / Σ s),    dE(predecessor) += q dE(cell) + dq E(cell).

A batch has θ (B, n, m), ``lengths`` (B, 2) and ``bands`` (B,), int64. Each function processes the group of the rows
``first:last``, with the grids, rings and ``stored`` of :mod:`.anti_diagonals` and the arrays d, q and f of
:mod:`.smooth_max_of_three`.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

from .anti_diagonals import (
    LANES,
    TABLE,
    layout,
    load_probabilities,
    offset_before,
    predecessor_scores,
    read_panel,
    store_outflow,
    store_probabilities,
    sum_inflow,
    u64,
    write_panel,
)
from .smooth_max_of_three import curvature, smooth_max

__all__ = ["backward", "backward_tangent", "forward", "tangent"]


@jit
def forward(first, last, theta, lengths, bands, alpha, grids, rings, d, q, f, panel, stored, value):
    """Fill ``grids``, and ``stored`` if it has places; write DP_Ω(θ) to ``value`` (B,) float64.

    Returns the last k of the group.
    """
    end, is_stored = 0, stored.shape[2] > 0
    for g in range(last - first):
        n, m = lengths[first + g]
        layout(n, m, bands[first + g], grids[g])
        rings[g] = -np.inf
        rings[g, grids[g, 2, 2]] = value[first + g] = theta[first + g, 0, 0]
        if is_stored:
            stored[g, :, grids[g, 2, 3]] = 0.0
        end = max(end, n + m)
    for k in range(3, end + 1):
        turn = (k - 3) % LANES
        if turn == 0:
            read_panel(k, first, last - first, theta, lengths, bands, grids, panel)
        width, column = predecessor_scores(rings, grids, last - first, k, d), 0
        smooth_max(alpha, width, d, q, f, is_stored)
        if is_stored:
            store_probabilities(stored, grids, last - first, k, f)
        for g in range(last - first):
            count, place = grids[g, k, 1], grids[g, k, 2]
            shift = grids[g, k, 0] - grids[g, k - turn, 0]
            for c in range(count):
                gained = d[3, u64(column + c)] + q[3, u64(column + c)]
                rings[g, u64(place + c)] = panel[g, u64(shift + c), u64(turn)] + gained
            rings[g, u64(place + count)] = -np.inf
            column += count
            if k == lengths[first + g, 0] + lengths[first + g, 1]:
                value[first + g] = rings[g, place]
    return end


@jit
def _start(k, first, last, lengths, value, weight, grids, e):
    """Write ``weight`` (B,), or 0 if no path is feasible, to ``e[4]`` at last cells on this anti-diagonal."""
    column = 0
    for g in range(last - first):
        if k == lengths[first + g, 0] + lengths[first + g, 1]:
            e[4, column] = weight[first + g] if value[first + g] > -np.inf else 0.0
        column += grids[g, k, 1]


@jit
def _write(k, size, grids, e, panel):
    """Copy the last row of ``e`` to the panel's column of this anti-diagonal."""
    turn, column = (k - 2) % LANES, 0
    for g in range(size):
        shift = grids[g, k, 0] - grids[g, k - turn, 0]
        for c in range(grids[g, k, 1]):
            panel[g, u64(shift + c), u64(turn)] = e[4, u64(column + c)]
        column += grids[g, k, 1]


@jit
def backward(first, last, end, lengths, bands, value, weight, grids, q, panel, stored, inflow, out):
    """Write E times ``weight`` (B,) to the cells of ``out``. ``inflow`` is scratch memory."""
    size = last - first
    inflow[:] = 0.0
    for k in range(end, 1, -1):
        width = sum_inflow(inflow, grids, size, k, q)
        _start(k, first, last, lengths, value, weight, grids, q)
        _write(k, size, grids, q, panel)
        if (k - 2) % LANES == 0:
            write_panel(k, first, size, panel, lengths, bands, grids, out)
        load_probabilities(stored, grids, size, k, q)
        for step in range(3):
            for c in range(width):
                q[step, c] *= q[4, c]
        store_outflow(inflow, grids, size, k, q)


@jit
def tangent(first, last, end, z, lengths, bands, grids, q, panel, stored, d_tables):
    """Fill ``d_tables`` with dv, and with 0 outside the cells."""
    size = last - first
    d_tables[:] = 0.0
    for k in range(2, end + 1):
        turn, column = (k - 2) % LANES, 0
        if turn == 0:
            read_panel(k, first, size, z, lengths, bands, grids, panel)
        load_probabilities(stored, grids, size, k, q)
        for g in range(size):
            count, place = grids[g, k, 1], grids[g, k, 3]
            shift = grids[g, k, 0] - grids[g, k - turn, 0]
            two, one = offset_before(grids, g, k, 2, TABLE), offset_before(grids, g, k, 1, TABLE)
            for c in range(count):
                mean = (
                    q[0, u64(column + c)] * d_tables[g, u64(two + c)]
                    + q[1, u64(column + c)] * d_tables[g, u64(one + c)]
                )
                mean += q[2, u64(column + c)] * d_tables[g, u64(one + c + 1)]
                d_tables[g, u64(place + c)] = panel[g, u64(shift + c), u64(turn)] + mean
            column += count


@jit
def _flows(k, size, grids, d_tables, q, s):
    """Replace q by q E, and s by the derivative s (dv − ⟨s, dv⟩ / Σ s) E + q dE.

    The last rows of q and s are E and dE.
    """
    column = 0
    for g in range(size):
        two, one = offset_before(grids, g, k, 2, TABLE), offset_before(grids, g, k, 1, TABLE)
        for c in range(grids[g, k, 1]):
            q0, q1, q2, e = (
                q[0, u64(column + c)],
                q[1, u64(column + c)],
                q[2, u64(column + c)],
                q[4, u64(column + c)],
            )
            s0, s1, s2, d_e = (
                s[0, u64(column + c)],
                s[1, u64(column + c)],
                s[2, u64(column + c)],
                s[4, u64(column + c)],
            )
            d0, d1, d2 = d_tables[g, u64(two + c)], d_tables[g, u64(one + c)], d_tables[g, u64(one + c + 1)]
            total = s0 + s1 + s2
            mean = (s0 * d0 + s1 * d1 + s2 * d2) / total if total > 0 else 0.0
            s[0, u64(column + c)] = s0 * (d0 - mean) * e + q0 * d_e
            s[1, u64(column + c)] = s1 * (d1 - mean) * e + q1 * d_e
            s[2, u64(column + c)] = s2 * (d2 - mean) * e + q2 * d_e
            q[0, u64(column + c)], q[1, u64(column + c)], q[2, u64(column + c)] = q0 * e, q1 * e, q2 * e
        column += grids[g, k, 1]


@jit
def backward_tangent(
    first, last, end, lengths, bands, value, weight, alpha, grids, q, panel, stored, d_tables, s, inflow, d_inflow, out
):
    """Write the derivative of the result of :func:`backward` to the cells of ``out``. ``s`` has the shape of q."""
    size = last - first
    inflow[:] = 0.0
    d_inflow[:] = 0.0
    for k in range(end, 1, -1):
        width = sum_inflow(inflow, grids, size, k, q)
        sum_inflow(d_inflow, grids, size, k, s)
        _start(k, first, last, lengths, value, weight, grids, q)
        _write(k, size, grids, s, panel)
        if (k - 2) % LANES == 0:
            write_panel(k, first, size, panel, lengths, bands, grids, out)
        load_probabilities(stored, grids, size, k, q)
        curvature(alpha, width, q, s)
        _flows(k, size, grids, d_tables, q, s)
        store_outflow(inflow, grids, size, k, q)
        store_outflow(d_inflow, grids, size, k, s)
