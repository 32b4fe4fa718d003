"""What a process does with a chunk of a batch of :func:`structinf.parallel`."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import platform
import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch

from ..errors import PluginError, renumber_instances
from ..oracle import Oracle
from ..parts import as_tuple, pack
from .cluster import TooFewWorkersError

__all__ = ["ChunkResult", "process_name", "solve_chunk"]


class ChunkResult(NamedTuple):
    """The result of a chunk: structures as arrays, or an error, and the warnings with their classes."""

    rows: list[int]
    seconds: float
    structures: list[Any]
    warnings: list[tuple[str, type[Warning]]]
    error: Exception | None


_oracles: dict[str, Oracle] = {}


def process_name() -> str:
    """Return a name of this process among the processes of all machines."""
    return f"{platform.node()}:{os.getpid()}"


@functools.cache
def _prepare_process(caller: str) -> None:
    """Set this process up for chunks of the process ``caller``."""
    if process_name() == caller:
        return
    # The processes share the cores.
    torch.set_num_threads(1)


@functools.cache
def _freeze_objects(oracle: type[Oracle]) -> None:
    """Exclude all objects of this process from garbage collection, after the first call of an oracle of this type.

    loky collects garbage once a second, which takes up to half a second for the objects of all imported modules. The
    first call of an oracle may import its solver.
    """
    gc.collect()
    gc.freeze()


def solve_chunk(
    rows: list[int],
    oracle: Oracle | None,
    pickled: Mapping[str, Any],
    theta: list[Any],
    is_tuple: bool,
    folder: str,
    caller: tuple[str, bool],
) -> ChunkResult:
    """Solve the instances ``rows`` of a batch, whose scores are the arrays ``theta``."""
    process, only_elsewhere = caller
    if only_elsewhere and folder == "" and process == process_name():
        # joblib calls the function in the calling process if the cluster has a single worker.
        raise TooFewWorkersError
    _prepare_process(process)
    marker = os.path.join(folder, "-".join(map(str, rows))) if folder and len(rows) < 20 else ""
    if marker:
        with open(marker, "w"):
            pass
    if oracle is None:
        if pickled["key"] not in _oracles:
            while len(_oracles) >= 8:
                _oracles.pop(next(iter(_oracles)))
            _oracles[pickled["key"]] = pickle.loads(pickled["data"])
        oracle = _oracles[pickled["key"]]
    start = time.perf_counter()
    structures: list[Any] = []
    error = None
    caught: list[Any] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if process == process_name():
            # Threads cannot record warnings of their own. The warnings get the numbers of the whole batch at once.
            stack.enter_context(renumber_instances(rows))
        else:
            # The list grows during the call.
            caught = cast(list[Any], stack.enter_context(warnings.catch_warnings(record=True)))
            warnings.simplefilter("always")
        try:
            y = oracle.argmax(pack(tuple(torch.from_numpy(t.copy()) for t in theta), is_tuple))
            structures = [t.numpy() for t in as_tuple(y)]
        except Exception as found:
            error = found if process == process_name() else _as_picklable(found, oracle)
    seconds = time.perf_counter() - start
    if process != process_name():
        _freeze_objects(type(oracle))
    if marker:
        os.remove(marker)
    return ChunkResult(rows, seconds, structures, [(str(w.message), w.category) for w in caught], error)


def _as_picklable(error: Exception, oracle: Oracle) -> Exception:
    """Return the error, or a PluginError with its message if the calling process could not load the error."""
    import cloudpickle

    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:
        return PluginError(f"{oracle.label()} failed in another process: {type(error).__name__}: {error}")
    return error
