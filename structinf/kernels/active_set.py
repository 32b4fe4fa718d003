"""The active set method for many small quadratic programs at once, in float64.

Each instance holds a few vertices y_k by their non-zeros and the weights p that solve

    max ⟨s, p⟩ − ½ ‖Σ_k p_k r_k‖²   over p in the simplex,   s_k = ⟨θ, y_k⟩,

where r_k are the penalised coordinates of y_k. :func:`advance` takes in one more vertex and
solves the program anew. Every solve is a correction of the present weights by their present
gradient, so that rounding in the factor is not carried into the weights.

References
----------
P. Wolfe (1976), Finding the nearest point in a polytope, Mathematical Programming 11, 128-149.
J. Nocedal, S. Wright (2006), Numerical Optimization, second edition, section 16.5.
V. Niculae, A. Martins, M. Blondel, C. Cardie (2018), SparseMAP: differentiable sparse structured
inference, section 3.2.
"""

from __future__ import annotations

import math

import numpy as np

from .active_set_limits import DEPENDENT, ROUNDING
from .active_set_program import append, backward, enter, forward, solve
from .active_set_vertices import appraise, products, touch, write
from .jit import jit

__all__ = ["CONVERGED", "EXHAUSTED", "INVALID", "RUNNING", "advance", "collect", "settle", "vjp"]

RUNNING, CONVERGED, EXHAUSTED, INVALID = 0, 1, 2, 3


@jit
def advance(start, stop, rows, tolerance, last, layout, support, search):
    """One round of the method for each instance ``rows[a]``: take the loaded vertex in and solve.

    The loaded vertex maximises the direction. If it shows that the gap is within ``tolerance``
    times the scale of the scores, or if this is the ``last`` round, the instance is finished and
    its solution left as it was.
    """
    fresh = np.zeros(search.mean.shape[1])
    gram = np.empty(support.weight.shape[1])
    gradient = np.empty(gram.size)
    column = np.empty(gram.size)
    work = np.empty(gram.size)
    for a in range(start, stop):
        b = rows[a]
        n = support.count[b]
        slot = support.order[b, n]
        score, square, slope, scale = appraise(b, slot, layout, support, search)
        if not math.isfinite(score):
            search.status[b] = INVALID
            continue
        search.scale[b] = max(search.scale[b], scale)
        if n == 0:
            touch(b, slot, support, search)
            append(b, 1.0, column, square + 1.0, support)
            write(a, b, layout, support, search)
            continue

        index = support.index[b, slot, : support.size[b, slot, 0]]
        value = support.value[b, slot]
        for e in range(index.size):
            fresh[index[e]] = value[e]
        products(b, fresh, gram, gradient, support, search)
        for e in range(index.size):
            fresh[index[e]] = 0.0
        average = 0.0
        linear = 0.0
        for k in range(n):
            average += support.weight[b, k] * gradient[k]
            linear += support.weight[b, k] * support.score[b, support.order[b, k]]
        search.gap[b] = max(slope - average, 0.0)
        search.objective[b] = (linear + average) / 2
        if search.gap[b] <= max(tolerance, ROUNDING) * search.scale[b]:
            search.status[b] = CONVERGED
        elif last:
            search.status[b] = EXHAUSTED
        else:
            search.iterations[b] += 1
            touch(b, slot, support, search)
            entered = enter(b, square, gram, gradient, slope, ROUNDING * search.scale[b], column, work, support)
            solve(b, gradient, work, support)
            write(a, b, layout, support, search)
            entered = entered and support.order[b, support.count[b] - 1] == slot
            # Without a vertex that helps, the gap can only come from an inexact solution, which
            # solve() has corrected just now; if that did not help either, nothing will.
            if search.stalled[b] and not entered:
                search.status[b] = EXHAUSTED
            search.stalled[b] = not entered


@jit
def collect(start, stop, rows, layout, support, search):
    """Append the loaded vertex without solving, unless it is zero, impossible or depends on the others."""
    fresh = np.zeros(search.mean.shape[1])
    gram = np.empty(support.weight.shape[1])
    gradient = np.empty(gram.size)
    for a in range(start, stop):
        b = rows[a]
        n = support.count[b]
        slot = support.order[b, n]
        score, square, _, scale = appraise(b, slot, layout, support, search)
        if not math.isfinite(score) or support.size[b, slot].sum() == 0:
            continue
        index = support.index[b, slot, : support.size[b, slot, 0]]
        for e in range(index.size):
            fresh[index[e]] = support.value[b, slot, e]
        products(b, fresh, gram, gradient, support, search)
        for e in range(index.size):
            fresh[index[e]] = 0.0
        forward(support.factor[b], gram, n)
        remainder = square + 1.0
        for k in range(n):
            remainder -= gram[k] * gram[k]
        if remainder > DEPENDENT * (square + 1.0):
            touch(b, slot, support, search)
            append(b, 1.0, gram, remainder, support)
            search.scale[b] = max(search.scale[b], scale)


@jit
def settle(start, stop, rows, layout, support, search):
    """Solve over the collected vertices, from equal weights."""
    fresh = np.zeros(search.mean.shape[1])
    gram = np.empty(support.weight.shape[1])
    gradient = np.empty(gram.size)
    work = np.empty(gram.size)
    for a in range(start, stop):
        b = rows[a]
        n = support.count[b]
        if n > 0:
            support.weight[b, :n] = 1.0 / n
            write(a, b, layout, support, search)
            products(b, fresh, gram, gradient, support, search)
            solve(b, gradient, work, support)
            write(a, b, layout, support, search)


@jit
def vjp(start, stop, mean_cotangent, weight_cotangent, support, out):
    """Mᵀ S (M v + u), with S = A⁻¹ − A⁻¹ 1 1ᵀ A⁻¹ / (1ᵀ A⁻¹ 1), into ``out`` (B, coordinates), zero so far."""
    x = np.empty(support.weight.shape[1])
    for b in range(start, stop):
        n = support.count[b]
        for k in range(n):
            slot = support.order[b, k]
            total = weight_cotangent[b, k]
            for e in range(support.index.shape[2]):
                if e < support.size[b, slot, 0] or e >= support.index.shape[2] - support.size[b, slot, 1]:
                    total += support.value[b, slot, e] * mean_cotangent[b, support.index[b, slot, e]]
            x[k] = total
        forward(support.factor[b], x, n)
        above = 0.0
        below = 0.0
        for k in range(n):
            above += x[k] * support.ones[b, k]
            below += support.ones[b, k] * support.ones[b, k]
        for k in range(n):
            x[k] -= above / below * support.ones[b, k]
        backward(support.factor[b], x, n)
        for k in range(n):
            slot = support.order[b, k]
            for e in range(support.index.shape[2]):
                if e < support.size[b, slot, 0] or e >= support.index.shape[2] - support.size[b, slot, 1]:
                    out[b, support.index[b, slot, e]] += support.value[b, slot, e] * x[k]
