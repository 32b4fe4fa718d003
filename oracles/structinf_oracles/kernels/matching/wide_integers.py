"""Integers of more than 100 bits in compiled loops: pairs (high, low) of int64 that stand for high · 2⁶⁰ + low.

low is in [0, 2⁶⁰), so that pairs compare like the integers. Sums and differences are exact for results below 2¹²³.
"""

from __future__ import annotations

import math

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["BITS", "LARGEST", "add", "from_fraction", "half", "is_less", "scale", "subtract"]

BITS = 100
"""Fractions become integers of at most this number of bits."""

_LOW_BITS = 60
_MASK = (1 << _LOW_BITS) - 1

LARGEST = (np.iinfo(np.int64).max, 0)
"""A pair above all sums."""


@jit
def add(a, b):
    """Return a + b."""
    low = a[1] + b[1]
    return a[0] + b[0] + (low >> _LOW_BITS), low & _MASK


@jit
def subtract(a, b):
    """Return a − b."""
    low = a[1] - b[1]
    return a[0] - b[0] + (low >> _LOW_BITS), low & _MASK


@jit
def scale(a, factor):
    """Return the product with an integer from −4 to 4."""
    low = a[1] * factor
    return a[0] * factor + (low >> _LOW_BITS), low & _MASK


@jit
def half(a):
    """Return a / 2 for an even number."""
    return a[0] >> 1, (a[1] + ((a[0] & 1) << _LOW_BITS)) >> 1


@jit
def is_less(a, b):
    """Return whether a < b."""
    return a[0] < b[0] or (a[0] == b[0] and a[1] < b[1])


@jit
def from_fraction(x, exponent):
    """Return x · 2^(BITS − exponent), rounded to an integer, for |x| < 2^exponent."""
    high_part = math.ldexp(x, BITS - _LOW_BITS - exponent)
    high = np.rint(high_part)
    low = np.int64(np.rint(math.ldexp(high_part - high, _LOW_BITS)))
    return np.int64(high) + (low >> _LOW_BITS), low & _MASK
