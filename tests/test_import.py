"""What importing costs: structinf brings in torch and itself; plugins, compilers and solvers come on first use."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import examples
import structinf

# Run after torch is in: prints the top-level packages that the statement added.
PROBE = """
import json, sys
import torch
before = set(sys.modules)
{statement}
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
"""


def added_by(statement: str) -> set[str]:
    command = [sys.executable, "-c", PROBE.format(statement=statement)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout)) - set(sys.stdlib_module_names)


def test_import_brings_in_nothing_but_itself():
    assert added_by("import structinf") <= {"structinf", "torch"}


def test_names_are_listed_without_loading_a_plugin():
    listing = (
        "import structinf; assert 'chain' in structinf.list_oracles() and 'sparsemap' in structinf.list_relaxations()"
    )
    assert added_by(listing) <= {"structinf", "torch"}


@pytest.mark.parametrize(("name", "options"), {e.name: e.options for e in examples.EXAMPLES}.items())
def test_an_oracle_is_made_without_the_compiler(name, options):
    made = added_by(f"import structinf; structinf.get_oracle({name!r}, **{dict(options)!r})")
    assert not made & {"numba", "llvmlite", "networkx", "ortools", "matplotlib", "sklearn"}


def test_star_import_has_every_public_name():
    namespace: dict[str, object] = {}
    exec("from structinf import *", namespace)
    assert set(structinf.__all__) <= namespace.keys()


def test_no_public_name_hides_a_submodule():
    for module in pkgutil.iter_modules(structinf.__path__):
        attribute = getattr(structinf, module.name, None)
        assert attribute is None or isinstance(attribute, ModuleType), module.name
