"""Laplacians of transport plans, and the derivatives of plans, in compiled loops. Importing this module imports numba.

For a plan P with fixed row sums a, the derivative of the column sums with respect to the column potentials is the
Laplacian of a graph over the columns, with weights W[j, k] = Σ_i P[i, j] P[i, k] / a[i]. Gaussian elimination computes
each diagonal entry as the sum of the weights in its row, without subtractions. At low temperatures P is near a vertex
and W is near 0, and differences would lose all digits.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from .tolerances import CANCELLATION, SMALLEST

__all__ = ["column_weights", "eliminate", "tangent"]


@jit
def column_weights(plan, a, weights):
    """Write W[j, k] to ``weights`` for k < j."""
    n, m = plan.shape
    for j in range(m):
        for k in range(j):
            weights[j, k] = 0.0
    for i in range(n):
        if not a[i] > SMALLEST:
            continue
        p, inverse = plan[i], 1 / a[i]
        for j in range(1, m):
            factor = p[j] * inverse
            if factor > 0:
                w = weights[j]
                for k in range(j):
                    w[k] += factor * p[k]


@jit
def eliminate(weights, x, size, farthest):
    """Replace x by the solution y of (diag(W 1) − W) y = x with y[0] = 0.

    The lower triangle of W is overwritten. ``size`` holds the sum of the absolute terms of each x, and is overwritten.
    The last column of each connected component gets 0. Each y differs from the weighted mean of its neighbours by at
    most ``farthest``. An x below the rounding error of its terms counts as 0: its digits are rounding errors, and a
    division by weights near 0 would blow them up.
    """
    m = len(x)
    for j in range(m - 1, 0, -1):
        w = weights[j]
        total = 0.0
        for k in range(j):
            total += w[k]
        if not total > SMALLEST:
            x[j] = 0.0
            continue
        inverse = 1 / total
        for k in range(1, j):
            factor = w[k] * inverse
            if factor > 0:
                other = weights[k]
                for h in range(k):
                    other[h] += factor * w[h]
        own_value, own_size = x[j], size[j]
        for k in range(j):
            w[k] *= inverse
            x[k] += own_value * w[k]
            size[k] += own_size * w[k]
        x[j] = 0.0 if abs(own_value) < CANCELLATION * own_size else own_value * inverse
        if abs(x[j]) > farthest:
            x[j] = farthest if x[j] > 0 else -farthest
    x[0] = 0.0
    for j in range(1, m):
        w = weights[j]
        total = x[j]
        for k in range(j):
            total += w[k] * x[k]
        x[j] = total


@jit
def tangent(start, stop, plan, direction, row_change, column_change, temperature, change, x, y):
    """Write the derivative of the plan to ``change``, and the derivatives of f / T and g / T to ``x`` and ``y``.

    The derivative is along a direction of the scores and changes of the margins. With w = P ∘ direction / T, x and y
    solve L [x; y] = [row_change − w 1; column_change − wᵀ 1], where L = [diag(P 1), P; Pᵀ, diag(Pᵀ 1)], and
    change = w + P ∘ (x[i] + y[j]). Arrays are (B, n, m), (B, n) and (B, m).
    """
    n, m = plan.shape[1], plan.shape[2]
    weights, size, sums = np.empty((m, m)), np.empty(m), np.empty(n)
    inverse = 1 / temperature
    for b in range(start, stop):
        p_all, w_all, right = plan[b], change[b], y[b]
        for j in range(m):
            right[j] = column_change[b, j]
            size[j] = abs(right[j])
        for i in range(n):
            p, w, v = p_all[i], w_all[i], direction[b, i]
            total, own_value, own_size = 0.0, 0.0, abs(row_change[b, i])
            for j in range(m):
                w[j] = p[j] * (v[j] * inverse)
                total += p[j]
                own_value += w[j]
                own_size += abs(w[j])
                size[j] += abs(w[j])
                right[j] -= w[j]
            sums[i] = total
            x[b, i] = row_change[b, i] - own_value
            share = 1 / total if total > SMALLEST else 0.0
            for j in range(m):
                right[j] -= p[j] * (x[b, i] * share)
                size[j] += p[j] * (own_size * share)
        column_weights(p_all, sums, weights)
        eliminate(weights, right, size, np.inf)
        for i in range(n):
            p, w = p_all[i], w_all[i]
            if not sums[i] > SMALLEST:
                x[b, i] = 0.0
                continue
            total = x[b, i]
            for j in range(m):
                total -= p[j] * right[j]
            x[b, i] = total / sums[i]
            own_value = x[b, i]
            for j in range(m):
                w[j] += p[j] * (own_value + right[j])
