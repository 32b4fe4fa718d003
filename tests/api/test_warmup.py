"""``structinf warmup``, the line on stderr during a long compilation, and the folders of compiled kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from structinf.calls.resolution import works_with
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
    assert main(["warmup", "categorical", "bits", "--relaxation", "map", "sparsemap"]) == 0
    streams = capsys.readouterr()
    assert "Compiled the kernels of categorical, bits for map, sparsemap" in streams.out
    assert "| 4/4 " in streams.err


def test_lines_without_tqdm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert main(["warmup", "bits", "knapsack", "--relaxation", "map", "--dtype", "float32", "float64"]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "1 of 6: bits map, float32",
        "2 of 6: bits map, float64",
        "3 of 6: knapsack map, float32",
        "4 of 6: knapsack map of a large instance, float32",
        "5 of 6: knapsack map, float64",
        "6 of 6: knapsack map of a large instance, float64",
    ]


def test_work_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []
    monkeypatch.setattr(warmup.WorkItem, "run", lambda item: done.append((item.structure, item.method)))
    assert main(["warmup", "bits", "simplex"]) == 0
    of_bits = [item.method for item in warmup.work_items("bits")]
    assert done == [("bits", method) for method in [*of_bits, *warmup.QUERIES]] + [
        ("simplex", method) for method in warmup.SIMPLEX_MAPS
    ]
    done.clear()
    assert main(["warmup", "--relaxation", "marginals"]) == 0
    names = {name for name in warmup.list_structures() if "marginals" in works_with(warmup.example(name))}
    assert set(done) == {(name, "marginals") for name in names}
    done.clear()
    assert main(["warmup"]) == 0
    assert {structure for structure, _ in done} == {warmup.SIMPLEX, *warmup.list_structures()}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["arboresence"], "warmup has no example of 'arboresence'; did you mean 'arborescence'?"),
        (["chain", "--relaxation", "marginal"], "no relaxation is called 'marginal'; did you mean 'marginals'?"),
        (["assignment", "--relaxation", "marginals"], "marginals does not work for assignment"),
        (["simplex", "--relaxation", "map"], "the maps of simplex are no relaxations"),
    ],
)
def test_wrong_names(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert main(["warmup", *argv]) == 2
    assert message in capsys.readouterr().err


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
