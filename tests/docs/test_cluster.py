"""The script of docs/cluster.md in one and in two processes of torchrun."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def run(script: Path, processes: int) -> dict[str, float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    result = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return {name: float(value) for name, value in re.findall(r"^(\w+): ([\d.]+)$", result.stdout, re.MULTILINE)}


def script(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    path = tmp_path / "train.py"
    path.write_text(code, "utf-8")
    return path


def test_the_script_trains_with_adaptive_state(tmp_path):
    found = run(script(tmp_path), 2)
    assert found["processes"] == 2
    assert found["loss"] < 5.0


def test_two_processes_train_as_one_process_does_without_noise(tmp_path):
    change = "self.select(x.mean(1)).unsqueeze(1)", "torch.ones(1)"
    unused = '        self.select = si.Layer("subset", "adaptive_imle", k=2)\n', ""
    path = script(tmp_path, change, unused)
    assert run(path, 2)["checksum"] == pytest.approx(run(path, 1)["checksum"], rel=1e-4)
