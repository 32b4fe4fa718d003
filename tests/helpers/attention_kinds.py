"""Kinds of attention, by what is passed to make them, and segmentations by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from structinf.attention import StructuredAttention

__all__ = ["KINDS", "SMOOTH", "draw", "every_kind", "make", "segmentation"]

KINDS: Mapping[str, Mapping[str, Any]] = {
    "softmax": {"weights": "softmax"},
    "sparsemax": {"weights": "sparsemax"},
    "entmax": {"weights": "entmax", "alpha": 1.3},
    "fusedmax, sparse": {"weights": "fusedmax", "weight": 0.3},
    "torch's softmax": {"weights": torch.softmax},
    "subset": {"oracle": "subset", "k": 1, "relaxation": "sparsemap"},
    "bits": {"oracle": "bits", "relaxation": "marginals", "normalized": True},
    "segmentation": {"oracle": "chain"},
    "segmentation, sparse": {
        "oracle": "chain",
        "relaxation": "smoothed",
        "regularizer": "squared_l2",
        "temperature": 3.0,
    },
    "segmentation, SparseMAP": {"oracle": "chain", "relaxation": "sparsemap", "tolerance": 0, "normalized": False},
    "matching": {"oracle": "assignment", "relaxation": "sinkhorn"},
    "matching, SparseMAP": {"oracle": "assignment"},
    "alignment": {"oracle": "dtw", "relaxation": "smoothed", "normalized": True},
    "monotonic": {"oracle": "monotonic_alignment", "relaxation": "marginals"},
    "heads": {"oracle": "arborescence"},
    "heads, projective": {"oracle": "projective_tree", "relaxation": "smoothed", "regularizer": "squared_l2"},
}
"""All of them take as many queries as keys."""

SMOOTH = [name for name in KINDS if "sparse" not in name and "SparseMAP" not in name and name != "subset"]
"""Those that are differentiable everywhere."""

Max = Callable[[float, float], tuple[float, float]]
"""The smoothed maximum of two numbers, and how probable the first is."""


def log_sum_exp(a: float, b: float) -> tuple[float, float]:
    top = max(a, b)
    return top + math.log(math.exp(a - top) + math.exp(b - top)), 1 / (1 + math.exp(b - a))


def squared_l2(a: float, b: float) -> tuple[float, float]:
    q = min(max((1 + a - b) / 2, 0), 1)
    return q * a + (1 - q) * b - (q * q + (1 - q) ** 2 - 1) / 2, q


def segmentation(scores: Tensor, transition: Tensor, smax: str, normalized: bool) -> Tensor:
    """Weights (m,) of one query: the probabilities of all 2^m segmentations by a walk back from the last key."""
    s, a = scores.tolist(), transition.tolist()
    choose: Max = {"negentropy": log_sum_exp, "squared_l2": squared_l2}[smax]
    values, first = [[0.0, s[0]]], []
    for score in s[1:]:
        best = [choose(values[-1][0] + a[0][j], values[-1][1] + a[1][j]) for j in (0, 1)]
        values.append([best[0][0], best[1][0] + score])
        first.append([q for _, q in best])
    last = choose(*values[-1])[1]
    weights = torch.zeros(len(s), dtype=torch.float64)
    for y in itertools.product((0, 1), repeat=len(s)):
        p = last if y[-1] == 0 else 1 - last
        for t in range(len(s) - 1):
            p *= first[t][y[t + 1]] if y[t] == 0 else 1 - first[t][y[t + 1]]
        weights += p * torch.tensor(y, dtype=torch.float64)
    return weights / weights.sum() if normalized and weights.sum() > 0 else weights


every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, **more) -> StructuredAttention:
    """In float64, with parameters that are not 0."""
    attention = StructuredAttention(**KINDS[kind], **more).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attention


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
