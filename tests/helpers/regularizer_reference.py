"""Regularizers of the simplex by bisection, written here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from structinf.regularizers import Negentropy, Regularizer, SquaredL2, Tsallis, Unregularized

INF = math.inf
SMOOTH = [Negentropy(), Tsallis(alpha=1.1), Tsallis(alpha=1.25), Tsallis(), Tsallis(alpha=1.8), SquaredL2()]
every_smooth = pytest.mark.parametrize("regularizer", SMOOTH, ids=lambda r: f"{r.alpha}")
every_regularizer = pytest.mark.parametrize("regularizer", [*SMOOTH, Unregularized()], ids=lambda r: f"{r.alpha}")
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def double(*entries) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def omega(q: np.ndarray, alpha: float) -> np.ndarray:
    """Ω(q), as Σ q (q^(α − 1) − 1) / (α (α − 1)), which loses no digits when α is near 1."""
    log_q = np.log(np.where(q > 0, q, 1))
    if alpha == 1:
        return (q * log_q).sum(-1)
    if alpha == INF:
        return np.zeros(q.shape[:-1])
    return (q * np.expm1((alpha - 1) * log_q)).sum(-1) / (alpha * (alpha - 1))


def bisected(x: Tensor, alpha: float) -> np.ndarray:
    """q for finite scores: s = τ − max x + 1 / (α − 1) by bisection in float64."""
    d = x.double().numpy()
    d = d - d.max(-1, keepdims=True)
    if alpha == 1:
        return np.exp(d) / np.exp(d).sum(-1, keepdims=True)
    a, n = alpha - 1, d.shape[-1]

    def probabilities(s: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.exp(np.log1p(np.maximum(a * (d - s), -1)) / a)

    low, high = np.zeros_like(d[..., :1]), np.full_like(d[..., :1], (1 - n**-a) / a)
    for _ in range(100):
        middle = (low + high) / 2
        above = probabilities(middle).sum(-1, keepdims=True) > 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return probabilities(low)


def bisected_value(x: Tensor, alpha: float) -> np.ndarray:
    """The objective at that q, brought onto the simplex: there it is stationary."""
    q, d = bisected(x, alpha), x.double().numpy()
    q, top = q / q.sum(-1, keepdims=True), d.max(-1)
    return top + (q * (d - top[..., None])).sum(-1) - omega(q, alpha)


def distance_to_a_kink(x: Tensor, regularizer: Regularizer) -> float:
    """How far the scores have to move before an entry gains its first probability or loses its last."""
    if regularizer.alpha == 1:
        return INF
    if regularizer.alpha == INF:
        return -float(x.topk(2).values.diff())
    a = regularizer.alpha - 1
    threshold = x.max() - float(bisected(x, regularizer.alpha).max()) ** a / a
    return float((x - threshold).abs().min())


def off_the_kinks(n: int, regularizer: Regularizer) -> Tensor:
    """Scores around which every derivative is continuous, with zero probabilities among them where Ω allows it."""
    for _ in range(1000):
        x = torch.randn(n, dtype=torch.float64)
        if distance_to_a_kink(x, regularizer) > 0.1:
            return x
    raise AssertionError("no such scores found")
