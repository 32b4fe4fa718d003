"""Elementary functions of one number, for use inside kernels."""

from ..interrupts import import_whole

import_whole("numba")
