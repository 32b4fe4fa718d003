"""What the backends of joblib for clusters, dask and ray, do differently from the processes of one machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import importlib.util
import sys
import time
from typing import Any

from ..errors import UnsupportedError

__all__ = [
    "LOCAL_BACKENDS",
    "LostChunkError",
    "TooFewWorkersError",
    "backend_context",
    "death_errors",
    "joblib_package",
    "least_workers",
    "prepare_dask",
    "wait_for_workers",
]

LOCAL_BACKENDS = ("loky", "multiprocessing", "threading")

_WAITING_SECONDS = 30.0


class TooFewWorkersError(Exception):
    """A cluster has fewer workers than :func:`least_workers`."""


class LostChunkError(Exception):
    """A cluster has given up a chunk, since several processes died of it.

    Parameters
    ----------
    rows : list of int
        The instances of the chunk.
    """

    def __init__(self, rows: list[int]) -> None:
        super().__init__(rows)
        self.rows = rows


def joblib_package() -> Any:
    """Return joblib, or raise UnsupportedError with the packages to install."""
    try:
        import cloudpickle  # noqa: F401
        import joblib
    except ImportError:
        raise UnsupportedError("si.parallel needs joblib; run pip install joblib cloudpickle") from None
    return joblib


def backend_context(backend: str | None) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which joblib uses the ``backend``: only parallel_config registers "dask"."""
    if backend is None or backend in LOCAL_BACKENDS:
        return contextlib.nullcontext()
    if backend == "dask" and importlib.util.find_spec("distributed") is None:
        raise UnsupportedError("""backend="dask" needs distributed; run pip install joblib cloudpickle distributed""")
    if backend == "ray":
        try:
            importlib.import_module("ray.util.joblib").register_ray()
        except ImportError:
            raise UnsupportedError("""backend="ray" needs ray; run pip install joblib cloudpickle ray""") from None
    return joblib_package().parallel_config(backend=backend)


def least_workers(backend: str | None) -> int:
    """Return the number of workers that a cluster needs: with one, joblib would solve in the calling process.

    :func:`prepare_dask` keeps joblib from doing so for dask.
    """
    return 1 if backend == "dask" else 2


def wait_for_workers(backend: str | None) -> None:
    """Wait until a cluster has enough workers.

    Raises
    ------
    TooFewWorkersError
        If a named cluster has too few workers after 30 s.
    """
    if backend in LOCAL_BACKENDS:
        return
    end = time.monotonic() + _WAITING_SECONDS
    while time.monotonic() < end:
        # joblib raises TimeoutError after 10 s without any worker.
        with backend_context(backend), contextlib.suppress(TimeoutError):
            if joblib_package().effective_n_jobs(-1) >= least_workers(backend):
                return
        time.sleep(0.1)
    if backend is not None:
        raise TooFewWorkersError


def death_errors() -> tuple[type[BaseException], ...]:
    """Return the errors of joblib's backends for a process that has died."""
    kinds: list[type[BaseException]] = [concurrent.futures.BrokenExecutor, TooFewWorkersError, LostChunkError]
    for package, name in (("distributed", "KilledWorker"), ("ray.exceptions", "RayActorError")):
        if package in sys.modules:
            kinds.append(getattr(sys.modules[package], name))
    return tuple(kinds)


def prepare_dask(parallel: Any) -> None:
    """Change the backend of an object ``joblib.Parallel`` in two ways, if the backend is dask.

    - The call ends with LostChunkError when dask gives up a chunk. The backend of joblib 1.6 stores the error in a
      future that nobody reads, and waits without end.
    - A cluster with a single worker, for example while another one starts again, solves all chunks. joblib would solve
      them in the calling process.
    """
    backend = getattr(parallel, "_backend", None)
    if type(backend).__name__ != "DaskDistributedBackend":
        return
    own: Any = backend
    submit, client = own.submit, own.client

    def submit_and_report(function: Any, callback: Any) -> Any:
        def report(done: Any) -> None:
            error = done.exception()
            if isinstance(error, death_errors()):
                ((_, arguments, _),) = function.items
                error = LostChunkError(arguments[0])
            if error is not None:
                callback(error)

        future = submit(function, callback)
        future.add_done_callback(report)
        return future

    own.submit = submit_and_report
    own.effective_n_jobs = lambda n_jobs: max(2, sum(client.ncores().values()))
