"""Oracles on the workers of dask and of ray, through the backends of joblib: results, killed workers, no leftovers."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import structinf as si
from structinf import UnsupportedError, WorkerError
from structinf.adapters import cluster
from structinf.adapters import processes as parallel_processes

pytest.importorskip("joblib")


@contextlib.contextmanager
def dask():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(**options) as own, distributed.Client(own):
        yield


@contextlib.contextmanager
def ray():
    pytest.importorskip("ray")
    package: Any = importlib.import_module("ray")
    package.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        package.shutdown()


CLUSTERS = {"dask": dask, "ray": ray}
each_cluster = pytest.mark.parametrize("name", CLUSTERS)


def choice(effect=lambda: None):
    """The best of d choices; a score above 50 has the ``effect``. A nested function is sent to other processes."""

    def best(theta):
        time.sleep(0.01)
        if theta[0] > 50:
            effect()
        y = np.zeros_like(theta)
        y[theta.argmax()] = 1
        return y

    return si.oracle_from_function(best, 1)


def processes():
    """The processes of this machine whose command is one of dask or ray, or of a child of this process."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_text()
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            is_own = int(state[1]) == os.getpid() and state[0] != "Z"
            if (is_own and "resource_tracker" not in command) or "raylet" in command or "gcs_server" in command:
                found.add(int(folder.name))
    return found


def scores():
    theta = torch.rand(12, 4, generator=torch.Generator().manual_seed(0))
    theta[5, 0] = 99.0
    return theta


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of the clusters, about killed workers
@each_cluster
def test_workers_that_die(name, tmp_path):
    before, theta, flag = processes(), scores(), str(tmp_path / "died")
    expected = si.relax(theta, "categorical", "map")

    # nested, since ray's workers cannot import this file
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def die_once():
        if not os.path.exists(flag):
            open(flag, "w").close()
            die()

    with CLUSTERS[name]():
        oracle = si.parallel(choice(), workers=2, backend=name)
        assert torch.equal(si.relax(theta, oracle, "map"), expected)
        # The batch has all structures after one death.
        oracle = si.parallel(choice(die_once), workers=2, backend=name)
        assert torch.equal(si.relax(theta, oracle, "map"), expected)
        assert os.path.exists(flag)
        oracle = si.parallel(choice(die), workers=2, backend=name)
        # dask gives up workers that die before they have reported their start, so that no worker may be left
        with pytest.raises(WorkerError, match=r"a process died .*while it solved the instance") as error:
            si.relax(theta, oracle, "map")
        assert 5 in error.value.batch_indices
    for _ in range(200):
        if processes() <= before:
            break
        time.sleep(0.1)
    assert processes() <= before


def test_a_cluster_without_workers(monkeypatch):
    joblib = pytest.importorskip("joblib")
    monkeypatch.setattr(cluster, "_WAITING_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "backend_context", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(joblib, "effective_n_jobs", lambda _: available)
    for backend, available in (("dask", 0), ("ray", 1)):
        oracle = si.parallel(choice(), workers=2, backend=backend)
        with pytest.raises(WorkerError, match=f'the backend "{backend}" has fewer than {available + 1} workers'):
            si.relax(scores(), oracle, "map")


def test_a_lost_chunk_after_which_no_workers_are_left(monkeypatch):
    def lose(*_):
        raise cluster.LostChunkError([3, 4, 5])

    def wait(_):
        if lost:
            raise cluster.TooFewWorkersError
        lost.append(True)

    lost = []
    monkeypatch.setattr(parallel_processes._Batch, "_results", lose)
    monkeypatch.setattr(parallel_processes, "wait_for_workers", wait)
    oracle = si.parallel(choice(), workers=2, backend="dask")
    message = 'a process died while it solved the instances, and now the backend "dask" has fewer than 1 workers'
    with pytest.raises(WorkerError, match=message) as error:
        si.relax(scores(), oracle, "map")
    assert error.value.batch_indices == (3, 4, 5)


def test_the_backend_of_dask():
    """joblib's backend leaves the error of a lost chunk in a future, and leaves a cluster of one worker unused."""
    reported = []

    class Client:
        def ncores(self):
            return {"worker": 1}

    class DaskDistributedBackend:
        effective_n_jobs: Any = None
        client = Client()

        def submit(self, function, callback):
            self.future = Future()
            return self.future

    class Parallel:
        _backend = DaskDistributedBackend()

    class Function:
        items = ((None, ([3, 4], None), {}),)

    cluster.prepare_dask(Parallel)
    for error in (cluster.TooFewWorkersError(), ValueError("no licence")):
        Parallel._backend.submit(Function(), reported.append)
        Parallel._backend.future.set_exception(error)
    assert isinstance(reported[0], cluster.LostChunkError)
    assert reported[0].rows == [3, 4]
    assert isinstance(reported[1], ValueError)
    Parallel._backend.submit(Function(), reported.append)
    Parallel._backend.future.set_result(1)
    assert len(reported) == 2
    assert Parallel._backend.effective_n_jobs(-1) == 2


@pytest.mark.parametrize(("name", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_package_is_named(monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, "ray.util.joblib", None)
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=rf"backend=\"{name}\" needs {package}; run pip install .*{package}"):
        cluster.backend_context(name)
