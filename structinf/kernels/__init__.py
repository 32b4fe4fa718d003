"""Compiled loops over plain arrays.

CPU kernels are serial numba functions that release the GIL. :func:`parallel_rows` splits a batch over threads.
Modules that import numba are imported on first use, never by ``import structinf``.
"""

from .arrays import to_numpy, zeros
from .threads import parallel_rows

__all__ = ["parallel_rows", "to_numpy", "zeros"]
