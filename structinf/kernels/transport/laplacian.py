"""Laplacians of transport plans, and the plans' derivatives by them, compiled. Importing this module imports numba.

With the rows eliminated, how a plan P of rows' sums a changes with its columns' potentials is the Laplacian of a graph
over the columns, with weights W[j, k] = Σ_i P[i, j] P[i, k] / a[i]. It is eliminated without subtractions, diagonals
being sums of the rest of their rows: at small temperatures P is nearly a vertex and W nearly 0, of which differences
would leave nothing right.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from .tolerances import CANCELLATION, SMALLEST

__all__ = ["column_weights", "eliminate", "tangent"]


@jit
def column_weights(plan, a, weights):
    """W[j, k] for k < j."""
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
    """Solve (diag(W 1) − W) y = x in place, with y[0] = 0; the lower triangle of W is used up, and ``size``.

    A column that no weight is left for is one of its own part of the graph, and gets 0. No y moves from the mean of
    those around it by more than ``farthest``. Where x is below the rounding of terms of this size, it is 0: it could be
    anything, and the weights it is divided by are as small as can be.
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
    """The change of the plan, and of f / T and g / T, along a direction of the scores and changes of the margins.

    With w = P ∘ direction / T, they are the solution of L [x; y] = [row_change − w 1; column_change − wᵀ 1], where
    L = [diag(P 1), P; Pᵀ, diag(Pᵀ 1)], and change = w + P ∘ (x[i] + y[j]). Arrays are (B, n, m), (B, n) and (B, m).
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
