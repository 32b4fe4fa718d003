"""Oracles of listed structures, both solvers over them, and the same programs solved independently."""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from structinf.errors import InfeasibleError
from structinf.oracle import Oracle
from structinf.parts import as_tuple
from structinf.solvers.active_set import active_set, active_set_with_backend
from structinf.solvers.active_set_torch import TorchBackend
from structinf.solvers.mean_problem import MeanProblem


class Listed(Oracle):
    """The structures that are the rows of a tensor, or of several for potentials that are a tuple."""

    instance_ndim = MappingProxyType({"allowed": 1})  # (B, structures): which of them an instance has
    name = "listed"

    def __init__(self, *structures, kept=None, mixed=None):
        self.structures = [s.double() for s in structures]
        self.kept, self.mixed = kept, mixed
        self.seen = []

    def resolve_event_ndim(self, theta):
        return tuple(s.ndim - 1 for s in self.structures)

    def argmax(self, theta):
        tensors = as_tuple(theta)
        self.seen.append([tuple(t.shape) for t in tensors])
        structures = [s.to(tensors[0].device) for s in self.structures]
        terms = [torch.where(s == 0, 0.0, s * t[:, None]) for s, t in zip(structures, tensors, strict=True)]
        score: Any = sum(t.flatten(2).sum(2) for t in terms)
        if "allowed" in self.bound:
            score = torch.where(self.bound["allowed"], score, -torch.inf)
        value, best = score.max(1)
        if bool(value.isneginf().any()):
            raise InfeasibleError("no structure", int(value.isneginf().nonzero()[0]))
        y = tuple(s[best].to(tensors[0].dtype) for s in structures)
        return y if isinstance(theta, tuple) else y[0]

    def readout(self, y):
        if self.mixed is not None:
            return y.flatten(1) @ self.mixed.to(y.device)
        return y if self.kept is None else y[self.kept]


def batched(oracle, theta, *, readout=False, tolerance, max_iter, warm_start=None):
    """The solver with the backend that serves other devices."""
    with torch.no_grad():
        backend = TorchBackend(MeanProblem(oracle, theta, readout))
        return active_set_with_backend(backend, tolerance=tolerance, max_iter=max_iter, warm_start=warm_start)


BOTH = pytest.mark.parametrize("solver", [active_set, batched])
TIGHT = {"tolerance": 0.0, "max_iter": 1000}


def reference(structures, theta, readout=None):
    """Penalised coordinates of the solution, and its value, by sequential quadratic programming over all structures.

    Parameters
    ----------
    structures : (n, d) array
    theta : (d,) array
    readout : (d, r) array or None
    """
    possible = ~((structures != 0) & np.isinf(theta)).any(1)
    structures = structures[possible]
    rows = structures if readout is None else structures @ readout
    score = structures @ np.where(np.isinf(theta), 0.0, theta)
    shift, scale = score.max(), 1 + np.abs(score).max()
    n = len(rows)
    result = minimize(
        lambda p: (0.5 * ((p @ rows) ** 2).sum() - (score - shift) @ p) / scale,
        np.full(n, 1 / n),
        jac=lambda p: (rows @ (p @ rows) - (score - shift)) / scale,
        bounds=[(0, None)] * n,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return result.x @ rows, shift - scale * result.fun


def certified_gap(structures, theta, mean, readout=None):
    """max_y ⟨θ − ∇, y − μ⟩ over the enumerated structures."""
    rows, seen = (structures, mean) if readout is None else (structures @ readout, mean @ readout)
    score = np.where(structures == 0, 0.0, structures * theta).sum(1)
    linear = np.where(mean == 0, 0.0, mean * theta).sum()
    return (score - rows @ seen).max() - (linear - seen @ seen)


def assignments(n):
    return torch.stack([torch.eye(n)[list(p)] for p in itertools.permutations(range(n))])


def bits(d):
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=d)))


def subsets(d, k):
    rows = torch.zeros(0, d)
    for chosen in itertools.combinations(range(d), k):
        rows = torch.cat([rows, torch.zeros(1, d).index_fill(1, torch.tensor(chosen), 1.0)])
    return rows


def rankings(n):
    return torch.tensor(list(itertools.permutations(range(1, n + 1))), dtype=torch.float64)


def chains(steps, states):
    """Indicators of tags and numbers of transitions."""
    tags = torch.tensor(list(itertools.product(range(states), repeat=steps)))
    moves = torch.zeros(len(tags), states, states)
    for t in range(steps - 1):
        moves[torch.arange(len(tags)), tags[:, t], tags[:, t + 1]] += 1
    return torch.nn.functional.one_hot(tags, states), moves


def draw(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


SETS = {
    "assignments": assignments(4),
    "bits": bits(4),
    "subsets": subsets(6, 3),
    "rankings": rankings(4),
    "repeated": subsets(4, 2).repeat(3, 1),
    "real": draw(7, 20, 5),
    "collinear": torch.linspace(-1, 2, 7)[:, None] * torch.tensor([1.0, 2.0, -1.0]),
    "single": torch.tensor([[1.0, 0.0, 2.0]]),
    "origin": torch.zeros(1, 3),
}
