"""Rankings, against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from torch.autograd import gradcheck, gradgradcheck

import enumerators
import enumerators_rankings as plain
import structinf as si
from structinf.errors import InfeasibleError, InvalidInputError, UnsupportedError
from structinf_oracles.ranking import Ranking

INF = math.inf
DOUBLE = torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3, 1e37])
@pytest.mark.parametrize("n", [1, 2, 20, 33, 200])
def test_ranks_are_those_of_scipy(n, scale, dtype):
    theta = torch.randn(4, n, dtype=dtype)
    theta[1] = theta[1].round()
    theta[2] = 0
    theta[2, ::2] = -0.0
    expected = rankdata(theta, method="ordinal", axis=1)
    found = Ranking().argmax(theta * scale)
    assert found.dtype == dtype
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("length", [None, 4, 2, 1, 0])
def test_against_all_rankings(length):
    structures = list(plain.rankings(4, length))
    oracle = Ranking() if length is None else Ranking().bind(lengths=torch.full((5,), length))
    listed = oracle[[0]].enumerate((4,))
    assert sorted(listed.tolist()) == sorted(y.tolist() for (y,) in structures)
    theta = 3 * torch.randn(5, 4, dtype=DOUBLE)
    if length is not None:
        theta[:, length:] = 0
    best, mean = oracle.argmax(theta), oracle.project(theta)
    for row, y, mu in zip(theta.numpy(), best.numpy(), mu_rows(mean), strict=True):
        assert row @ y == pytest.approx(max(row @ z for (z,) in structures))
        (expected,) = enumerators.projection((row,), structures)
        np.testing.assert_allclose(mu, expected, atol=1e-6)


def mu_rows(mean):
    return mean.detach().numpy()


@pytest.mark.parametrize("n", [1, 3, 40])
def test_projections_are_soft_ranks_with_their_derivatives(n):
    theta = torch.randn(3, n, dtype=DOUBLE, requires_grad=True)
    assert torch.equal(Ranking().project(theta), si.soft_rank(theta))
    assert gradcheck(Ranking().project, theta)
    assert gradgradcheck(Ranking().project, theta)
    lengths = torch.tensor([n, max(n - 1, 0), 1])
    oracle = Ranking().bind(lengths=lengths)
    padded = theta.detach().where(torch.arange(n) < lengths[:, None], 0.0).requires_grad_()
    v = torch.randn(3, n, dtype=DOUBLE)
    (gradient,) = torch.autograd.grad((oracle.project(padded) * v).sum(), padded)
    for i, length in enumerate(lengths.tolist()):
        alone = padded[i, :length].detach().requires_grad_()
        (expected,) = torch.autograd.grad((si.soft_rank(alone) * v[i, :length]).sum(), alone)
        torch.testing.assert_close(gradient[i, :length], expected)
        assert not gradient[i, length:].any()


def test_sparsemap_and_the_perceptron():
    theta = torch.randn(2, 3, 5, dtype=DOUBLE, requires_grad=True)
    torch.testing.assert_close(si.relax(theta, "ranking", "sparsemap", temperature=0.5), si.soft_rank(theta, 0.5))
    solution = si.infer(theta, "ranking", "sparsemap", tolerance=0)
    torch.testing.assert_close(solution.mean, si.soft_rank(theta), atol=1e-6, rtol=0)
    gold = theta.detach().argsort(-1).argsort(-1) + 1
    assert si.FenchelYoungLoss("ranking", "map")(theta, gold).item() == pytest.approx(0)


def test_labels_are_ranks():
    theta = torch.zeros(2, 3)
    oracle = Ranking().bind(lengths=torch.tensor([3, 2]))
    y = oracle.encode(torch.tensor([[3, 1, 2], [2, 1, -1]]), theta)
    assert y.tolist() == [[3, 1, 2], [2, 1, 0]]
    assert y.dtype == theta.dtype
    assert oracle.decode(y).tolist() == [[3, 1, 2], [2, 1, 0]]
    for labels in ([[3, 1, 2], [2, 2, 0]], [[3, 1, 2], [0, 1, 0]], [[3, 1, 2], [2, 3, 0]], [[3, 1, 2], [-1, 1, 2]]):
        with pytest.raises(InvalidInputError, match=r"each rank from 1 to the length must occur once at batch index 1"):
            oracle.encode(torch.tensor(labels), theta)
    with pytest.raises(InvalidInputError, match=r"the rank of each of 3 elements, shape \(..., 3\); got \(2, 2\)"):
        oracle.encode(torch.ones(2, 2, dtype=torch.long), theta)


def test_costs_are_half_the_squared_distance_of_ranks():
    gold = torch.tensor([[3.0, 1.0, 2.0, 4.0]])
    cost = Ranking().hamming_cost(gold)
    for (other,) in plain.rankings(4):
        distance = (cost * (torch.from_numpy(other) - gold)).sum()
        assert distance == 0.5 * (torch.from_numpy(other) - gold).square().sum()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_no_instances_and_no_elements(shape):
    theta = torch.zeros(shape, requires_grad=True)
    assert Ranking().argmax(theta).shape == shape
    assert Ranking().project(theta).shape == shape
    Ranking().project(theta).sum().backward()
    assert Ranking().encode(torch.zeros(shape, dtype=torch.long), theta).shape == shape
    assert Ranking().enumerate((0,)).shape == (1, 0)


def test_refusals():
    theta = torch.tensor([[0.0, 1.0], [0.0, -INF]])
    for ask in (Ranking().argmax, Ranking().project):
        with pytest.raises(InfeasibleError, match="no ranking of finite score exists for batch index 1"):
            ask(theta)
    assert si.infer(theta, "ranking", "map", lengths=[2, 1]).mean.tolist() == [[1, 2], [1, 0]]
    with pytest.raises(InvalidInputError, match=r"lengths must lie between 0 and 2 \(n = 2 elements\), got 3"):
        si.infer(theta, "ranking", "map", lengths=[2, 3])
    with pytest.raises(InvalidInputError, match="there are 3628800 rankings of 10 elements"):
        Ranking().enumerate((10,))
    with pytest.raises(UnsupportedError, match="permanent"):
        si.Layer("ranking", "marginals")
