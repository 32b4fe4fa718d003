"""Vectors of 16 numbers for use inside kernels."""

from ..interrupts import import_whole

import_whole("numba")
