"""Products of samples of structures or noise with one vector per instance. Importing this module imports numba.

The loops over samples (n, B, d) process one instance at a time, so that its vector stays in the cache.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit

__all__ = ["inner_products", "steps", "weighted_sums"]


@jit
def _dot(x, y):
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i] * y[i]
    return total


@jit
def _add(x, factor, total):
    for i in range(x.size):
        total[i] += factor * x[i]


@jit
def _step(t, v, scale, out):
    """Write ``t`` + ``scale`` · ``v`` to ``out``; return whether all numbers are finite."""
    is_finite = True
    for i in range(t.size):
        out[i] = t[i] + scale * v[i]
        is_finite &= abs(out[i]) < np.inf
    return is_finite


@jit
def steps(start, stop, samples, v, scale, out, is_finite):
    """Write samples[s, b] + ``scale`` · v[b] to ``out`` (n, B, d), and whether all are finite to ``is_finite`` (B,)."""
    for b in range(start, stop):
        is_finite[b] = True
        for s in range(samples.shape[0]):
            is_finite[b] &= _step(samples[s, b], v[b], scale, out[s, b])


@jit
def inner_products(start, stop, samples, v, products):
    """Write ⟨samples[s, b], v[b]⟩ to ``products`` (n, B)."""
    for b in range(start, stop):
        for s in range(samples.shape[0]):
            products[s, b] = _dot(samples[s, b], v[b])


@jit
def weighted_sums(start, stop, samples, weights, theta, total):
    """Write Σ_s weights[s, b] samples[s, b] to ``total`` (B, d), and 0 where ``theta`` (B | 1, d) is infinite."""
    for b in range(start, stop):
        total[b] = 0
        for s in range(samples.shape[0]):
            _add(samples[s, b], weights[s, b], total[b])
        scores = theta[b % theta.shape[0]]
        for i in range(scores.size):
            total[b, i] = total[b, i] if abs(scores[i]) < np.inf else 0
