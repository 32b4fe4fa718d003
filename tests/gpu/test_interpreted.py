"""The tests in tests/gpu/interpreted, in processes in which triton interprets its kernels."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parent / "interpreted").glob("test_*.py"))
PROCESSES = 2
"""As many as `make test` has workers: each process takes some seconds to import torch and to load compiled loops."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="needs triton: pip install structinf[gpu-dev]"),
]


@pytest.mark.parametrize("number", range(PROCESSES))
def test_interpreted(number: int, request: pytest.FixtureRequest) -> None:
    files = map(str, FILES[number::PROCESSES])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", *files]
    if request.config.getoption("--full"):
        command.append("--full")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "STRUCTINF_GPU": "triton"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=request.config.rootpath)
    assert result.returncode == 0, result.stdout + result.stderr
