"""A line on stderr while numba compiles kernels of the library.

The first call of a kernel compiles the kernel, and the result is kept on disk. After two seconds of compiling in a
process, one line on stderr says so, and after each further ten seconds a short line. Importing this module imports
numba.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from numba.core import event

__all__ = ["Observer", "observe", "watch"]

SECONDS_BEFORE_NOTICE = 2.0
SECONDS_BETWEEN_NOTICES = 10.0

Observer = Callable[[str], None]
"""Takes the name of a kernel that numba begins to compile."""

_watched: WeakSet[Any] = WeakSet()
_observers: list[Observer] = []


def watch(dispatcher: Any) -> None:
    """Add a kernel of the library; functions of other packages get no line on stderr."""
    _watched.add(dispatcher)


def observe(observer: Observer) -> None:
    """Call ``observer`` at the start of each compilation of a kernel, and write no line on stderr."""
    _observers.append(observer)


class _CompileListener(event.Listener):
    """Counts the time of kernels of the library. Functions called by a kernel are compiled inside its event.

    numba holds a global lock while it compiles, so events of several threads do not mix.
    """

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._kernel: Any = None
        self._seconds, self._begin = 0.0, 0.0
        self._noted_until = SECONDS_BEFORE_NOTICE

    def on_start(self, event: Any) -> None:
        dispatcher = event.data["dispatcher"]
        self._stack.append(dispatcher)
        if self._kernel is None and dispatcher in _watched:
            self._kernel, self._begin = dispatcher, time.perf_counter()
            for observer in _observers:
                observer(_name(dispatcher))
        self._write_line()

    def on_end(self, event: Any) -> None:
        dispatcher = self._stack.pop()
        self._write_line()
        if dispatcher is self._kernel and dispatcher not in self._stack:
            self._seconds += time.perf_counter() - self._begin
            self._kernel = None

    def _write_line(self) -> None:
        """Write a line if kernels have been compiled for two seconds, or for ten seconds since the last line."""
        if self._kernel is None or _observers or sys.stderr is None:
            return
        seconds = self._seconds + time.perf_counter() - self._begin
        if seconds > self._noted_until:
            is_first = self._noted_until == SECONDS_BEFORE_NOTICE
            self._noted_until = seconds + SECONDS_BETWEEN_NOTICES
            if not is_first:
                print(
                    f"structinf compiles {_name(self._kernel)}; {seconds:.0f} s in this process so far",
                    file=sys.stderr,
                    flush=True,
                )
                return
            kept = getattr(self._kernel.stats, "cache_path", None)
            where = (
                f"keeps the result in {kept}. `structinf warmup` compiles kernels in advance."
                if kept
                else "found no writable folder for the result. Set NUMBA_CACHE_DIR to a writable folder."
            )
            print(
                f"structinf compiles {_name(self._kernel)} for its first use, and {where}",
                file=sys.stderr,
                flush=True,
            )


def _name(dispatcher: Any) -> str:
    module = dispatcher.py_func.__module__.split(".kernels.")[-1]
    return f"{module}.{dispatcher.py_func.__name__}"


event.register("numba:compile", _CompileListener())
