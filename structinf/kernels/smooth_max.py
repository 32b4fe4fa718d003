"""Smoothed maxima of many columns of scores at once, for use inside kernels. Importing this module imports numba.

Regularizers are known by their α (`structinf.regularizers.Regularizer.alpha`): 1 is the negative entropy, 1 < α ≤ 2
Tsallis', infinity none. With a = α − 1 and p = 1 / a the probabilities are functions of a score x and of one number τ
that their column shares,

    α = 1   q = exp(x − τ),                and τ = max_Ω(x);
    α > 1   q = max(a (x − τ), 0)^p,       where τ makes them sum to 1,

so that a recursion keeps two numbers a node and recomputes q wherever it is needed. The Hessian of max_Ω is
diag(s) − s sᵀ / Σ s with s = q^(2 − α), that is q (α = 1) or max(a (x − τ), 0)^(p − 1).

Scores are float64; exponentials are taken in the dtype of ``kind``, of differences taken in float64.
"""

from __future__ import annotations

import numpy as np

from .elementary import exp, log
from .extrema import maximum
from .jit import jit

__all__ = ["curvature", "probabilities", "smooth_max"]

MOST_STEPS = 100


@jit
def smooth_max(x, count, alpha, kind, value, tau, total, slope):
    """max_Ω of the first ``count`` rows of ``x`` (rows, L), for each column; and its τ.

    Parameters
    ----------
    x : (rows, L) float64
    kind : (L,) float32 or float64
        Scratch of the dtype that exponentials are taken in.
    value, tau : (L,) float64
        Results: max_Ω, −inf where all are −inf; and τ, or the lowest of the best rows where α is infinity.
    total, slope : (L,) float64
        Scratch.
    """
    columns = len(value)
    for c in range(columns):
        value[c] = x[0, c]
    for k in range(1, count):
        row = x[k]
        for c in range(columns):
            value[c] = maximum(value[c], row[c])
    if alpha == np.inf:
        for c in range(columns):
            tau[c] = count
        for k in range(count - 1, -1, -1):
            row = x[k]
            for c in range(columns):
                tau[c] = k if row[c] == value[c] else tau[c]
        return
    # The largest score, or 0 where there is none, so that no difference is −inf − (−inf).
    for c in range(columns):
        tau[c] = value[c] if value[c] > -np.inf else 0.0
    if count == 1:
        if alpha > 1:
            for c in range(columns):
                tau[c] -= 1.0 / (alpha - 1.0)
        return
    if alpha == 1:
        _negentropy(x, count, kind, value, tau)
    else:
        _tsallis(x, count, alpha, kind, value, tau, total, slope)


@jit
def _negentropy(x, count, kind, value, tau):
    columns = len(value)
    for c in range(columns):
        kind[c] = 0
    for k in range(count):
        row = x[k]
        for c in range(columns):
            kind[c] += exp(kind.dtype.type(row[c] - tau[c]))
    for c in range(columns):
        level = tau[c] + log(kind[c])
        value[c] = level
        tau[c] = level if level > -np.inf else 0.0


@jit
def _tsallis(x, count, alpha, kind, value, tau, total, slope):
    """Newton's method for t = a (τ − max x) from t = −1, where Σ q ≥ 1: Σ q is convex and falls, so t only rises."""
    columns, a = len(value), alpha - 1.0
    power = 1.0 / a
    for c in range(columns):
        tau[c] -= power
    for _ in range(MOST_STEPS):
        _sums(x, count, a, power, kind, tau, total, slope)
        largest = 0.0
        for c in range(columns):
            # dΣq/dτ = −Σ s. Where nothing is finite, both sums are 0 and τ stays.
            step = maximum((total[c] - 1.0) / maximum(slope[c], 1e-300), 0.0)
            tau[c] += step
            largest = maximum(largest, step - 4e-16 * abs(tau[c]))
        if largest <= 4e-16:
            break
    # max_Ω = m + (1 − 1/α) Σ q (x − m) + (a (τ − m) + 1) / (α a), with m the largest score.
    for c in range(columns):
        total[c] = 0.0
    for k in range(count):
        row = x[k]
        _power_row(row, tau, a, power, kind)
        for c in range(columns):
            total[c] += kind[c] * (row[c] - value[c]) if kind[c] > 0 else 0.0
    for c in range(columns):
        if value[c] > -np.inf:
            value[c] += (1.0 - 1.0 / alpha) * total[c] + (a * (tau[c] - value[c]) + 1.0) / (alpha * a)


