"""The script that proves the kernels on a GPU runs here at tiny sizes, and reports what fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.device import kernel_checks, kernels

JOBS = [
    ("compile", "chain argmax"),
    ("check", "chain, map, float64"),
    ("check", "grid_path, infeasible, float32"),
    ("check", "chain, samples and k best, float64"),
    ("check", "simplex, entmax15, float32"),
    ("check", "noise, gumbel, float32"),
    ("time", "bandwidth|0|"),
    ("time", "chain argmax|32|triton"),
    ("time", "chain argmax|32|torch"),
    ("peers", "pytorch-crf, chain loss, B=32 T=100 S=50"),
    ("profile", "sparsemax and gradient"),
]


@pytest.mark.full
def test_jobs_of_all_steps(tmp_path: Path) -> None:
    records: dict[str, list[kernels.Record]] = {step: [] for step in kernels.STEPS}
    for step, job in JOBS:
        assert job in kernels.STEPS[step].jobs
        record = kernels.perform(step, job, quick=True)
        assert "error" not in record
        assert "faults" not in record
        records[step].append(record)
    assert any(key.startswith("viterbi(float32") for key in records["compile"][0]["kernels"])
    kernels._add_targets(records["time"])
    kernels._write(tmp_path, {"gpu": "none"}, records)
    assert json.loads((tmp_path / "kernels.json").read_text("utf-8"))["records"]["time"][1]["GB/s"] > 0
    text = (tmp_path / "kernels.txt").read_text("utf-8")
    assert "chain argmax" in text
    # Of the kernels' names, found in the source, one was launched here.
    unused = next(line for line in text.splitlines() if "no job launched" in line)
    assert "sums" in unused
    assert "viterbi" not in unused


def test_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.perform("time", "unknown|1|triton", quick=True)["error"].startswith("KeyError: 'unknown'")
    monkeypatch.setattr(kernel_checks, "LIMITS", dict.fromkeys(kernel_checks.LIMITS, -1.0))
    faults = kernels.perform("check", "simplex, sparsemax, float64", quick=True)["faults"]
    assert "differs by" in faults[0]


def test_a_process_that_fails_does_not_end_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    records = kernels.run_step("profile", ["a", "b"], seconds=60, workers=2)
    assert [record["job"] for record in records] == ["a", "b"]
    assert all("ended with code 1" in record["error"] for record in records)
