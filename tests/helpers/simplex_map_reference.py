"""The maps to the simplex, and what they are by bisection, written here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from structinf.simplex import (
    budget,
    entmax,
    entmax15,
    fusedmax,
    normmax,
    oscarmax,
    softmax,
    sparsemax,
    topk_sparsemax,
)

DOUBLE = torch.float64
INF = float("inf")

ENTMAX: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "softmax": (softmax, 1.0),
    "sparsemax": (sparsemax, 2.0),
    "entmax15": (entmax15, 1.5),
    **{f"entmax-{alpha}": (lambda x, alpha=alpha: entmax(x, alpha), alpha) for alpha in (1, 1.05, 1.25, 1.5, 1.8, 2)},
}
"""Maps with their α, for which bisection is exact."""

STEEP = {f"entmax-{alpha}": (lambda x, alpha=alpha: entmax(x, alpha), alpha) for alpha in (2.25, 3.0, 4.0, 20.0)}
"""Beyond, bisection for t loses digits."""

MAPS: dict[str, Callable[..., Tensor]] = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "entmax-1": lambda x, dim=-1: entmax(x, 1, dim),
    "entmax-1.25": lambda x, dim=-1: entmax(x, 1.25, dim),
    "entmax-2": lambda x, dim=-1: entmax(x, 2.0, dim),
    "entmax-4": lambda x, dim=-1: entmax(x, 4.0, dim),
    "normmax-1.5": lambda x, dim=-1: normmax(x, 1.5, dim),
    "normmax-2": lambda x, dim=-1: normmax(x, 2.0, dim),
    "normmax-3": lambda x, dim=-1: normmax(x, 3.0, dim),
    "topk": lambda x, dim=-1: topk_sparsemax(x, 3, dim),
    "budget": lambda x, dim=-1: budget(x, _share(x, dim), dim),
    "oscarmax": lambda x, dim=-1: oscarmax(x, 0.05, dim),
    "fusedmax": lambda x, dim=-1: fusedmax(x, 0.2, dim),
}


def _share(x: Tensor, dim: int) -> float:
    return min(1.5, x.shape[dim]) if isinstance(x, Tensor) and x.ndim else 1.0


every_map = pytest.mark.parametrize("name", MAPS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)


def double(*entries) -> Tensor:
    return torch.tensor(entries, dtype=DOUBLE)


def bisected(total: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function changes its sign."""
    for _ in range(1200):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if total(middle) > 0 else (low, middle)
    return low


def entmax_row(x: np.ndarray, alpha: float) -> np.ndarray:
    """For 1 ≤ α ≤ 2, of a row with a number above −inf."""
    d = x - x.max()
    if alpha == 1:
        return np.exp(d) / np.exp(d).sum()
    a = alpha - 1

    def q(s: float) -> np.ndarray:  # s = τ − max x + 1 / a
        with np.errstate(divide="ignore"):
            return np.exp(np.log1p(np.maximum(a * (d - s), -1)) / a)

    return q(bisected(lambda s: q(s).sum() - 1, 0.0, 1 / a))


def normmax_row(x: np.ndarray, alpha: float) -> np.ndarray:
    d = x - x.max()
    u = lambda t: np.maximum(d - t, 0) ** (1 / (alpha - 1))  # noqa: E731
    found = u(bisected(lambda t: (u(t) ** alpha).sum() - 1, -1.0, 0.0))
    return found / found.sum()


def budget_row(x: np.ndarray, k: float) -> np.ndarray:
    finite = x[x > -INF]
    tau = bisected(lambda t: np.clip(finite - t, 0, 1).sum() - k, finite.min() - 2, finite.max() + 1)
    return np.clip(x - tau, 0, 1)


def rows(x: Tensor, function: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    """``function`` of each row in float64."""
    return torch.from_numpy(np.stack([function(row) for row in x.double().numpy()]))


def scores(n: int, scale: float, dtype: torch.dtype = DOUBLE) -> Tensor:
    """Four rows: random ones, one with ties, one with entries of −inf, one with differences of 1e-3."""
    x = torch.randn(4, n, dtype=DOUBLE)
    x[1] = (2 * x[1]).round() / 2
    x[2, torch.arange(n) % 3 == 1] = -INF
    x = x * scale
    x[3] = 1e3 + 1e-3 * torch.arange(n, dtype=DOUBLE)
    return x.to(dtype)
