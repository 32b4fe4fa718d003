"""Forks and threads while a solver runs, and memory after many calls."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.kernels import interrupts

pytestmark = pytest.mark.slow

FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def problems() -> dict[str, tuple[Tensor, str, str]]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "assignment": (normal(3, 6, 6), "assignment", "sparsemap"),
        "arborescence": (normal(3, 5, 5), "arborescence", "marginals"),
        "tour": (normal(3, 5, 5), "tour", "map"),
        "large": (normal(1, 900, 900), "assignment", "map"),  # a row of its own piece of work
    }


def solve(name: str) -> Tensor:
    theta, oracle, relaxation = problems()[name]
    return si.relax(theta, oracle, relaxation)


def solve_all() -> list[Tensor]:
    return [solve(name) for name in problems()]


def are_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


# ----------------------------------------------------------------------------- forks and threads


FORKS = """
import os, threading, time, torch
import test_threads_and_memory as t

def exit_code(child):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"

def work():
    while not stop.is_set():
        t.solve_all()

torch.set_num_threads(2)
expected, stop, codes = t.solve_all(), threading.Event(), []
workers = [threading.Thread(target=work) for _ in range(2)]
for worker in workers:
    worker.start()
for _ in range(4):
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # as DataLoader does; OpenMP's threads do not exist in a child
        os._exit(0 if t.are_equal(t.solve_all(), expected) else 1)
    codes.append(exit_code(child))
stop.set()
for worker in workers:
    worker.join()
print(*codes, t.are_equal(t.solve_all(), expected))
"""


@FORK
def test_a_process_forks_while_its_threads_solve():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"] * 4 + ["True"]


WAIT_FOR_CHILD = """
end = time.monotonic() + 120
while time.monotonic() < end:
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        print(os.waitstatus_to_exitcode(status))
        break
    time.sleep(0.05)
else:
    os.kill(child, 9)
    print("hangs")
"""

FORK_DURING_FIRST_CALL = """
import os, threading, time, warnings, torch
import structinf as si

warnings.simplefilter("ignore")
torch.set_num_threads(1)
theta = torch.zeros(1, 3)
if "{first_call}":
    si.relax(theta, "{first_call}", "map")  # imports numba
worker = threading.Thread(target=lambda: si.simplex.sparsemax(theta))
worker.start()
time.sleep({seconds})
child = os.fork()
if child == 0:
    os._exit(0 if si.simplex.sparsemax(theta).sum() == 1 else 1)
worker.join()
"""


@FORK
@pytest.mark.parametrize(
    ("first_call", "seconds"), [pytest.param("", 0.02, marks=pytest.mark.full), ("categorical", 0.3)]
)
def test_a_process_forks_while_a_thread_imports_or_compiles(tmp_path, first_call, seconds):
    program = FORK_DURING_FIRST_CALL.format(first_call=first_call, seconds=seconds) + WAIT_FOR_CHILD
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == ["0"], done.stderr


FORK_DURING_A_SEARCH = """
import importlib, os, sys, threading, time
import structinf

class SlowToFind:
    def find_spec(self, name, path, target=None):
        if name == "structinf.no_such_module" and os.getpid() == parent:
            begun.set()
            time.sleep(0.5)  # holds the lock of a module that is not in sys.modules

def load():
    try:
        importlib.import_module("structinf.no_such_module")
    except ImportError:
        pass

parent, begun = os.getpid(), threading.Event()
sys.meta_path.insert(0, SlowToFind())
worker = threading.Thread(target=load)
worker.start()
begun.wait()
child = os.fork()
if child == 0:
    load()
    os._exit(0)
worker.join()
"""


@FORK
def test_a_process_forks_while_a_thread_looks_for_a_module():
    command = [sys.executable, "-W", "ignore", "-c", FORK_DURING_A_SEARCH + WAIT_FOR_CHILD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["0"], done.stderr


def test_threads_that_solve_at_the_same_time():
    expected = solve_all()
    with ThreadPoolExecutor(6) as pool:
        assert all(are_equal(found, expected) for found in pool.map(lambda _: solve_all(), range(12)))


def test_calls_without_a_new_thread(monkeypatch):
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    monkeypatch.setattr(interrupts, "_idle", deque())
    calls: list[int] = []
    interrupts.run_while_waiting(lambda: calls.append(threading.get_ident()), 2)
    assert calls == [threading.get_ident()] * 2
    assert interrupts.call_interruptibly(lambda: 3) == 3


KERNEL = """
import numba
import numpy as np
from structinf.kernels.jit import jit

@jit
def double(x):
    return 2 * x

@jit
def fill(start, stop, out):
    for i in range(start, stop):
        out[i] = double(i)

@numba.njit
def call(out):
    fill(0, len(out), out)

out = np.zeros(3)
CALL
print(*out)
"""


@pytest.mark.parametrize("call", ["fill(0, 3, out)", pytest.param("call(out)", marks=pytest.mark.full)])
def test_a_kernel_is_compiled_in_an_import_and_for_a_function_of_numba(call, tmp_path):
    (tmp_path / "a_module.py").write_text(KERNEL.replace("CALL", call))
    command = [sys.executable, "-c", "import a_module"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("0.0 2.0 4.0\n", 0), done.stderr


# ----------------------------------------------------------------------------- memory

MEMORY = """
import gc, sys, threading
import test_threads_and_memory as t

def bytes_in_use():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

for name, (call, count) in t.CALLS.items():
    count //= int(sys.argv[1])
    for _ in range(count // 5):  # the allocators keep memory of the first calls
        call()
    before, threads = bytes_in_use(), threading.active_count()
    for _ in range(count):
        call()
    print(name, bytes_in_use() - before, threading.active_count() - threads)
"""

SCORES = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
GOLD = torch.eye(3).expand(2, 3, 3)
TOUR = si.get_oracle("tour")


def train(relaxation: str) -> None:
    theta = SCORES.clone().requires_grad_()
    si.relax(theta, "assignment", relaxation).square().sum().backward()


def lose() -> None:
    theta = SCORES.clone().requires_grad_()
    si.FenchelYoungLoss("assignment", "sparsemap")(theta, GOLD).backward()


# Each with a number of calls: 20,000 in all with --full, and a quarter of that otherwise.
CALLS = {
    "map": (lambda: si.relax(SCORES, "assignment", "map"), 12000),
    "sparsemap": (lambda: train("sparsemap"), 2000),
    "loss": (lose, 2500),
    "tour": (lambda: TOUR.argmax(SCORES), 500),
    "waits": (lambda: interrupts.run_while_waiting(lambda: None, 2), 3000),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_memory_does_not_grow(request):
    part = 1 if request.config.getoption("--full") else 4
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(part)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = {name: (int(growth), int(threads)) for name, growth, threads in map(str.split, done.stdout.splitlines())}
    assert list(found) == list(CALLS)
    for name, (growth, threads) in found.items():
        # One tensor that stays alive takes 600 bytes or more in each call.
        assert growth < 3e6 / part, name
        assert threads <= 2, name
