"""Soft ranks and soft sorts, forward and backward: compared with torchsort, and with the published algorithm row by
row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

import structinf as si

from .case import STRUCTINF, Case, Contender, Target
from .rows import forward_and_backward, random_rows

__all__ = ["CASES"]

# torchsort separates blocks by float32 values that differ by 1e-9, so some of its gradients are wrong.
EXACT = False


def soft_rank(modules: Mapping[str, ModuleType], batch: int, n: int) -> Iterator[Contender]:
    """Compute soft ranks at temperature 1, and the gradient of their product with random numbers."""
    theta, weight = random_rows(batch, n)
    yield forward_and_backward(STRUCTINF, si.soft_rank, theta, weight)
    if package := modules.get("torchsort"):
        yield forward_and_backward("torchsort", package.soft_rank, theta, weight, exact=EXACT)
    yield Contender("scipy in a loop", lambda: _published(theta.numpy(), weight.numpy()))


def soft_sort(modules: Mapping[str, ModuleType], batch: int, n: int) -> Iterator[Contender]:
    """Compute softly sorted numbers at temperature 1, and the gradient of their product with random numbers."""
    theta, weight = random_rows(batch, n)
    yield forward_and_backward(STRUCTINF, si.soft_sort, theta, weight)
    if package := modules.get("torchsort"):
        yield forward_and_backward("torchsort", package.soft_sort, theta, weight, exact=EXACT)


def _published(theta: np.ndarray, weight: np.ndarray) -> tuple[Tensor, Tensor]:
    """Sort and run an isotonic regression. The gradient is the weights minus the mean of the weights in each block."""
    value, gradient = np.empty_like(theta), np.empty_like(theta)
    for row, v, ranks, g in zip(theta, weight, value, gradient, strict=True):
        order = row.argsort()
        s = row[order]
        found = isotonic_regression(s - np.arange(1, len(s) + 1))
        sizes, v = np.diff(found.blocks), v[order]
        ranks[order] = s - found.x
        g[order] = v - np.repeat(np.add.reduceat(v, found.blocks[:-1]) / sizes, sizes)
    return torch.from_numpy(value), torch.from_numpy(gradient)


CASES = tuple(
    Case(
        f"{function.__name__.replace('_', '-')}-{batch}x{n}",
        f"{function.__name__}, forward and backward, B={{batch}} n={{n}}",
        function,
        {"batch": batch, "n": n},
        {"batch": 2, "n": 7},
        peers=("torchsort",),
        target=Target(2.0, ("torchsort",)),
    )
    for function in (soft_rank, soft_sort)
    for batch, n in ((32, 1000), (1024, 1000))
)
