"""Scores with noise, θ + σU, in one pass over memory. Importing this module imports numba.

The draws U are the numbers of :mod:`.counter_rng`. A chunk of draws stays in the cache until the scores are added.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..simd.vector import LANES, load, store
from .counter_rng import CHUNK, draw32, draw64

__all__ = ["perturb32", "perturb64"]


@jit
def _multiply(u, at, factors):
    """Multiply ``u`` by ``factors``, which repeat without end, from position ``at`` on."""
    first = 0
    while first < u.size:
        place = (at + first) % factors.size
        count = min(u.size - first, factors.size - place)
        whole = count // LANES * LANES
        for i in range(0, whole, LANES):
            store(u, first + i, load(u, first + i) * load(factors, place + i))
        for i in range(whole, count):
            u[first + i] *= factors[place + i]
        first += count


@jit
def _add(u, at, theta, scale, noisy):
    """Write ``theta``, which repeats without end, from position ``at`` on, plus ``scale`` times ``u``."""
    first = 0
    while first < u.size:
        place = (at + first) % theta.size
        count = min(u.size - first, theta.size - place)
        whole = count // LANES * LANES
        for i in range(0, whole, LANES):
            store(noisy, at + first + i, load(theta, place + i) + scale * load(u, first + i))
        for i in range(whole, count):
            noisy[at + first + i] = theta[place + i] + scale * u[first + i]
        first += count


@jit(inline=True)
def _write(u, at, theta, factors, scale, draws, noisy):
    """Write the draws ``u`` from position ``at`` on, times their factors, and the noisy scores."""
    if factors.size:
        _multiply(u, at, factors)
    if draws.size:
        for i in range(0, u.size, LANES):
            store(draws, at + i, load(u, i))
    _add(u, at, theta, scale, noisy)


@jit(wide=True)
def perturb32(start, stop, key, distribution, theta, factors, scale, draws, noisy):
    """Write the chunks ``start:stop`` of noisy scores, of 2 CHUNK float32 numbers each.

    Parameters
    ----------
    key : uint64
        The key of the draws.
    distribution : int
        A number of :mod:`.counter_rng`.
    theta : (p,) float32
        The scores, repeated for each sample.
    factors : (q,) float32
        Factors of the draws, repeated for each sample: 0 for parts without noise. Empty if all are 1.
    scale : float32
        σ.
    draws : (chunks · 2 CHUNK,) float32
        The draws, written. Empty if nobody reads them.
    noisy : (chunks · 2 CHUNK,) float32
        The noisy scores, written.
    """
    wide, u = np.empty(CHUNK, np.uint64), np.empty(2 * CHUNK, np.float32)
    for chunk in range(start, stop):
        draw32(key, chunk, distribution, wide, u)
        _write(u, chunk * u.size, theta, factors, scale, draws, noisy)


@jit(wide=True)
def perturb64(start, stop, key, distribution, theta, factors, scale, draws, noisy):
    """Write the chunks ``start:stop`` of noisy scores, of CHUNK float64 numbers each, as :func:`perturb32` does."""
    word, u = np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.float64)
    for chunk in range(start, stop):
        draw64(key, chunk, distribution, word, u)
        _write(u, chunk * u.size, theta, factors, scale, draws, noisy)
