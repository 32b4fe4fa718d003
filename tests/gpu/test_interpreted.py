"""The tests in tests/gpu/interpreted, in a process in which triton interprets its kernels."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
SAMPLE = ["smooth_max_functions", "argmax_kernels", "elimination_kernels", "noise_kernels"]
"""The files of the default run; --full runs all of them. A machine without a GPU cannot run the kernels fast."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="needs triton: pip install structinf[gpu-dev]"),
]


def test_interpreted(request: pytest.FixtureRequest) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"]
    if request.config.getoption("--full"):
        command += ["--full", str(FOLDER)]
    else:
        command += [str(FOLDER / f"test_{name}.py") for name in SAMPLE]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "STRUCTINF_GPU": "triton"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=request.config.rootpath)
    assert result.returncode == 0, result.stdout + result.stderr
