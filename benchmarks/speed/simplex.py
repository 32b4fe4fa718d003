"""Sparse maps to the simplex, forward and backward, compared with the entmax package; torch's softmax gives the
scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

import torch
from torch import Tensor

from structinf import simplex

from .case import STRUCTINF, Case, Contender, Target
from .rows import forward_and_backward, random_rows

__all__ = ["CASES"]


def sorted_maps(modules: Mapping[str, ModuleType], batch: int, n: int, name: str) -> Iterator[Contender]:
    """Compute sparsemax or entmax 1.5. The package sorts rows, or with k only the highest scores."""
    x, weight = random_rows(batch, n)
    yield forward_and_backward(STRUCTINF, getattr(simplex, name), x, weight)
    if package := modules.get("entmax"):
        peer = getattr(package, name)
        yield forward_and_backward("entmax", peer, x, weight)
        yield forward_and_backward("entmax, k=100", lambda leaf: peer(leaf, k=100), x, weight)
    yield _yardstick(x, weight)


def bisected_maps(
    modules: Mapping[str, ModuleType], batch: int, n: int, name: str, parameter: float
) -> Iterator[Contender]:
    """Compute maps; the package uses 50 bisections."""
    x, weight = random_rows(batch, n)
    ours = getattr(simplex, name)
    yield forward_and_backward(STRUCTINF, lambda leaf: ours(leaf, parameter), x, weight)
    if package := modules.get("entmax"):
        peer = getattr(package, f"{name}_bisect")
        yield forward_and_backward("entmax, bisection", lambda leaf: peer(leaf, parameter), x, weight)
    yield _yardstick(x, weight)


def _yardstick(x: Tensor, weight: Tensor) -> Contender:
    return forward_and_backward("torch.softmax", lambda leaf: torch.softmax(leaf, -1), x, weight, read=None)


QUICK = {"batch": 2, "n": 17}

CASES = (
    *(
        Case(
            f"{name}-{batch}x{n}",
            f"{name}, forward and backward, B={{batch}} n={{n}}",
            sorted_maps,
            {"batch": batch, "n": n, "name": name},
            {**QUICK, "name": name},
            peers=("entmax",),
            target=Target(3.0, ("entmax",)),
            tolerance=1e-6,
        )
        for name in ("sparsemax", "entmax15")
        for batch, n in ((32, 1000), (1024, 1000), (128, 32000))
    ),
    *(
        Case(
            f"{name}-{parameter:g}",
            f"{name}({parameter:g}), forward and backward, B={{batch}} n={{n}}",
            bisected_maps,
            {"batch": 1024, "n": 1000, "name": name, "parameter": parameter},
            {**QUICK, "name": name, "parameter": parameter},
            peers=("entmax",),
            target=Target(3.0),
            tolerance=1e-5,
        )
        for name, parameter in (("entmax", 1.25), ("normmax", 2.0), ("budget", 10.0))
    ),
)
