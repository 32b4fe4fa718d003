"""What importing costs: structinf brings in torch and itself; plugins, compilers and solvers come on first use."""

from __future__ import annotations

import json
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import oracle_examples
import structinf

pytestmark = pytest.mark.slow

# Run after torch is in: prints the top-level packages that the statement added.
PROBE = """
import json, sys
import pytest
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


def test_import_and_lists_of_names_bring_in_nothing_but_structinf():
    listing = (
        "import structinf; assert 'chain' in structinf.list_oracles() and 'sparsemap' in structinf.list_relaxations()"
    )
    assert added_by(listing) <= {"structinf", "torch"}


# As PROBE, for what stdin lists: the packages that each oracle added when it was made.
MAKING = """
import json, pickle, sys
import torch, structinf
added, before = {}, set(sys.modules)
for name, options in pickle.load(sys.stdin.buffer).items():
    structinf.get_oracle(name, **options)
    added[name] = sorted({module.partition(".")[0] for module in set(sys.modules) - before})
    before = set(sys.modules)
print(json.dumps(added))
"""


def test_oracles_are_made_without_the_compiler():
    options = {example.name: dict(example.options) for example in oracle_examples.EXAMPLES}
    options["constraint_model"] = options.pop("constraint_model")  # the last one: what it loads would hide in others
    command, here = [sys.executable, "-c", MAKING], Path(__file__).parent.parent / "helpers"
    done = subprocess.run(command, input=pickle.dumps(options), capture_output=True, check=False, timeout=120, cwd=here)
    assert done.returncode == 0, done.stderr.decode()
    late = {"numba", "llvmlite", "networkx", "ortools", "matplotlib", "sklearn"}
    for name, added in json.loads(done.stdout).items():
        # A constraint model's is made of ortools, and by the user.
        assert set(added) & late == ({"ortools"} if name == "constraint_model" else set()), name


def test_star_import_has_every_public_name():
    namespace: dict[str, object] = {}
    exec("from structinf import *", namespace)
    assert set(structinf.__all__) <= namespace.keys()


def test_no_public_name_hides_a_submodule():
    for module in pkgutil.iter_modules(structinf.__path__):
        attribute = getattr(structinf, module.name, None)
        assert attribute is None or isinstance(attribute, ModuleType), module.name


# numba multiplies matrices by BLAS, which it takes from scipy.linalg.
PRODUCTS = """
import sys
import numpy, structinf, torch
structinf.relax(torch.zeros(1, 4), "subset", "map", k=2)
assert "numba" in sys.modules and "scipy.linalg" not in sys.modules
import numba
product = numba.njit(lambda a, b: a @ b)
a = numpy.arange(6.0).reshape(2, 3)
assert (product(a, a.T.copy()) == a @ a.T).all()
"""


def test_kernels_do_not_import_scipy_linalg_and_functions_of_users_still_can():
    done = subprocess.run([sys.executable, "-c", PRODUCTS], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
