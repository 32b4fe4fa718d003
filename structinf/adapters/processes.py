"""Slow oracles in several processes, by joblib."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import (
    InfeasibleError,
    InvalidInputError,
    SolverLimitError,
    StructinfError,
    UnsupportedError,
    WorkerError,
    renumber_instances,
    warn_user,
)
from ..oracle import Oracle
from ..parts import AnyParts, Parts, as_tuple, batch_size, map_parts, pack
from ..validation import check_flag, check_natural, check_positive
from .chunk_worker import ChunkResult, process_name, solve_chunk
from .cluster import (
    LOCAL_BACKENDS,
    LostChunkError,
    TooFewWorkersError,
    backend_context,
    death_errors,
    joblib_package,
    least_workers,
    prepare_dask,
    wait_for_workers,
)
from .pooling import Pooled
from .wrapper import Wrapper

__all__ = ["Parallel", "parallel"]

_CHUNKS_PER_WORKER = 2
"""A chunk is the share 1 / (2 · workers) of the unsent instances, so that the last chunks are small and all processes
finish at about the same time (guided self-scheduling; Polychronopoulos & Kuck 1987)."""
_LEAST_CHUNK_SECONDS = 0.01
"""Chunks of less work than this take longer to send than to solve."""


def parallel(
    oracle: str | Oracle,
    *,
    workers: int | None = None,
    backend: str | None = "loky",
    time_limit: float | None = None,
    progress: bool = False,
    **options: Any,
) -> Parallel:
    """Return an oracle that solves the instances of a batch in several processes, by joblib.

    A batch is split into chunks of falling size, of at least 0.01 s by the measured time of an instance. A batch of
    less than 0.01 s stays in the calling process. Errors and warnings name the instances of the whole batch. If a
    process dies, for example out of memory, the unfinished instances are solved once more, one at a time. If a process
    dies again, WorkerError names the instance. Ctrl-C, errors and the time limit stop all processes.

    Parameters
    ----------
    oracle : str or Oracle
        The slow oracle: an object, or a name of :func:`structinf.list_oracles`, with its options. joblib pickles the
        oracle with its instance data, and the scores, and no other object.
    workers : int, optional
        The number of processes; by default, the number of CPU cores.
    backend : str or None
        A backend of joblib: "loky" (processes of this machine), "multiprocessing", "threading", or a registered name
        such as "dask" or "ray". None uses the backend of the surrounding ``joblib.parallel_config``.
    time_limit : float, optional
        Seconds without a finished chunk, after which the call stops all processes and raises SolverLimitError. For an
        oracle with an option ``time_limit``, pass an object: ``parallel(get_oracle("tour", time_limit=5))``.
    progress : bool
        Whether to show the number of solved instances on the standard error.
    **options
        Options of an oracle given by name.

    Returns
    -------
    Parallel
        The oracle, which supports the relaxations that need only the argmax. It gives the same results as ``oracle``.

    Raises
    ------
    UnsupportedError
        If joblib is not installed, or if ``oracle`` is a pooled oracle: use ``pooled(parallel(...))`` instead.

    Examples
    --------
    >>> import structinf as si
    >>> oracle = si.parallel("subset", k=2, workers=2, backend="threading")
    >>> si.relax(torch.tensor([[0.5, 2.0, 1.0]]), oracle, "map")
    tensor([[0., 1., 1.]])
    """
    return Parallel(oracle, workers, backend, time_limit, progress, options)


class Parallel(Wrapper):
    """The oracle that :func:`parallel` returns.

    With the backend "loky", the processes stay for the next call. They end with the program, after five minutes without
    work, or by :meth:`close`.

    Parameters
    ----------
    oracle, workers, backend, time_limit, progress
        As for :func:`parallel`.
    options : mapping
        Options of an oracle given by name.
    """

    def __init__(
        self,
        oracle: str | Oracle,
        workers: int | None,
        backend: str | None,
        time_limit: float | None,
        progress: bool,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(oracle, options, {} if time_limit is None else {"time_limit": time_limit})
        if isinstance(self.oracle, Pooled):
            raise UnsupportedError(
                "si.parallel would give each process its own pool; use si.pooled(si.parallel(oracle)), which solves "
                "the exact calls in processes"
            )
        joblib = joblib_package()
        if workers is not None:
            check_natural("workers", workers)
        if time_limit is not None:
            check_positive("time_limit", time_limit)
        if not (backend is None or isinstance(backend, str)):
            raise InvalidInputError(f"backend must be the name of a backend of joblib, or None, got {backend!r}")
        check_flag("progress", progress)
        self.workers = joblib.cpu_count() if workers is None else workers
        self.backend, self.time_limit, self.progress = backend, time_limit, progress
        self._costs = _Costs()

    def __repr__(self) -> str:
        return f"parallel({self.oracle!r}, workers={self.workers}, backend={self.backend!r})"

    def argmax(self, theta: AnyParts) -> Parts:
        size, costs = batch_size(theta), self._costs
        if self.workers == 1 or size < 2 or costs.seconds * size < _LEAST_CHUNK_SECONDS:
            start = time.perf_counter()
            y = self.inner.argmax(theta)
            costs.add(time.perf_counter() - start, size)
            return y
        whole = map_parts(lambda t: t.detach().expand(size, *t.shape[1:]).cpu(), theta)
        rows = _Batch(self.inner, whole, self.progress).solve(self, costs)
        columns = zip(*[rows[b] for b in range(size)], strict=True)
        stacked = [torch.stack(c).to(like) for c, like in zip(columns, as_tuple(theta), strict=True)]
        return pack(tuple(stacked), isinstance(theta, tuple))

    def close(self) -> None:
        """Stop the processes of the backend "loky", which all users of joblib in this process share."""
        if self.backend == "loky":
            _kill_loky()


class _Costs:
    """The measured seconds of an instance, shared by all copies of an oracle; infinite before the first call."""

    def __init__(self) -> None:
        self.seconds = math.inf

    def add(self, seconds: float, instances: int) -> None:
        """Average the seconds of ``instances`` into the estimate."""
        if instances:
            each = seconds / instances
            self.seconds = each if math.isinf(self.seconds) else 0.5 * (self.seconds + each)

    def chunks(self, rows: Sequence[int], workers: int) -> list[list[int]]:
        """Split ``rows`` into chunks of falling size."""
        least, most = 1, math.ceil(len(rows) / workers)
        if not math.isinf(self.seconds):
            least = math.ceil(_LEAST_CHUNK_SECONDS / max(self.seconds, 1e-9))
        chunks, start = [], 0
        while start < len(rows):
            share = math.ceil((len(rows) - start) / (workers * _CHUNKS_PER_WORKER))
            end = start + min(max(share, least), most)
            chunks.append(list(rows[start:end]))
            start = end
        return chunks


class _Batch:
    """A batch on its way through the processes.

    Parameters
    ----------
    oracle : Oracle
        The inner oracle with the instance data of the batch.
    theta : (B, *event) Parts
        The scores, on the CPU.
    shows_progress : bool
        Whether to show the number of solved instances.
    """

    def __init__(self, oracle: Oracle, theta: Parts, shows_progress: bool) -> None:
        self.oracle, self.theta, self.shows_progress = oracle, theta, shows_progress
        self.size = len(as_tuple(theta)[0])
        self.found: dict[int, tuple[Tensor, ...]] = {}

    def solve(self, options: Parallel, costs: _Costs) -> dict[int, tuple[Tensor, ...]]:
        """Return the structure of each instance."""
        start, failed, suspects = time.monotonic(), [], set(range(self.size))
        chunks, died = costs.chunks(range(self.size), options.workers), False
        try:
            for attempt in (1, 2):
                with tempfile.TemporaryDirectory(prefix="structinf-") as folder:
                    try:
                        wait_for_workers(options.backend)
                        for result in self._results(chunks, options, folder, attempt == 2):
                            costs.add(result.seconds, len(result.rows))
                            self._store(result, failed)
                            self._show(start)
                        break
                    except death_errors() as error:
                        _kill_loky()
                        few = isinstance(error, TooFewWorkersError)
                        if isinstance(error, LostChunkError):
                            suspects = set(error.rows)
                        elif not few:
                            suspects &= self._started(folder)
                        rest = [b for b in range(self.size) if b not in self.found]
                        if attempt == 2:
                            raise self._worker_error(suspects or set(rest), options.backend, few, died) from error
                        died = not few
                        chunks = [[b] for b in rest]
                    except (TimeoutError, concurrent.futures.TimeoutError, multiprocessing.TimeoutError) as error:
                        rest = [b for b in range(self.size) if b not in self.found]
                        raise SolverLimitError(
                            f"no instance was finished within time_limit={options.time_limit} seconds; "
                            f"{len(rest)} of {self.size} instances are not solved",
                            rest[0],
                            rest,
                        ) from error
        except BaseException:
            if options.backend == "loky":
                _kill_loky()
            raise
        finally:
            if self.shows_progress:
                print(file=sys.stderr)
        if failed:
            raise _first_error(failed)
        return self.found

    def _results(
        self, chunks: list[list[int]], options: Parallel, folder: str, is_retry: bool
    ) -> Iterator[ChunkResult]:
        joblib = joblib_package()
        has_folder = options.backend in LOCAL_BACKENDS
        pickled = {}
        if options.backend != "threading" and not self.oracle.bound:
            import cloudpickle

            data = cloudpickle.dumps(self.oracle)
            pickled = {"data": data, "key": hashlib.blake2b(data, digest_size=16).hexdigest()}
        settings: dict[str, Any] = {"n_jobs": options.workers, "timeout": options.time_limit, "batch_size": 1}
        if has_folder:
            settings["backend"] = options.backend
            settings["max_nbytes"] = None  # no memory maps, whose files could be left behind
        with backend_context(options.backend):
            try:
                run = joblib.Parallel(return_as="generator_unordered", pre_dispatch="all", **settings)
            except (ValueError, NotImplementedError):  # of a backend without generators
                run = joblib.Parallel(pre_dispatch="all", **settings)
        prepare_dask(run)
        tasks, caller = [], (process_name(), is_retry or not (has_folder or options.backend is None))
        for rows in chunks:
            index = torch.tensor(rows, device="cpu")
            own = [t[index].numpy() for t in as_tuple(self.theta)]
            oracle = None if pickled else self.oracle[index]
            tasks.append(
                joblib.delayed(solve_chunk)(
                    rows, oracle, pickled, own, isinstance(self.theta, tuple), folder if has_folder else "", caller
                )
            )
        with contextlib.closing(_closable(run(tasks))) as results:
            yield from results

    def _store(self, result: ChunkResult, failed: list[tuple[Exception, list[int]]]) -> None:
        with renumber_instances(result.rows):
            for message, category in result.warnings:
                warn_user(message, category)
        if result.error is not None:
            failed.append((result.error, result.rows))
            for b in result.rows:
                self.found[b] = ()
            return
        for i, b in enumerate(result.rows):
            self.found[b] = tuple(torch.from_numpy(t[i].copy()) for t in result.structures)

    def _show(self, start: float) -> None:
        if self.shows_progress:
            done, seconds = len(self.found), time.monotonic() - start
            print(f"\r{done} of {self.size} instances solved after {seconds:.0f} s", end="", file=sys.stderr)

    def _started(self, folder: str) -> set[int]:
        """Return the unfinished instances that a process has started."""
        started = {int(b) for name in os.listdir(folder) for b in name.split("-")}
        return (started or set(range(self.size))) - set(self.found)

    def _worker_error(self, suspects: set[int], backend: str | None, few: bool, died: bool) -> WorkerError:
        rows = sorted(suspects)
        missing = f'the backend "{backend}" has fewer than {least_workers(backend)} workers'
        if few and not died:
            return WorkerError(f"{missing}; start workers, or wait for the cluster, and call again", rows[0], rows)
        return WorkerError(
            ("a process died" if few else "a process died twice")
            + f" while it solved the instance{'s' if len(rows) > 1 else ''}"
            + (f", and now {missing}" if few else "")
            + "; it may have run out of memory, or crashed in a native library; solve the instance alone in the main "
            "process to see why",
            rows[0],
            rows,
        )


# ----------------------------------------------------------------------------- joblib


def _kill_loky() -> None:
    """Stop the processes of loky's executor, if there is an executor."""
    loky = sys.modules.get("joblib.externals.loky.reusable_executor")
    executor = getattr(loky, "_executor", None)
    if executor is not None:
        executor.shutdown(wait=True, kill_workers=True)


def _closable(results: Any) -> Any:
    """Return ``results`` as a generator, which closes joblib's generator with it."""
    yield from results


def _first_error(failed: list[tuple[Exception, list[int]]]) -> Exception:
    """Return the error of the first instance, with the infeasible instances of all chunks."""
    failed.sort(key=lambda pair: pair[1][0])
    infeasible = []
    for error, rows in failed:
        if isinstance(error, InfeasibleError):
            error.renumber_instances(rows)
            infeasible += error.batch_indices
    first, rows = failed[0]
    if not isinstance(first, InfeasibleError):
        if isinstance(first, StructinfError):
            first.renumber_instances(rows)
        return first
    return InfeasibleError(str(first.args[0]), infeasible[0], infeasible)
