"""Grids of scores, and all alignments through them and their recursion in plain Python."""

from __future__ import annotations

import itertools
import math

import torch

from hypergraph_reference import INF, smoothed
from regularizers_by_alpha import InTorch
from structinf.regularizers import Negentropy
from structinf_oracles.dtw import DTW

ORACLE = DTW()
UNKNOWN = InTorch(inner=Negentropy())
DTYPES = [torch.float32, torch.float64]
SHAPES = [(1, 1), (1, 4), (4, 1), (2, 2), (3, 4), (5, 3)]
STEPS = ((1, 1), (1, 0), (0, 1))
CASES = ["normal", "ties", "forbidden", "lengths", "band"]


def scores(batch, n, m, dtype=torch.float64, scale=1.0, kind="normal"):
    """Scores without ties, with many, or with a third of the cells forbidden as well but for those of one path."""
    theta = torch.randn(batch, n, m, dtype=dtype) if kind == "normal" else torch.randint(-2, 3, (batch, n, m)).to(dtype)
    if kind == "forbidden":
        forbidden = torch.rand(batch, n, m) < 1 / 3
        forbidden[:, :, 0] = forbidden[:, -1] = False
        theta[forbidden] = -INF
    return theta * scale


def instances(case, n, m, dtype=torch.float64):
    """An oracle with its data bound, six instances, and rows, columns and band of each."""
    oracle, extents = ORACLE, [(n, m, INF)] * 6
    if case == "lengths":
        extents = [(1 + b % n, 1 + b // 2 % m, INF) for b in range(6)]
        oracle = ORACLE.bind(lengths=torch.tensor([extent[:2] for extent in extents]))
    elif case == "band":
        extents = [(n, m, abs(n - m) + b % 3) for b in range(6)]
        oracle = ORACLE.bind(band=torch.tensor([extent[2] for extent in extents]))
    theta = scores(6, n, m, dtype, kind=case if case in CASES[:3] else "normal")
    mask = oracle.valid_parts(theta)
    return oracle, theta if mask is None else torch.where(mask, theta, 0.0), extents


# ----------------------------------------------------------------------------- plain Python


def paths(n, m, band=INF):
    """All paths, as tuples of cells."""
    found = []
    stack = [((0, 0),)]
    while stack:
        path = stack.pop()
        if path[-1] == (n - 1, m - 1):
            found.append(path)
            continue
        for di, dj in STEPS:
            i, j = path[-1][0] + di, path[-1][1] + dj
            if i < n and j < m and abs(i - j) <= band:
                stack.append((*path, (i, j)))
    return found


def score(theta, path):
    return math.fsum(float(theta[cell]) for cell in path)


def recursion(theta, n, m, band, alpha):
    """Value and mean of one smoothed grid, cell by cell."""
    v, q = {}, {}
    for i, j in itertools.product(range(n), range(m)):
        if abs(i - j) > band:
            continue
        before = [(i - di, j - dj) for di, dj in STEPS]
        value, q[i, j] = smoothed([v.get(cell, -INF) for cell in before], alpha)
        v[i, j] = float(theta[i, j]) + (value if i + j else 0.0)
    mean = torch.zeros(theta.shape, dtype=torch.float64)
    mean[n - 1, m - 1] = 1
    for i, j in itertools.product(reversed(range(n)), reversed(range(m))):
        if (i, j) in v and i + j:
            for (di, dj), p in zip(STEPS, q[i, j], strict=True):
                if p > 0:
                    mean[i - di, j - dj] += p * mean[i, j]
    return v[n - 1, m - 1], mean
