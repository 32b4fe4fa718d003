"""The one decorator for CPU kernels. Importing this module imports numba."""

from __future__ import annotations

from typing import Any

import numba

__all__ = ["jit"]

# No nnan/ninf: −inf is a value here. "afn" and reassociation let LLVM vectorise sums and products.
_FASTMATH = {"contract", "reassoc", "nsz", "arcp"}


def jit(function: Any = None, *, inline: bool = False, fastmath: bool = True) -> Any:
    """Compile ``function`` with numba: no GIL, cached on disk, IEEE division, −inf-safe fast math.

    Parameters
    ----------
    inline : bool
        Inline into calling kernels (for small helpers such as exp).
    fastmath : bool
        False where the order of sums matters.
    """
    if function is None:
        return lambda f: jit(f, inline=inline, fastmath=fastmath)
    flags = _FASTMATH if fastmath else False
    return numba.njit(
        function, nogil=True, cache=True, error_model="numpy", fastmath=flags, inline="always" if inline else "never"
    )
