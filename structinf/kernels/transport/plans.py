"""The plans of entropic optimal transport, in compiled loops. Importing this module imports numba.

    P = argmax ⟨S, P⟩ − T Σ P log P   over P ≥ 0 with P 1 = a, Pᵀ 1 = b

The plan is P[i, j] = exp((S[i, j] + f[i] + g[j]) / T) with dual potentials f and g. Two algorithms find f and g.

Sinkhorn's sweeps scale rows and columns in turn. While the scalings stay within bounds, the sweeps are matrix products
with a stored matrix exp((S + f + g) / T). Beyond the bounds, the sweeps run in the log domain (B. Schmitzer, Stabilized
sparse scaling algorithms for entropy regularized transport problems, SIAM J. Sci. Comput. 41, 2019, §3).

Newton's method takes over if the sweeps converge too slowly. With f eliminated, the dual objective is a smooth concave
function of g (M. Cuturi & G. Peyré, Semidual regularized optimal transport, SIAM Review 60, 2018). Its Hessian is minus
a Laplacian (:mod:`.laplacian`). If the solution is far away, Newton's method solves a sequence of decreasing
temperatures, each starting from the potentials of the previous temperature.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp, log
from ..scalar.min_max import maximum
from .laplacian import column_weights, eliminate
from .tolerances import COARSE_TOLERANCE, EXACT, MAX_COARSE_STEPS, MAX_STEP, NEGLIGIBLE, ROUNDING, TEMPERATURE_RATIO

__all__ = ["solve"]

# Bounds of scalings, beyond which the potentials absorb them: products with underflowed entries stay 0 in float64.
LARGE, SMALL = 1e60, 1e-60
PERIOD = 8  # sweeps between two measurements of the convergence rate


@jit
def solve(
    start,
    stop,
    scores,
    rows,
    columns,
    temperature,
    initial_temperature,
    tolerance,
    limit,
    plan,
    f,
    g,
    residual,
    target_residual,
    iterations,
):
    """Compute the plans (B, n, m) and potentials f (B, n), g (B, m) for scores (B, n, m) and margins (B | 1, ...).

    Rows and columns with margin 0 get the potential −inf. Other rows and columns need enough cells with scores above
    −inf for their margins.

    Parameters
    ----------
    rows, columns : (B | 1, n) and (B | 1, m) float64
        The margins.
    initial_temperature : float
        If above ``temperature``, Newton's method starts at the initial temperature and decreases it.
    limit : int
        The largest number of iterations: sweeps and Newton steps.
    residual : (B,) float64, written
        The largest error of a row sum or column sum, relative to the largest margin.
    target_residual : (B,) float64, written
        ``tolerance``, or the bound of :func:`_rounding` if the bound is larger.
    iterations : (B,) integers, written
        The number of sweeps and Newton steps.
    """
    n, m = scores.shape[1], scores.shape[2]
    totals, weights, newton_step, work = np.empty(m), np.empty((m, m)), np.empty(m), np.empty((4, max(n, m)))
    for i in range(start, stop):
        a, b = rows[min(i, len(rows) - 1)], columns[min(i, len(columns) - 1)]
        largest = 0.0
        for j in range(n):
            largest = maximum(largest, a[j])
        for j in range(m):
            largest = maximum(largest, b[j])
        f[i], g[i], residual[i], target_residual[i], iterations[i] = 0.0, 0.0, 0.0, tolerance, 0
        for j in range(m):
            if b[j] == 0:
                g[i, j] = -np.inf
        if largest == 0:
            f[i], g[i], plan[i] = -np.inf, -np.inf, 0.0
            continue
        spread = _score_range(scores[i])
        _descend(
            scores[i], a, b, largest, spread, temperature, maximum(initial_temperature, temperature), tolerance, limit,
            plan[i], f[i], g[i], residual[i : i + 1], iterations[i : i + 1], totals, weights, newton_step, work,
        )  # fmt: skip
        target_residual[i] = maximum(tolerance, _rounding(scores[i], plan[i], g[i], temperature, largest, spread))


@jit
def _descend(
    scores, a, b, largest, spread, temperature, high, tolerance, limit, plan, f, g, residual, iterations, totals,
    weights, newton_step, work,
):  # fmt: skip
    """Compute the plan of one instance, starting at the temperature ``high``.

    ``largest`` is the largest margin, and ``spread`` the range of the finite scores.
    """
    m = scores.shape[1]
    exact = tolerance <= EXACT
    if high == temperature:
        aim = largest * (0.01 * tolerance if exact else tolerance)
        error, iterations[0] = _sweep(scores, a, b, temperature, aim, limit, plan, f, g, totals, work)
        residual[0] = error / largest
        if error <= aim or iterations[0] >= limit:
            return
        if residual[0] > maximum(tolerance, _rounding(scores, plan, g, temperature, largest, spread)):
            high = maximum(temperature, spread / 8)
            if high > temperature:
                for j in range(m):
                    g[j] = 0.0 if b[j] > 0 else -np.inf
    # A geometric sequence of temperatures.
    levels = int(np.ceil(np.log(high / temperature) / np.log(TEMPERATURE_RATIO)))
    level, error = levels, np.inf
    for level in range(levels, -1, -1):
        t = temperature * (high / temperature) ** (level / max(levels, 1))
        within = largest * (tolerance if level == 0 else COARSE_TOLERANCE)
        left = limit - iterations[0] if level == 0 else min(limit - iterations[0], MAX_COARSE_STEPS)
        error = _normalise_rows(scores, a, b, t, plan, f, g, totals)
        count = 0
        while error > within and count < left and error > largest * _rounding(scores, plan, g, t, largest, spread):
            error = _newton(scores, a, b, t, plan, f, g, totals, weights, newton_step, work)
            count += 1
        iterations[0] += count
        if iterations[0] >= limit:
            break
    if exact and iterations[0] < limit:
        error = _newton(scores, a, b, temperature, plan, f, g, totals, weights, newton_step, work)
        iterations[0] += 1
    elif level > 0:  # the limit came at a higher temperature: return the plan of its potentials
        error = _normalise_rows(scores, a, b, temperature, plan, f, g, totals)
    residual[0] = error / largest


@jit
def _rounding(scores, plan, g, t, largest, spread):
    """Return a bound on the residual that rounding of scores and potentials causes.

    Only cells with a non-negligible amount count, so large negative scores in place of −inf do not change the bound.
    A constant added to all scores does not change it either.
    """
    size, least = 0.0, NEGLIGIBLE * largest
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            if plan[i, j] > least:
                size = maximum(size, abs(scores[i, j]) + abs(g[j]))
    return ROUNDING * (1 + min(size, spread) / t)


@jit
def _score_range(scores):
    """Return the largest minus the smallest finite score."""
    low, high = np.inf, -np.inf
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            if scores[i, j] > -np.inf:
                low, high = min(low, scores[i, j]), max(high, scores[i, j])
    return maximum(high - low, 0.0)


# ----------------------------------------------------------------------------- Sinkhorn's sweeps


@jit
def _normalise_rows(scores, a, b, t, plan, f, g, totals):
    """Set f so that the row sums equal the margins, and return the largest error of a column sum.

    Update the plan, and write its column sums to ``totals``.
    """
    n, m = scores.shape
    inverse = 1 / t
    for j in range(m):
        totals[j] = 0.0
    for i in range(n):
        row, p = scores[i], plan[i]
        if a[i] == 0:
            f[i] = -np.inf
            for j in range(m):
                p[j] = 0.0
            continue
        top = -np.inf
        for j in range(m):
            top = maximum(top, row[j] + g[j])
        total = 0.0
        for j in range(m):
            p[j] = exp((row[j] + g[j] - top) * inverse)
            total += p[j]
        f[i] = t * log(a[i] / total) - top
        factor = a[i] / total
        for j in range(m):
            p[j] *= factor
            totals[j] += p[j]
    error = 0.0
    for j in range(m):
        error = maximum(error, abs(totals[j] - b[j]))
    return error


@jit
def _normalise_columns(scores, b, t, f, g, top, total):
    """Set g so that the column sums equal the margins for the given f, in the log domain."""
    n, m = scores.shape
    inverse = 1 / t
    for j in range(m):
        top[j], total[j] = -np.inf, 0.0
    for i in range(n):
        row, potential = scores[i], f[i]
        for j in range(m):
            top[j] = maximum(top[j], row[j] + potential)
    for j in range(m):
        top[j] = 0.0 if top[j] == -np.inf else top[j]
    for i in range(n):
        row, potential = scores[i], f[i]
        for j in range(m):
            total[j] += exp((row[j] + potential - top[j]) * inverse)
    for j in range(m):
        g[j] = t * log(b[j] / total[j]) - top[j] if b[j] > 0 else -np.inf


@jit
def _scale_rows(plan, a, u, v, totals):
    """Set u so that the row sums of diag(u) P diag(v) equal the margins.

    Return the largest error of a row sum before the update, and the range of u. Write the column sums of diag(u) P to
    ``totals``.
    """
    n, m = plan.shape
    for j in range(m):
        totals[j] = 0.0
    error, low, high = 0.0, np.inf, 0.0
    for i in range(n):
        if a[i] == 0:
            continue
        p = plan[i]
        s = 0.0
        for j in range(m):
            s += p[j] * v[j]
        error = maximum(error, abs(u[i] * s - a[i]))
        factor = a[i] / s if s > 0 else np.inf
        u[i] = factor
        low, high = min(low, factor), maximum(high, factor)
        for j in range(m):
            totals[j] += factor * p[j]
    return error, low, high


@jit
def _sweep(scores, a, b, t, target_residual, limit, plan, f, g, totals, work):
    """Sweep until the error reaches the target, or until Newton's method is faster. Return the error and the count."""
    n, m = scores.shape
    u, v, top, total = work[0], work[1], work[2], work[3]
    # A Newton step costs as much as 0.5 m + 8 sweeps, and Newton's method needs about 10 steps.
    patience = 10 * (0.5 * m + 8)
    count, rounds, before = 0, 0, np.inf
    while True:
        # The log domain is accurate for all potentials. Many rounds mean that the potentials are far from the solution.
        error = _normalise_rows(scores, a, b, t, plan, f, g, totals)
        rounds += 1
        if error <= target_residual or count >= limit or rounds > 2 * PERIOD:
            return error, count
        count += 1
        small = np.inf
        for j in range(m):
            if b[j] > 0:
                small = min(small, totals[j] / b[j])
        if small < SMALL:
            _normalise_columns(scores, b, t, f, g, top, total)
            continue
        for i in range(n):
            u[i] = 1.0
        done = False
        while True:
            # The totals are the column sums for u. First v corrects the columns, then u corrects the rows.
            for j in range(m):
                v[j] = b[j] / totals[j] if b[j] > 0 else 0.0
            error, low, high = _scale_rows(plan, a, u, v, totals)
            done = error <= target_residual or count >= limit
            if not done and count % PERIOD == 0:
                if error > 0 and before < np.inf:
                    rate = np.log(before / error) / PERIOD
                    done = rate * patience < np.log(error / target_residual)
                before = error
            if done or not (low > SMALL and high < LARGE):
                break
            count += 1
        if not high < LARGE:  # a row has underflowed
            _normalise_columns(scores, b, t, f, g, top, total)
            continue
        # The column sums are right for v and the previous u. After f is updated for v, they are right up to the error.
        for j in range(m):
            g[j] += t * log(v[j]) if b[j] > 0 else 0.0
        if done:
            return _normalise_rows(scores, a, b, t, plan, f, g, totals), count


