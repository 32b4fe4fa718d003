"""Sums of Gamma variables with one shape and different scales, by one Gamma draw each. Importing this module imports
numba.

The sum of Gamma(a, scale 1/i) over i = 1, ..., s has the distribution of Gamma(s a + N, scale 1/s) for a random integer
N: a Gamma variable of scale 1/i is one of scale 1/s whose shape is larger by a negative binomial number. The
probabilities of N are the coefficients of

    Π_i ((i/s) / (1 − (1 − i/s) z))^a.

The Gamma variables are drawn by the rejection method of Marsaglia and Tsang: one attempt for all numbers of a chunk,
then further attempts for the rejected numbers, at most about 5 %.

References
----------
P. G. Moschopoulos, The distribution of the sum of independent gamma random variables, Annals of the Institute of
Statistical Mathematics 37, 1985. G. Marsaglia & W. W. Tsang, A simple method for generating gamma variables, ACM
Transactions on Mathematical Software 26(3), 2000.
"""

from __future__ import annotations

import functools

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp, log
from .counter_rng import CHUNK, normal_pair64, two_words, uniform64, words

__all__ = ["fill", "negative_binomial_mixture"]

_BINS = 1024
_NEGLIGIBLE = 2.0**-54


@functools.lru_cache(maxsize=64)
def negative_binomial_mixture(shape: float, terms: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the distribution of N for sampling by inversion.

    Returns
    -------
    none : float
        P(N = 0).
    below : (n,) array
        P(N <= n) for each n with a tail probability above 2⁻⁵⁴. The last entry is +inf.
    guide : (1024,) array
        Where the search for n starts, for each of 1024 equal intervals of the uniform number.
    """
    rates = np.arange(1, terms + 1) / terms
    size = 2 if terms == 1 else 2 + 2 * int(np.ceil(np.log(_NEGLIGIBLE / terms) / np.log1p(-rates[0]) / 2))
    # The inverse FFT of the series on the unit circle gives the coefficients. Coefficients beyond ``size`` are
    # negligible.
    z = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    logs = sum(np.log(rate) - np.log1p(-(1 - rate) * z) for rate in rates)
    p = np.fft.irfft(np.exp(shape * logs), size).clip(min=0)
    none = np.exp(shape * np.log(rates).sum())
    below = p.cumsum()
    below = np.append(below[below < 1 - _NEGLIGIBLE], np.inf)
    return none, below, np.searchsorted(below, np.arange(_BINS) / _BINS, side="right")


@jit(inline=True)
def _attempt(shape, first, second, third):
    """Return a Gamma variable of ``shape`` at least 1, from three random words, and whether it is accepted."""
    d = shape - 1 / 3
    x, _ = normal_pair64(first, second)
    root = 1 + x / np.sqrt(9 * d)
    v = root * root * root
    is_inside = v > 0
    v = v if is_inside else 1.0
    return d * v, is_inside and log(uniform64(third)) < 0.5 * x * x + d * (1 - v + log(v))


@jit
def fill(start, stop, key, base, none, below, guide, scale, shift, out):
    """Write the chunks ``start:stop`` of ``out``, of CHUNK numbers each: the sum times s · ``scale``, plus ``shift``.

    ``base`` is s a. :func:`negative_binomial_mixture` returns ``none``, ``below`` and ``guide``.
    """
    choice, first = np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint64)
    second, third = np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint64)
    shape, log_power, value = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK)
    is_taken = np.empty(CHUNK, np.bool_)
    for chunk in range(start, stop):
        for stream, word in enumerate((choice, first, second, third)):
            words(key, chunk, stream, word)
        for i in range(CHUNK):
            u = uniform64(choice[i])
            n = guide[int(u * guide.size)]
            while below[n] <= u:
                n += 1
            # Gamma(a) is Gamma(a + 1) V^(1 / a) for a uniform V. Given n = 0, u / P(N = 0) is uniform.
            is_small = base + n < 1
            shape[i] = base + n + is_small
            log_power[i] = log(u / none) / base if is_small else 0.0
        for i in range(CHUNK):
            value[i], is_taken[i] = _attempt(shape[i], first[i], second[i], third[i])
        for i in range(CHUNK):
            stream = 4
            while not is_taken[i]:
                a, b = two_words(key, chunk * CHUNK + i, stream)
                c, _ = two_words(key, chunk * CHUNK + i, stream + 1)
                value[i], is_taken[i] = _attempt(shape[i], a, b, c)
                stream += 2
        u = out[chunk * CHUNK : (chunk + 1) * CHUNK]
        for i in range(CHUNK):
            u[i] = value[i] * exp(log_power[i]) * scale + shift
