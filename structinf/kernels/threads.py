"""Run kernels in as many threads as torch uses, each on a part of the batch.

numba's own parallel back ends break after a fork (a DataLoader worker hangs or is killed), and when several Python
threads call them. So kernels are serial and release the GIL, and each thread works on its own range of the batch.

If torch is built with OpenMP, kernels run in torch's OpenMP threads. After each torch operation, these threads spin
for milliseconds, and threads of another pool would wait for the same cores. A Python thread pool is used in builds of
torch without OpenMP, and in a forked child, where the OpenMP threads no longer exist.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

from .interrupts import run_while_waiting

__all__ = ["parallel_rows", "run_in_thread_pool"]

# Elementary operations between two checks for signals: 1 to 35 ms with random scores. The hardest assignments take
# 100 times as long as random ones.
_OPERATIONS_PER_PIECE = 5_000_000

Team = Callable[[Callable[[], None], int], None]
"""Calls a function in the given number of threads, including the caller's, and returns when all calls have returned."""

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()
_is_forked = False


def _forget_threads() -> None:
    """Reset the state in a forked child: its threads do not exist, and one of them may have held the lock."""
    global _pool, _lock, _is_forked
    _pool, _lock, _is_forked = None, threading.Lock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def parallel_rows(kernel: Callable[..., Any], rows: int, *args: Any, work: float = float("inf")) -> None:
    """Call ``kernel(start, stop, *args)`` over ranges that cover ``range(rows)``.

    Parameters
    ----------
    kernel : callable
        A nogil function that writes the results of rows ``start:stop``, and no others, into arrays among ``args``.
    rows : int
        Size of the batch.
    *args
        Further arguments of ``kernel``.
    work : float, optional
        Approximate number of elementary operations of the whole call. Below 400,000, a second thread costs more time
        than it saves, so only the caller's thread works. By default, all threads work.

    Notes
    -----
    At most ``torch.get_num_threads()`` threads work, including the caller's.

    A call of much work runs in pieces, and Ctrl-C takes effect after the current piece. If a single row is more work
    than a piece, the caller's thread only waits, and Ctrl-C takes effect within half a second. The kernel then finishes
    its current row in the background, in arrays that nobody reads.
    """
    if not rows:
        return
    threads = torch.get_num_threads()
    count = min(threads, rows) if work >= 400_000 else 1
    is_long = _OPERATIONS_PER_PIECE < work < math.inf
    if count == 1 and not is_long:
        kernel(0, rows, *args)
        return
    pieces = min(count * math.ceil(work / _OPERATIONS_PER_PIECE / count), rows) if is_long else count
    bounds = [rows * i // pieces for i in range(pieces + 1)]
    ranges = deque(itertools.pairwise(bounds))
    done: list[int] = []
    errors: list[BaseException] = []

    def serve() -> None:
        # Threads take ranges from a queue, as an OpenMP team may have fewer threads than requested: in a nested
        # parallel region it has one. C code does not propagate errors, neither of a kernel nor of a signal handler.
        try:
            while ranges:
                try:
                    start, stop = ranges.popleft()
                except IndexError:  # another thread took the last range
                    return
                kernel(start, stop, *args)
                done.append(start)
        except BaseException as error:
            ranges.clear()
            errors.append(error)

    if is_long and work > rows * _OPERATIONS_PER_PIECE:
        if not getattr(kernel, "signatures", True):
            kernel(0, 0, *args)  # compiles a numba function, which has no other way to be interrupted
        run_while_waiting(serve, count, ranges.clear)
    elif count == 1:
        serve()
    else:
        team = None if _is_forked else _openmp_team()
        # Request all of torch's threads, even if some get no work: OpenMP would end the others, and torch restart them.
        (team or run_in_thread_pool)(serve, threads if team else count)
    if errors:
        raise errors.pop(0)
    if len(done) < pieces:  # an interrupt came between two ranges, and C code does not propagate it
        raise KeyboardInterrupt


@functools.cache
def _openmp_team() -> Team | None:
    """Return a function that runs a task in torch's OpenMP threads; None if torch has no OpenMP of a known kind."""
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        # gcc and clang compile a parallel region to this call, and torch loads its OpenMP with global symbols.
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    parallel.argtypes, parallel.restype = (callback, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None

    def team(function: Callable[[], None], threads: int) -> None:
        parallel(callback(lambda _: function()), None, threads, 0)

    return team


def run_in_thread_pool(function: Callable[[], None], threads: int) -> None:
    """Call ``function`` in ``threads`` Python threads at once, including the caller's, and wait for all calls."""
    pool = _get_pool()
    futures = [pool.submit(function) for _ in range(threads - 1)]
    try:
        function()
    finally:
        for future in futures:
            future.cancel()  # a call that has not begun would find no work
        wait(futures)  # no thread may still write when the caller continues or handles an error


def _get_pool() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="structinf")
    return _pool
