"""Scores of pairs, and all matchings by itertools."""

from __future__ import annotations

import itertools
import math

import torch

from structinf.errors import InfeasibleError
from structinf_oracles.assignment import Assignment

ORACLE = Assignment()
PARTIAL = Assignment(allow_unmatched=True)
BY_SCORE = Assignment(allow_unmatched="by_score")
DTYPES = [torch.float32, torch.float64]
INF = math.inf
SHAPES = [(1, 1), (1, 4), (4, 1), (2, 2), (2, 4), (4, 2), (3, 5), (5, 3), (4, 4)]


def scores(batch, n, m, dtype=torch.float64, scale=1.0, kind="normal"):
    """Scores without ties, with many, or with a third of the parts forbidden as well."""
    theta = torch.randn(batch, n, m, dtype=dtype) if kind == "normal" else torch.randint(-2, 3, (batch, n, m)).to(dtype)
    if kind == "forbidden":
        theta[torch.rand(batch, n, m) < 1 / 3] = -INF
    return theta * scale


def matchings(n, m):
    """The column of each row, −1 for none, in every matching: whole, partial or empty."""
    for columns in itertools.product(range(-1, m), repeat=n):
        used = [c for c in columns if c >= 0]
        if len(set(used)) == len(used):
            yield columns


def whole(n, m):
    """Those with a partner for all of the smaller side."""
    return [c for c in matchings(n, m) if n - c.count(-1) == min(n, m)]


def score(theta, columns):
    """The sum of the pairs' scores, in Python floats."""
    return math.fsum(float(theta[i, c]) for i, c in enumerate(columns) if c >= 0)


def is_allowed(theta, columns):
    return all(theta[i, c] > -INF for i, c in enumerate(columns) if c >= 0)


def ranking(theta, structures):
    """Finite scores of the structures, best first."""
    return sorted((score(theta, c) for c in structures if is_allowed(theta, c)), reverse=True)


def most_pairs(theta):
    """The matchings of allowed pairs with the most of them."""
    allowed = [c for c in matchings(*theta.shape) if is_allowed(theta, c)]
    fewest_without = min(c.count(-1) for c in allowed)
    return [c for c in allowed if c.count(-1) == fewest_without]


def is_matching(y):
    return bool(((y == 0) | (y == 1)).all() and (y.sum(1) <= 1).all() and (y.sum(2) <= 1).all())


def is_feasible(theta):
    """As the oracle says."""
    try:
        ORACLE.argmax(theta[None])
    except InfeasibleError:
        return False
    return True
