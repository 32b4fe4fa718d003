"""The compile cache on disk: numba's, which repairs damaged files and notices changes in other source files.

numba stores a compiled function in ``__pycache__``, or in a cache folder of the user if the package is read-only, or in
the folder NUMBA_CACHE_DIR. Three things differ here:

- A file that is truncated or overwritten, as after a full disk, is compiled again and replaced. numba would raise
  UnpicklingError in each call, or load damaged machine code.
- A function is compiled again if a function or a constant that it uses has changed. numba looks at the function's own
  source file only, so that an upgrade of the library would leave old machine code in the cache.
- A cache that cannot be written costs a line on stderr. numba would raise OSError in each call.

Importing this module imports numba.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps
from numba.core.types import Type
from numba.misc.appdirs import AppDirs

__all__ = ["CompileCache"]


class _CheckedImpl(CompileResultCacheImpl):
    """Stores compiled functions with a checksum, since damaged machine code would crash Python."""

    def __init__(self, function: Any) -> None:
        # The user's cache folder is a relative path if the home folder is unknown.
        if not os.path.isabs(AppDirs(appname="numba", appauthor=False).user_cache_dir):
            self._locator_classes = [c for c in self._locator_classes if "UserWide" not in c.__name__]
        super().__init__(function)

    def reduce(self, cres: Any) -> tuple[bytes, bytes]:
        payload = dumps(super().reduce(cres))
        return hashlib.sha256(payload).digest(), payload

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        checksum, code = payload
        if hashlib.sha256(code).digest() != checksum:
            raise ValueError("the file is damaged")
        return super().rebuild(target_context, pickle.loads(code))


class CompileCache(FunctionCache):
    """The cache of the compiled versions of one function.

    Raises RuntimeError if no folder for the cache is writable.
    """

    _impl_class = _CheckedImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self._add_sources_to_stamp()
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling damaged files can raise any error
            return None  # numba compiles the function, and saves the result

    def save_overload(self, sig: Any, data: Any) -> None:
        self._add_sources_to_stamp()
        try:
            try:
                super().save_overload(sig, data)
            except Exception:
                self.flush()  # replaces a damaged index by an empty index
                super().save_overload(sig, data)
        except OSError as error:
            _note_unwritable(self.cache_path, str(error))

    @functools.cached_property
    def _sources(self) -> str:
        return _fingerprint(self._py_func)

    def _add_sources_to_stamp(self) -> None:
        # On first use and not at construction, when functions below in the same file do not exist yet.
        self._cache_file._source_stamp = self._sources


@functools.cache
def _note_unwritable(folder: str, reason: str) -> None:
    if sys.stderr is not None:
        print(
            f"structinf cannot keep compiled kernels in {folder} ({reason}), and compiles them again in the next "
            "process. Make room, make the folder writable, or set NUMBA_CACHE_DIR to another folder.",
            file=sys.stderr,
            flush=True,
        )


# ----------------------------------------------------------------------------- what a function depends on


def _fingerprint(function: types.FunctionType) -> str:
    """Return a checksum of a function's constants, and of the source files of all functions and types that it uses.

    Other packages are left out.
    """
    own = {function.__module__.partition(".")[0], "structinf", "structinf_oracles"}
    files: set[str] = set()
    constants: set[str] = set()
    seen: set[types.FunctionType] = set()
    waiting = [function]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        code = each.__code__
        if os.path.exists(code.co_filename):
            files.add(code.co_filename)
        else:  # in a cell of a notebook, or in a zip file
            constants.add(f"{each.__qualname__}={code.co_code.hex()} {_described(code.co_consts)}")
        for name, value in _globals_in_use(each, own):
            value = getattr(value, "py_func", value)  # of a compiled function
            value = getattr(value, "_defn", value)  # of an intrinsic
            constants.add(f"{name}={_described(value)}")
            module = getattr(value, "__module__", None)
            if isinstance(module, str) and module.partition(".")[0] in own:
                if isinstance(value, types.FunctionType):
                    waiting.append(value)
                elif os.path.exists(file := getattr(sys.modules.get(module), "__file__", None) or ""):
                    files.add(file)
    contents = sorted(map(_checksum_of_file, files))
    return hashlib.sha256("\n".join([*contents, *sorted(constants)]).encode()).hexdigest()


def _globals_in_use(function: types.FunctionType, own: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield globals, variables of enclosing functions, and attributes of own modules, by the names in the code."""
    names = _names(function.__code__)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    scopes = [function.__globals__, {name: cell.cell_contents for name, cell in cells}]
    for scope in scopes:  # grows
        for name in names & scope.keys():
            value = scope[name]
            if not isinstance(value, types.ModuleType):
                yield name, value
            elif value.__name__.partition(".")[0] in own and not any(vars(value) is known for known in scopes):
                scopes.append(vars(value))


def _names(code: types.CodeType) -> set[str]:
    nested = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(code.co_freevars, *nested)


def _described(value: Any) -> str:
    """Return the value of a constant as text; the type's name for other objects."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {np.shape(value)} {value.tobytes().hex()}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_described, value))})"
    if isinstance(value, int | float | complex | str | bytes | None):
        return repr(value)
    if isinstance(value, Type):
        return str(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


@functools.cache
def _checksum_of_file(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
