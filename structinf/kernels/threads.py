"""Split a batch over a small pool of threads.

numba's own parallel back ends do not survive a fork (a DataLoader worker hangs or is killed)
nor several Python threads, so kernels are serial, release the GIL and are handed disjoint
ranges of the batch. The pool is dropped in a forked child and made anew on first use there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

__all__ = ["parallel_rows"]

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _forget_pool() -> None:
    """Threads do not survive a fork; the lock may have been held by one of them."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _get_pool() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="structinf")
    return _pool


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
    threads = min(torch.get_num_threads(), rows) if work >= 400_000 else 1
    if threads <= 1:
        if rows:
            kernel(0, rows, *args)
        return
    bounds = [rows * i // threads for i in range(threads + 1)]
    pool = _get_pool()
    futures = [pool.submit(kernel, bounds[i], bounds[i + 1], *args) for i in range(1, threads)]
    try:
        kernel(0, bounds[1], *args)
    finally:
        wait(futures)  # no range may still be writing when the caller goes on, or handles an error
    for future in futures:
        future.result()
