"""Projections onto cones of directions, one direction more at a time: non-negative least squares.

The method is the one of Lawson & Hanson 1974, Solving Least Squares Problems, chapter 23. The directions of positive
weight are linearly independent, and the Cholesky factor U of their inner products, A = UᵀU, gets a column for each
direction that enters. If directions leave, it is computed anew.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit import jit
from .quadratic_program import solve_transposed, solve_upper
from .tolerances import DEPENDENT

__all__ = ["add_directions"]

_TOLERANCE = 1e-12
"""The largest cosine between a residual and a direction that counts as 0."""


@jit
def add_directions(start, stop, rows, fresh, y, v, directions, gram, products, weights, factor, order, count, residual):
    """Add the direction s − y to each instance ``rows[a]``, and project v onto the cone of its directions.

    Parameters
    ----------
    rows : (n,) array of int64
        The instances.
    fresh : (n, D) array
        The structures s.
    y, v : (B, D) array
        The vertices and the vectors to project.
    directions : (B, K, D) array
        The directions found so far.
    gram : (B, K, K) array
        The inner products of the directions.
    products, weights : (B, K) array
        The inner products of the directions with v, and their weights in the projection p.
    factor : (B, K, K) array
        U, in the order of the directions of positive weight.
    order : (B, K) array of int64
        The directions of positive weight.
    count : (B, 3) array of int64
        The number of directions, the number of positive weights, and whether the last direction changed p.
    residual : (B, D) array
        v − p.
    """
    for a in range(start, stop):
        b = rows[a]
        n = count[b, 0]
        direction, rest = directions[b, n], residual[b]
        square = gap = size = 0.0
        for c in range(len(rest)):
            direction[c] = fresh[a, c] - y[b, c]
            square += direction[c] * direction[c]
            gap += direction[c] * rest[c]
            size += v[b, c] * v[b, c]
        limit = _TOLERANCE * math.sqrt(size)
        count[b, 2] = gap > limit * math.sqrt(square)
        if not count[b, 2]:
            continue
        for k in range(n):
            gram[b, n, k] = gram[b, k, n] = np.dot(direction, directions[b, k])
        gram[b, n, n] = square
        products[b, n] = np.dot(direction, v[b])
        weights[b, n] = 0.0
        count[b, 0] = n + 1
        positive = _solve(n + 1, count[b, 1], limit, gram[b], products[b], weights[b], factor[b], order[b])
        count[b, 1] = positive
        rest[:] = v[b]
        for m in range(positive):
            k = order[b, m]
            for c in range(len(rest)):
                rest[c] -= weights[b, k] * directions[b, k, c]


@jit
def _solve(n, m, limit, gram, products, weights, factor, order):
    """Minimise ½ ‖Σ wₖ dₖ − v‖² over w ≥ 0 for n directions, m of them with a positive weight; return the new m."""
    solution = np.empty(n)
    for _ in range(3 * n):  # rounding errors must not let directions enter and leave for ever
        entering, most = -1, limit
        for k in range(n):
            if weights[k] == 0.0:
                slope = products[k]
                for j in range(m):
                    slope -= gram[k, order[j]] * weights[order[j]]
                slope /= math.sqrt(gram[k, k])
                if slope > most:
                    entering, most = k, slope
        if entering < 0 or not _append(m, entering, gram, factor, order):
            return m
        m += 1
        while True:
            for j in range(m):
                solution[j] = products[order[j]]
            solve_transposed(factor, solution, m)
            solve_upper(factor, solution, m)
            step, leaving = 1.0, -1
            for j in range(m):
                if solution[j] <= 0.0:
                    weight = weights[order[j]]
                    if leaving < 0 or weight < step * (weight - solution[j]):
                        step, leaving = weight / (weight - solution[j]), j
            for j in range(m):
                k = order[j]
                weights[k] = solution[j] if leaving < 0 else weights[k] + step * (solution[j] - weights[k])
            if leaving < 0:
                break
            weights[order[leaving]] = 0.0
            kept = 0
            for j in range(m):
                if weights[order[j]] > 0.0:
                    _append(kept, order[j], gram, factor, order)
                    kept += 1
                else:
                    weights[order[j]] = 0.0
            m = kept
    return m


@jit
def _append(m, k, gram, factor, order):
    """Append direction k to the m directions of the factor; return False if it depends on these."""
    column = np.empty(m)
    for j in range(m):
        column[j] = gram[order[j], k]
    solve_transposed(factor, column, m)
    rest = gram[k, k]
    for j in range(m):
        factor[j, m] = column[j]
        rest -= column[j] * column[j]
    if rest <= DEPENDENT * gram[k, k]:
        return False
    factor[m, m] = math.sqrt(rest)
    order[m] = k
    return True
