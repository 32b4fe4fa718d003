"""The scripts of docs/cluster.md in one and in two processes of torchrun."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import structinf as si

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def launch(script: Path, processes: int, *arguments: object) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    result = subprocess.run([*command, script, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def train(script: Path, processes: int) -> dict[str, float]:
    found = re.findall(r"^(\w+): ([\d.]+)$", launch(script, processes), re.MULTILINE)
    return {name: float(value) for name, value in found}


def script(tmp_path: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Save the block of the page that follows the name of the script."""
    (code,) = re.findall(rf"`{name}`.*?```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    path = tmp_path / name
    path.write_text(code, "utf-8")
    return path


@pytest.mark.full
def test_the_script_trains_with_adaptive_state(tmp_path):
    found = train(script(tmp_path, "train.py"), 2)
    assert found["processes"] == 2
    assert found["loss"] < 5.0


@pytest.mark.full
def test_two_processes_train_as_one_process_does_without_noise(tmp_path):
    change = "self.select(x.mean(1)).unsqueeze(1)", "torch.ones(1)"
    unused = '        self.select = si.Layer("subset", "adaptive_imle", k=2)\n', ""
    path = script(tmp_path, "train.py", change, unused)
    assert train(path, 2)["checksum"] == pytest.approx(train(path, 1)["checksum"], rel=1e-4)


def results(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in sorted(folder.iterdir())}


def test_a_sweep_in_two_shards_is_the_sweep_of_one_process(tmp_path, monkeypatch):
    path = script(tmp_path, "sweep.py", ("range(4)", "range(2)"), ("range(5):", "range(1):"))

    def run(folder: str, rank: int, processes: int) -> dict[str, str]:
        monkeypatch.setattr(sys, "argv", ["sweep.py", str(tmp_path / folder)])
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        runpy.run_path(str(path), run_name="__main__")
        return results(tmp_path / folder)

    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    assert len(run("two", 1, 2)) == 3
    found = run("two", 0, 2)
    assert len(found) == 6
    assert found == run("one", 0, 1)
    assert all(json.loads(text)["regret"] >= 0 for text in found.values())

    # A new start trains only what is missing.
    (tmp_path / "one" / "sigma=0.5,seed=1.json").unlink()
    calls = []
    regret = si.regret
    monkeypatch.setattr(si, "regret", lambda *arguments: calls.append(1) or regret(*arguments))
    assert run("one", 0, 1) == found
    assert calls == [1]


@pytest.mark.full
def test_a_sweep_with_torchrun(tmp_path):
    path = script(tmp_path, "sweep.py")
    launch(path, 2, tmp_path / "two")
    launch(path, 1, tmp_path / "one")
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert len(results(tmp_path / "one")) == 12
