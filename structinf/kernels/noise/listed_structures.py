"""Sums over sampled structures given as lists of parts. Importing this module imports numba.

The lists (n, B, m) int32 hold indices of the D parts of an instance, and −1 where a list is shorter than m.
"""

from __future__ import annotations

from ..jit import jit

__all__ = ["inner_products", "means", "write_structures"]


@jit
def means(start, stop, lists, mean):
    """Write the mean over the n samples to ``mean`` (B, D)."""
    samples, _, most = lists.shape
    for b in range(start, stop):
        mean[b] = 0
        for s in range(samples):
            for i in range(most):
                part = lists[s, b, i]
                if part >= 0:
                    mean[b, part] += 1
        for part in range(mean.shape[1]):
            mean[b, part] /= samples


@jit
def inner_products(start, stop, lists, v, products):
    """Write ⟨y, v[b]⟩ for each structure y of instance b to ``products`` (n, B); ``v`` is (B, D)."""
    samples, _, most = lists.shape
    for b in range(start, stop):
        for s in range(samples):
            total = v.dtype.type(0)
            for i in range(most):
                part = lists[s, b, i]
                if part >= 0:
                    total += v[b, part]
            products[s, b] = total


@jit
def write_structures(start, stop, lists, y):
    """Add the parts of each list (N, m) to the rows of ``y`` (N, D), zeros on entry."""
    for b in range(start, stop):
        for i in range(lists.shape[1]):
            if lists[b, i] >= 0:
                y[b, lists[b, i]] += 1
