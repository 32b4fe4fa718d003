"""``import structinf`` imports the modules of its names on first use."""

import ast
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import structinf
from structinf import simplex
from structinf.attention import row_weights

pytestmark = pytest.mark.slow


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_import_loads_few_modules() -> None:
    loaded = run(
        "import sys, torch, structinf\nprint(*sorted(name for name in sys.modules if name.startswith('structinf')))"
    ).split()
    assert "structinf.errors" in loaded
    # torch.export.load needs the operator of the library.
    assert "structinf.compile.custom_op" in loaded
    assert not {"structinf.api", "structinf.simplex", "structinf.testing", "structinf.attention"} & set(loaded)
    assert len(loaded) < 12


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(structinf.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: "." * node.level + (node.module or "")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {name: module for name, module in seen.items() if module == "."}
    assert {name: module for name, module in seen.items() if module != "."} == structinf._MODULES
    assert {*modules, "errors", *structinf._MODULES} == set(structinf.__all__)


# Each import in a fork of a process without structinf, since a new process needs seconds to import torch.
FRESH_IMPORTS = """
import os, sys, torch

for code in (
    "import structinf as si; print(si.losses.spo_plus.__name__)",
    "import structinf as si; print(si.simplex.sparsemax.__name__)",
    "from structinf import *; print(Layer.__module__, dp.__name__)",
):
    child = os.fork()
    if child == 0:
        exec(code, {})
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_public_names_are_found() -> None:
    assert {*structinf.__all__} <= {*dir(structinf)}
    assert all(hasattr(structinf, name) for name in structinf.__all__)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_names_and_modules_are_found_on_first_use() -> None:
    expected = ["structinf.losses.spo_plus", "sparsemax", "structinf.layers structinf.dp"]
    assert run(FRESH_IMPORTS).splitlines() == expected


def test_unknown_names() -> None:
    assert not hasattr(structinf, "no_such_name")
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        getattr(structinf, "no_such_name")  # noqa: B009
    with pytest.raises(ImportError):
        exec("from structinf import no_such_name")


def test_pickle_in_a_new_process() -> None:
    data = pickle.dumps(structinf.Layer("categorical", "sparsemap"))
    loaded = run(f"import pickle; print(type(pickle.loads({data!r})).__name__)")
    assert loaded == "Layer"


def test_all_maps_to_the_simplex_are_attention_weights() -> None:
    maps = {
        name: function
        for name, function in vars(simplex).items()
        if inspect.isfunction(function) and "target" not in inspect.signature(function).parameters
    }
    assert maps == row_weights._FUNCTIONS
