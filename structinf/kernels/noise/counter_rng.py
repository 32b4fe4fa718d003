"""Counter-based random numbers: functions of a key and a position in a sequence. Importing this module imports numba.

Threads can fill parts of one sequence in any order. The random words of 32 bits are the output of Philox4x32 with 10
rounds, an invertible function of a counter and a key of 64 bits. Salmon et al. report its statistical tests. Each
random number depends only on its own words.

V is uniform in (0, 1): a midpoint of one of 2³² (float32) or 2⁵² (float64) intervals of equal length.

=============  ========================================================================================
distribution   random number
=============  ========================================================================================
EXPONENTIAL    E = −log(1 − V), with a relative error below 2 machine epsilons, also for the smallest E
GUMBEL         −log E
LOGISTIC       log V − log(1 − V)
NORMAL         √(2E) c and √(2E) s, where another word gives the point (c, s) on the circle (Box & Muller)
=============  ========================================================================================

References
----------
J. K. Salmon, M. A. Moraes, R. O. Dror & D. E. Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011, §3.2.
G. E. P. Box & M. E. Muller, A note on the generation of random normal deviates, Annals of Mathematical Statistics
29(2), 1958.
"""

from __future__ import annotations

import numpy as np

from ..fast_builtins import reinterpret
from ..jit import jit
from ..scalar import exp_log
from ..scalar.exp_log import log

__all__ = [
    "CHUNK",
    "EXPONENTIAL",
    "GUMBEL",
    "LOGISTIC",
    "NORMAL",
    "draw32",
    "draw64",
    "exponential64",
    "fill32",
    "fill64",
    "normal_pair64",
    "two_words",
    "uniform64",
    "words",
]

EXPONENTIAL, GUMBEL, LOGISTIC, NORMAL = range(4)

CHUNK = 128
"""Number of 64-bit words computed at once. They give as many float64 numbers, or twice as many float32 numbers."""

# No kernel of this file has fast math: it would merge the computations of V and 1 − V, and 1 − V would not be exact.
_32, _f32 = np.uint64(32), np.float32
_LOW = np.uint64(0xFFFFFFFF)

# ----------------------------------------------------------------------------- the generator

_ROUNDS = 10
_FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@jit(inline=True, fastmath=False)
def _philox(x0, x1, x2, x3, key):
    """Return the four 32-bit words of Philox for a counter of four 32-bit words."""
    k0, k1 = key & _LOW, key >> _32
    for _ in range(_ROUNDS):
        p, q = _FACTORS[0] * x0, _FACTORS[1] * x2
        x0, x1, x2, x3 = (q >> _32) ^ x1 ^ k0, q & _LOW, (p >> _32) ^ x3 ^ k1, p & _LOW
        k0, k1 = (k0 + _STEPS[0]) & _LOW, (k1 + _STEPS[1]) & _LOW
    return x0, x1, x2, x3


@jit(inline=True, fastmath=False)
def two_words(key, place, stream):
    """Return the two 64-bit words at position ``place`` of a stream."""
    x0, x1, x2, x3 = _philox(np.uint64(place) & _LOW, np.uint64(place) >> _32, np.uint64(stream), np.uint64(0), key)
    return x0 << _32 | x1, x2 << _32 | x3


@jit(fastmath=False, called_from_python=True, wide=True)
def words(key, chunk, stream, out):
    """Write chunk number ``chunk`` of a stream to ``out``, (CHUNK,) uint64."""
    half = CHUNK // 2
    for i in range(half):
        out[i], out[half + i] = two_words(key, chunk * half + i, stream)


# ----------------------------------------------------------------------------- float32


@jit(inline=True, fastmath=False)
def _uniform32(word):
    """Return V and 1 − V, each with the relative error of one rounding."""
    return (_f32(word) + _f32(0.5)) * _f32(2.0**-32), (_f32(np.uint32(~word)) + _f32(0.5)) * _f32(2.0**-32)


@jit(inline=True, fastmath=False)
def _exponential32(word):
    v, complement = _uniform32(word)
    bits = reinterpret(_f32(complement), np.int32)
    n = np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23)
    # For V up to 1 − √½, use V itself: it is more accurate than the difference of 1 and the rounded 1 − V.
    is_near = word < np.uint32(0x4AFB0CCC)
    f = -v if is_near else reinterpret(np.int32(bits - (n << np.int32(23))), np.float32) - _f32(1)
    n = _f32(0) if is_near else _f32(n)
    # The series of scalar.exp_log.log.
    s = f / (_f32(2) + f)
    z = s * s
    return (s * (f - z * exp_log.log_series32(z)) - n * exp_log._LN2_LOW_32) - f - n * exp_log._LN2_HIGH_32


