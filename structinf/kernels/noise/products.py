"""Products of samples of structures or noise with one vector per instance. Importing this module imports numba.

The loops over samples (n, B, d) process one instance at a time, so that its vector stays in the cache.
"""

from __future__ import annotations

from ..jit import jit

__all__ = ["inner_products", "weighted_sums"]


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
def inner_products(start, stop, samples, v, products):
    """Write ⟨samples[s, b], v[b]⟩ to ``products`` (n, B)."""
    for b in range(start, stop):
        for s in range(samples.shape[0]):
            products[s, b] = _dot(samples[s, b], v[b])


@jit
def weighted_sums(start, stop, samples, weights, total):
    """Write Σ_s weights[s, b] samples[s, b] to ``total`` (B, d)."""
    for b in range(start, stop):
        total[b] = 0
        for s in range(samples.shape[0]):
            _add(samples[s, b], weights[s, b], total[b])
