"""Import of numba's functions of arrays, which each first call needs, without scipy.linalg.

numba asks at import whether scipy provides BLAS, and imports scipy.linalg for this check. The import takes a fifth of a
first call with cached kernels. scipy is always installed, and kernels do not use BLAS. If a user's function multiplies
matrices, numba imports scipy.linalg when it compiles the function. Importing this module imports numba.
"""

from __future__ import annotations

from .interrupts import import_whole

import_whole("numba.np.linalg")

from numba.np import linalg  # noqa: E402

__all__: list[str] = []


def _import_array_functions() -> None:
    check, linalg.ensure_blas = linalg.ensure_blas, lambda: None
    try:
        import_whole("numba.np.arraymath")
    finally:
        linalg.ensure_blas = check


_import_array_functions()
