"""NUMBA_BOUNDSCHECK=1, as in `make bounds`, reaches every access of compiled loops: a wrong index raises IndexError."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

PROGRAM = """
import numpy as np
from structinf.kernels.jit import jit
from structinf.kernels.simd.memory import address, row, rows, store_row

@jit
def read(start, stop, a, i):
    return a[i]

@jit
def read_address(start, stop, a, i):
    return address(a)[i]

@jit
def write_address(start, stop, a, i):
    address(a)[i] = 1.0

@jit
def copy_row(start, stop, a, i):
    store_row(address(a), 0, row(address(a), i))

for function, shape, last in [
    (read, (3,), 2), (read_address, (3,), 2), (write_address, (3,), 2), (copy_row, (2, 16), 1)
]:
    a = np.zeros(shape)
    function(0, 1, a, last)
    for wrong in (last + 1, 10**9, -4):
        try:
            function(0, 1, a, wrong)
        except IndexError:
            continue
        raise SystemExit(f"{function} accepts the index {wrong}")
"""


def test_a_wrong_index_raises(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")
    variables = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, str(program)], env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
