"""Smoothed alignments and their derivatives, against a recursion in plain Python, enumeration and autograd."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from dtw_enumeration import CASES, DTYPES, INF, ORACLE, SHAPES, UNKNOWN, instances, paths, recursion, score, scores
from regularizers_by_alpha import FAMILY
from structinf.dp import HypergraphProgram
from structinf.regularizers import Negentropy, Tsallis

pytestmark = pytest.mark.slow


def gibbs(theta, n, m, band=INF):
    """log Z, mean and covariance (cells flattened) by enumeration."""
    all_paths = [p for p in paths(n, m, band) if score(theta, p) > -INF]
    weights = torch.tensor([score(theta, p) for p in all_paths], dtype=torch.float64)
    y = torch.zeros(len(all_paths), *theta.shape, dtype=torch.float64)
    for row, p in zip(y, all_paths, strict=True):
        for cell in p:
            row[cell] = 1
    y, p = y.flatten(1), weights.softmax(0)
    mean = p @ y
    return weights.logsumexp(0), mean.view(theta.shape), (y.T * p) @ y - mean.outer(mean)


@pytest.mark.matrix
@pytest.mark.parametrize("alpha", FAMILY)
@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_value_and_mean_are_those_of_the_recursion(alpha, n, m, case, dtype):
    oracle, theta, extents, omega = *instances(case, n, m, dtype), FAMILY[alpha]
    expected = [recursion(t, *extent, alpha) for t, extent in zip(theta, extents, strict=True)]
    value, mean = oracle.smoothed_value(theta, omega), oracle.smoothed_mean(theta, omega)
    assert value.dtype == mean.dtype == dtype
    for both, alone in zip(oracle.smoothed_value_and_mean(theta, omega), (value, mean), strict=True):
        assert torch.equal(both, alone)
    tolerance = {"atol": 1e-6, "rtol": 1e-6} if dtype is torch.float32 else {"atol": 1e-9, "rtol": 1e-9}
    torch.testing.assert_close(value.double(), torch.tensor([e[0] for e in expected], dtype=torch.float64), **tolerance)
    torch.testing.assert_close(mean.double(), torch.stack([e[1] for e in expected]), **tolerance)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("alpha", FAMILY)
@pytest.mark.parametrize("case", ["normal", "forbidden"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_scale(alpha, scale, case, dtype):
    oracle, theta, extents, omega = *instances(case, 5, 6, dtype), FAMILY[alpha]
    theta = scale * theta
    expected = [recursion(t, *extent, alpha) for t, extent in zip(theta, extents, strict=True)]
    value, rtol = torch.tensor([e[0] for e in expected], dtype=torch.float64), 1e-6 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(oracle.smoothed_value(theta, omega).double(), value, rtol=rtol, atol=rtol * scale)
    mean = torch.stack([e[1] for e in expected])
    torch.testing.assert_close(oracle.smoothed_mean(theta, omega).double(), mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_gibbs_distribution_is_that_of_enumeration(n, m, case):
    oracle, theta, extents = instances(case, n, m)
    v, weight = torch.randn_like(theta), torch.randn(len(theta)).double()
    found = [gibbs(t, *extent) for t, extent in zip(theta, extents, strict=True)]
    torch.testing.assert_close(oracle.log_partition(theta), torch.stack([f[0] for f in found]))
    mean = torch.stack([f[1] for f in found])
    torch.testing.assert_close(oracle.marginals(theta), mean)
    torch.testing.assert_close(oracle.log_partition_vjp(theta, weight), weight.view(-1, 1, 1) * mean)
    product = torch.stack([(f[2] @ z.flatten()).view(n, m) for f, z in zip(found, v, strict=True)])
    torch.testing.assert_close(oracle.covariance_product(theta, v), product, atol=1e-10, rtol=1e-8)
    single = oracle.covariance_product(theta.float(), v.float())
    torch.testing.assert_close(single.double(), product, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("alpha", FAMILY)
@pytest.mark.parametrize("case", CASES)
def test_hessian_product_is_the_derivative_of_the_mean(alpha, case):
    oracle, theta, _ = instances(case, 5, 4)
    theta = theta + torch.randn_like(theta) / 8  # off the kinks
    v, omega, h = torch.randn_like(theta), FAMILY[alpha], 1e-6
    product = oracle.smoothed_hessian_product(theta, v, omega)
    ahead, behind = (oracle.smoothed_mean(theta + step * v, omega) for step in (h, -h))
    torch.testing.assert_close(product, (ahead - behind) / (2 * h), atol=1e-7, rtol=1e-6)
    shared = oracle.smoothed_hessian_product(theta, v[:1], omega)
    torch.testing.assert_close(shared[:1], product[:1])


@pytest.mark.parametrize("alpha", FAMILY)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_compiled_loops_are_equal_to_torch(alpha, case, n, m):
    oracle, theta, _ = instances(case, n, m)
    omega, v, leaf = FAMILY[alpha], torch.randn_like(theta), theta.clone().requires_grad_()
    value = oracle.smoothed_value(leaf, omega)
    torch.testing.assert_close(oracle.smoothed_value(theta, omega), value.detach())
    (mean,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    torch.testing.assert_close(oracle.smoothed_mean(theta, omega), mean.detach())
    product = torch.zeros_like(theta)
    if mean.requires_grad:  # a single path's is constant
        (product,) = torch.autograd.grad((mean * v).sum(), leaf, materialize_grads=True)
    torch.testing.assert_close(oracle.smoothed_hessian_product(theta, v, omega), product, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_regularizers_that_no_compiled_loop_knows(case, dtype):
    oracle, theta, _ = instances(case, 4, 5, dtype)
    v, weight = torch.randn_like(theta), torch.randn(len(theta), dtype=dtype)
    ours, known = UNKNOWN, Negentropy()
    for method, args in (
        ("smoothed_value", ()),
        ("smoothed_mean", ()),
        ("smoothed_vjp", (weight,)),
        ("smoothed_hessian_product", (v,)),
    ):
        found, expected = (getattr(oracle, method)(theta, *args, omega) for omega in (ours, known))
        torch.testing.assert_close(found, expected, msg=method)


@pytest.mark.parametrize("alpha", [alpha for alpha in FAMILY if alpha < INF])
@pytest.mark.parametrize("case", ["normal", "lengths", "band"])
def test_derivatives_to_second_order(alpha, case):
    oracle, theta, _ = instances(case, 3, 4)
    theta = (3 * torch.randn_like(theta))[:3].requires_grad_()
    oracle, omega = oracle[torch.arange(3)], FAMILY[alpha]
    assert torch.autograd.gradcheck(lambda t: oracle.smoothed_value(t, omega), theta, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda t: oracle.smoothed_value(t, omega), theta, fast_mode=True)


def test_third_derivatives_of_the_log_partition():
    theta = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)

    def slope(t):
        return torch.autograd.grad(ORACLE.log_partition(t).sum(), t, create_graph=True)[0]

    assert torch.autograd.gradgradcheck(slope, theta, fast_mode=True)


def test_derivatives_beside_forbidden_cells():
    theta = torch.tensor([[[0.0, -INF, 1], [-INF, 2, -INF], [0, -INF, 0.5]]], dtype=torch.float64, requires_grad=True)
    for alpha in FAMILY:
        (mean,) = torch.autograd.grad(ORACLE.smoothed_value(theta, FAMILY[alpha]).sum(), theta, create_graph=True)
        assert mean.tolist() == [torch.eye(3).tolist()]


def test_close_to_the_negative_entropy():
    theta = scores(3, 6, 5)
    omega = Tsallis(alpha=1 + 1e-6)
    torch.testing.assert_close(ORACLE.smoothed_value(theta, omega), ORACLE.log_partition(theta), atol=1e-4, rtol=0)
    torch.testing.assert_close(ORACLE.smoothed_mean(theta, omega), ORACLE.marginals(theta), atol=1e-4, rtol=0)


def test_zero_score_differences_at_the_kinks_of_the_squared_norm():
    """Where a third score is about to have a probability, two formulas for the threshold agree."""
    for x in ([0.0, 0, -0.5], [0.0, -1, -1], [0.0, -1, -3], [0.0, 0, 0]):
        theta = torch.tensor([[[0.0, x[1]], [x[2], 0.0]]], dtype=torch.float64)
        for alpha in (1.5, 2):
            value, mean = recursion(theta[0], 2, 2, INF, alpha)
            assert ORACLE.smoothed_value(theta, FAMILY[alpha]).item() == pytest.approx(value, abs=1e-12)
            torch.testing.assert_close(ORACLE.smoothed_mean(theta, FAMILY[alpha])[0], mean)


@pytest.mark.parametrize("alpha", FAMILY)
@pytest.mark.parametrize("case", CASES)
def test_dense_loops_equal_the_hypergraph(alpha, case):
    oracle, theta, _ = instances(case, 6, 5)
    omega, v, weight = FAMILY[alpha], torch.randn_like(theta), torch.linspace(-1, 2, len(theta), dtype=theta.dtype)
    value, mean = HypergraphProgram.smoothed_value_and_mean(oracle, theta, omega)
    close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
    close(oracle.smoothed_value(theta, omega), value)
    close(oracle.smoothed_mean(theta, omega), mean)
    close(oracle.smoothed_vjp(theta, weight, omega), weight[:, None, None] * mean)
    product = HypergraphProgram.smoothed_hessian_product(oracle, theta, v, omega)
    close(oracle.smoothed_hessian_product(theta, v, omega), product)
