"""Euclidean projections onto transport polytopes, in compiled loops. Importing this module imports numba.

    μ = argmax ⟨θ, μ⟩ − ½ ‖μ‖²   over μ ≥ 0 with given or bounded row sums and column sums

The solution is μ = max(θ + f 1ᵀ + 1 gᵀ, 0) with potentials f and g. For given g, each f[i] is the threshold of a
projection onto a simplex (:func:`_match_rows`). With f eliminated, the dual objective is a concave function of g,
piecewise quadratic with a continuous gradient. Newton's method maximises it. On the piece of the solution, a Newton
step is exact, so the last step leaves only rounding errors.

The Hessian is minus a Laplacian (:mod:`.laplacian`) of the graph whose edges are the cells with μ > 0. The graph may
be disconnected, and then a component may have margins of different totals. Newton's method would not move the
component, although a large enough step makes another cell positive. So each cell with θ + f + g = −s < 0 is an edge of
weight b / (b + s): with this weight, the shift s + b that makes the cell take the amount b takes this amount in the
linear model, too. b is a multiple of the current error, so that the weights vanish at the solution.

A bound of a row or column has a slack variable, a cell without penalty. Its weight is infinite where the slack is
positive, and b / s elsewhere, where s is the distance of the potential from its bound.

D. Lorenz, P. Manns, C. Meyer, Quadratically regularized optimal transport, Applied Mathematics & Optimization 83, 2021,
use Newton's method for both potentials, with a constant regularization.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..scalar.min_max import maximum
from .laplacian import eliminate
from .tolerances import (
    BAND,
    EXACT_PATTERN,
    FARTHEST,
    INCREMENTAL,
    INFINITE_WEIGHT,
    MAX_FIXED,
    MAX_RESIDUAL,
    NEGLIGIBLE_CELL,
    ROUNDING,
)

__all__ = ["project"]


@jit
def project(
    start, stop, scores, rows, columns, slack, limit, reduced, loose_rows, loose_columns, value, gap, residual
):  # fmt: skip
    """Compute θ + f 1ᵀ + 1 gᵀ for scores θ (B, n, m) and margins (B | 1, n), (B | 1, m).

    Parameters
    ----------
    slack : (B, 2) float64
        The totals of the rests of the row sums and of the column sums; 0 for sums without rests.
    limit : int
        The largest number of Newton steps.
    reduced : (B, n, m) float64, written
        θ + f 1ᵀ + 1 gᵀ, whose positive part is μ.
    loose_rows, loose_columns : (B, n) and (B, m) bool, written
        Whether the sum of a row or column is not at its bound.
    value : (B,) float64, written
        ⟨θ, μ⟩ − ½ ‖μ‖².
    gap : (B,) float64, written
        The difference between the dual objective and ``value``, or an upper bound including rounding errors.
    residual : (B,) float64, written
        The largest error of a sum, relative to the largest margin. Infinite if the method stopped for lack of a plan.
    """
    n, m = scores.shape[1], scores.shape[2]
    padded = -(-n // 4) * 4
    cells, weights, inverse = np.zeros((padded, m + 2)), np.empty((m + 2, m + 2)), np.zeros(padded)
    per_row, per_column = np.empty((4, n)), np.empty((7, m + 2))
    f, room, change, trial_room = per_row[0], per_row[1], per_row[2], per_row[3]
    g, sums, size, step = per_column[0], per_column[1], per_column[2], per_column[3]
    trial_sums, values, fixed = per_column[4], per_column[5], per_column[6]
    for k in range(start, stop):
        theta, a, b = scores[k], rows[min(k, len(rows) - 1)], columns[min(k, len(columns) - 1)]
        largest = 0.0
        for i in range(n):
            largest = maximum(largest, a[i])
        for j in range(m):
            largest = maximum(largest, b[j])
        error = _solve(
            theta, a, b, slack[k, 0], slack[k, 1], largest, limit, reduced[k], f, g, room, change, trial_room, values,
            sums, size, step, trial_sums, fixed, cells, inverse, weights,
        )  # fmt: skip
        residual[k] = error / largest if largest > 0 else error
        for i in range(n):
            loose_rows[k, i] = room[i] == 0
        for j in range(m):
            loose_columns[k, j] = slack[k, 1] > 0 and g[j + 1] == 0
        value[k], gap[k] = _certificate(
            theta, a, b, slack[k, 0], reduced[k], f, g, loose_rows[k], loose_columns[k], sums
        )


@jit
def _solve(
    theta, a, b, row_slack, column_slack, largest, limit, reduced, f, g, room, change, trial_room, values, sums,
    size, step, trial_sums, fixed, cells, inverse, weights,
):  # fmt: skip
    """Solve one instance, and return the largest error of a sum.

    Vectors over columns have the ground, of potential 0, in front, and the slack column in the end. ``g`` at the end is
    the potential h of the slack column, with f ≤ −h, if both sides have slack. If only the rows have slack, h is 0.
    ``room`` is −h − f, or ∞ if the rows have no slack.
    """
    n, m = theta.shape
    rest = row_slack if column_slack > 0 else 0.0
    slack_column = m + 1 if rest > 0 else 0
    for j in range(m + 2):
        step[j], g[j] = 0.0, 0.0
    for j in range(m):
        g[j + 1] = 0.0 if b[j] > 0 else -np.inf
    for i in range(n):
        change[i], room[i], trial_room[i] = 0.0, np.inf if rest > 0 or row_slack == 0 else 0.0, np.inf
        f[i] = 0.0 if a[i] > 0 else -np.inf
        for j in range(m):
            reduced[i, j] = theta[i, j] + f[i] + g[j + 1]
    row_error = _match_rows(reduced, a, step, 1.0, slack_column, room, change, trial_room, sums, values)
    if rest > 0:
        top = -np.inf
        for i in range(n):
            top = maximum(top, change[i] if a[i] > 0 else -np.inf)
        g[m + 1] = -top
        for i in range(n):
            room[i] = top
        row_error = np.inf
        if top > -np.inf:
            row_error = _match_rows(reduced, a, step, 1.0, slack_column, room, change, trial_room, sums, values)
    if row_error == np.inf:
        return np.inf
    part, count, incremental, is_exact, error = 1.0, 0, False, False, np.inf
    while True:
        before, error = error, maximum(row_error, _column_errors(b, column_slack, rest, g, sums, size))
        # The sums are those of ``reduced`` up to rounding errors of the step, so the last step has to be small.
        is_settled = incremental or count == 0
        incremental = count > 0 and error < INCREMENTAL * largest
        for i in range(n):
            f[i] += change[i]
            room[i] = trial_room[i]
            for j in range(m):
                if incremental:
                    reduced[i, j] = (reduced[i, j] + part * step[j + 1]) + change[i]
                else:
                    reduced[i, j] = theta[i, j] + f[i] + g[j + 1]
        if is_settled and not error > ROUNDING * largest:
            return error
        if count >= limit:
            return error if is_settled else np.inf
        if is_exact and is_settled and error > 0.5 * before:
            if error < MAX_RESIDUAL * largest:
                return error
            is_exact = False
        else:
            is_exact = error < EXACT_PATTERN * largest
        band = 0.0 if is_exact else BAND * error
        farthest = _weigh_cells(reduced, a, band, slack_column, room, cells, inverse)
        for j in range(1, m + 1):
            farthest = maximum(farthest, -g[j] if column_slack > 0 and b[j - 1] > 0 else 0.0)
        if not farthest < FARTHEST:
            return np.inf
        most, slope, rounds = 1.0, 0.0, MAX_FIXED
        while True:
            for j in range(m + 2):
                fixed[j] = 0.0
            for _ in range(rounds):
                _column_weights(cells, inverse, weights)
                for j in range(m + 2):
                    step[j] = sums[j]
                    trial_sums[j] = 0.0 if is_exact else size[j]
                if column_slack > 0:
                    _weigh_bounds(b, g, sums, band, fixed, weights, step)
                eliminate(weights, step, trial_sums, farthest + error)
                if column_slack == 0 or not _fix_highest(g, step, fixed):
                    break
            if column_slack > 0:
                most = _keep_bounds(g, sums, step, trial_sums)
            slope = 0.0
            for j in range(1, m + 2):
                slope += step[j] * sums[j]
            if slope > 0 or rounds == 1 or column_slack == 0:
                break
            rounds = 1  # without fixed columns, the step is an ascent direction
        if not (slope > 0 or is_exact):
            return error
        part = most
        for _ in range(60):
            row_error = _match_rows(reduced, a, step, part, slack_column, room, change, trial_room, trial_sums, values)
            slope_after = step[m + 1] * (rest - trial_sums[m + 1])
            for j in range(1, m + 1):
                slope_after += step[j] * (b[j - 1] - trial_sums[j])
            # The dual is concave along the step. A slope of 0 at the end is best; far below 0, the dual may decrease.
            if slope_after >= -0.1 * abs(slope):
                break
            part *= max(0.1, min(0.5, slope / (slope - slope_after)))
        for j in range(1, m + 2):
            potential = g[j] + part * step[j]
            at_bound = column_slack > 0 and j <= m and potential > -ROUNDING * abs(g[j])
            g[j], sums[j] = 0.0 if at_bound else potential, trial_sums[j]
        count += 1


@jit
def _match_rows(reduced, a, step, part, slack_column, room, change, trial_room, sums, values):
    """Find the changes of f and the new ``room`` after ``part`` of the step of g. Return the largest row sum error.

    The row sums equal a, or are smaller if the room is 0. Write the column sums, and the total of the rests of the rows
    at the end, to ``sums``.
    """
    n, m = reduced.shape
    error = 0.0
    for j in range(m + 2):
        sums[j] = 0.0
    for i in range(n):
        if not a[i] > 0:
            continue
        bound = room[i] - part * step[slack_column]
        top, count, total = -np.inf, 0.0, 0.0
        for j in range(m):
            value = reduced[i, j] + part * step[j + 1]
            values[j] = value
            top = maximum(top, value)
            count += 1.0 if value > 0 else 0.0
            total += value if value > 0 else 0.0
        # Newton's method for the threshold: after the first step, the number of positive cells only decreases.
        shift = (a[i] - total) / count if count > 0 else a[i] - top
        for trial in range(m + 1):
            number, total = 0.0, 0.0
            for j in range(m):
                positive = values[j] + shift > 0
                number += 1.0 if positive else 0.0
                total += values[j] if positive else 0.0
            if number == count or number == 0 or (trial > 0 and number > count):
                break
            count, shift = number, (a[i] - total) / number
        if top == -np.inf:  # a row without allowed cells
            shift = bound
            if bound == np.inf:
                change[i], error = -np.inf, np.inf
                continue
        shift, total = min(shift, bound), 0.0
        change[i], trial_room[i] = shift, bound - shift
        for j in range(m):
            cell = maximum(values[j] + shift, 0.0)
            sums[j + 1] += cell
            total += cell
        if shift == bound:
            sums[m + 1] += a[i] - total
        else:
            error = maximum(error, abs(a[i] - total))
    return error


@jit
def _column_errors(b, column_slack, rest, g, sums, size):
    """Replace the column sums by their differences from the margins, 0 for rests. Return the largest difference.

    Write the sums of absolute terms of the differences to ``size``.
    """
    end = len(sums) - 1
    size[0], size[end] = 0.0, rest + abs(sums[end])
    sums[0], sums[end] = 0.0, rest - sums[end] if rest > 0 else 0.0
    error = abs(sums[end])
    for j in range(1, end):
        size[j] = b[j - 1] + sums[j]
        sums[j] = b[j - 1] - sums[j]
        if column_slack > 0 and g[j] == 0 and sums[j] > 0:
            sums[j] = 0.0
        error = maximum(error, abs(sums[j]))
    return error


@jit
def _weigh_cells(reduced, a, band, slack_column, room, cells, inverse):
    """Write the weights of the cells, and the inverse sums of rows. Return the largest distance of a cell from 0."""
    n, m = reduced.shape
    low, shifted = 0.0, band + 1e-300  # without division of 0 by 0
    for i in range(n):
        row, total = cells[i], 0.0
        row[0], row[m + 1] = 0.0, 0.0
        for j in range(m):
            cell = reduced[i, j]
            row[j + 1] = 1.0 if cell > 0 else band / (shifted - cell)
            low = maximum(low, -cell if cell > -np.inf else 0.0)
        if a[i] > 0 and room[i] < np.inf:
            row[slack_column] = INFINITE_WEIGHT if room[i] == 0 else band / room[i]
            low = maximum(low, room[i])
        for j in range(m + 2):
            total += row[j]
        inverse[i] = 1 / total if total > 0 else 0.0
    return low


@jit
def _column_weights(cells, inverse, weights):
    """Write W[j, k] = Σ_i P[i, j] P[i, k] / Σ_h P[i, h] for k < j. The number of rows is a multiple of 4."""
    n, m = cells.shape
    for j in range(m):
        w = weights[j]
        for k in range(j):
            w[k] = 0.0
        for i in range(0, n, 4):
            p, q, r, s = cells[i], cells[i + 1], cells[i + 2], cells[i + 3]
            x, y = p[j] * inverse[i], q[j] * inverse[i + 1]
            z, u = r[j] * inverse[i + 2], s[j] * inverse[i + 3]
            if x > 0 or y > 0 or z > 0 or u > 0:
                for k in range(j):
                    w[k] += x * p[k] + y * q[k] + z * r[k] + u * s[k]


@jit
def _weigh_bounds(b, g, sums, band, fixed, weights, step):
    """Add the weights between the ground and the columns, and the terms of fixed columns."""
    for j in range(1, len(g) - 1):
        if not b[j - 1] > 0:
            continue
        if g[j] == 0 and sums[j] >= 0:
            fixed[j] = 1.0
        if fixed[j] > 0:
            weights[j, 0] += INFINITE_WEIGHT
            step[j] -= INFINITE_WEIGHT * g[j]
        elif sums[j] >= 0:
            weights[j, 0] += band / -g[j]


@jit
def _fix_highest(g, step, fixed):
    """Fix the column farthest above its bound to the bound. Return whether there is such a column.

    The bounds would otherwise cut a step of a component whose potentials are determined only up to a constant.
    """
    highest, top = 0.0, 0
    for j in range(1, len(g) - 1):
        if fixed[j] > 0:
            step[j] = -g[j]
        elif g[j] + step[j] > highest:
            highest, top = g[j] + step[j], j
    if top > 0:
        fixed[top] = 1.0
    return top > 0


@jit
def _keep_bounds(g, sums, step, copy):
    """Shorten the step so that g + step ≤ 0, and return the largest allowed factor of the step.

    Each component stops at its bound if the step remains an ascent direction. Otherwise only components at their bound
    do not move, which is an ascent direction, and the factor ends the step at the first bound.

    D. Bertsekas, Projected Newton methods for optimization problems with simple constraints, SIAM J. Control and
    Optimization 20, 1982.
    """
    end = len(g) - 1
    slope, newton_slope = step[end] * sums[end], step[end] * sums[end]
    for j in range(1, end):
        copy[j] = step[j]
        newton_slope += step[j] * sums[j]
        if g[j] + step[j] > 0:
            step[j] = -g[j]
        slope += step[j] * sums[j]
    if slope > 0.01 * newton_slope:
        return 1.0
    most = 1.0
    for j in range(1, end):
        step[j] = 0.0 if g[j] == 0 and copy[j] > 0 else copy[j]
        if g[j] + step[j] > 0:
            most = min(most, -g[j] / step[j])
    return most


@jit
def _certificate(theta, a, b, row_slack, reduced, f, g, loose_rows, loose_columns, sums):
    """Replace rounding errors in place of 0, and return the value ⟨θ, μ⟩ − ½ ‖μ‖² and a bound of the duality gap.

    The gap is Σ f (μ 1 − a) + Σ g (μᵀ 1 − b) − h (row_slack − Σ rests), where rests are of rows with f = −h.
    """
    n, m = theta.shape
    value, gap, terms, rest = 0.0, 0.0, 0.0, row_slack
    for j in range(m + 2):
        sums[j] = 0.0
    for i in range(n):
        total = 0.0
        for j in range(m):
            cell = maximum(reduced[i, j], 0.0)
            if 0 < cell <= NEGLIGIBLE_CELL * min(a[i], b[j]):
                reduced[i, j], cell = 0.0, 0.0
            score = theta[i, j] if cell > 0 else 0.0
            value += cell * (score - 0.5 * cell)
            terms += cell * (abs(score) + 0.5 * cell)
            total += cell
            sums[j + 1] += cell
        if loose_rows[i]:
            rest -= a[i] - total
        elif a[i] > 0:
            gap += abs(f[i] * (total - a[i]))
    for j in range(m):
        if b[j] > 0 and not loose_columns[j]:
            gap += abs(g[j + 1] * (sums[j + 1] - b[j]))
    gap += abs(g[m + 1] * rest)
    return value, gap + ROUNDING * terms
