"""The one decorator for CPU kernels. Importing this module imports numba."""

from __future__ import annotations

from typing import Any

import numba

__all__ = ["jit"]

# No nnan or ninf: −inf is a value here. Reassociation and contraction let LLVM vectorise sums and products.
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
    return numba.njit(
        function,
        nogil=True,
        cache=True,
        error_model="numpy",
        fastmath=_FASTMATH if fastmath else False,
        inline="always" if inline else "never",  # pyright: ignore
        no_cfunc_wrapper=True,  # nobody calls kernels from C: a fifth of the compile time
    )
