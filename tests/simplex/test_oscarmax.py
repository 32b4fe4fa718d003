"""Oscarmax, against isotonic regression, quadratic programs and soft ranks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression, minimize

from simplex_map_reference import DOUBLE, INF, double, entmax_row, rows
from structinf import soft_rank
from structinf.simplex import oscarmax, sparsemax


def oscar_row(x, weight):
    order = np.argsort(x, kind="stable")
    z = np.empty(len(x))
    z[order] = isotonic_regression(x[order] - weight * np.arange(len(x))).x
    return entmax_row(z, 2.0)


def published_row(x, weight):
    """Sparsemax of OSCAR's proximal operator for numbers of any sign, as Zeng & Figueiredo 2014 compute it."""
    order, z = np.argsort(np.abs(x), kind="stable"), np.empty(len(x))
    z[order] = np.maximum(isotonic_regression(np.abs(x)[order] - weight * np.arange(len(x))).x, 0)
    return entmax_row(np.sign(x) * z, 2.0)


def objective(p, x, weight):
    pairs = sum(np.maximum(p[i], p[j]) for i, j in itertools.combinations(range(len(x)), 2))
    return 0.5 * ((p - x) ** 2).sum() + weight * pairs


@pytest.mark.parametrize(
    ("x", "weight", "expected"),
    [
        ([0.5, 0.0, 0.4, -0.5], 0.1, [1.3 / 3, 0.4 / 3, 1.3 / 3, 0]),
        ([1.0, 0.0], 0.2, [0.9, 0.1]),
        ([1.0, 0.0], 1.0, [0.5, 0.5]),
        ([1.0, 0.0, -0.9], 0.1, [0.95, 0.05, 0]),
        ([0.0, 0.0, 0.0, -9.0], 0.0, [1 / 3, 1 / 3, 1 / 3, 0]),
        ([3.0], 1.0, [1]),
    ],
)
def test_listed_values(x, weight, expected):
    torch.testing.assert_close(oscarmax(double(*x), weight), double(*expected), rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
@pytest.mark.parametrize("weight", [1e-3, 0.05, 0.3, 2.0, 50.0])
@pytest.mark.parametrize("n", [1, 2, 5, 32, 33, 200])
def test_values(n, weight, dtype):
    x = torch.randn(4, n, dtype=DOUBLE) * torch.tensor([[0.1], [1], [1], [10]], dtype=DOUBLE)
    x[1] = x[1].round()  # ties
    x = x.to(dtype)
    expected = rows(x, lambda row: oscar_row(row, weight))
    found = oscarmax(x, weight)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-11)


@pytest.mark.parametrize("weight", [0.03, 0.2])
def test_the_whole_problem_is_solved(weight):
    pairs = list(itertools.combinations(range(4), 2))
    first, second = (np.eye(4)[[pair[side] for pair in pairs]] for side in (0, 1))
    for x in np.random.default_rng(0).normal(scale=0.5, size=(4, 4)):
        # Variables p and t, with t at least both of each pair.
        found = minimize(
            lambda v, x=x: 0.5 * ((v[:4] - x) ** 2).sum() + weight * v[4:].sum(),
            np.full(10, 0.25),
            bounds=[(0, 1)] * 10,
            constraints=[
                {"type": "eq", "fun": lambda v: v[:4].sum() - 1},
                {"type": "ineq", "fun": lambda v: v[4:] - first @ v[:4]},
                {"type": "ineq", "fun": lambda v: v[4:] - second @ v[:4]},
            ],
            options={"ftol": 1e-14, "maxiter": 500},
        ).x[:4]
        np.testing.assert_allclose(oscarmax(torch.from_numpy(x), weight), found, atol=1e-6)


def test_the_published_composition_far_above_0_and_near_it():
    is_worse = 0
    for x in np.random.default_rng(1).normal(size=(20, 5)):
        p = oscarmax(torch.from_numpy(x), 0.1).numpy()
        np.testing.assert_allclose(published_row(x + 10, 0.1), p, atol=1e-12)
        excess = objective(published_row(x, 0.1), x, 0.1) - objective(p, x, 0.1)
        assert excess > -1e-12
        is_worse += excess > 1e-4
    assert is_worse > 5


def test_a_shift_changes_nothing():
    x = torch.randn(4, 9, dtype=DOUBLE)
    torch.testing.assert_close(oscarmax(x + 100, 0.05), oscarmax(x, 0.05), rtol=0, atol=1e-12)


def test_it_is_the_sparsemax_of_scores_less_their_soft_ranks():
    x = torch.randn(5, 40, dtype=DOUBLE)
    torch.testing.assert_close(oscarmax(x, 0.02), sparsemax(x - 0.02 * soft_rank(x, 0.02)), rtol=0, atol=1e-12)


def test_no_weight_and_a_large_one():
    x = torch.randn(3, 7, dtype=DOUBLE)
    assert torch.equal(oscarmax(x, 0), sparsemax(x))
    for weight in (1e3, 1e12, 1e30):
        torch.testing.assert_close(oscarmax(x, weight), torch.full_like(x, 1 / 7), rtol=0, atol=1e-15)


@pytest.mark.parametrize("n", [6, 100])
def test_a_masked_score_is_as_if_it_were_not_there(n):
    x = torch.randn(3, n, dtype=DOUBLE)
    places = torch.randperm(n + 4)[:n].sort().values
    wide = torch.full((3, n + 4), -INF, dtype=DOUBLE).index_copy(1, places, x)
    expected = torch.zeros(3, n + 4, dtype=DOUBLE).index_copy(1, places, oscarmax(x, 0.01))
    assert torch.equal(oscarmax(wide, 0.01), expected)


def test_groups_are_anywhere():
    x = double(0.3, -2, 0.31, 0.1, 0.29).requires_grad_()
    p = oscarmax(x, 0.05)
    assert p[0] == p[2] == p[4] > p[3] > p[1] == 0
    jacobian = torch.autograd.functional.jacobian(lambda t: oscarmax(t, 0.05), x)
    group, support = double(1, 0, 1, 0, 1), double(1, 0, 1, 1, 1)
    means = group.outer(group) / 3 + torch.diag(double(0, 0, 0, 1, 0))
    torch.testing.assert_close(jacobian, means - support.outer(support) / 4)
