"""The packages of the comparison. All are optional: a report lists missing packages and leaves them out."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from importlib import metadata
from types import ModuleType

__all__ = ["PEERS", "load", "version"]

PEERS = {
    # name of the distribution: module to import
    "pytorch-crf": "torchcrf",
    "supar": "supar.structs",
    "torch-struct": "torch_struct",
    "ufal.chu-liu-edmonds": "ufal.chu_liu_edmonds",
    "lapx": "lap",
    "rustworkx": "rustworkx",
    "networkx": "networkx",
    "ortools": "ortools.graph.python.min_cost_flow",
    "POT": "ot.batch",
    "entmax": "entmax",
    "ott-jax": "ott.solvers.linear.sinkhorn",
    "tslearn": "tslearn.metrics",
    "pysdtw": "pysdtw",
    "torchsort": "torchsort",
    # These two are in no extra: pgmax needs jax below 0.5, and pgmpy brings 40 packages.
    "pgmpy": "pgmpy.inference",
    "pgmax": "pgmax.infer",
    # SparseMAP's C++ codes install from source only, as described in benchmarks/README.md.
    "lp-sparsemap": "lpsmap",
    "sparsemap": "sparsemap",
    # Python sources to put on PYTHONPATH, listed in benchmarks/README.md.
    "torch-imle": "imle.wrapper",
    "perturbations": "perturbations",
}


def load(name: str) -> ModuleType | None:
    """Return the module of the peer ``name``, or None if the module is not installed or does not load."""
    module = PEERS[name]
    top = module.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        return None
    if name == "supar":
        _bare_packages("supar", "supar.utils")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as error:
        print(f"{name} is installed but does not load: {error}", file=sys.stderr)
        return None


def version(name: str) -> str | None:
    """Return the version of the peer ``name``, or None if the peer is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "from source" if importlib.util.find_spec(PEERS[name].partition(".")[0]) else None


def _bare_packages(*names: str) -> None:
    """Enter packages without running their ``__init__``.

    The ``__init__`` of supar imports a whole parsing toolkit with dependencies; the structures of supar need none of
    them.
    """
    for name in names:
        if name not in sys.modules:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            package = ModuleType(name)
            package.__spec__ = spec
            package.__path__ = list(spec.submodule_search_locations or [])
            sys.modules[name] = package
