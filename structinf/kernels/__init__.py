"""Compiled loops over plain arrays.

CPU kernels are serial numba functions that release the GIL. :func:`parallel_rows` splits a batch over threads.
Modules that import numba are imported on first use, never by ``import structinf``.
"""

from .arrays import compiled_alpha, to_numpy, zeros
from .threads import parallel_rows

__all__ = ["compiled_alpha", "parallel_rows", "to_numpy", "zeros"]
