"""Let a process fork while one of its threads imports a module or compiles a kernel.

A child of a fork has only the thread that forked. It would wait forever for a lock that another thread of its parent
held: Python's lock of a module during the import of the module, or numba's lock during a compilation. A fork therefore
waits until the other threads have released these locks.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Protocol

__all__ = ["hold_at_fork", "is_being_imported"]

# What a call imports on first use. Another module's import may run the whole program of the user, and not end.
_PACKAGES = {"structinf", "structinf_oracles", "torch", "numpy", "scipy", "numba", "llvmlite", "networkx", "ortools"}


class _Lock(Protocol):
    def acquire(self) -> object: ...
    def release(self) -> object: ...


_locks: list[_Lock] = []


def hold_at_fork(lock: _Lock) -> None:
    """Let the thread that forks hold ``lock`` during each fork from now on."""
    _locks.append(lock)


def is_being_imported(name: str) -> bool:
    """Return whether the import of a module has begun and not ended."""
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False)


def _modules_being_imported() -> set[str]:
    names = [name for name in list(sys.modules) if name.partition(".")[0] in _PACKAGES]
    return {name for name in names if is_being_imported(name)}


def _acquire_locks() -> None:
    own: set[str] = set()
    while True:
        for name in _modules_being_imported() - own:
            # Waits for the import in another thread, and returns at once if this thread imports the module.
            importlib.import_module(name)
            if is_being_imported(name):
                own.add(name)
        for lock in _locks:
            lock.acquire()
        if _modules_being_imported() <= own:
            return
        # An import may compile, and would wait for this thread.
        _release_locks()


def _release_locks() -> None:
    for lock in reversed(_locks):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire_locks, after_in_parent=_release_locks, after_in_child=_release_locks)
