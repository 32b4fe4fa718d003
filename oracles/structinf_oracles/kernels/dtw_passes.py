"""Value, gradient and Hessian product of smoothed alignments of a grid, one anti-diagonal after the other.

One instance is a grid θ (n, m) with a band of w cells. Its paths lead from (0, 0) to (n − 1, m − 1), and

    v(i, j) = θ(i, j) + max_Ω(v(i − 1, j − 1), v(i − 1, j), v(i, j − 1))

needs only the two anti-diagonals before that of i + j, so that the cells of one are computed side by side, those of
several instances at once where they are few. What is kept is v, in float64, anti-diagonal by anti-diagonal: as many
numbers as there are cells. The probabilities q of the three predecessors follow from v and are computed again on every
way back, which is the random walk from the last cell:

    E(n − 1, m − 1) = 1,    E(predecessor) += q E(cell),

and their derivatives along z, with dv and dE for the two recursions', are those of A. Mensch & M. Blondel,
Differentiable dynamic programming for structured prediction and attention, ICML 2018, algorithm 4:

    dv(i, j) = z(i, j) + ⟨q, dv⟩,    dq = s (dv − ⟨s, dv⟩ / Σ s),    dE(predecessor) += q dE(cell) + dq E(cell).

A batch has θ (B, n, m), ``lengths`` (B, 2) and ``bands`` (B,), int64, and results of those shapes. A function serves
the group of its rows ``first:last``, with grids and tables of :mod:`.dtw_grid` and the d, q and f of :mod:`.dtw_nodes`.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

from .dtw_grid import at, collect, compare, layout, place_before, send
from .dtw_nodes import curvature, gains, probabilities

__all__ = ["forward", "tangent", "walk_back", "walk_back_tangent"]


@jit
def forward(first, last, theta, lengths, bands, alpha, is_ring, grids, tables, d, q, f, value):
    """Fill ``grids`` and ``tables``, with v; write DP_Ω(θ) into ``value`` (B,) float64. Returns the last k."""
    end = 0
    for g in range(last - first):
        n, m = lengths[first + g]
        places = layout(n, m, bands[first + g], is_ring, grids[g])
        tables[g, :places] = -np.inf
        tables[g, grids[g, 2, 2]] = value[first + g] = theta[first + g, 0, 0]
        end = max(end, n + m)
    for k in range(3, end + 1):
        width, column = compare(tables, grids, last - first, k, d), 0
        if 1 < alpha < np.inf:
            probabilities(alpha, width, d, q, f)
        gains(alpha, width, d, q, f)
        for g in range(last - first):
            low, count, place = grids[g, k, 0], grids[g, k, 1], grids[g, k, 2]
            for c in range(count):
                tables[g, at(place + c)] = theta[first + g, at(low + c), at(k - 2 - low - c)]
            for c in range(count):
                tables[g, at(place + c)] += d[3, at(column + c)] + q[3, at(column + c)]
            tables[g, at(place + count)] = -np.inf
            column += count
            if k == lengths[first + g, 0] + lengths[first + g, 1]:
                value[first + g] = tables[g, place]
    return end


@jit
def _start(k, first, last, lengths, value, weight, grids, e):
    """``weight`` (B,) at last cells on this anti-diagonal, 0 if no path leads there, into the last row of ``e``."""
    column = 0
    for g in range(last - first):
        if k == lengths[first + g, 0] + lengths[first + g, 1]:
            e[4, column] = weight[first + g] if value[first + g] > -np.inf else 0.0
        column += grids[g, k, 1]


@jit
def _write(k, first, last, grids, e, out):
    """The last row of ``e`` into the anti-diagonal of ``out``."""
    column = 0
    for g in range(last - first):
        low = grids[g, k, 0]
        for c in range(grids[g, k, 1]):
            out[first + g, at(low + c), at(k - 2 - low - c)] = e[4, at(column + c)]
        column += grids[g, k, 1]


@jit
def walk_back(first, last, end, lengths, value, weight, alpha, grids, tables, d, q, f, inflow, out):
    """Write E times ``weight`` (B,) into the cells of ``out``. ``inflow`` is scratch for :func:`.dtw_grid.send`."""
    size = last - first
    inflow[:] = 0.0
    for k in range(end, 1, -1):
        collect(inflow, grids, size, k, q)
        _start(k, first, last, lengths, value, weight, grids, q)
        _write(k, first, last, grids, q, out)
        width = compare(tables, grids, size, k, d)
        probabilities(alpha, width, d, q, f)
        for step in range(3):
            for c in range(width):
                q[step, c] *= q[4, c]
        send(inflow, grids, size, k, q)


@jit
def tangent(first, last, end, z, alpha, grids, tables, d, q, f, d_tables):
    """Fill ``d_tables`` with dv; any finite number may stand in the places of cells outside."""
    size = last - first
    d_tables[:] = 0.0
    for k in range(2, end + 1):
        width, column = compare(tables, grids, size, k, d), 0
        probabilities(alpha, width, d, q, f)
        for g in range(size):
            low, count, place = grids[g, k, 0], grids[g, k, 1], grids[g, k, 2]
            two, one = place_before(grids, g, k, 2), place_before(grids, g, k, 1)
            for c in range(count):
                d_tables[g, at(place + c)] = z[first + g, at(low + c), at(k - 2 - low - c)]
            for c in range(count):
                mean = q[0, at(column + c)] * d_tables[g, at(two + c)] + q[1, at(column + c)] * d_tables[g, at(one + c)]
                d_tables[g, at(place + c)] += mean + q[2, at(column + c)] * d_tables[g, at(one + c + 1)]
            column += count


@jit
def _deviations(k, size, grids, d_tables, s, d):
    """dv − ⟨s, dv⟩ / Σ s of the three predecessors, into ``d``."""
    column = 0
    for g in range(size):
        two, one = place_before(grids, g, k, 2), place_before(grids, g, k, 1)
        for c in range(grids[g, k, 1]):
            s0, s1, s2 = s[0, at(column + c)], s[1, at(column + c)], s[2, at(column + c)]
            d0, d1, d2 = d_tables[g, at(two + c)], d_tables[g, at(one + c)], d_tables[g, at(one + c + 1)]
            total = s0 + s1 + s2
            mean = (s0 * d0 + s1 * d1 + s2 * d2) / total if total > 0 else 0.0
            d[0, at(column + c)], d[1, at(column + c)], d[2, at(column + c)] = d0 - mean, d1 - mean, d2 - mean
        column += grids[g, k, 1]


@jit
def walk_back_tangent(
    first, last, end, lengths, value, weight, alpha, grids, tables, d, q, f, d_tables, s, inflow, d_inflow, out
):
    """Write the derivative of what :func:`walk_back` does into the cells of ``out``. ``s`` is as large as q."""
    size = last - first
    inflow[:] = 0.0
    d_inflow[:] = 0.0
    for k in range(end, 1, -1):
        collect(inflow, grids, size, k, q)
        collect(d_inflow, grids, size, k, s)
        _start(k, first, last, lengths, value, weight, grids, q)
        _write(k, first, last, grids, s, out)
        width = compare(tables, grids, size, k, d)
        probabilities(alpha, width, d, q, f)
        curvature(alpha, width, q, s)
        _deviations(k, size, grids, d_tables, s, d)
        for step in range(3):
            for c in range(width):
                s[step, c] = s[step, c] * d[step, c] * q[4, c] + q[step, c] * s[4, c]
                q[step, c] *= q[4, c]
        send(inflow, grids, size, k, q)
        send(d_inflow, grids, size, k, s)
