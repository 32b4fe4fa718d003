"""Let Ctrl-C reach the caller while compiled code runs.

Python handles a signal in the main thread, between two of its own instructions. A solver that runs in the main thread
for a minute therefore delays KeyboardInterrupt by a minute. Here the solver runs in other threads, and the caller's
thread waits. The main thread then handles a signal at once, and tells the solver to stop.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from types import ModuleType
from typing import TypeVar

from ..forks import is_being_imported

__all__ = ["call_interruptibly", "import_whole", "run_while_waiting"]

T = TypeVar("T")

# A wait for a lock in Windows does not see Ctrl-C, so the waiting thread wakes up this often.
_SECONDS_BETWEEN_CHECKS = 0.1
# How long an interrupted call waits for the work to stop.
_SECONDS_TO_STOP = 0.5


class _Calls:
    """Calls of a function in several threads, and the functions that stop their present work."""

    def __init__(self, function: Callable[[], None], threads: int) -> None:
        self.stops: set[Callable[[], None]] = set()
        self.errors: list[BaseException] = []
        self._function, self._left, self._lock = function, threads, threading.Lock()
        self._running = threading.Lock()
        self._running.acquire()

    def serve(self) -> None:
        _thread.calls = self
        try:
            self._function()
        except BaseException as error:
            self.errors.append(error)
        _thread.calls = None
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._running.release()

    def wait(self, seconds: float) -> bool:
        """Return whether all calls have ended, after at most ``seconds``."""
        return self._running.acquire(timeout=seconds)

    def stop(self) -> None:
        """Stop the calls: repeatedly, since a solver ignores a request to stop before its start."""
        end = time.monotonic() + _SECONDS_TO_STOP
        while True:
            for stop in list(self.stops):
                stop()
            if self.wait(0.02) or time.monotonic() > end:
                return


class _Thread(threading.local):
    calls: _Calls | None = None


_thread = _Thread()

# The queues of idle threads. A new thread for each call would cost twice the time of a queue.
_idle: deque[SimpleQueue[Callable[[], None]]] = deque()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)


def _start(task: Callable[[], None]) -> None:
    """Call ``task`` in an idle thread, or in a new one; in the caller's thread if Python can start no thread."""
    try:
        tasks = _idle.pop()
    except IndexError:
        tasks = SimpleQueue()
        # A daemon, so that Python does not wait at its exit for work that goes on in the background.
        worker = threading.Thread(target=_serve, args=(tasks,), name="structinf", daemon=True)
        try:
            worker.start()
        except RuntimeError:  # at the exit of Python, or at the limit of threads
            task()
            return
    tasks.put(task)


def _serve(tasks: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        tasks.get()()
        _idle.append(tasks)


def run_while_waiting(function: Callable[[], None], threads: int, stop: Callable[[], None] | None = None) -> None:
    """Call ``function`` in as many threads at once, while the caller's thread waits for the calls and for signals.

    If a signal handler raises an error, as Python's handler of Ctrl-C does, the calls are stopped and the error is
    raised. Work that does not stop within half a second goes on in the background. ``function`` must therefore write
    only to memory that is dropped with the error.

    Parameters
    ----------
    function : callable
        Function without arguments. An error of a call is raised after all calls.
    threads : int
        The number of calls, each in a thread of its own.
    stop : callable, optional
        Function that ends the calls early. It may be called several times, also after the calls.
    """
    calls = _Calls(function, threads)
    if stop is not None:
        calls.stops.add(stop)
    try:
        for _ in range(threads):
            _start(calls.serve)
        while not calls.wait(_SECONDS_BETWEEN_CHECKS):
            pass
    except BaseException:
        calls.stop()
        raise
    if calls.errors:
        raise calls.errors.pop(0)  # this frame must not keep the error, whose traceback keeps the frame


def import_whole(name: str) -> ModuleType:
    """Import a module, which finishes in the background after an interrupt.

    Python would keep some submodules of a large package, and fail to import the package again.
    """
    if is_being_imported(name):  # perhaps by the caller's thread, for which another thread would wait
        return importlib.import_module(name)
    return call_interruptibly(lambda: importlib.import_module(name))


def call_interruptibly(function: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
    """Return ``function()``, and call ``stop`` if a signal handler raises an error in the meantime.

    Without ``stop`` the function finishes in the background after the error.

    The function runs in the caller's thread if that is a thread of :func:`run_while_waiting`, and in another
    thread otherwise.
    """
    calls = _thread.calls
    if calls is None:
        results: list[T] = []
        run_while_waiting(lambda: results.append(function()), 1, stop)
        return results[0]
    if stop is None:
        return function()
    calls.stops.add(stop)
    try:
        return function()
    finally:
        calls.stops.discard(stop)
