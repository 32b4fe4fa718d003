"""Let a process fork while one of its threads imports a module or compiles a kernel.

A child of a fork has only the thread that forked. It would wait forever for a lock that another thread of its parent
held: Python's lock of a module during the import of the module, or numba's lock during a compilation. A fork therefore
waits until the other threads have released these locks.
"""

from __future__ import annotations

import _imp
import contextlib
import logging  # noqa: F401  its own lock is taken at a fork after the locks of this module
import os
import sys
import threading
import time
from importlib import _bootstrap
from typing import Protocol

__all__ = ["hold_at_fork", "is_being_imported"]

# What a call imports on first use. Another module's import may run the whole program of the user, and not end.
_PACKAGES = {"structinf", "structinf_oracles", "torch", "numpy", "scipy", "numba", "llvmlite", "networkx", "ortools"}
_PACKAGES |= sys.stdlib_module_names


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


_PATIENCE = 60.0
"""Seconds that a fork waits, at most. The other thread may itself wait for this one, and the fork goes on then."""

_PATIENCE_WHILE_IMPORTING = 2.0
"""The same if this thread imports a module, for which the other thread may wait."""


def _imports() -> tuple[set[str], set[str]]:
    """Return the modules that this thread imports, and those that other threads import.

    The caller holds the import lock. A module's own lock is held before the module is in ``sys.modules``. The table of
    these locks is private to Python, the same from 3.10 to 3.13.
    """
    found: tuple[set[str], set[str]] = set(), set()
    locks = getattr(_bootstrap, "_module_locks", {})
    for name, reference in list(locks.items()):
        owner = getattr(reference(), "owner", None)
        if owner is not None and name.partition(".")[0] in _PACKAGES:
            found[owner != threading.get_ident()].add(name)
    return found


def _acquire_locks() -> None:
    start = time.monotonic()
    while True:
        for lock in _locks:
            lock.acquire()
        # As long as it is held, no import begins. The fork itself takes it too.
        _imp.acquire_lock()
        own, others = _imports()
        if not others or time.monotonic() - start > (_PATIENCE_WHILE_IMPORTING if own else _PATIENCE):
            return
        # An import may compile, and would wait for this thread.
        _release_locks()
        time.sleep(0.002)


def _release_locks() -> None:
    # In a child, some versions of Python have made the import lock anew, and this thread does not hold it.
    with contextlib.suppress(RuntimeError):
        _imp.release_lock()
    for lock in reversed(_locks):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire_locks, after_in_parent=_release_locks, after_in_child=_release_locks)
