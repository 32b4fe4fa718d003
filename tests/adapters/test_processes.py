"""Slow oracles in several processes: results, errors, warnings, and processes that die, stall or are interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import structinf as si
from structinf import (
    ConvergenceWarning,
    InfeasibleError,
    InvalidInputError,
    PluginError,
    SolverLimitError,
    UnsupportedError,
    WorkerError,
)
from structinf.adapters import chunk_worker
from structinf.adapters.processes import _Costs
from structinf.errors import warn_user
from structinf.testing import check_oracle

pytest.importorskip("joblib")


def slow(seconds=0.002, stops=None, effect=None):
    """The best of d choices; a score above 50 has the ``effect``. A nested function is sent to other processes."""

    def best(theta):
        time.sleep(seconds)
        if theta[0] > 50:
            effect()
        if np.isneginf(theta).all():
            return None
        y = np.zeros_like(theta)
        y[theta.argmax()] = 1
        return y

    return si.oracle_from_function(best, 1)


def threads(oracle, **options):
    found = si.parallel(oracle, workers=2, backend="threading", **options)
    found._costs.seconds = 1.0  # measured before, so that the first batch is split
    return found


def scores(rows=12, parts=4, seed=0):
    return torch.rand(rows, parts, generator=torch.Generator().manual_seed(seed))


def children():
    """The command lines of loky's processes that this process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            command = (folder / "cmdline").read_text()
        except (OSError, IndexError):
            continue  # a process that has just ended
        if parent == os.getpid() and "popen_loky" in command:
            found.append(command)
    return found


# ----------------------------------------------------------------------------- in threads


def test_results_are_those_of_the_oracle():
    theta = scores()
    oracle = threads(slow())
    assert torch.equal(si.relax(theta, oracle, "map"), si.relax(theta, "categorical", "map"))
    assert torch.equal(
        si.relax(theta.half().view(3, 4, 4), oracle, "map"), si.relax(theta.half(), "categorical", "map").view(3, 4, 4)
    )
    assert si.relax(theta[:0], oracle, "map").shape == (0, 4)
    chain = threads("chain")
    pair = torch.randn(6, 4, 2), torch.randn(2, 2)
    lengths = [4, 2, 1, 3, 4, 2]
    found = si.relax(pair, chain, "map", lengths=lengths)
    expected = si.relax(pair, "chain", "map", lengths=lengths)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    labels = si.decode(found, chain, lengths=lengths)
    assert torch.equal(labels, si.decode(expected, "chain", lengths=lengths))
    leaf = theta.clone().requires_grad_()
    si.FenchelYoungLoss(oracle, "perturbed", samples=3)(leaf, si.relax(theta, "categorical", "map")).backward()
    assert bool(leaf.grad.any())


@pytest.mark.full
def test_laws():
    oracle = si.parallel("subset", k=2, workers=2, backend="threading")
    assert not check_oracle(oracle, event_shape=(4,)).failed


def test_errors_and_warnings_name_the_instances_of_the_batch():
    theta = scores()
    theta[[3, 9]] = -torch.inf
    with pytest.raises(InfeasibleError) as error:
        si.relax(theta, threads(slow()), "map")
    assert error.value.batch_indices == (3, 9)
    assert si.relax(theta, threads(slow()), "map", on_infeasible="zero")[9].tolist() == [0] * 4
    theta = scores()
    theta[7, 0] = 99.0

    def fails():
        raise ValueError("no licence")

    with pytest.raises(PluginError, match="failed at batch index 7: ValueError: no licence"):
        si.relax(theta, threads(slow(effect=fails)), "map")

    class Warns(si.Oracle):
        event_ndim = 1

        def argmax(self, theta):
            for b in (theta[:, 0] > 50).nonzero()[:, 0].tolist():
                warn_user(f"stopped early at batch index {b}", ConvergenceWarning)
            return torch.nn.functional.one_hot(theta.argmax(1), theta.shape[1]).to(theta)

    with pytest.warns(ConvergenceWarning, match="stopped early at batch index 7"):
        si.relax(theta, threads(Warns()), "map")


class UnpicklableError(Exception):
    """An exception whose constructor takes two arguments, so that pickle cannot restore it."""

    def __init__(self, code, hint):
        super().__init__(f"code {code}, {hint}")


def test_warnings_and_errors_of_another_process_come_back(monkeypatch):
    monkeypatch.setattr(chunk_worker, "_prepare_process", lambda _: None)
    monkeypatch.setattr(chunk_worker, "_freeze_objects", lambda _: None)

    class Oracle(si.Oracle):
        event_ndim = 1

        def argmax(self, theta):
            warn_user("stopped early at batch index 1", ConvergenceWarning)
            if theta[0, 0] > 50:
                raise UnpicklableError(7, "no license")
            return si.relax(theta, "categorical", "map")

    def solve(theta):
        return chunk_worker.solve_chunk([4, 5], Oracle(), {}, [theta.numpy()], False, "", ("elsewhere:1", False))

    result = solve(scores(2))
    assert result.warnings == [("stopped early at batch index 1", ConvergenceWarning)]
    assert result.error is None
    error = solve(100 + scores(2)).error
    assert isinstance(error, PluginError)
    assert str(error) == "Oracle failed in another process: UnpicklableError: code 7, no license"


