"""The iteration of the active set method, for the quadratic programs of a batch of instances, in float64.

Each instance keeps the non-zeros of its vertices y_k, and the weights p that solve

    max ⟨s, p⟩ − ½ ‖Σ_k p_k r_k‖²   over p in the simplex,   s_k = ⟨θ, y_k⟩,

where r_k are the penalised coordinates of y_k. :func:`add_and_solve` adds one vertex and solves the program again.
Each solve corrects the current weights by their current gradient, so rounding errors of the factor do not reach the
weights.

numba inlines the large functions with a single caller on the usual path. Inlining shortens the first compilation by
20 %.

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
from .quadratic_program import Program, add_vertex, append_column, solve_balanced, solve_transposed, solve_weights
from .sparse_vertices import Vertices, add_scaled, dot, score_nonzeros, support_products, update_mean
from .tolerances import DEPENDENT, ROUNDING

__all__ = [
    "CONVERGED",
    "INVALID",
    "RUNNING",
    "STOPPED",
    "add_and_solve",
    "add_starting_vertex",
    "solve_starting_vertices",
    "vjp",
]

RUNNING, CONVERGED, STOPPED, INVALID = 0, 1, 2, 3


@jit(inline=True)
def _score_loaded_vertex(b, slot, vertices, layout, state):
    """Return the score and ‖r‖² of a loaded vertex, and mark its penalised coordinates as seen.

    The score may be −inf or NaN.
    """
    index = vertices.index[slot]
    value = vertices.value[slot]
    front = vertices.size[slot, 0]
    back = vertices.size[slot, 1]
    score, absolute = score_nonzeros(index, value, front, b, layout)
    rest, more = score_nonzeros(index[index.size - back :], value[index.size - back :], back, b, layout)
    score += rest
    vertices.score[slot] = score
    square = 0.0
    for e in range(front):
        square += value[e] * value[e]
        c = index[e]
        if not state.seen[b, c]:
            state.seen[b, c] = True
            state.seen_coordinates[b, state.seen_count[b]] = c
            state.seen_count[b] += 1
    # math.isfinite computes score − score, and the kernels' fast math simplifies the difference to 0.
    if abs(score) < math.inf:
        state.scale[b] = max(state.scale[b], absolute + more + square)
        state.size[b] = max(state.size[b], square)
    return score, square


@jit
def add_and_solve(start, stop, rows, tolerance, accuracy, last, layout, support, state):
    """Run one iteration for each instance ``rows[a]``: add the loaded vertex and solve the program.

    The loaded vertex is a maximizer of the direction, so it determines the gap. An instance is finished, and keeps its
    solution, if the gap is at most ``tolerance`` times the scale of the scores or ``accuracy``² / 2 times the largest
    ‖r‖², or if the iteration is the ``last``.
    """
    capacity = support.weight.shape[1]
    fresh = np.zeros(state.mean.shape[1])  # the loaded vertex, dense
    gram = np.empty(capacity)
    gradient = np.empty(capacity)
    work = np.empty(capacity)
    for a in range(start, stop):
        b = rows[a]
        n = support.count[b]
        mean = state.mean[b]
        program = Program(support.order[b], support.weight[b], support.ones[b], support.factor[b])
        vertices = Vertices(support.index[b], support.value[b], support.size[b], support.score[b])
        slot = program.order[n]
        score, square = _score_loaded_vertex(b, slot, vertices, layout, state)
        if not abs(score) < math.inf:
            state.status[b] = INVALID
            continue
        if n == 0:
            n = append_column(program, n, 1.0, work, square + 1.0)
            support.count[b] = n
            update_mean(a, b, n, program.order, program.weight, vertices, layout, state)
            continue

        index = vertices.index[slot]
        value = vertices.value[slot]
        front = vertices.size[slot, 0]
        slope = score - dot(index, value, front, mean)
        support_products(n, program.order, vertices, mean, gradient)
        average = 0.0
        linear = 0.0
        for k in range(n):
            other = program.order[k]
            gradient[other] = vertices.score[other] - gradient[other]
            average += program.weight[other] * gradient[other]
            linear += program.weight[other] * vertices.score[other]
        state.gap[b] = max(slope - average, 0.0)
        state.objective[b] = (linear + average) / 2
        rounding = ROUNDING * state.scale[b]
        if state.gap[b] <= max(tolerance * state.scale[b], 0.5 * accuracy * accuracy * state.size[b], rounding):
            state.status[b] = CONVERGED
        elif last:
            state.status[b] = STOPPED
        else:
            state.iterations[b] += 1
            add_scaled(index, value, front, 1.0, fresh)
            support_products(n, program.order, vertices, fresh, gram)
            for e in range(front):
                fresh[index[e]] = 0.0
            n = add_vertex(program, n, square, gram, gradient, slope, rounding, work)
            n = solve_weights(program, n, gradient, work)
            support.count[b] = n
            update_mean(a, b, n, program.order, program.weight, vertices, layout, state)
            # If the loaded vertex was rejected, the gap comes from an inexact solution, and solve_weights() has just
            # corrected the solution. After two such iterations in a row, no further iteration helps.
            idle = program.order[n - 1] != slot
            if idle and state.stalled[b]:
                state.status[b] = STOPPED
            state.stalled[b] = idle


@jit
def add_starting_vertex(start, stop, rows, layout, support, state):
    """Add the loaded vertex without solving the program.

    A vertex is skipped if it is zero, if its score is not finite, or if it depends affinely on the others.
    """
    fresh = np.zeros(state.mean.shape[1])
    gram = np.empty(support.weight.shape[1])
    column = np.empty(gram.size)
    for a in range(start, stop):
        b = rows[a]
        n = support.count[b]
        program = Program(support.order[b], support.weight[b], support.ones[b], support.factor[b])
        vertices = Vertices(support.index[b], support.value[b], support.size[b], support.score[b])
        slot = program.order[n]
        score, square = _score_loaded_vertex(b, slot, vertices, layout, state)
        if not abs(score) < math.inf or vertices.size[slot].sum() == 0:
            continue
        index = vertices.index[slot]
        front = vertices.size[slot, 0]
        add_scaled(index, vertices.value[slot], front, 1.0, fresh)
        support_products(n, program.order, vertices, fresh, gram)
        for e in range(front):
            fresh[index[e]] = 0.0
        for k in range(n):
            column[k] = gram[program.order[k]] + 1.0
        solve_transposed(program.factor, column, n)
        remainder = square + 1.0
        for k in range(n):
            remainder -= column[k] * column[k]
        if remainder > DEPENDENT * (square + 1.0):
            support.count[b] = append_column(program, n, 1.0, column, remainder)


@jit
def solve_starting_vertices(start, stop, rows, scores_are_new, layout, support, state):
    """Solve the program over the starting vertices, from equal weights.

    If ``scores_are_new``, the vertices are those of a solution for other scores: the weights start from this solution,
    and vertices whose score is no longer finite make an instance start without vertices.
    """
    gradient = np.empty(support.weight.shape[1])
    work = np.empty(gradient.size)
    for a in range(start, stop):
        b = rows[a]
        n = support.count[b]
        if n > 0:
            program = Program(support.order[b], support.weight[b], support.ones[b], support.factor[b])
            vertices = Vertices(support.index[b], support.value[b], support.size[b], support.score[b])
            total = 0.0
            for k in range(n):
                slot = program.order[k]
                if scores_are_new:
                    score, _ = _score_loaded_vertex(b, slot, vertices, layout, state)
                    if not abs(score) < math.inf:
                        support.count[b] = 0
                else:
                    program.weight[slot] = 1.0
                total += program.weight[slot]
            if support.count[b] == 0:
                for k in range(n):
                    program.weight[program.order[k]] = 0.0
                continue
            for k in range(n):
                program.weight[program.order[k]] /= total
            update_mean(a, b, n, program.order, program.weight, vertices, layout, state)
            support_products(n, program.order, vertices, state.mean[b], gradient)
            for k in range(n):
                slot = program.order[k]
                gradient[slot] = vertices.score[slot] - gradient[slot]
            n = solve_weights(program, n, gradient, work)
            support.count[b] = n
            update_mean(a, b, n, program.order, program.weight, vertices, layout, state)


@jit
def vjp(start, stop, mean_cotangent, weight_cotangent, support, out):
    """Add Mᵀ S (M v + u), with S = A⁻¹ − A⁻¹ 1 1ᵀ A⁻¹ / (1ᵀ A⁻¹ 1), to ``out`` (B, coordinates), initially zero.

    The rows of M are the vertices, v is ``mean_cotangent``, and u is ``weight_cotangent``.
    """
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
        solve_balanced(program, x, n)
        for k in range(n):
            slot = program.order[k]
            index = support.index[b, slot]
            value = support.value[b, slot]
            back = support.size[b, slot, 1]
            add_scaled(index, value, support.size[b, slot, 0], x[k], out[b])
            add_scaled(index[index.size - back :], value[index.size - back :], back, x[k], out[b])
