"""Assignments: argmax compared with scipy and lapx, one instance at a time and in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import structinf as si

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES"]

SCIPY = "scipy in a loop"


def argmax(modules: Mapping[str, ModuleType], batch: int, n: int) -> Iterator[Contender]:
    """Find the best assignment; the column of each row is compared."""
    theta = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(0))
    layer = si.Layer("assignment", "map")
    yield Contender(STRUCTINF, lambda: layer(theta), lambda y: y.argmax(-1))
    yield Contender(SCIPY, lambda: [linear_sum_assignment(s, maximize=True)[1] for s in theta.numpy()], _stack)
    if package := modules.get("lapx"):
        # The costs are computed in each call, as a caller with scores has to do.
        yield Contender(
            "lapx in a loop", lambda: [package.lapjv(-s, return_cost=False)[0] for s in theta.numpy()], _stack
        )
        yield Contender(
            "lapx batch",
            lambda: package.lapjvx_batch(-theta.numpy(), return_cost=False),
            lambda found: _stack(found[1]),
        )


def _stack(columns: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(columns).astype(np.int64))


CASES = tuple(
    Case(
        f"assignment-argmax-{n}",
        "assignment argmax, B={batch} n={n}",
        argmax,
        {"batch": 128, "n": n},
        {"batch": 2, "n": 4},
        peers=("lapx",),
        target=Target(ratio, (SCIPY,)),
    )
    for n, ratio in ((10, 1.0), (50, 2.0), (200, 1.8))
)
