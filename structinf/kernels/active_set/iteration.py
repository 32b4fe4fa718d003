"""The active set method for many small quadratic programs at once, in float64.

Each instance holds a few vertices y_k by their non-zeros and the weights p that solve

    max ⟨s, p⟩ − ½ ‖Σ_k p_k r_k‖²   over p in the simplex,   s_k = ⟨θ, y_k⟩,

where r_k are the penalised coordinates of y_k. :func:`advance` takes in one more vertex and
solves the program anew. Every solve is a correction of the present weights by their present
gradient, so that rounding in the factor is not carried into the weights.

Large functions with one caller on the usual path are inlined by numba, which takes a fifth off
the first compilation.

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

from ..jit import jit
from .quadratic_program import Program, append, enter, forward, project, solve
from .sparse_vertices import Vertices, add, dot, products, scale_per_instance, write
from .tolerances import DEPENDENT, ROUNDING

__all__ = ["CONVERGED", "EXHAUSTED", "INVALID", "RUNNING", "advance", "collect", "settle", "vjp"]

RUNNING, CONVERGED, EXHAUSTED, INVALID = 0, 1, 2, 3


@jit(inline=True)
def _appraise(b, slot, vertices, layout, search):
    """Score, possibly not finite, and ‖r‖² of a loaded vertex, whose penalised coordinates join the trace."""
    index = vertices.index[slot]
    value = vertices.value[slot]
    front = vertices.size[slot, 0]
    back = vertices.size[slot, 1]
    score, absolute = scale_per_instance(index, value, front, b, layout)
    rest, more = scale_per_instance(index[index.size - back :], value[index.size - back :], back, b, layout)
    score += rest
    vertices.score[slot] = score
    square = 0.0
    for e in range(front):
        square += value[e] * value[e]
        c = index[e]
        if not search.touched[b, c]:
            search.touched[b, c] = True
            search.trace[b, search.traced[b]] = c
            search.traced[b] += 1
    # Not math.isfinite: under the kernels' fast math its score − score cancels before it can be NaN.
    if abs(score) < math.inf:
        search.scale[b] = max(search.scale[b], absolute + more + square)
    return score, square


@jit
def advance(start, stop, rows, tolerance, last, layout, support, search):
    """One round of the method for each instance ``rows[a]``: take the loaded vertex in and solve.

    The loaded vertex maximises the direction. If it shows that the gap is within ``tolerance``
    times the scale of the scores, or if this is the ``last`` round, the instance is finished and
    its solution left as it was.
    """
    capacity = support.weight.shape[1]
    fresh = np.zeros(search.mean.shape[1])  # the loaded vertex, dense
    gram = np.empty(capacity)
    gradient = np.empty(capacity)
    work = np.empty(capacity)
    for a in range(start, stop):
        b = rows[a]
        n = support.count[b]
        mean = search.mean[b]
        program = Program(support.order[b], support.weight[b], support.ones[b], support.factor[b])
        vertices = Vertices(support.index[b], support.value[b], support.size[b], support.score[b])
        slot = program.order[n]
        score, square = _appraise(b, slot, vertices, layout, search)
        if not abs(score) < math.inf:
            search.status[b] = INVALID
            continue
        if n == 0:
            n = append(program, n, 1.0, work, square + 1.0)
            support.count[b] = n
            write(a, b, n, program.order, program.weight, vertices, layout, search)
            continue

        index = vertices.index[slot]
        value = vertices.value[slot]
        front = vertices.size[slot, 0]
        slope = score - dot(index, value, front, mean)
        products(n, program.order, vertices, mean, gradient)
        average = 0.0
        linear = 0.0
        for k in range(n):
            other = program.order[k]
            gradient[other] = vertices.score[other] - gradient[other]
            average += program.weight[other] * gradient[other]
            linear += program.weight[other] * vertices.score[other]
        search.gap[b] = max(slope - average, 0.0)
        search.objective[b] = (linear + average) / 2
        rounding = ROUNDING * search.scale[b]
        if search.gap[b] <= max(tolerance * search.scale[b], rounding):
            search.status[b] = CONVERGED
        elif last:
            search.status[b] = EXHAUSTED
        else:
            search.iterations[b] += 1
            add(index, value, front, 1.0, fresh)
            products(n, program.order, vertices, fresh, gram)
            for e in range(front):
                fresh[index[e]] = 0.0
            n = enter(program, n, square, gram, gradient, slope, rounding, work)
            n = solve(program, n, gradient, work)
            support.count[b] = n
            write(a, b, n, program.order, program.weight, vertices, layout, search)
            # Without a vertex that helps, the gap can only come from an inexact solution, which
            # solve() has corrected just now; if that did not help either, nothing will.
            idle = program.order[n - 1] != slot
            if idle and search.stalled[b]:
                search.status[b] = EXHAUSTED
            search.stalled[b] = idle


@jit
def collect(start, stop, rows, layout, support, search):
    """Append the loaded vertex without solving, unless it is zero, impossible or depends on the others."""
    fresh = np.zeros(search.mean.shape[1])
    gram = np.empty(support.weight.shape[1])
    column = np.empty(gram.size)
    for a in range(start, stop):
        b = rows[a]
        n = support.count[b]
        program = Program(support.order[b], support.weight[b], support.ones[b], support.factor[b])
        vertices = Vertices(support.index[b], support.value[b], support.size[b], support.score[b])
        slot = program.order[n]
        score, square = _appraise(b, slot, vertices, layout, search)
        if not abs(score) < math.inf or vertices.size[slot].sum() == 0:
            continue
        index = vertices.index[slot]
        front = vertices.size[slot, 0]
        add(index, vertices.value[slot], front, 1.0, fresh)
        products(n, program.order, vertices, fresh, gram)
        for e in range(front):
            fresh[index[e]] = 0.0
        for k in range(n):
            column[k] = gram[program.order[k]] + 1.0
        forward(program.factor, column, n)
        remainder = square + 1.0
        for k in range(n):
            remainder -= column[k] * column[k]
        if remainder > DEPENDENT * (square + 1.0):
            support.count[b] = append(program, n, 1.0, column, remainder)


@jit
def settle(start, stop, rows, layout, support, search):
    """Solve over the collected vertices, from equal weights."""
    gradient = np.empty(support.weight.shape[1])
    work = np.empty(gradient.size)
    for a in range(start, stop):
        b = rows[a]
        n = support.count[b]
        if n > 0:
            program = Program(support.order[b], support.weight[b], support.ones[b], support.factor[b])
            vertices = Vertices(support.index[b], support.value[b], support.size[b], support.score[b])
            for k in range(n):
                program.weight[program.order[k]] = 1.0 / n
            write(a, b, n, program.order, program.weight, vertices, layout, search)
            products(n, program.order, vertices, search.mean[b], gradient)
            for k in range(n):
                slot = program.order[k]
                gradient[slot] = vertices.score[slot] - gradient[slot]
            n = solve(program, n, gradient, work)
            support.count[b] = n
            write(a, b, n, program.order, program.weight, vertices, layout, search)


@jit
def vjp(start, stop, mean_cotangent, weight_cotangent, support, out):
    """Mᵀ S (M v + u), with S = A⁻¹ − A⁻¹ 1 1ᵀ A⁻¹ / (1ᵀ A⁻¹ 1), into ``out`` (B, coordinates), zero so far."""
    x = np.empty(support.weight.shape[1])
    for b in range(start, stop):
        program = Program(support.order[b], support.weight[b], support.ones[b], support.factor[b])
        n = support.count[b]
        for k in range(n):
            slot = program.order[k]
            index = support.index[b, slot]
            value = support.value[b, slot]
            back = support.size[b, slot, 1]
            x[k] = weight_cotangent[b, slot] + dot(index, value, support.size[b, slot, 0], mean_cotangent[b])
            x[k] += dot(index[index.size - back :], value[index.size - back :], back, mean_cotangent[b])
        project(program, x, n)
        for k in range(n):
            slot = program.order[k]
            index = support.index[b, slot]
            value = support.value[b, slot]
            back = support.size[b, slot, 1]
            add(index, value, support.size[b, slot, 0], x[k], out[b])
            add(index[index.size - back :], value[index.size - back :], back, x[k], out[b])
