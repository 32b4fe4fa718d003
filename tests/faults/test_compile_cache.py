"""The compile cache: damaged files, folders that cannot be written, changed sources, and unknown home folders.

Each test writes a small package of kernels, and imports the package several times, as several processes would.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba.core.config
import numpy as np
import pytest

import structinf
import structinf_oracles
from structinf.kernels import compile_cache
from structinf_oracles.kernels.chain import scaled

pytestmark = pytest.mark.slow

KERNEL = """
from structinf.kernels.jit import jit
from HELPER import SHIFT, double

@jit
def run(start, stop, x, out):
    for i in range(start, stop):
        out[i] = double(x[i]) + SHIFT
"""
HELPER = """
from structinf.kernels.jit import jit

SHIFT = 1.0

@jit
def double(x):
    return 2.0 * x
"""


class Package:
    """A folder with the modules of a kernel and of its helper."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "kernel.py").write_text(KERNEL.replace("HELPER", f"{folder.name}.helper"))
        (folder / "helper.py").write_text(HELPER)

    def load(self) -> Any:
        """Import the modules as if for the first time, and return the kernel."""
        for name in [name for name in sys.modules if name.partition(".")[0] == self.folder.name]:
            del sys.modules[name]
        compile_cache._checksum_of_file.cache_clear()
        importlib.invalidate_caches()
        return importlib.import_module(f"{self.folder.name}.kernel").run

    def run(self, expected: tuple[float, ...] = (3.0, 5.0)) -> bool:
        """Run the kernel, and return whether the cache had its machine code."""
        run, out = self.load(), np.zeros(2)
        run(0, 2, np.array([1.0, 2.0]), out)
        assert tuple(out) == expected
        return bool(run.stats.cache_hits)

    @property
    def files(self) -> list[Path]:
        """The files of the cache: indices and machine code."""
        return sorted((self.folder / "__pycache__").glob("*.nb[ic]"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Package:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Package(tmp_path / f"kernels_of_test_{abs(hash(request.node.name))}")


def test_the_second_process_compiles_nothing(package):
    assert [package.run(), package.run()] == [False, True]


def _overwrite(file: Path, start: float, stop: float, content: bytes) -> None:
    data = bytearray(file.read_bytes())
    first, last = int(start * len(data)), int(stop * len(data))
    data[first:last] = (content * (last - first))[: last - first]
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda file: file.write_bytes(b""),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-40]),
    "garbage": lambda file: _overwrite(file, 0, 1, b"\xff\x00garbage."),
    "zeros": lambda file: _overwrite(file, 0, 1, b"\x00"),
    "zeros in the middle": lambda file: _overwrite(file, 0.4, 0.6, b"\x00"),
    "another object": lambda file: file.write_bytes(b"\x80\x04N."),
    "missing": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_repaired(package, damage, capsys):
    package.run()
    assert {file.suffix for file in package.files} == {".nbi", ".nbc"}
    for file in package.files:
        DAMAGES[damage](file)
    assert not package.run()
    if damage == "a folder":
        assert "structinf cannot keep compiled kernels in" in capsys.readouterr().err
        shutil.rmtree(package.folder / "__pycache__")
        package.run()
    assert package.run()


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_one_damaged_kind_of_file_is_repaired(package, suffix):
    package.run()
    for file in package.files:
        if file.suffix == suffix:
            DAMAGES["truncated"](file)
    assert [package.run(), package.run()] == [False, True]


def test_a_changed_helper_in_another_file_is_compiled_again(package):
    package.run()
    (package.folder / "helper.py").write_text(HELPER.replace("2.0 * x", "3.0 * x"))
    assert not package.run((4.0, 7.0))
    (package.folder / "helper.py").write_text(HELPER.replace("SHIFT = 1.0", "SHIFT = 0.5"))
    assert not package.run((2.5, 4.5))
    assert package.run((2.5, 4.5))


def test_a_changed_helper_in_another_cell_of_a_notebook_changes_the_fingerprint():
    def fingerprint(helper: str) -> str:
        cells = {"__name__": "__main__"}
        for number, source in enumerate([helper, "def kernel(x):\n    return helper(x)"]):
            exec(compile(source, f"<cell {number}>", "exec"), cells)
        return compile_cache._fingerprint(cells["kernel"])

    first = fingerprint("def helper(x):\n    return 2.0 * x")
    assert first == fingerprint("def helper(x):\n    return 2.0 * x")
    assert first != fingerprint("def helper(x):\n    return 3.0 * x")
    assert first != fingerprint("def helper(x):\n    return 2.0 + x")


def test_only_sources_of_the_library_count(monkeypatch):
    read = []
    monkeypatch.setattr(compile_cache, "_checksum_of_file", lambda path: str(read.append(path)))
    compile_cache._fingerprint(scaled.marginals.py_func)
    names = {Path(path).name for path in read}
    assert {"scaled.py", "exp_log.py"} <= names
    folders = {Path(structinf.__file__).parent, Path(structinf_oracles.__file__).parent}
    assert all(folders & set(Path(path).parents) for path in read)


# ----------------------------------------------------------------------------- folders


def make_read_only(package: Package) -> None:
    """Let no folder for the cache fit into the package, for the superuser too."""
    (package.folder / "__pycache__").write_text("a file, not a folder")


def test_the_cache_of_a_read_only_package_is_in_the_users_cache_folder(package, tmp_path, monkeypatch):
    make_read_only(package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert [package.run(), package.run()] == [False, True]
    assert list((tmp_path / "cache").rglob("*.nbi"))


@pytest.mark.parametrize("cache_home", [None, "", "relative"])
def test_without_a_home_folder_nothing_is_written(package, tmp_path, monkeypatch, cache_home):
    make_read_only(package)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user who is unknown to the system
    if cache_home is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", cache_home)
    assert [package.run(), package.run()] == [False, False]
    assert list((tmp_path / "work").iterdir()) == []


def test_the_folder_of_the_environment_variable(package, tmp_path, monkeypatch):
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path / "chosen"))
    assert [package.run(), package.run()] == [False, True]
    assert list((tmp_path / "chosen").rglob("*.nbi"))
    assert package.files == []


def test_a_full_disk_costs_one_line(package, monkeypatch, capsys):
    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(numba.core.caching.IndexDataCacheFile, "_save_data", fail)
        assert not package.run()
        assert not package.run()
    # After long compilations, a line tells their time.
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("structinf compiles")]
    assert len(lines) == 1
    assert f"{package.folder}/__pycache__" in lines[0]
    assert "No space left" in lines[0]
    assert [package.run(), package.run()] == [False, True]