@jit(inline=True, fastmath=False)
def _normal_pair32(word, other):
    radius = np.sqrt(_f32(2) * _exponential32(word))
    # The angle lies within ±1/8 of a turn, and the two top bits choose one of four quarter turns.
    x = _f32(np.int32(other << np.uint32(2))) * _f32(np.pi * 2.0**-33)
    z = x * x
    c = _f32(-0.00135857793) * z + _f32(0.0416550149)
    c = (c * z - _f32(0.499998564)) * z + _f32(1)
    s = _f32(-0.000195039043) * z + _f32(0.00833203579)
    s = ((s * z - _f32(0.166666507)) * z + _f32(1)) * x
    radius = radius if other & np.uint32(1 << 31) else -radius
    swap = (other & np.uint32(1 << 30)) != 0
    return radius * (s if swap else c), radius * (c if swap else s)


@jit(inline=True, fastmath=False)
def draw32(key, chunk, distribution, wide, u):
    """Write chunk number ``chunk``, of 2 CHUNK float32 numbers, to ``u``. ``wide`` (CHUNK,) uint64 gets the words."""
    words(key, chunk, 0, wide)
    word = reinterpret(wide, np.uint32)
    if distribution == EXPONENTIAL:
        for i in range(2 * CHUNK):
            u[i] = _exponential32(word[i])
    elif distribution == GUMBEL:
        for i in range(2 * CHUNK):
            u[i] = -log(_exponential32(word[i]))
    elif distribution == LOGISTIC:
        for i in range(2 * CHUNK):
            v, complement = _uniform32(word[i])
            u[i] = log(v / complement)
    else:
        for i in range(CHUNK):
            u[i], u[CHUNK + i] = _normal_pair32(word[i], word[CHUNK + i])


@jit(fastmath=False, wide=True)
def fill32(start, stop, key, distribution, out):
    """Write the chunks ``start:stop`` of ``out``, of 2 CHUNK float32 numbers each, drawn from a distribution."""
    size, wide = 2 * CHUNK, np.empty(CHUNK, np.uint64)
    for chunk in range(start, stop):
        draw32(key, chunk, distribution, wide, out[chunk * size : (chunk + 1) * size])


# ----------------------------------------------------------------------------- float64


@jit(inline=True, fastmath=False)
def uniform64(word):
    """Return V, for which 1 − V is exact in float64."""
    return reinterpret(np.int64((word >> np.uint64(12)) | np.uint64(0x3FF << 52)), np.float64) - (1 - 2.0**-53)


@jit(inline=True, fastmath=False, called_from_python=True)
def exponential64(word):
    """Return an exponential number E."""
    return -log(1 - uniform64(word))


@jit(inline=True, fastmath=False, called_from_python=True)
def normal_pair64(word, other):
    """Return two independent standard normal numbers."""
    radius = np.sqrt(2 * exponential64(word))
    x = np.int64(other << np.uint64(2)) * (np.pi * 2.0**-65)
    z = x * x
    c = 2.063045437966229288e-9 * z - 2.7555233884847418601e-7
    c = (c * z + 0.000024801578538562986336) * z - 0.0013888888869978658824
    c = ((c * z + 0.041666666666472305795) * z - 0.49999999999999250779) * z + 1
    s = 1.5894736651849095259e-10 * z - 2.5050716974102745028e-8
    s = (s * z + 2.7557313376400129128e-6) * z - 0.00019841269828650300013
    s = (((s * z + 0.0083333333333203624567) * z - 0.16666666666666616666) * z + 1) * x
    radius = radius if other >> np.uint64(63) else -radius
    swap = (other & np.uint64(1 << 62)) != 0
    return radius * (s if swap else c), radius * (c if swap else s)


@jit(inline=True, fastmath=False)
def draw64(key, chunk, distribution, word, u):
    """Write chunk number ``chunk``, of CHUNK float64 numbers, to ``u``. ``word`` (CHUNK,) uint64 gets the words."""
    words(key, chunk, 0, word)
    half = CHUNK // 2
    if distribution == EXPONENTIAL:
        for i in range(CHUNK):
            u[i] = exponential64(word[i])
    elif distribution == GUMBEL:
        for i in range(CHUNK):
            u[i] = -log(exponential64(word[i]))
    elif distribution == LOGISTIC:
        for i in range(CHUNK):
            v = uniform64(word[i])
            u[i] = log(v / (1 - v))
    else:
        for i in range(half):
            u[i], u[half + i] = normal_pair64(word[i], word[half + i])


@jit(fastmath=False, wide=True)
def fill64(start, stop, key, distribution, out):
    """Write the chunks ``start:stop`` of ``out``, of CHUNK float64 numbers each, drawn from a distribution."""
    word = np.empty(CHUNK, np.uint64)
    for chunk in range(start, stop):
        draw64(key, chunk, distribution, word, out[chunk * CHUNK : (chunk + 1) * CHUNK])
