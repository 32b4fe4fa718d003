"""Means of most entropy, of subsets, bits and categories: against bisection, scipy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, minimize
from torch.autograd import gradcheck, gradgradcheck

from structinf.errors import InfeasibleError, InvalidInputError
from structinf.testing import CheckError, check_oracle
from structinf_oracles.bits import Bits
from structinf_oracles.categorical import Categorical
from structinf_oracles.subset import Subset

pytestmark = pytest.mark.slow

INF = math.inf
DOUBLE = torch.float64
BINARY = pytest.mark.parametrize("binary", [False, True])
SCALES = pytest.mark.parametrize("scale", [1e-3, 1, 30, 1e3])


def by_bisection(theta, k, at_most, binary):
    """μ of one instance, by halving an interval that holds τ."""

    def mean(tau):
        if binary:
            return np.array([1 / (1 + math.exp(min(tau - t, 700))) for t in theta])
        return np.array([math.exp(min(t - 1 - tau, 0)) for t in theta])

    if at_most and mean(0.0).sum() <= k:
        return mean(0.0)
    low, high = np.min(theta[theta > -INF]) - 100, np.max(theta) + 100
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle).sum() > k else (low, middle)
    return mean(high)


@BINARY
@SCALES
@pytest.mark.parametrize("at_most", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_means_of_subsets(k, dtype, at_most, scale, binary):
    theta = (scale * torch.randn(4, 6, dtype=DOUBLE)).to(dtype)
    theta[1] = (theta[1] / scale).round() * scale  # ties
    theta[2, 4] = -INF
    found = Subset(k, at_most=at_most).project_entropy(theta, binary=binary)
    assert found.dtype == dtype
    assert found.min() >= 0
    assert found.max() <= 1
    for mu, row in zip(found, theta.double().numpy(), strict=True):
        # Of the potentials in float32, the means are exact to float32.
        rounding = 1e-6 if dtype == torch.float32 else 1e-12 * max(scale, 1)
        np.testing.assert_allclose(mu, by_bisection(row, k, at_most, binary), atol=rounding)
        if not at_most:
            assert mu.sum() == pytest.approx(k, rel=1e-6 if dtype == torch.float32 else 1e-13)


@BINARY
@pytest.mark.parametrize("at_most", [False, True])
def test_another_solver_finds_no_better_mean(at_most, binary):
    generator = np.random.default_rng(0)
    for scale in (0.3, 2):
        theta = generator.normal(size=5) * scale

        def loss(mu, theta=theta):
            rest = (1 - mu) @ np.log(1 - mu) if binary else 0
            return mu @ np.log(mu) + rest - theta @ mu

        tiny = 1e-9
        best = minimize(
            loss,
            np.full(5, 0.4),
            method="SLSQP",
            bounds=Bounds(tiny, 1 - tiny),
            constraints=LinearConstraint(np.ones((1, 5)), -np.inf if at_most else 2, 2),
            options={"ftol": 1e-14, "maxiter": 500},
        )
        found = Subset(2, at_most=at_most).project_entropy(torch.from_numpy(theta)[None], binary=binary)[0].numpy()
        np.testing.assert_allclose(found, best.x, atol=1e-5)


def test_small_and_large_probabilities_keep_their_digits():
    # Of two elements, one in the mean: τ lies halfway.
    theta = torch.tensor([[0.0, 60.0], [0.0, 2000.0], [1e6, 1e6 + 1]], dtype=DOUBLE)
    found = Subset(1).project_entropy(theta, binary=True)
    half = (theta[:, 1] - theta[:, 0]) / 2
    torch.testing.assert_close(found[:, 0], (-half).sigmoid(), rtol=1e-12, atol=0)
    torch.testing.assert_close(found[:, 1], half.sigmoid(), rtol=1e-12, atol=0)
    # The highest is whole, and the others are a softmax.
    capped = Subset(2).project_entropy(torch.tensor([[1000.0, -40.0, 0.0]], dtype=DOUBLE), binary=False)
    expected = torch.tensor([[1.0, math.exp(-40) / (1 + math.exp(-40)), 1.0]], dtype=DOUBLE)
    torch.testing.assert_close(capped, expected, rtol=1e-13, atol=0)


@BINARY
def test_vertices(binary):
    theta = torch.tensor([[3.0, -INF, -1e3, 2.0]], dtype=DOUBLE)
    for k, mu in ((0, [0, 0, 0, 0]), (3, [1, 0, 1, 1])):
        assert Subset(k).project_entropy(theta, binary=binary).tolist() == [mu]
    for at_most in (False, True):
        assert Subset(0, at_most=at_most).project_entropy(theta, binary=binary).tolist() == [[0] * 4]
    ties = torch.full((1, 4), 7.0)
    torch.testing.assert_close(Subset(3).project_entropy(ties, binary=binary), torch.full((1, 4), 0.75))


@BINARY
def test_fewer_than_k_bind_only_where_more_would_be_taken(binary):
    oracle = Subset(2, at_most=True)
    few, many = torch.tensor([[-5.0, -4.0, 0.5]]), torch.tensor([[5.0, 4.0, 0.5]])
    torch.testing.assert_close(oracle.project_entropy(few, binary=binary), Bits().project_entropy(few, binary=binary))
    torch.testing.assert_close(
        oracle.project_entropy(many, binary=binary), Subset(2).project_entropy(many, binary=binary)
    )
    forbidden = torch.full((1, 3), -INF)
    assert oracle.project_entropy(forbidden, binary=binary).tolist() == [[0, 0, 0]]


@pytest.mark.matrix
@BINARY
@pytest.mark.parametrize("k", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("at_most", [False, True])
def test_derivatives(at_most, k, binary):
    theta = 2 * torch.randn(5, 5, dtype=DOUBLE)
    theta[1, 1] = -INF if k < 5 else 0.3
    free = torch.isfinite(theta)

    def mean(entries):
        return Subset(k, at_most=at_most).project_entropy(
            torch.full_like(theta, -INF).masked_scatter(free, entries), binary=binary
        )

    entries = theta[free].requires_grad_()
    assert gradcheck(mean, entries)
    assert gradgradcheck(mean, entries)
    given = theta.clone().requires_grad_()
    mean_square = Subset(k, at_most=at_most).project_entropy(given, binary=binary).square().sum()
    (gradient,) = torch.autograd.grad(mean_square, given)
    assert gradient.isfinite().all()
    assert not gradient[~free].any()


def test_third_derivatives_of_the_binary_entropy():
    theta = torch.randn(1, 3, dtype=DOUBLE, requires_grad=True)

    def curvature(t):
        (first,) = torch.autograd.grad(Subset(1).project_entropy(t, binary=True)[0, 0], t, create_graph=True)
        (second,) = torch.autograd.grad(first[0, 1], t, create_graph=True)
        return second

    assert gradcheck(curvature, theta)


@SCALES
def test_derivatives_at_any_scale_are_those_of_the_implicit_function(scale):
    theta = (scale * torch.randn(3, 6, dtype=DOUBLE)).requires_grad_()
    v = torch.randn(3, 6, dtype=DOUBLE)
    mu = Subset(2).project_entropy(theta, binary=True)
    (gradient,) = torch.autograd.grad((mu * v).sum(), theta)
    s = mu * (1 - mu)
    total = s.sum(1, keepdim=True)
    expected = s * (v - torch.where(total > 0, (s * v).sum(1, keepdim=True) / total, 0.0))
    torch.testing.assert_close(gradient, expected.detach(), atol=1e-12, rtol=1e-8)


@BINARY
def test_lengths_and_large_batches(binary):
    theta, lengths = torch.randn(50, 9), torch.randint(3, 10, (50,))
    oracle = Subset(3).bind(lengths=lengths)
    whole = oracle.project_entropy(theta, binary=binary)
    for i in (0, 7, 49):
        n = int(lengths[i])
        alone = Subset(3).project_entropy(theta[i : i + 1, :n], binary=binary)
        torch.testing.assert_close(whole[i, :n], alone[0])
        assert not whole[i, n:].any()
    assert Subset(3).project_entropy(torch.zeros(0, 4), binary=binary).shape == (0, 4)
    assert Subset(0).project_entropy(torch.zeros(2, 0), binary=binary).shape == (2, 0)


def test_categories():
    theta = torch.tensor([[1.0, -INF, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=DOUBLE)
    torch.testing.assert_close(Categorical().project_entropy(theta, binary=False), theta.softmax(1))
    found = Categorical().project_entropy(theta, binary=True)
    for mu, row in zip(found, theta.numpy(), strict=True):
        np.testing.assert_allclose(mu, by_bisection(row, 1, False, True), atol=1e-12)
    one = torch.tensor([[5.0, -INF]])
    for binary in (False, True):
        assert Categorical().project_entropy(one, binary=binary).tolist() == [[1, 0]]
        assert Categorical().project_entropy(torch.ones(1, 1), binary=binary).tolist() == [[1]]


def test_bits():
    theta = torch.tensor([[-3.0, 0.0, 1.0, 1e4, -INF]], dtype=DOUBLE, requires_grad=True)
    entropic = Bits().project_entropy(theta, binary=False)
    torch.testing.assert_close(entropic[0, :2], (theta[0, :2] - 1).exp())
    assert entropic[0, 2:].tolist() == [1, 1, 0]
    torch.testing.assert_close(Bits().project_entropy(theta, binary=True), theta.sigmoid())
    (gradient,) = torch.autograd.grad(entropic.sum(), theta)
    assert gradient.isfinite().all()


@BINARY
def test_too_few_elements(binary):
    theta = torch.tensor([[0.0, 1.0, 2.0], [0.0, -INF, -INF]])
    with pytest.raises(InfeasibleError, match=r"choice of 2 elements .* batch index 1"):
        Subset(2).project_entropy(theta, binary=binary)
    with pytest.raises(InfeasibleError, match="batch index 0"):
        Categorical().project_entropy(torch.full((1, 2), -INF), binary=binary)
    with pytest.raises(InvalidInputError, match="takes 4 of d elements, got d = 3"):
        Subset(4).validate(theta)


class Lazy(Subset):
    """Forgets the cap: what a softmax makes of k."""

    def project_entropy(self, theta, *, binary):
        return self.k * theta.softmax(1)


class Rough(Subset):
    """In conv(Y), but not the best there."""

    def project_entropy(self, theta, *, binary):
        return 0.5 * (super().project_entropy(theta, binary=binary) + self.marginals(theta))


class Detached(Subset):
    """Without a derivative."""

    def project_entropy(self, theta, *, binary):
        return super().project_entropy(theta.detach(), binary=binary)


@pytest.mark.parametrize("kind", [Lazy, Rough, Detached])
def test_the_check_catches_what_is_wrong(kind):
    with pytest.raises(CheckError) as error:
        check_oracle(kind(2), (4,), dtypes=(DOUBLE,))
    assert error.value.check == "entropy_projection"
