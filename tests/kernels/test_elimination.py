"""Sums over trees by elimination, against exact rational numbers and autograd; samples, against their frequencies."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from arborescence_enumeration import NEVER, Sums, both_roots, feasible_cases, scores
from structinf_oracles.arborescence import Arborescence
from structinf_oracles.kernels.arborescence import dispatch

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- exact arithmetic


def tree_sum(weights, single_root):
    """Sum over trees by the matrix-tree theorem, in rational numbers. ``weights[h][m]``."""
    words = range(1, len(weights))
    heads = words if single_root else range(len(weights))
    matrix = [[sum(weights[h][m] for h in heads if h != m) if h == m else -weights[h][m] for m in words] for h in words]
    if single_root:
        matrix[0] = [weights[0][m] for m in words]
    value = Fraction(1)
    for k in range(len(matrix)):
        pivot = next((i for i in range(k, len(matrix)) if matrix[i][k]), None)
        if pivot is None:
            return Fraction(0)
        if pivot != k:
            matrix[k], matrix[pivot], value = matrix[pivot], matrix[k], -value
        value *= matrix[k][k]
        for i in range(k + 1, len(matrix)):
            factor = matrix[i][k] / matrix[k][k]
            for j in range(k, len(matrix)):
                matrix[i][j] -= factor * matrix[k][j]
    return value


def log_of(value):
    """Natural logarithm of a positive Fraction of any size."""
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    return math.log(value / Fraction(2) ** shift) + shift * math.log(2)


@both_roots
@pytest.mark.parametrize("spread", [3, 60, 900])
@pytest.mark.parametrize("forbid", [0.0, 0.5])
def test_each_marginal_is_accurate_relative_to_itself(forbid, spread, single_root):
    rng = np.random.default_rng(spread)
    n = 6
    for _ in range(3):
        powers = rng.integers(-spread, spread + 1, (n + 1, n + 1))
        allowed = rng.random((n + 1, n + 1)) >= forbid
        weights = [[Fraction(2) ** int(powers[h, m]) * bool(allowed[h, m]) for m in range(n + 1)] for h in range(n + 1)]
        total = tree_sum(weights, single_root)
        if total == 0:
            continue
        theta = torch.tensor(np.where(allowed, powers * math.log(2), NEVER))[None]
        oracle = Arborescence(single_root=single_root)
        assert oracle.log_partition(theta).item() == pytest.approx(log_of(total), rel=1e-13, abs=1e-12)
        means = oracle.marginals(theta)[0]
        for h, m in itertools.product(range(n + 1), range(1, n + 1)):
            if h == m or not allowed[h, m]:
                assert means[h, m] == 0
                continue
            without = [list(row) for row in weights]
            without[h][m] = Fraction(0)
            exact = float(1 - tree_sum(without, single_root) / total)
            # θ's own rounding alone moves a weight of 2^900 by 1e-13. Below 1e-150 a marginal may be 0.
            assert means[h, m].item() == pytest.approx(exact, rel=1e-11, abs=1e-150)


@both_roots
@pytest.mark.parametrize("n", [9, 33, 64])
@pytest.mark.parametrize("forbid", [0.0, 0.8])
def test_with_and_without_exponents(forbid, n, single_root):
    from structinf_oracles.kernels.arborescence.elimination import OUT_OF_RANGE, log_partition
    from structinf_oracles.kernels.arborescence.marginals import value_and_mean

    theta, v = scores(3, n, forbid=forbid), torch.randn(3, n + 1, n + 1, dtype=torch.float64)
    ring = torch.arange(n)
    theta[:, ring, ring + 1] = 0.5  # 0 -> 1 -> 2 -> ... is always there
    lengths = np.array([n, n // 2, n])
    found = []
    for wide in (None, True):
        status = np.full(3, OUT_OF_RANGE)
        z, means, product = np.empty((3, 3)), np.zeros(theta.shape), np.zeros(theta.shape)
        log_partition(0, 3, theta.numpy(), lengths, single_root, wide, z[0], status.copy())
        value_and_mean(0, 3, theta.numpy(), None, lengths, single_root, wide, z[1], means, None, status.copy())
        value_and_mean(0, 3, theta.numpy(), v.numpy(), lengths, single_root, wide, z[2], None, product, status)
        assert not status.any()
        found.append((z, means, product))
    (z, means, product), wide = found
    np.testing.assert_allclose(z, wide[0], rtol=1e-13)
    np.testing.assert_allclose(means, wide[1], rtol=1e-11)
    np.testing.assert_allclose(product, wide[2], atol=1e-13)
    np.testing.assert_allclose(z - z[:1], 0, atol=1e-12)
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(means[b].sum(0)[1 : length + 1], 1, rtol=1e-12)
        assert not means[b, length + 1 :].any()
        assert not means[b, :, length + 1 :].any()

    leaf = theta.clone().requires_grad_()
    value = Arborescence(single_root=single_root).bind(lengths=torch.from_numpy(lengths)).log_partition(leaf)
    np.testing.assert_allclose(value.detach(), z[0], rtol=1e-13)
    np.testing.assert_allclose(torch.autograd.grad(value.sum(), leaf)[0], means, atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 5, 16, 17, 33])
@pytest.mark.parametrize("scale", [1e-30, 1, 10, 100, 1000])
@pytest.mark.parametrize("forbid", [0.0, 0.6])
def test_results_for_float32_scores_have_the_accuracy_of_float32(forbid, scale, n):
    theta = (scores(6, n, forbid=forbid) * scale).float()
    v, lengths = torch.randn(theta.shape), torch.tensor([n, 1, n, max(n - 1, 1), n, (n + 1) // 2])
    value, means = dispatch.log_partition_and_marginals(theta, lengths)
    exact_value, exact_means = dispatch.log_partition_and_marginals(theta.double(), lengths)
    torch.testing.assert_close(value, exact_value, rtol=1e-14, atol=1e-14)
    feasible = exact_value > -torch.inf
    torch.testing.assert_close(means[feasible].double(), exact_means[feasible], rtol=2e-7, atol=1e-44)
    product = dispatch.covariance_product(theta, v, lengths)[1].double()
    exact = dispatch.covariance_product(theta.double(), v.double(), lengths)[1]
    most = exact_means * v.double().abs().amax((1, 2), keepdim=True) + exact.abs()
    assert ((product - exact).abs() <= 2e-7 * most + 1e-44)[feasible].all()


def test_which_instances_take_the_inverse_of_the_laplacian():
    from structinf_oracles.kernels.arborescence.laplacian_inverse import value_and_mean32

    theta = scores(4, 20, forbid=0.2).float()
    theta[1] *= 3
    theta[2, 3, 4] = theta[2, 4, 3] = 40.0  # a walk leaves this pair of words with a probability of e^-40
    theta[3, :, 1] = -torch.inf
    accurate, out = np.ones(4, np.bool_), np.zeros(theta.shape, np.float32)
    value_and_mean32(0, 4, theta.numpy(), None, np.full(4, 20), np.empty(4), out, accurate)
    assert accurate.tolist() == [True, True, False, False]


def test_finite_scores_that_stand_for_infinity():
    oracle = Arborescence()
    theta = torch.tensor([[[0.0, -1e30, -1e30], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    half = torch.tensor([[[0, 0.5, 0.5], [0, 0, 0.5], [0, 0.5, 0]]])
    torch.testing.assert_close(oracle.marginals(theta), half)
    torch.testing.assert_close(oracle.log_partition(theta), torch.tensor([-1e30]))
    assert oracle.decode(oracle.argmax(theta)).tolist() == [[0, 1]]


def test_spanning_trees_of_a_symmetric_graph():
    weights = torch.tensor([[0.0, 1, 2], [1, 0, 3], [2, 3, 0]], dtype=torch.float64)
    value, means = dispatch.log_partition_and_marginals(weights.log()[None])
    assert value.exp().item() == pytest.approx(11)
    edges = means[0] + means[0].T
    torch.testing.assert_close(edges[[0, 0, 1], [1, 2, 2]], torch.tensor([5, 8, 9], dtype=torch.float64) / 11)


# ----------------------------------------------------------------------------- derivatives


@both_roots
def test_gradcheck(single_root):
    base = scores(2, 4, forbid=0.25)
    base[:, 0] = torch.randn(2, 5, dtype=torch.float64)
    base[:, 1, 2:] = torch.randn(2, 3, dtype=torch.float64)
    free = torch.isfinite(base)
    oracle = Arborescence(single_root=single_root).bind(lengths=torch.tensor([4, 3]))

    def log_partition(values):
        return oracle.log_partition(base.masked_scatter(free, values))

    values = base[free].requires_grad_()
    assert torch.autograd.gradcheck(log_partition, values, fast_mode=True)
    assert torch.autograd.gradgradcheck(log_partition, values, fast_mode=True)


@both_roots
def test_nothing_outside_the_trees_is_read(single_root):
    theta = scores(2, 4)
    lengths = torch.tensor([2, 3])
    oracle = Arborescence(single_root=single_root).bind(lengths=lengths)
    inside = oracle.valid_parts(theta)
    assert inside.shape == theta.shape
    dirty, v = theta.masked_fill(~inside, math.nan), torch.randn_like(theta)
    clean = theta.masked_fill(~inside, 0)
    assert torch.equal(oracle.argmax(dirty), oracle.argmax(clean))
    assert torch.equal(oracle.log_partition(dirty), oracle.log_partition(clean))
    assert torch.equal(oracle.marginals(dirty), oracle.marginals(clean))
    product = oracle.covariance_product(dirty, v.masked_fill(~inside, math.nan))
    assert torch.equal(product, oracle.covariance_product(clean, v))
    leaf = dirty.clone().requires_grad_()
    value = oracle.log_partition(leaf)
    (gradient,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    (hessian,) = torch.autograd.grad((gradient * v).sum(), leaf)
    for result in (oracle.marginals(dirty), product, gradient, hessian):
        assert not result.isnan().any()
        assert torch.equal(result[~inside], torch.zeros_like(result[~inside]))
    samples = oracle.sample(dirty, 4, torch.Generator().manual_seed(0)).flatten(0, 1)
    heads = oracle.repeat(4).decode(samples)
    assert torch.equal(heads >= 0, (torch.arange(4) < lengths[:, None]).repeat(4, 1))


# ----------------------------------------------------------------------------- samples


def assert_frequencies(oracle, theta, sums, samples=4000):
    heads = oracle.decode(oracle.sample(theta, samples, torch.Generator().manual_seed(1))[:, 0])
    drawn = [tuple(h for h in row if h >= 0) for row in heads.tolist()]
    counts = dict.fromkeys(sums.heads, 0)
    for tree in drawn:
        counts[tree] += 1
    observed, expected = np.array(list(counts.values()), float), samples * sums.p.numpy()
    assert not observed[expected == 0].any()
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        keep = expected > 1e-9
        observed, expected = observed[keep], expected[keep]
    if len(expected) > 1:
        assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


@both_roots
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1000.0])
@pytest.mark.parametrize("forbid", [0.0, 0.4])
def test_samples(forbid, scale, single_root):
    theta, lengths, sums = feasible_cases(4, scale, torch.float64, single_root, forbid)
    for b in range(4):
        oracle = Arborescence(single_root=single_root).bind(lengths=lengths[b : b + 1])
        assert_frequencies(oracle, theta[b : b + 1], sums[b])


@both_roots
def test_samples_where_the_walk_hardly_ever_reaches_the_root(single_root):
    theta = scores(1, 4)
    theta[:, 0] -= 2000
    theta[:, 1, 2] += 500
    theta[:, 2, 1] += 500
    theta[:, 3, 4] += 300
    theta[:, 4, 3] += 300
    theta[:, 1:3, 3:] -= 700
    theta[:, 3:, 1:3] -= 700
    assert_frequencies(Arborescence(single_root=single_root), theta, Sums(theta[0], 4, single_root))


def test_samples_follow_the_generator():
    theta, oracle = scores(3, 6), Arborescence()
    draws = [oracle.sample(theta, 5, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert draws[0].shape == (5, 3, 7, 7)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(oracle.sample(theta, 5), oracle.sample(theta, 5))
    assert oracle.sample(theta, 0).shape == (0, 3, 7, 7)
