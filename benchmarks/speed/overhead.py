"""The cost of the library besides the kernels: the overhead of a layer, imports, first calls."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial

import torch

import structinf as si
from benchmarks.timing import alternate
from structinf.solvers.transport_projection import project_transport

from .case import Limit

__all__ = ["LIMITS"]


# ----------------------------------------------------------------------------- layers


def _chain() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 5, 3, generator=generator), torch.randn(1, 3, 3, generator=generator)


def _square() -> torch.Tensor:
    return torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(0))


def _map() -> tuple[Callable, Callable]:
    theta, layer, oracle = _square(), si.Layer("assignment", "map"), si.get_oracle("assignment")
    return (lambda: layer(theta)), (lambda: oracle.argmax(theta))


def _marginals() -> tuple[Callable, Callable]:
    theta, layer, oracle = _chain(), si.Layer("chain", "marginals"), si.get_oracle("chain")
    leaves = tuple(t.clone().requires_grad_() for t in theta)
    return (lambda: layer(leaves)), (lambda: oracle.marginals(theta))


def _lengths() -> tuple[Callable, Callable]:
    theta, layer = _square(), si.Layer("arborescence", "marginals")
    lengths = torch.tensor([4, 2, 3, 1])
    oracle = si.get_oracle("arborescence").bind(lengths=lengths)
    return (lambda: layer(theta, lengths=lengths)), (lambda: oracle.marginals(theta))


def _sparsemap() -> tuple[Callable, Callable]:
    theta, layer, oracle = _square(), si.Layer("assignment", "sparsemap"), si.get_oracle("assignment")
    leaf = theta.clone().requires_grad_()
    return (lambda: layer(leaf)), (lambda: project_transport(oracle, theta, tolerance=0.05, max_iter=50).mean)


def _by_name() -> tuple[Callable, Callable]:
    theta, oracle = _square(), si.get_oracle("assignment")
    return (lambda: si.relax(theta, "assignment", "map")), (lambda: oracle.argmax(theta))


def _layer_overhead(make: Callable[[], tuple[Callable, Callable]], repeats: int, quick: bool) -> list[float]:
    """Return the microseconds of a layer's call beyond the calls inside, on inputs too small for other costs."""
    layer, kernel = make()
    layer(), kernel()
    samples = alternate({"layer": layer, "kernel": kernel}, 3 * repeats, budget=3.0)
    pairs = zip(samples["layer"], samples["kernel"], strict=False)
    return [1e6 * (a - b) for a, b in pairs]


# ----------------------------------------------------------------------------- fresh processes


def _seconds(code: str, setup: str = "", **environment: str) -> float:
    """Return the processor seconds of ``code`` in a new process, after ``setup``. A busy machine does not change this
    time.
    """
    script = f"import time\n{setup}\nstart = time.process_time()\n{code}\nprint(time.process_time() - start)"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def _import(repeats: int, quick: bool) -> list[float]:
    return [_seconds("import structinf", "import torch") for _ in range(1 if quick else min(repeats, 7))]


# The active-set method has compiled code besides the code of oracles. This oracle needs no compiled code.
ONE_OF = """
class OneOf(si.Oracle):
    event_ndim = 1

    def argmax(self, theta):
        return torch.nn.functional.one_hot(theta.argmax(1), theta.shape[1]).to(theta.dtype)
"""

FIRST_CALLS: Mapping[str, str] = {
    "chain argmax": "si.relax((torch.zeros(2, 3, 4), torch.zeros(4, 4)), 'chain', 'map')",
    "chain marginals": "si.relax((torch.zeros(2, 3, 4), torch.zeros(4, 4)), 'chain', 'marginals')",
    "assignment argmax": "si.relax(torch.zeros(2, 4, 4), 'assignment', 'map')",
    "arborescence argmax": "si.relax(torch.zeros(2, 4, 4), 'arborescence', 'map')",
    "arborescence marginals": "si.relax(torch.zeros(2, 4, 4), 'arborescence', 'marginals')",
    "sparsemap": "si.relax(torch.zeros(2, 4), OneOf(), 'sparsemap')",
}


def _first_call(code: str, cached: bool, repeats: int, quick: bool) -> list[float]:
    setup = f"import torch, structinf as si\n{ONE_OF}"
    samples = []
    for _ in range(1 if quick else min(repeats, 3)):
        with tempfile.TemporaryDirectory() as cache:
            if cached:
                _seconds(code, setup, NUMBA_CACHE_DIR=cache)
            samples.append(_seconds(code, setup, NUMBA_CACHE_DIR=cache))
    return samples


# ----------------------------------------------------------------------------- the table

LIMITS = (
    *(
        Limit(f"layer-{name}", f"a call's time above its kernel's: {what}", partial(_layer_overhead, make), "µs", limit)
        for name, what, make, limit in (
            ("map", "layer of assignment map", _map, 80),
            ("marginals", "layer of chain marginals, recording gradients", _marginals, 80),
            ("lengths", "layer of arborescence marginals with lengths", _lengths, 80),
            ("sparsemap", "layer of assignment sparsemap, recording gradients", _sparsemap, 80),
            ("by-name", "relax by names, assignment map", _by_name, 40),
        )
    ),
    Limit("import", "import structinf after import torch", _import, "s", 0.1),
    *(
        Limit(
            f"first-{name.replace(' ', '-')}{'-cached' if cached else ''}",
            f"first call of {name}, {'compiled code cached' if cached else 'nothing cached'}",
            partial(_first_call, code, cached),
            "s",
            0.5 if cached else 5,
        )
        for name, code in FIRST_CALLS.items()
        for cached in (False, True)
    ),
)
