"""The quadratic program of one instance in the active set method: its factor and its solution.

With the vertices' penalised coordinates as rows of R, the factor UᵀU = A = R Rᵀ + 1 1ᵀ exists exactly
if the vertices are affinely independent; the term 1 1ᵀ changes the objective by a constant, as
Σ p = 1. A vertex that enters appends a column to U, one that leaves is rotated out (G. Golub,
C. Van Loan (2013), Matrix Computations, section 6.5).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .active_set_limits import DEPENDENT, VANISHING
from .jit import jit

__all__ = ["Program", "append", "backward", "enter", "forward", "project", "solve"]


class Program(NamedTuple):
    """One instance's part of :class:`.active_set_vertices.Support`. Functions take and return the number in use."""

    order: np.ndarray  # (C,) slots, those in use first
    weight: np.ndarray  # (C,) by position in order, as are the others
    ones: np.ndarray  # (C,) the solution z of Uᵀz = 1
    factor: np.ndarray  # (C, C) upper triangular


# ----------------------------------------------------------------------------- the factor


@jit
def forward(factor, x, n):
    """Solve Uᵀ x' = x in place."""
    for m in range(n):
        x[m] /= factor[m, m]
        pivot = x[m]
        row = factor[m]
        for k in range(m + 1, n):
            x[k] -= pivot * row[k]


@jit
def backward(factor, x, n):
    """Solve U x' = x in place."""
    for m in range(n - 1, -1, -1):
        total = x[m]
        row = factor[m]
        for k in range(m + 1, n):
            total -= row[k] * x[k]
        x[m] = total / row[m]


@jit
def project(program, x, n):
    """Replace x by A⁻¹ (x − λ 1), with λ such that it sums to zero."""
    ones = program.ones
    forward(program.factor, x, n)
    above = 0.0
    below = 0.0
    for k in range(n):
        above += x[k] * ones[k]
        below += ones[k] * ones[k]
    for k in range(n):
        x[k] -= above / below * ones[k]
    backward(program.factor, x, n)


@jit
def append(program, n, weight, column, remainder):
    """Take in the vertex of the first free slot, given its column of U and the square of U's new diagonal element."""
    total = 1.0
    for m in range(n):
        program.factor[m, n] = column[m]
        total -= column[m] * program.ones[m]
    program.factor[n, n] = math.sqrt(remainder)
    program.ones[n] = total / program.factor[n, n]
    program.weight[n] = weight
    return n + 1


@jit
def _delete(program, n, j):
    """Drop the vertex at position ``j``: its column leaves U, and rotations make U triangular again."""
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
    for k in range(j, n):  # one further than the support, so that a loaded vertex stays the first free one
        order[k] = order[k + 1]
    order[n] = slot
    for k in range(j, n - 1):
        weight[k] = weight[k + 1]
    return n - 1


# ----------------------------------------------------------------------------- the solution


@jit
def enter(program, n, square, gram, gradient, slope, threshold, column, work):
    """Take in the vertex of the first free slot, unless that cannot raise the objective.

    Parameters
    ----------
    square : float
        ‖r‖² of the new vertex.
    gram : (C,) array
        ⟨r, r_k⟩; overwritten.
    gradient : (C,) array
        The objective's gradient with respect to the weights of the support; brought up to date.
    slope : float
        The gradient with respect to the new weight.
    """
    weight = 0.0
    while True:
        for k in range(n):
            column[k] = gram[k] + 1.0
        forward(program.factor, column, n)
        remainder = square + 1.0
        for k in range(n):
            remainder -= column[k] * column[k]
        if remainder > DEPENDENT * (square + 1.0):
            gradient[n] = slope
            return append(program, n, weight, column, remainder)
        # The new vertex is the affine combination r = Σ c_k r_k. Weight that moves from the
        # combination to the vertex leaves the penalty as it is, hence moves until a weight is spent.
        for k in range(n):
            work[k] = column[k]
        backward(program.factor, work, n)
        rise = slope
        largest = 0.0
        for k in range(n):
            rise -= work[k] * gradient[k]
            largest = max(largest, work[k])
        if weight == 0.0 and rise <= threshold:
            return n
        step = math.inf
        spent = n
        for k in range(n):
            if work[k] > 1e-9 * largest and program.weight[k] < step * work[k]:
                step = program.weight[k] / work[k]
                spent = k
        for k in range(n):
            program.weight[k] = max(program.weight[k] - step * work[k], 0.0)
        weight += step
        for k in range(spent, n - 1):
            gram[k] = gram[k + 1]
            gradient[k] = gradient[k + 1]
        n = _delete(program, n, spent)


@jit
def solve(program, n, gradient, work):
    """Move the weights to the program's solution, dropping vertices whose weight is spent.

    From weights p with gradient g, the solution over all p with Σ p = 1 is p + q, where
    A q = g − λ 1 and Σ q = 0. Along q the gradient is (1 − t) g, up to a constant.
    """
    weight = program.weight
    step = 0.0
    while step < 1.0:
        average = 0.0
        for k in range(n):
            average += weight[k] * gradient[k]
        for k in range(n):
            gradient[k] -= average
            work[k] = gradient[k]
        project(program, work, n)
        step = 1.0
        spent = n
        for k in range(n):
            if work[k] < 0.0 and weight[k] + work[k] <= VANISHING and weight[k] <= -step * work[k] + VANISHING:
                step = min(-weight[k] / work[k], 1.0)
                spent = k
        for k in range(n):
            weight[k] += step * work[k]
            gradient[k] *= 1.0 - step
        if spent < n:
            weight[spent] = 0.0
            newest = n - 1
            for k in range(newest, -1, -1):
                # The newest vertex comes last; its weight may still be tiny when another's is spent.
                if k == spent or (k < newest and weight[k] <= VANISHING):
                    for m in range(k, n - 1):
                        gradient[m] = gradient[m + 1]
                    n = _delete(program, n, k)
    total = 0.0
    for k in range(n):
        total += weight[k]
    for k in range(n):
        weight[k] /= total
    return n
