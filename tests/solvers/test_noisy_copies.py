"""Noisy copies of scores made in one pass equal the sums of the scores and of separate draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.noise import Exponential, Gumbel, Logistic, Noise, Normal, SumOfGamma
from structinf.parts import as_tuple, map_parts
from structinf.solvers.perturbation import draw_noise, merge_samples, perturb

CASES: list[tuple[str, dict[str, Any], list[tuple[int, ...]], dict[str, Any]]] = [
    ("subset", {"k": 2}, [(3, 1001)], {}),
    ("subset", {"k": 2}, [(1, 7)], {}),
    ("subset", {"k": 2}, [(3, 90)], {"lengths": [90, 2, 41]}),
    ("arborescence", {}, [(3, 12, 12)], {}),
    ("arborescence", {}, [(3, 12, 12)], {"lengths": [4, 11, 1]}),
    ("chain", {}, [(3, 40, 5), (1, 5, 5)], {}),
    ("chain", {}, [(3, 40, 5), (1, 39, 5, 5)], {"lengths": [40, 3, 17]}),
]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize("noise", [Exponential(), Gumbel(), Logistic(), Normal(), SumOfGamma(k=2)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}-{[*case[3]]}")
def test_copies_are_scores_plus_draws(case: Any, dtype: torch.dtype, noise: Noise) -> None:
    name, options, shapes, data = case
    oracle = si.get_oracle(name, **options).bind(**data)
    tensors = [torch.randn(shape, generator=_generator(), dtype=dtype) for shape in shapes]
    tensors[0][0].view(-1)[1] = -torch.inf
    theta: Any = tuple(tensors) if len(tensors) > 1 else tensors[0]
    draws = draw_noise(oracle, theta, noise, 4, _generator())
    expected = merge_samples(map_parts(lambda t, u: torch.add(t, u, alpha=0.7), theta, draws))
    for keeps_noise in (True, False):
        found = perturb(oracle, theta, noise, 0.7, 4, _generator(), keeps_noise=keeps_noise)
        pairs = [(found.theta, expected)] if found.noise is None else [(found.theta, expected), (found.noise, draws)]
        assert len(pairs) == 2 or not keeps_noise
        for one, other in pairs:
            for a, b in zip(as_tuple(one), as_tuple(other), strict=True):
                assert a.shape == b.shape
                torch.testing.assert_close(a, b)


def test_copies_of_recorded_scores_are_differentiable() -> None:
    theta = torch.zeros(2, 3, requires_grad=True)
    copies = perturb(si.get_oracle("bits"), theta, Normal(), 1.0, 4, _generator()).theta
    assert isinstance(copies, Tensor)
    copies.sum().backward()
    assert theta.grad is not None
    assert torch.equal(theta.grad, torch.full((2, 3), 4.0))
