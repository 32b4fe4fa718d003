"""The decorator of all CPU kernels. Importing this module imports numba."""

from __future__ import annotations

from typing import Any

import numba

__all__ = ["jit"]

# Without nnan and ninf, since scores may be −inf. Reassociation and contraction let LLVM vectorise sums and products.
_FASTMATH = {"contract", "reassoc", "nsz", "arcp"}


def jit(function: Any = None, *, inline: bool = False, fastmath: bool = True) -> Any:
    """Compile ``function`` with numba: without the GIL, cached on disk, with IEEE division and −inf-safe fast math.

    Parameters
    ----------
    function : callable, optional
        Without a function, return a decorator with the given options.
    inline : bool
        Whether to inline the function into the kernels that call it.
    fastmath : bool
        Whether LLVM may reorder sums and fuse products with sums.
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
        no_cfunc_wrapper=True,  # C code does not call kernels, and wrappers take 20 % of the compile time
    )
