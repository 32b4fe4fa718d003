"""Fusedmax, against quadratic programs and the conditions of optimality of long rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag
from scipy.optimize import lsq_linear, minimize

from simplex_map_reference import DOUBLE, INF, double, entmax_row, rows
from structinf.simplex import fusedmax, sparsemax


def total_variation(p):
    return np.abs(np.diff(p)).sum()


def fused_row(x, weight):
    """The proximal operator by its dual, least squares in a box, then sparsemax."""
    differences = np.diff(np.eye(len(x)), axis=0)
    if not len(differences):
        return np.ones(1)
    dual = lsq_linear(differences.T, x, bounds=(-weight, weight), method="bvls", tol=1e-15, max_iter=2000).x
    return entmax_row(x - differences.T @ dual, 2.0)


@pytest.mark.parametrize(
    ("x", "weight", "expected"),
    [
        ([0.0, 0.5, 0.7, 0.6, 0.0, 0.2], 0.1, [0, 0.3, 0.35, 0.35, 0, 0]),
        ([0.0, 0.6, 0.7, 0.6, 0.0, 0.2], 0.1, [0, 1 / 3, 1 / 3, 1 / 3, 0, 0]),
        ([1.0, 0.0], 0.2, [0.8, 0.2]),
        ([1.0, 0.0], 0.5, [0.5, 0.5]),
        ([0.5, 0.0, 0.5], 0.1, [0.4, 0.2, 0.4]),
        ([0.5, 0.5, -9.0, 0.5], 0.0, [1 / 3, 1 / 3, 0, 1 / 3]),
        ([3.0], 1.0, [1]),
    ],
)
def test_listed_values(x, weight, expected):
    found = fusedmax(double(*x), weight)
    torch.testing.assert_close(found, double(*expected), rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
@pytest.mark.parametrize("weight", [1e-3, 0.05, 0.3, 2.0, 50.0])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 20])
def test_values(n, weight, dtype):
    x = torch.randn(4, n, dtype=DOUBLE) * torch.tensor([[0.1], [1], [1], [10]], dtype=DOUBLE)
    x[1] = x[1].round()  # ties
    x = x.to(dtype)
    expected = rows(x, lambda row: fused_row(row, weight))
    found = fusedmax(x, weight)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("weight", [0.03, 0.2])
def test_the_whole_problem_is_solved(weight):
    for x in np.random.default_rng(0).normal(scale=0.5, size=(4, 5)):
        # Variables p and t, with t at least the size of each difference.
        differences = np.diff(np.eye(5), axis=0)
        found = minimize(
            lambda v, x=x: 0.5 * ((v[:5] - x) ** 2).sum() + weight * v[5:].sum(),
            np.full(9, 0.2),
            bounds=[(0, 1)] * 9,
            constraints=[
                {"type": "eq", "fun": lambda v: v[:5].sum() - 1},
                {"type": "ineq", "fun": lambda v, d=differences: v[5:] - d @ v[:5]},
                {"type": "ineq", "fun": lambda v, d=differences: v[5:] + d @ v[:5]},
            ],
            options={"ftol": 1e-14, "maxiter": 500},
        ).x[:5]
        np.testing.assert_allclose(fusedmax(torch.from_numpy(x), weight), found, atol=1e-6)


@pytest.mark.parametrize("weight", [0.02, 0.7, 30.0])
@pytest.mark.parametrize("shape", ["noise", "walk", "ramp", "waves", "spikes", "steps", "parabola"])
def test_long_rows_meet_the_conditions_of_optimality(shape, weight):
    n = 3000
    i = torch.arange(n, dtype=DOUBLE)
    x = {
        "noise": torch.randn(n, dtype=DOUBLE),
        "walk": torch.randn(n, dtype=DOUBLE).cumsum(0) / 10,
        "ramp": i / n,
        "waves": (i / 9).sin() + i / n,
        "spikes": (i % 17 == 0).double(),
        "steps": (i // 100) % 3,
        "parabola": (i / n - 0.4).square(),
    }[shape]
    unit = 1e-2 / n  # so small that all have a probability
    p = fusedmax(x * unit, weight * unit)
    assert (p > 0).all()
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    # The sums u of x − z, which is of mean 0, are within the weight, and at its ends where z jumps.
    rest = x - p / unit
    u, jump = (rest - rest.mean()).cumsum(0)[:-1], p.diff()
    assert float(u.abs().max()) <= weight + 1e-8
    torch.testing.assert_close(u[jump != 0], -weight * jump[jump != 0].sign(), rtol=0, atol=1e-8)


def test_runs_are_equal_to_the_last_bit():
    for row in fusedmax(torch.randn(20, 300) / 300, 0.02):
        assert (row > 0).sum() > 100
        assert 1 < len(row.unique_consecutive()) < 60


def test_no_weight_and_a_large_one():
    x = torch.randn(3, 7, dtype=DOUBLE)
    assert torch.equal(fusedmax(x, 0), sparsemax(x))
    for weight in (1e3, 1e12, 1e30):
        torch.testing.assert_close(fusedmax(x, weight), torch.full_like(x, 1 / 7), rtol=0, atol=1e-15)


def test_padding_changes_nothing():
    x = torch.randn(2, 5, dtype=DOUBLE)
    padding = torch.full((2, 3), -INF, dtype=DOUBLE)
    expected = torch.cat([torch.zeros(2, 3), fusedmax(x, 0.3), torch.zeros(2, 3)], 1)
    assert torch.equal(fusedmax(torch.cat([padding, x, padding], 1), 0.3), expected)


def test_a_masked_score_is_no_neighbour():
    x = torch.randn(6, 7, dtype=DOUBLE)
    x[:, 3] = -INF
    differences = block_diag(np.diff(np.eye(3), axis=0), np.diff(np.eye(3), axis=0))  # a chain on each side
    for row, p in zip(x, fusedmax(x, 0.2), strict=True):
        kept = row[[0, 1, 2, 4, 5, 6]].numpy()
        flow = lsq_linear(differences.T, kept, bounds=(-0.2, 0.2), method="bvls", tol=1e-15).x
        expected = entmax_row(kept - differences.T @ flow, 2.0)
        np.testing.assert_allclose(p[[0, 1, 2, 4, 5, 6]], expected, atol=1e-12)
        assert p[3] == 0


def test_runs_apart_are_two_groups():
    # Equal probabilities on both sides of a 0, by chance or by symmetry, move each for itself.
    x = double(0.3, 0.31, -2, 0.31, 0.3).requires_grad_()
    jacobian = torch.autograd.functional.jacobian(lambda t: fusedmax(t, 0.1), x)
    means = torch.block_diag(torch.full((2, 2), 0.5), torch.zeros(1, 1), torch.full((2, 2), 0.5)).double()
    support = double(1, 1, 0, 1, 1)
    torch.testing.assert_close(jacobian, means - support.outer(support) / 4)