def test_chunks_follow_the_measured_cost():
    costs = _Costs()
    assert [len(c) for c in costs.chunks(range(32), 2)] == [8, 6, 5, 4, 3, 2, 1, 1, 1, 1]
    costs.add(32.0, 32)
    assert [len(c) for c in costs.chunks(range(10), 2)] == [3, 2, 2, 1, 1, 1]
    fast = _Costs()
    fast.add(0.001, 1)
    # chunks of at least 0.01 s
    assert [len(c) for c in fast.chunks(range(32), 2)] == [10, 10, 10, 2]
    fast.add(0.003, 1)
    assert fast.seconds == pytest.approx(0.002)
    for workers in (1, 2, 5, 40):
        assert [b for c in fast.chunks(range(33), workers) for b in c] == list(range(33))
    # cheap batches stay in this process, and single instances too
    oracle = si.parallel("categorical", workers=2, backend="no such backend")
    oracle._costs.seconds = 1e-6
    si.relax(scores(), oracle, "map")
    si.relax(scores(1), oracle, "map")


def test_progress(capsys):
    si.relax(scores(), threads(slow(), progress=True), "map")
    assert "12 of 12 instances solved after 0 s" in capsys.readouterr().err
    si.relax(scores(), threads(slow()), "map")
    assert capsys.readouterr().err == ""


def test_wrong_options():
    for options, message in (
        ({"workers": 0}, "workers must be an integer of at least 1"),
        ({"time_limit": 0.0}, "time_limit must be a finite number above 0"),
        ({"backend": 3}, "backend must be the name of a backend"),
        ({"progress": "yes"}, "progress must be True or False"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            si.parallel("categorical", **options)
    with pytest.raises(UnsupportedError, match=r"use si.pooled\(si.parallel\(oracle\)\)"):
        si.parallel(si.pooled("categorical"))
    with pytest.raises(TypeError, match=r"time_limit=9\.0 may belong to parallel or to milp"):
        si.parallel("milp", A=[[1]], upper=[1], time_limit=9.0)
    assert repr(si.parallel("categorical", workers=2)) == "parallel(Categorical(), workers=2, backend='loky')"


# ----------------------------------------------------------------------------- in processes


@pytest.mark.full
def test_processes_solve_the_batch_and_end():
    oracle = si.parallel(slow(0.01), workers=2)
    theta = scores(20)
    try:
        assert torch.equal(si.relax(theta, oracle, "map"), si.relax(theta, "categorical", "map"))
        # the same processes solve an oracle with instance data
        chain = si.parallel("chain", workers=2)
        pair = torch.randn(4, 4, 2), torch.randn(2, 2)
        found = si.relax(pair, chain, "map", lengths=[4, 2, 1, 3])
        expected = si.relax(pair, "chain", "map", lengths=[4, 2, 1, 3])
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert len(children()) == 2
    finally:
        oracle.close()
    assert children() == []


@pytest.mark.full
def test_a_process_that_dies_once_is_replaced(tmp_path):
    flag = str(tmp_path / "died")

    def die_once():
        if not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    theta = scores(12)
    theta[5, 0] = 99.0
    oracle = si.parallel(slow(0.01, effect=die_once), workers=2)
    try:
        assert torch.equal(si.relax(theta, oracle, "map"), si.relax(theta, "categorical", "map"))
        assert os.path.exists(flag)
    finally:
        oracle.close()
    assert children() == []


@pytest.mark.full
def test_an_instance_that_kills_two_processes_is_named():
    theta = scores(12)
    theta[5, 0] = 99.0
    oracle = si.parallel(slow(0.01, effect=lambda: os.kill(os.getpid(), signal.SIGKILL)), workers=2)
    with pytest.raises(WorkerError, match=r"a process died twice .* \(batch index 5\)") as error:
        si.relax(theta, oracle, "map")
    assert error.value.batch_indices == (5,)
    assert children() == []


@pytest.mark.full
def test_the_time_limit_stops_a_stalled_instance():
    theta = scores(12)
    theta[5, 0] = 99.0
    oracle = si.parallel(slow(0.01, effect=lambda: time.sleep(600)), workers=2, time_limit=10.0)
    with pytest.raises(SolverLimitError, match=r"no instance was finished within time_limit=10.0 seconds") as error:
        si.relax(theta, oracle, "map")
    assert 5 in error.value.batch_indices
    assert children() == []


@pytest.mark.full
def test_ctrl_c_stops_all_processes(tmp_path):
    program = textwrap.dedent("""
        import os, sys, time
        import numpy as np, torch
        import structinf as si

        def endless(theta):
            open(sys.argv[1] + f"/{os.getpid()}", "w").close()
            time.sleep(600)
            return np.zeros_like(theta)

        si.relax(torch.rand(4, 3), si.parallel(si.oracle_from_function(endless, 1), workers=2), "map")
    """)
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "seen").mkdir()
    running = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "seen")], stderr=subprocess.PIPE, text=True
    )
    for _ in range(600):
        if len(list((tmp_path / "seen").iterdir())) == 2:
            break
        time.sleep(0.1)
    workers = [int(path.name) for path in (tmp_path / "seen").iterdir()]
    assert len(workers) == 2
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    for _ in range(100):
        if not any(os.path.exists(f"/proc/{pid}") for pid in workers):
            break
        time.sleep(0.1)
    assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]
