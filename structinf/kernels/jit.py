"""The decorator of all CPU kernels. Importing this module imports numba."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from ..forks import hold_at_fork, is_being_imported
from .interrupts import call_interruptibly, import_whole

import_whole("numba")

import numba  # noqa: E402
from numba.core.compiler_lock import global_compiler_lock  # noqa: E402
from numba.core.registry import CPUDispatcher  # noqa: E402
from numba.core.types import IntegerLiteral  # noqa: E402

from . import array_functions  # noqa: E402, F401
from .compile_cache import CompileCache  # noqa: E402
from .compile_listener import watch  # noqa: E402
from .compile_pipeline import HelperCompiler, InlinedCompiler, KernelCompiler, WideKernelCompiler  # noqa: E402

__all__ = ["jit"]

T = TypeVar("T")

# Without nnan and ninf, since scores may be −inf. Reassociation and contraction let LLVM vectorise sums and products.
_FASTMATH = {"contract", "reassoc", "nsz", "arcp"}


hold_at_fork(global_compiler_lock)


def jit(
    function: Any = None,
    *,
    inline: bool = False,
    fastmath: bool = True,
    called_from_python: bool | None = None,
    wide: bool = False,
) -> Any:
    """Compile ``function`` with numba: without the GIL, cached on disk, with IEEE division and −inf-safe fast math.

    Parameters
    ----------
    function : callable, optional
        Without a function, return a decorator with the given options.
    inline : bool
        Whether to inline the function into the kernels that call it.
    fastmath : bool
        Whether LLVM may reorder sums and fuse products with sums.
    called_from_python : bool, optional
        Whether Python code calls the function. By default, this holds for functions of a range of rows, whose first
        parameter is ``start`` or ``first``. The other functions are compiled as parts of the functions that call them,
        are not cached on disk, and raise TypeError if Python code calls them.
    wide : bool
        Whether the loops of a kernel use vectors of 512 bits, if the processor has them. LLVM prefers 256 bits, which
        is faster where a loop waits for memory. Loops with many operations for each number gain a sixth to a fifth of
        their time.
    """
    if function is None:
        return functools.partial(
            jit, inline=inline, fastmath=fastmath, called_from_python=called_from_python, wide=wide
        )
    if called_from_python is None:
        called_from_python = function.__code__.co_varnames[:1] in (("start",), ("first",))
    of_python = WideKernelCompiler if wide else KernelCompiler
    compiler = of_python if called_from_python else InlinedCompiler if inline else HelperCompiler
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": _FASTMATH if fastmath else False,
        "no_cfunc_wrapper": True,  # C code does not call kernels
        "no_cpython_wrapper": True,  # the compiler of kernels creates a Python wrapper
        "forceinline": inline and called_from_python,
        "pipeline_class": compiler,
    }
    compiled: Any = numba.njit(function, **options)
    if hasattr(compiled, "py_func"):  # not with NUMBA_DISABLE_JIT
        if called_from_python:
            # RuntimeError: neither the package folder nor the user's cache folder is writable.
            with contextlib.suppress(RuntimeError):
                compiled._cache = CompileCache(function)
        watch(compiled)
        compiled.__class__ = _KernelDispatcher if called_from_python else _HelperDispatcher
    return compiled


class _Dispatcher(CPUDispatcher):
    """A compiled function. numba would compile the function once more for each integer constant as an argument."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        return super().get_call_template([a.literal_type if isinstance(a, IntegerLiteral) else a for a in args], kws)


class _KernelDispatcher(_Dispatcher):
    """A function that Python calls. After an interrupt, it is compiled to the end in the background.

    An error inside numba would leave its registries incomplete.
    """

    def compile(self, sig: Any) -> Any:
        # Another thread would wait for this thread: for numba's lock if this thread compiles a caller of the kernel, or
        # for the import of the kernel's module.
        if global_compiler_lock.is_locked() or is_being_imported(self.py_func.__module__):
            return super().compile(sig)
        compile_kernel = functools.partial(super().compile, sig)
        return call_interruptibly(lambda: _collections.postpone(compile_kernel, self._count_compiled))

    def _count_compiled(self) -> int:
        return sum(self.stats.cache_misses.values())


class _Collections:
    """Garbage collections, which numba's many objects would start: a tenth of the time of a first call."""

    _kernels_between = 8
    """A kernel of 50 functions leaves 200,000 objects of garbage."""

    def __init__(self) -> None:
        self._kernels = 0

    def postpone(self, function: Callable[[], T], count_compiled: Callable[[], int]) -> T:
        """Return ``function()``, and collect garbage after every eighth compiled kernel only."""
        if not gc.isenabled():
            return function()
        before = count_compiled()
        gc.disable()
        try:
            return function()
        finally:
            self._kernels += count_compiled() - before
            if self._kernels >= self._kernels_between:
                self._kernels = 0
                gc.collect()
            elif not gc.get_freeze_count():
                # The objects become old at once. The next object would start a collection of them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


_collections = _Collections()


class _HelperDispatcher(_Dispatcher):
    """A function that only other compiled functions call. Without its Python wrapper, a call would crash Python."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self.__name__} has no Python wrapper; declare it with @jit(called_from_python=True)")
