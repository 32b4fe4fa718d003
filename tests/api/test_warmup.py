"""``structinf warmup``, the line on stderr during a long compilation, and the folders of compiled kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from structinf.command_line import warmup
from structinf.command_line.main import main
from structinf.kernels.active_set.sparse_vertices import dot

pytestmark = pytest.mark.slow


def test_every_structure_has_an_example() -> None:
    # A constraint model is built by a function of the user.
    built_in = {point.name for point in entry_points(group="structinf.oracles")}
    assert set(warmup.list_structures()) == built_in - {"constraint_model"}


def test_every_structure_has_work() -> None:
    for name in [warmup.SIMPLEX, *warmup.list_structures()]:
        assert {"map"} <= {item.method for item in warmup.work_items(name)} or name == warmup.SIMPLEX


def test_warmup_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "categorical", "bits"]) == 0
    assert "Compiled the kernels of categorical, bits" in capsys.readouterr().out


def test_lines_without_tqdm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert main(["warmup", "categorical", "bits", "--dtype", "float32", "float64"]) == 0
    assert "2 of 4: categorical, float64\n3 of 4: bits, float32" in capsys.readouterr().out


def test_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "arboresence"]) == 2
    assert "warmup has no example of 'arboresence'; did you mean 'arborescence'?" in capsys.readouterr().err


def test_helper_functions_cannot_be_called_from_python() -> None:
    with pytest.raises(TypeError, match=r"dot has no Python wrapper; declare it with @jit\(called_from_python=True\)"):
        dot()


CALL = "import torch, structinf; structinf.relax(torch.ones(1, 3, 3), 'arborescence', 'sparsemap')"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )


@pytest.mark.slow
@pytest.mark.full
def test_one_line_on_stderr_and_none_with_a_cache(tmp_path: Path) -> None:
    first = run(CALL, NUMBA_CACHE_DIR=str(tmp_path)).stderr
    assert all(line.startswith("structinf compiles ") for line in first.splitlines())
    assert first.count(str(tmp_path)) == 1
    assert run(CALL, NUMBA_CACHE_DIR=str(tmp_path)).stderr == ""


def test_kernels_run_without_a_writable_folder() -> None:
    # No locator finds a folder, as if the package and the home were read-only.
    code = "from structinf.kernels.jit import jit\ndef add(start): return start + 1\nprint(jit(add)(1))"
    command = f"import tempfile, runpy, pathlib\np = pathlib.Path(tempfile.mkdtemp(), 'm.py')\np.write_text({code!r})\n"
    assert run(command + "runpy.run_path(str(p))", NUMBA_CACHE_LOCATOR_CLASSES="ZipCacheLocator").stdout == "2\n"
