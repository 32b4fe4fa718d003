"""Entropic optimal transport, compiled: the plans. Importing this module imports numba.

    P = argmax ⟨S, P⟩ − T Σ P log P   over P ≥ 0 with P 1 = a, Pᵀ 1 = b

has P[i, j] = exp((S[i, j] + f[i] + g[j]) / T), and the potentials f, g are found in two ways.

Sinkhorn's sweeps scale rows and columns in turn. They run on a kept kernel exp((S + f + g) / T), as matrix products,
while the scalings since it was made stay within bounds; otherwise they take logarithms of sums (B. Schmitzer,
Stabilized sparse scaling algorithms for entropy regularized transport problems, SIAM J. Sci. Comput. 41, 2019, §3).

Newton's method takes over where the sweeps would need many more. With f eliminated, the dual is a smooth concave
function of g alone (M. Cuturi & G. Peyré, Semidual regularized optimal transport, SIAM Review 60, 2018), whose Hessian
is minus a Laplacian (:mod:`.laplacian`). From far away it goes through higher temperatures, each from the
potentials of the one before.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp, log
from ..scalar.min_max import maximum
from .laplacian import column_weights, eliminate
from .tolerances import COARSE, COARSER, EXACT, FARTHEST, NOTHING, ROUNDING, STEPS

__all__ = ["solve"]

# What scalings may grow to before they are absorbed: their products with what underflowed stay 0 in double precision.
LARGE, SMALL = 1e60, 1e-60
PERIOD = 8  # sweeps between two looks at how fast they converge


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
    """The plans (B, n, m) of scores (B, n, m), with potentials f (B, n) and g (B, m), for margins (B | 1, ...).

    Rows and columns of margin 0 have potential −inf; others must have cells above −inf to take it. The residual (B,) is
    the largest difference of a row's or a column's sum from its margin, relative to the largest margin; iterations (B,)
    counts sweeps and Newton steps, at most ``limit`` of them. The goal (B,) for the residual is the ``tolerance``, or
    what :func:`_rounding` leaves of it. An ``initial_temperature`` above the temperature is that of the
    first solution; the next ones have smaller temperatures.
    """
    n, m = scores.shape[1], scores.shape[2]
    totals, weights, moved, work = np.empty(m), np.empty((m, m)), np.empty(m), np.empty((4, max(n, m)))
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
        spread = _spread(scores[i])
        _descend(
            scores[i], a, b, largest, spread, temperature, maximum(initial_temperature, temperature), tolerance, limit,
            plan[i], f[i], g[i], residual[i : i + 1], iterations[i : i + 1], totals, weights, moved, work,
        )  # fmt: skip
        target_residual[i] = maximum(tolerance, _rounding(scores[i], plan[i], g[i], temperature, largest, spread))


@jit
def _descend(
    scores, a, b, largest, spread, temperature, high, tolerance, limit, plan, f, g, residual, iterations, totals,
    weights, moved, work,
):  # fmt: skip
    """The plan of one instance, of this largest margin and spread of scores, from the temperature ``high`` down."""
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
    # Temperatures in a row whose ratio is the same.
    levels = int(np.ceil(np.log(high / temperature) / np.log(COARSER)))
    level, error = levels, np.inf
    for level in range(levels, -1, -1):
        t = temperature * (high / temperature) ** (level / max(levels, 1))
        within = largest * (tolerance if level == 0 else COARSE)
        left = limit - iterations[0] if level == 0 else min(limit - iterations[0], STEPS)
        error = _normalise_rows(scores, a, b, t, plan, f, g, totals)
        count = 0
        while error > within and count < left and error > largest * _rounding(scores, plan, g, t, largest, spread):
            error = _newton(scores, a, b, t, plan, f, g, totals, weights, moved, work)
            count += 1
        iterations[0] += count
        if iterations[0] >= limit:
            break
    if exact and iterations[0] < limit:
        error = _newton(scores, a, b, temperature, plan, f, g, totals, weights, moved, work)
        iterations[0] += 1
    elif level > 0:  # what there is, at the temperature asked for
        error = _normalise_rows(scores, a, b, temperature, plan, f, g, totals)
    residual[0] = error / largest


@jit
def _rounding(scores, plan, g, t, largest, spread):
    """What rounding of scores and potentials over the temperature leaves of a residual.

    Of those where something is shipped: how far below them a score lies that stands for −inf does not matter. Nor does
    what all scores have in common.
    """
    size, least = 0.0, NOTHING * largest
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            if plan[i, j] > least:
                size = maximum(size, abs(scores[i, j]) + abs(g[j]))
    return ROUNDING * (1 + min(size, spread) / t)


@jit
def _spread(scores):
    """The largest finite score less the smallest."""
    low, high = np.inf, -np.inf
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            if scores[i, j] > -np.inf:
                low, high = min(low, scores[i, j]), max(high, scores[i, j])
    return maximum(high - low, 0.0)


# ----------------------------------------------------------------------------- Sinkhorn's sweeps


@jit
def _normalise_rows(scores, a, b, t, plan, f, g, totals):
    """Put f to where the rows' sums are right, and the plan and its columns' sums to f and g; their largest error."""
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
    """Put g to where the columns' sums are right for f, by logarithms of sums."""
    n, m = scores.shape
    inverse = 1 / t
    for j in range(m):
        top[j], total[j] = -np.inf, 0.0
    for i in range(n):
        row, own = scores[i], f[i]
        for j in range(m):
            top[j] = maximum(top[j], row[j] + own)
    for j in range(m):
        top[j] = 0.0 if top[j] == -np.inf else top[j]
    for i in range(n):
        row, own = scores[i], f[i]
        for j in range(m):
            total[j] += exp((row[j] + own - top[j]) * inverse)
    for j in range(m):
        g[j] = t * log(b[j] / total[j]) - top[j] if b[j] > 0 else -np.inf


