"""Sparse maps to the simplex, forward and backward: against the entmax package, and torch's softmax for scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import torch
from torch import Tensor

from structinf import simplex

from .case import OURS, Case, Contender, Target

__all__ = ["CASES"]


def sorted_maps(modules: Mapping[str, ModuleType], batch: int, n: int, name: str) -> Iterator[Contender]:
    """Sparsemax or entmax 1.5, for which the package sorts rows, or, with k, the highest scores alone."""
    x, weight = _data(batch, n)
    yield _contender(OURS, getattr(simplex, name), x, weight)
    if package := modules.get("entmax"):
        peer = getattr(package, name)
        yield _contender("entmax", peer, x, weight)
        yield _contender("entmax, k=100", lambda leaf: peer(leaf, k=100), x, weight)
    yield _yardstick(x, weight)


def bisected_maps(
    modules: Mapping[str, ModuleType], batch: int, n: int, name: str, parameter: float
) -> Iterator[Contender]:
    """Maps that the package finds by 50 bisections."""
    x, weight = _data(batch, n)
    ours = getattr(simplex, name)
    yield _contender(OURS, lambda leaf: ours(leaf, parameter), x, weight)
    if package := modules.get("entmax"):
        peer = getattr(package, f"{name}_bisect")
        yield _contender("entmax, bisection", lambda leaf: peer(leaf, parameter), x, weight)
    yield _yardstick(x, weight)


def _data(batch: int, n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, batch, n, generator=generator)
    return x, weight


def _contender(name: str, function: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Contender:
    leaf = x.clone().requires_grad_()

    def run() -> tuple[Tensor, Tensor]:
        value = function(leaf)
        (gradient,) = torch.autograd.grad(value, leaf, weight)
        return value.detach(), gradient

    return Contender(name, run)


def _yardstick(x: Tensor, weight: Tensor) -> Contender:
    run = _contender("torch.softmax", lambda leaf: torch.softmax(leaf, -1), x, weight).run
    return Contender("torch.softmax", run, read=None)


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
