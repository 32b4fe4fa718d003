"""The quadratic program of the active set method: its factor and its solution.

The factor UᵀU = R Rᵀ + 1 1ᵀ of a support with penalised rows R is positive definite exactly if the
vertices are affinely independent; the term 1 1ᵀ changes the objective by a constant, as Σ p = 1.
A vertex that enters appends a column, one that leaves is rotated out (G. Golub, C. Van Loan (2013),
Matrix Computations, section 6.5).
"""

from __future__ import annotations

import math

from .active_set_limits import DEPENDENT, VANISHING
from .jit import jit

__all__ = ["append", "backward", "delete", "enter", "forward", "solve"]


@jit
def forward(factor, x, n):
    """Solve Uᵀ x' = x in place."""
    for m in range(n):
        x[m] /= factor[m, m]
        pivot = x[m]
        for k in range(m + 1, n):
            x[k] -= pivot * factor[m, k]


@jit
def backward(factor, x, n):
    """Solve U x' = x in place."""
    for m in range(n - 1, -1, -1):
        total = x[m]
        for k in range(m + 1, n):
            total -= factor[m, k] * x[k]
        x[m] = total / factor[m, m]


@jit
def append(b, weight, column, remainder, support):
    """Take in the vertex of the first free slot, given its column of U."""
    n = support.count[b]
    factor = support.factor[b]
    total = 1.0
    for m in range(n):
        factor[m, n] = column[m]
        total -= column[m] * support.ones[b, m]
    factor[n, n] = math.sqrt(remainder)
    support.ones[b, n] = total / factor[n, n]
    support.weight[b, n] = weight
    support.count[b] = n + 1


@jit
def delete(b, j, support):
    """Drop the vertex at position ``j``: its column leaves U, and rotations make U triangular again."""
    n = support.count[b]
    factor = support.factor[b]
    ones = support.ones[b]
    order = support.order[b]
    for m in range(j):
        for k in range(j + 1, n):
            factor[m, k - 1] = factor[m, k]
    for m in range(j, n - 1):
        above = factor[m, m + 1]
        below = factor[m + 1, m + 1]
        length = math.hypot(above, below)
        cosine = above / length
        sine = below / length
        upper = factor[m]
        lower = factor[m + 1]
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
        support.weight[b, k] = support.weight[b, k + 1]
    support.count[b] = n - 1


@jit
def _remove(x, j, n):
    for k in range(j, n - 1):
        x[k] = x[k + 1]


@jit
def enter(b, square, gram, gradient, slope, threshold, column, work, support):
    """Take in the vertex of the first free slot; False if that cannot raise the objective.

    Parameters
    ----------
    square : float
        ‖r‖² of the new vertex.
    gram : (C,) array
        ⟨r, r_k⟩ + 1.
    gradient : (C,) array
        The objective's gradient with respect to the weights of the support.
    slope : float
        The gradient with respect to the new weight.
    """
    weight = 0.0
    factor = support.factor[b]
    while True:
        n = support.count[b]
        remainder = square + 1.0
        for k in range(n):
            column[k] = gram[k]
        forward(factor, column, n)
        for k in range(n):
            remainder -= column[k] * column[k]
        if remainder > DEPENDENT * (square + 1.0):
            append(b, weight, column, remainder, support)
            gradient[n] = slope
            return True
        # The new vertex is the affine combination r = Σ c_k r_k. Weight that moves from the
        # combination to the vertex leaves the penalty as it is, hence moves until a weight is spent.
        for k in range(n):
            work[k] = column[k]
        backward(factor, work, n)
        rise = slope
        largest = 0.0
        for k in range(n):
            rise -= work[k] * gradient[k]
            largest = max(largest, work[k])
        if weight == 0.0 and rise <= threshold:
            return False
        step = math.inf
        spent = -1
        for k in range(n):
            if work[k] > 1e-9 * largest and support.weight[b, k] < step * work[k]:
                step = support.weight[b, k] / work[k]
                spent = k
        for k in range(n):
            support.weight[b, k] = max(support.weight[b, k] - step * work[k], 0.0)
        weight += step
        delete(b, spent, support)
        _remove(gram, spent, n)
        _remove(gradient, spent, n)


@jit
def solve(b, gradient, work, support):
    """Move the weights to the program's solution, dropping vertices whose weight is spent.

    From weights p with gradient g, the solution over all p with Σ p = 1 is p + q, where
    A q = g − λ 1 with A = UᵀU and Σ q = 0. Along q the gradient is (1 − t) g, up to a constant.
    """
    factor = support.factor[b]
    weight = support.weight[b]
    ones = support.ones[b]
    step = 0.0
    while step < 1.0:
        n = support.count[b]
        average = 0.0
        for k in range(n):
            average += weight[k] * gradient[k]
        for k in range(n):
            gradient[k] -= average
            work[k] = gradient[k]
        forward(factor, work, n)
        above = 0.0
        below = 0.0
        for k in range(n):
            above += work[k] * ones[k]
            below += ones[k] * ones[k]
        multiplier = above / below
        for k in range(n):
            work[k] -= multiplier * ones[k]
        backward(factor, work, n)
        step = 1.0
        spent = -1
        for k in range(n):
            if work[k] < 0.0 and weight[k] + work[k] <= VANISHING and weight[k] <= -step * work[k] + VANISHING:
                step = min(-weight[k] / work[k], 1.0)
                spent = k
        for k in range(n):
            weight[k] += step * work[k]
            gradient[k] *= 1.0 - step
        if spent >= 0:
            weight[spent] = 0.0
            for k in range(n - 1, -1, -1):
                # The newest vertex comes last; its weight may still be tiny when another's is spent.
                if k == spent or (k < n - 1 and weight[k] <= VANISHING):
                    delete(b, k, support)
                    _remove(gradient, k, support.count[b] + 1)
    n = support.count[b]
    total = 0.0
    for k in range(n):
        total += weight[k]
    for k in range(n):
        weight[k] /= total