@jit
def _scale_rows(plan, a, u, v, totals):
    """Put u to where the sums of rows of u P v are right: their largest error before, and the range of u.

    The totals are those of the columns of u P.
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
    """Sweeps until the error is within the goal, or until Newton's method is faster: the error and their number."""
    n, m = scores.shape
    u, v, top, total = work[0], work[1], work[2], work[3]
    # What a step of Newton's costs in sweeps, and some ten of them are wanted.
    patience = 10 * (0.5 * m + 8)
    count, rounds, before = 0, 0, np.inf
    while True:
        # In the log domain: exact whatever the potentials are. Where one round after the other has to be, they are far.
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
            # The totals are those for u; v makes the columns right, and then u the rows.
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
        # The columns are right for v and the u before; with f put right for v once more, they are so up to the error.
        for j in range(m):
            g[j] += t * log(v[j]) if b[j] > 0 else 0.0
        if done:
            return _normalise_rows(scores, a, b, t, plan, f, g, totals), count


# ----------------------------------------------------------------------------- Newton's method


@jit
def _newton(scores, a, b, t, plan, f, g, totals, weights, moved, work):
    """A step in g, with f eliminated, from where the rows are right: the error after it."""
    m = scores.shape[1]
    trial, column, u, size = work[0], work[1], work[2], work[3]
    column_weights(plan, a, weights)
    for j in range(m):
        moved[j], size[j] = b[j] - totals[j], b[j] + totals[j]
    eliminate(weights, moved, size, FARTHEST)
    slope, longest = 0.0, 0.0
    for j in range(m):
        slope += moved[j] * (b[j] - totals[j])
        longest = maximum(longest, abs(moved[j]))
    step = 1.0 if longest < 100 else 100 / longest
    for _ in range(40):
        # The dual's slope a step further on; it is concave, so that a slope above 0 has lost nothing.
        for j in range(m):
            trial[j] = exp(step * moved[j])
        _scale_rows(plan, a, u, trial, column)
        ahead = 0.0
        for j in range(m):
            ahead += moved[j] * (b[j] - column[j] * trial[j])
        if ahead >= -0.5 * abs(slope):
            break
        # Where a straight line between the two slopes says that it is 0, or half of that at most.
        step *= max(0.1, min(0.5, slope / (slope - ahead)))
    for j in range(m):
        if b[j] > 0:
            g[j] += t * step * moved[j]
    return _normalise_rows(scores, a, b, t, plan, f, g, totals)
