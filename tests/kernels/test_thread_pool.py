"""The thread pool under the kernels: ranges, threads, errors, and life in forked and spawned processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from structinf.kernels import parallel_rows
from structinf.kernels import threads as threads_module

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Three threads, whatever the machine has, and its own number back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Recorder:
    """A kernel that notes which thread was given which range."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int]] = []

    def __call__(self, start: int, stop: int) -> None:
        self.calls.append((start, stop, threading.get_ident()))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 64])
def test_ranges_cover_every_row_once(rows, threads):
    torch.set_num_threads(threads)
    recorder = Recorder()
    parallel_rows(recorder, rows)
    covered = [row for start, stop, _ in sorted(recorder.calls) for row in range(start, stop)]
    assert covered == list(range(rows))
    assert all(start < stop for start, stop, _ in recorder.calls)
    assert len(recorder.calls) <= threads


def test_one_thread_means_the_callers_own():
    torch.set_num_threads(1)
    recorder = Recorder()
    parallel_rows(recorder, 64)
    assert recorder.calls == [(0, 64, threading.get_ident())]


def test_ranges_run_at_the_same_time():
    meeting = threading.Barrier(2, timeout=30)
    torch.set_num_threads(2)
    parallel_rows(lambda start, stop: meeting.wait(), 2)


def test_little_work_stays_with_the_caller():
    recorder = Recorder()
    parallel_rows(recorder, 64, work=1000)
    assert recorder.calls == [(0, 64, threading.get_ident())]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_in_any_range_reaches_the_caller(failing):
    finished = []
    all_began = threading.Barrier(3, timeout=30)

    def kernel(start, stop):
        all_began.wait()
        if start == failing:
            raise ZeroDivisionError(f"row {start}")
        time.sleep(0.05)
        finished.append(start)

    with pytest.raises(ZeroDivisionError, match=f"row {failing}"):
        parallel_rows(kernel, 3)
    # No range may still be writing into the caller's arrays once the call is over.
    assert sorted(finished) == [row for row in range(3) if row != failing]

    recorder = Recorder()
    parallel_rows(recorder, 3)
    assert len(recorder.calls) == 3


def test_work_that_has_not_begun_is_dropped_after_an_error():
    begun = []

    def kernel(start, stop):
        begun.append(start)
        raise ZeroDivisionError

    torch.set_num_threads(1)
    with pytest.raises(ZeroDivisionError):
        parallel_rows(kernel, 10, work=1e9)
    assert begun == [0]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("work", [3e7, 1e8, 1e12])
def test_much_work_runs_in_pieces_that_cover_every_row_once(rows, threads, work):
    torch.set_num_threads(threads)
    recorder = Recorder()
    parallel_rows(recorder, rows, work=work)
    covered = [row for start, stop, _ in sorted(recorder.calls) for row in range(start, stop)]
    assert covered == list(range(rows))
    piece = threads_module._OPERATIONS_PER_PIECE
    assert len(recorder.calls) >= min(rows, work / piece)
    # The caller's thread works, unless a single row is more than a piece.
    if work / rows < piece and threads == 1:
        assert {thread for _, _, thread in recorder.calls} == {threading.get_ident()}
    if work / rows > piece:
        assert threading.get_ident() not in {thread for _, _, thread in recorder.calls}


def test_many_python_threads_share_the_pool():
    def kernel(start, stop, x, out):
        out[start:stop] = x[start:stop] + 1

    def call(seed):
        x = np.random.default_rng(seed).random((50, 20))
        out = np.empty_like(x)
        for _ in range(20):
            parallel_rows(kernel, 50, x, out)
        return bool((out == x + 1).all())

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(call, range(16)))


# ----------------------------------------------------------------------------- processes
#
# Each script runs in an interpreter of its own: pytest's process is neither forked nor hung.


def run(script: str) -> str:
    command = [sys.executable, "-c", f"import torch\ntorch.set_num_threads(2)\n{script}"]
    done = subprocess.run(
        command, cwd=Path(__file__).parent.parent / "helpers", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FORK = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


@FORK
def test_a_forked_child_makes_its_own_pool_even_if_the_lock_was_held():
    script = """
import os, threading
from row_kernel_for_workers import is_right
from structinf.kernels import threads
def in_a_child():
    child = os.fork()
    if child == 0:
        os._exit(0 if is_right() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert is_right()          # the parent's pool exists
print(in_a_child(), is_right())
held, done = threading.Event(), threading.Event()
def hold():
    with threads._lock:
        held.set()
        done.wait()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
print(in_a_child())
done.set()
"""
    assert run(script).split() == ["0", "True", "0"]


START_METHODS = [pytest.param("fork", marks=FORK), pytest.param("spawn", marks=pytest.mark.full)]


@pytest.mark.parametrize("method", START_METHODS)
def test_multiprocessing(method):
    script = f"""
import multiprocessing
from torch.utils.data import DataLoader
from row_kernel_for_workers import Squares, is_right
if __name__ == "__main__":
    assert is_right()
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        print(*pool.map(is_right, [10, 20]))
    loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context={method!r})
    print(all(batch.all().item() for batch in loader), is_right())
"""
    assert run(script).split() == ["True"] * 4


# ----------------------------------------------------------------------------- teams


def test_pools_of_threads_serve_where_torch_has_no_openmp(monkeypatch):
    monkeypatch.setattr(threads_module, "_openmp_team", lambda: None)
    recorder = Recorder()
    parallel_rows(recorder, 64)
    assert sorted((start, stop) for start, stop, _ in recorder.calls) == [(0, 21), (21, 42), (42, 64)]
    with pytest.raises(ZeroDivisionError):
        parallel_rows(lambda start, stop: 1 // 0, 3)


def test_an_interrupt_that_a_team_swallowed_is_raised(monkeypatch):
    monkeypatch.setattr(threads_module, "_openmp_team", lambda: lambda function, threads: None)
    with pytest.raises(KeyboardInterrupt):
        parallel_rows(Recorder(), 3)


def test_work_inside_a_teams_work_is_done():
    done = []
    parallel_rows(lambda start, stop: parallel_rows(lambda a, b: done.extend(range(a, b)), 4), 3)
    assert sorted(done) == sorted([*range(4)] * 3)
