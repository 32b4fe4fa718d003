"""The tests in tests/gpu/interpreted, in a process in which triton interprets its kernels."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="needs triton: pip install structinf[gpu-dev]"),
]


def test_interpreted(request: pytest.FixtureRequest) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", str(FOLDER)]
    if request.config.getoption("--full"):
        command.append("--full")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "STRUCTINF_GPU": "triton"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=request.config.rootpath)
    assert result.returncode == 0, result.stdout + result.stderr
