"""Instances of trees with everything about them by enumeration, in plain Python from the definitions alone."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

NEVER = -math.inf
SCALES = [1e-3, 1.0, 100.0, 1000.0]
DTYPES = [torch.float32, torch.float64]
both_roots = pytest.mark.parametrize("single_root", [False, True], ids=["roots", "root"])


def trees(n, single_root):
    """Heads of words 1, ..., n, in every way without a cycle."""
    for heads in itertools.product(range(n + 1), repeat=n):
        if single_root and heads.count(0) != 1:
            continue
        for word in range(1, n + 1):
            steps, node = 0, word
            while node and steps <= n:
                node, steps = heads[node - 1], steps + 1
            if node:
                break
        else:
            yield heads


def arcs(heads, size):
    y = torch.zeros(size + 1, size + 1, dtype=torch.float64)
    for word, head in enumerate(heads, 1):
        y[head, word] = 1
    return y


class Sums:
    """Everything about one instance, by enumeration in float64."""

    def __init__(self, theta, length, single_root):
        size = theta.shape[-1] - 1
        theta = theta.double()
        listed = list(trees(length, single_root))
        self.heads = listed
        self.trees = torch.stack([arcs(heads, size) for heads in listed])
        self.scores = torch.tensor(
            [math.fsum(float(theta[head, word]) for word, head in enumerate(heads, 1)) for heads in listed],
            dtype=torch.float64,
        )
        self.best = self.scores.max()
        if self.best > NEVER:
            self.log_partition = torch.logsumexp(self.scores, 0)
            self.p = (self.scores - self.log_partition).exp()
            self.marginals = torch.einsum("k,khm->hm", self.p, self.trees)

    def covariance_product(self, v):
        along = torch.where(self.trees == 0, 0.0, self.trees * v).sum((1, 2))
        return torch.einsum("k,khm->hm", self.p * (along - self.p @ along), self.trees)


def scores(batch, n, scale=1.0, dtype=torch.float64, forbid=0.0):
    theta = torch.randn(batch, n + 1, n + 1, dtype=dtype) * scale
    return theta.masked_fill(torch.rand(theta.shape) < forbid, NEVER)


def feasible_cases(count, scale, dtype, single_root, forbid):
    """Instances of 1 to 5 words, padded to 5, that have a tree: θ, lengths and sums."""
    found = []
    while len(found) < count:
        theta, length = scores(1, 5, scale, dtype, forbid)[0], int(torch.randint(1, 6, ()))
        sums = Sums(theta, length, single_root)
        if sums.best > NEVER:
            found.append((theta, length, sums))
    theta, lengths, sums = zip(*found, strict=True)
    return torch.stack(theta), torch.tensor(lengths), sums
