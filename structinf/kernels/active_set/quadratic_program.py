"""The quadratic program of one instance in the active set method: its Cholesky factor and its solution.

The rows of R are the penalised coordinates of the vertices. The Cholesky factor U of A = R Rᵀ + 1 1ᵀ = UᵀU exists if
and only if the vertices are affinely independent. The term 1 1ᵀ changes the objective by a constant, since Σ p = 1.
Adding a vertex appends a column to U. Removing a vertex deletes its column, and rotations restore the triangular form
(G. Golub, C. Van Loan (2013), Matrix Computations, section 6.5).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..jit import jit
from .tolerances import DEPENDENT, VANISHING

__all__ = [
    "Program",
    "add_vertex",
    "append_column",
    "solve_balanced",
    "solve_transposed",
    "solve_upper",
    "solve_weights",
]


class Program(NamedTuple):
    """One instance's part of :class:`.sparse_vertices.Support`.

    Functions take the number n of vertices in use as an argument, and return the new number.
    """

    order: np.ndarray  # (C,) slots, the slots in use first
    weight: np.ndarray  # (C,) by slot; 0 for free slots
    ones: np.ndarray  # (C,) by position in order: the solution z of Uᵀz = 1
    factor: np.ndarray  # (C, C) by position in order: U


# ----------------------------------------------------------------------------- the factor


@jit
def solve_transposed(factor, x, n):
    """Solve Uᵀ x' = x in place."""
    for m in range(n):
        row = factor[m]
        x[m] /= row[m]
        pivot = x[m]
        for k in range(m + 1, n):
            x[k] -= pivot * row[k]


@jit
def solve_upper(factor, x, n):
    """Solve U x' = x in place."""
    for m in range(n - 1, -1, -1):
        row = factor[m]
        total = x[m]
        for k in range(m + 1, n):
            total -= row[k] * x[k]
        x[m] = total / row[m]


@jit
def solve_balanced(program, x, n):
    """Replace x by A⁻¹ (x − λ 1), with the λ for which the result sums to zero."""
    ones = program.ones
    solve_transposed(program.factor, x, n)
    above = 0.0
    below = 0.0
    for k in range(n):
        above += x[k] * ones[k]
        below += ones[k] * ones[k]
    for k in range(n):
        x[k] -= above / below * ones[k]
    solve_upper(program.factor, x, n)


@jit
def append_column(program, n, weight, column, remainder):
    """Add the vertex in the first free slot, given its column of U and the square of U's new diagonal element."""
    total = 1.0
    for m in range(n):
        program.factor[m, n] = column[m]
        total -= column[m] * program.ones[m]
    program.factor[n, n] = math.sqrt(remainder)
    program.ones[n] = total / program.factor[n, n]
    program.weight[program.order[n]] = weight
    return n + 1


@jit(inline=True)
def _remove_vertex(program, n, j):
    """Remove the vertex at position ``j``: delete its column of U, and make U triangular again by rotations."""
    order, weight, ones, factor = program
    for m in range(j):
        row = factor[m]
        for k in range(j + 1, n):
            row[k - 1] = row[k]
    for m in range(j, n - 1):
        upper = factor[m]
        lower = factor[m + 1]
        length = math.sqrt(upper[m + 1] * upper[m + 1] + lower[m + 1] * lower[m + 1])
        cosine = upper[m + 1] / length
        sine = lower[m + 1] / length
        for k in range(m + 1, n):
            x = upper[k]
            y = lower[k]
            upper[k - 1] = cosine * x + sine * y
            lower[k] = cosine * y - sine * x
        x = ones[m]
        y = ones[m + 1]
        ones[m] = cosine * x + sine * y
        ones[m + 1] = cosine * y - sine * x
    slot = order[j]
    weight[slot] = 0.0
    for k in range(j, n):  # including position n, so that a loaded vertex stays in the first free slot
        order[k] = order[k + 1]
    order[n] = slot
    return n - 1


# ----------------------------------------------------------------------------- the solution


@jit
def _move_weights(program, n, direction, limit, newest):
    """Move the weights along ``direction`` until the step is ``limit`` or a weight reaches 0.

    Vertices whose weight reaches 0 are removed.

    Parameters
    ----------
    direction : (C,) array
        By position in ``program.order``.
    limit : float
        The largest step.
    newest : int
        Position of the newest vertex. The vertex stays even if its weight is near 0, since the weight is about to grow.

    Returns
    -------
    n : int
        The number of vertices left.
    step : float
        The step taken, at most ``limit``.
    """
    order = program.order
    weight = program.weight
    step = limit
    spent = n
    for k in range(n):
        have = weight[order[k]]
        fall = -direction[k]
        if fall > 0.0 and have - limit * fall <= VANISHING and have <= step * fall + VANISHING:
            step = min(have / fall, limit)
            spent = k
    for k in range(n):
        weight[order[k]] += step * direction[k]
    if spent < n:
        for k in range(n - 1, -1, -1):
            if k == spent or (k != newest and weight[order[k]] <= VANISHING):
                n = _remove_vertex(program, n, k)
    return n, step


@jit(inline=True)
def add_vertex(program, n, square, gram, gradient, slope, threshold, column):
    """Add the vertex in the first free slot if it can raise the objective, and return the number of vertices.

    Parameters
    ----------
    square : float
        ‖r‖² of the new vertex.
    gram : (C,) array
        ⟨r, r_k⟩ by slot.
    gradient : (C,) array
        The gradient of the objective with respect to the weights, by slot. The entry of the new vertex is written.
    slope : float
        The gradient with respect to the new weight.
    threshold : float
        Slopes up to this bound count as rounding.
    column : (C,) array
        Scratch.
    """
    order = program.order
    weight = 0.0
    while True:
        for k in range(n):
            column[k] = gram[order[k]] + 1.0
        solve_transposed(program.factor, column, n)
        remainder = square + 1.0
        for k in range(n):
            remainder -= column[k] * column[k]
        if remainder > DEPENDENT * (square + 1.0):
            gradient[order[n]] = slope
            return append_column(program, n, weight, column, remainder)
        # The new vertex is an affine combination r = Σ c_k r_k. Moving weight from the combination to the vertex leaves
        # the penalty unchanged, so the objective is linear along the move, and the move ends when a weight reaches 0.
        solve_upper(program.factor, column, n)
        rise = slope
        for k in range(n):
            rise -= column[k] * gradient[order[k]]
            column[k] = -column[k]
        if weight == 0.0 and rise <= threshold:
            return n
        n, step = _move_weights(program, n, column, math.inf, n)
        weight += step


@jit(inline=True)
def solve_weights(program, n, gradient, work):
    """Move the weights to the solution of the program, and remove vertices whose weight reaches 0.

    From weights p with gradient g, the solution over all p with Σ p = 1 is p + q, where A q = g − λ 1 and Σ q = 0.
    At p + t q the gradient is (1 − t) g, up to a constant.
    """
    order = program.order
    weight = program.weight
    step = 0.0
    while step < 1.0:
        average = 0.0
        for k in range(n):
            average += weight[order[k]] * gradient[order[k]]
        for k in range(n):
            gradient[order[k]] -= average
            work[k] = gradient[order[k]]
        solve_balanced(program, work, n)
        n, step = _move_weights(program, n, work, 1.0, n - 1)
        for k in range(n):
            gradient[order[k]] *= 1.0 - step
    total = 0.0
    for k in range(n):
        total += weight[order[k]]
    for k in range(n):
        weight[order[k]] /= total
    return n