# ----------------------------------------------------------------------------- Newton's method


@jit
def _newton(scores, a, b, t, plan, f, g, totals, weights, newton_step, work):
    """Take a Newton step in g, with f eliminated, and return the error after the step.

    Before and after the step, the row sums equal the margins.
    """
    m = scores.shape[1]
    trial, column, u, size = work[0], work[1], work[2], work[3]
    column_weights(plan, a, weights)
    for j in range(m):
        newton_step[j], size[j] = b[j] - totals[j], b[j] + totals[j]
    eliminate(weights, newton_step, size, MAX_STEP)
    slope, longest = 0.0, 0.0
    for j in range(m):
        slope += newton_step[j] * (b[j] - totals[j])
        longest = maximum(longest, abs(newton_step[j]))
    step = 1.0 if longest < 100 else 100 / longest
    for _ in range(40):
        # The slope of the dual after the step. The dual is concave, so it has increased if the slope is still positive.
        for j in range(m):
            trial[j] = exp(step * newton_step[j])
        _scale_rows(plan, a, u, trial, column)
        slope_after = 0.0
        for j in range(m):
            slope_after += newton_step[j] * (b[j] - column[j] * trial[j])
        if slope_after >= -0.5 * abs(slope):
            break
        # Linear interpolation of the slopes estimates the root, and the factor stays within 0.1 and 0.5.
        step *= max(0.1, min(0.5, slope / (slope - slope_after)))
    for j in range(m):
        if b[j] > 0:
            g[j] += t * step * newton_step[j]
    return _normalise_rows(scores, a, b, t, plan, f, g, totals)