@jit
def _power_row(row, tau, a, power, q):
    columns = len(q)
    if power == 1:
        for c in range(columns):
            q[c] = maximum(row[c] - tau[c], 0.0)
    elif power == 2:
        for c in range(columns):
            r = maximum(a * (row[c] - tau[c]), 0.0)
            q[c] = r * r
    else:
        for c in range(columns):
            q[c] = exp(q.dtype.type(power) * log(q.dtype.type(maximum(a * (row[c] - tau[c]), 0.0))))


@jit
def _sums(x, count, a, power, kind, tau, total, slope):
    """Σ q to ``total``, and Σ s to ``slope``."""
    columns = len(total)
    for c in range(columns):
        total[c] = 0.0
        slope[c] = 0.0
    if power == 1:
        for k in range(count):
            row = x[k]
            for c in range(columns):
                r = maximum(row[c] - tau[c], 0.0)
                total[c] += r
                slope[c] += 1.0 if r > 0 else 0.0
    elif power == 2:
        for k in range(count):
            row = x[k]
            for c in range(columns):
                r = maximum(a * (row[c] - tau[c]), 0.0)
                total[c] += r * r
                slope[c] += r
    else:
        for k in range(count):
            row = x[k]
            for c in range(columns):
                r = maximum(a * (row[c] - tau[c]), 0.0)
                s = exp((power - 1.0) * log(r))
                total[c] += s * r
                slope[c] += s


@jit
def probabilities(x, count, tau, alpha, q):
    """q of the first ``count`` rows of scores ``x`` (rows, L), to ``q`` (rows, L) of the dtype of exponentials."""
    columns = len(tau)
    a = alpha - 1.0
    if alpha == 1:
        for k in range(count):
            for c in range(columns):
                q[k, c] = exp(q.dtype.type(x[k, c] - tau[c]))
    elif alpha == np.inf:
        for k in range(count):
            for c in range(columns):
                q[k, c] = 1 if tau[c] == k else 0
    elif alpha == 2:
        for k in range(count):
            for c in range(columns):
                q[k, c] = maximum(x[k, c] - tau[c], 0.0)
    elif alpha == 1.5:
        for k in range(count):
            for c in range(columns):
                r = maximum(a * (x[k, c] - tau[c]), 0.0)
                q[k, c] = r * r
    else:
        power = q.dtype.type(1.0 / a)
        for k in range(count):
            for c in range(columns):
                q[k, c] = exp(power * log(q.dtype.type(maximum(a * (x[k, c] - tau[c]), 0.0))))


@jit
def curvature(q, count, alpha, s):
    """s = q^(2 − α) of the first ``count`` rows, with 0 where q is 0; 0 everywhere where α is infinity."""
    columns = q.shape[1]
    if alpha == 1:
        for k in range(count):
            for c in range(columns):
                s[k, c] = q[k, c]
    elif alpha == np.inf:
        for k in range(count):
            for c in range(columns):
                s[k, c] = 0
    elif alpha == 2:
        for k in range(count):
            for c in range(columns):
                s[k, c] = 1 if q[k, c] > 0 else 0
    elif alpha == 1.5:
        for k in range(count):
            for c in range(columns):
                s[k, c] = np.sqrt(q[k, c])
    else:
        power = q.dtype.type(2.0 - alpha)
        for k in range(count):
            for c in range(columns):
                s[k, c] = exp(power * log(q[k, c])) if q[k, c] > 0 else 0
