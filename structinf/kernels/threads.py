"""Split a batch over the threads that torch has.

numba's own parallel back ends do not survive a fork (a DataLoader worker hangs or is killed) nor several Python
threads, so kernels are serial, release the GIL and are handed disjoint ranges of the batch.

They run in the OpenMP team of torch's own operations where it has one: its threads spin for some milliseconds after
each operation, and on the same cores threads of another pool would wait for them. A forked child, in which that team
does not exist any more, and other builds of torch have a pool of Python's.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

__all__ = ["parallel_rows", "run_in_thread_pool"]

Team = Callable[[Callable[[], None], int], None]
"""Calls a function in so many threads at once, the caller's among them, and returns when all have."""

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()
_is_forked = False


def _forget_threads() -> None:
    """Threads do not survive a fork; the lock may have been held by one of them."""
    global _pool, _lock, _is_forked
    _pool, _lock, _is_forked = None, threading.Lock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def parallel_rows(kernel: Callable[..., Any], rows: int, *args: Any, work: float = float("inf")) -> None:
    """Call ``kernel(start, stop, *args)`` over ranges that cover ``range(rows)``.

    Parameters
    ----------
    kernel : callable
        A nogil function that writes its results into arrays among ``args``, for the rows ``start:stop`` alone.
    rows : int
        Size of the batch.
    work : float, optional
        Rough number of elementary operations of the whole call: below some 400,000 a second
        thread costs more than it saves, and the caller's thread does all.

    Notes
    -----
    At most ``torch.get_num_threads()`` threads work, the caller's among them.
    """
    threads = torch.get_num_threads()
    count = min(threads, rows) if work >= 400_000 else 1
    if count <= 1:
        if rows:
            kernel(0, rows, *args)
        return
    bounds = [rows * i // count for i in range(count + 1)]
    ranges = deque(itertools.pairwise(bounds))
    outcomes: list[BaseException | None] = []

    def serve() -> None:
        # From a queue, as a team may be smaller than was asked for: within another team's work it is one thread.
        while ranges:
            try:
                start, stop = ranges.popleft()
            except IndexError:
                return
            try:
                kernel(start, stop, *args)
                outcomes.append(None)
            except BaseException as error:
                outcomes.append(error)

    team = None if _is_forked else _openmp_team()
    # All of torch's threads, however few have work: a smaller team would end the others, for torch to start again.
    (team or run_in_thread_pool)(serve, threads if team else count)
    for error in outcomes:
        if error is not None:
            raise error
    if len(outcomes) < count:  # interrupted between two ranges, which C does not pass on
        raise KeyboardInterrupt


@functools.cache
def _openmp_team() -> Team | None:
    """The team of torch's OpenMP; None if torch or its OpenMP is of another kind."""
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        # What gcc and clang compile a parallel region to; torch makes its OpenMP's symbols global.
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    parallel.argtypes, parallel.restype = (callback, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None

    def team(function: Callable[[], None], threads: int) -> None:
        parallel(callback(lambda _: function()), None, threads, 0)

    return team


def run_in_thread_pool(function: Callable[[], None], threads: int) -> None:
    """Call ``function`` in so many threads of Python's at once, the caller's among them, and return when all have."""
    pool = _get_pool()
    futures = [pool.submit(function) for _ in range(threads - 1)]
    try:
        function()
    finally:
        for future in futures:
            future.cancel()  # not begun: nothing was left for it
        wait(futures)  # none may still be writing when the caller goes on, or handles an error


def _get_pool() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="structinf")
    return _pool
