"""One of K, against plain formulas and scipy."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize

from structinf.errors import InfeasibleError, InvalidInputError
from structinf.oracle import GibbsOracle
from structinf_oracles.categorical import Categorical

ORACLE = Categorical()
DTYPES = [torch.float32, torch.float64]
NEG = -math.inf


def scores(batch=4, size=5, dtype=torch.float64, scale=1.0):
    return torch.randn(batch, size, dtype=dtype) * scale


# ----------------------------------------------------------------------------- the best


def test_argmax_takes_the_lowest_index_on_ties():
    theta = torch.tensor([[0.6, 0.6, 0.3], [0.0, 0.0, 0.0], [NEG, 1.0, 1.0]])
    assert ORACLE.argmax(theta).tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_topk(dtype):
    theta = torch.tensor([[0.0, 2.0, 2.0, NEG], [3.0, 1.0, 2.0, 0.0]], dtype=dtype)
    y, value, valid = ORACLE.topk(theta, 5)
    assert y.dtype == value.dtype == dtype
    assert y.argmax(2).T.tolist() == [[1, 2, 0, 0, 0], [0, 2, 1, 3, 0]]
    assert value.T.tolist() == [[2, 2, 0, NEG, NEG], [3, 2, 1, 0, NEG]]
    assert valid.T.tolist() == [[True, True, True, False, False], [True, True, True, True, False]]
    assert torch.equal(y.sum(2), valid.to(dtype))
    assert torch.equal(ORACLE.topk(theta, 2)[0], y[:2])


@pytest.mark.parametrize("k", [0, -1, 2.0, True, None])
def test_topk_needs_a_positive_integer(k):
    with pytest.raises(InvalidInputError, match=f"k must be .*at least 1, got {k}"):
        ORACLE.topk(torch.zeros(1, 3), k)


# ----------------------------------------------------------------------------- sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_sums_are_those_of_the_softmax(dtype, scale):
    theta = scores(dtype=dtype, scale=scale)
    theta[0, 1:3] = NEG
    exact = theta.double().softmax(1)
    v, weight = torch.randn_like(theta), torch.randn(4, dtype=dtype)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(ORACLE.log_partition(theta).double(), theta.double().logsumexp(1), **close)
    torch.testing.assert_close(ORACLE.marginals(theta).double(), exact, **close)
    torch.testing.assert_close(
        ORACLE.log_partition_vjp(theta, weight).double(), weight.double()[:, None] * exact, **close
    )
    hessian = torch.diag_embed(exact) - exact.unsqueeze(2) * exact.unsqueeze(1)
    product = (hessian @ v.double().unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(ORACLE.covariance_product(theta, v).double(), product, **close)
    torch.testing.assert_close(GibbsOracle.covariance_product(ORACLE, theta, v).double(), product, **close)


def test_second_derivatives():
    theta = scores().requires_grad_()
    assert torch.autograd.gradcheck(ORACLE.log_partition, theta)
    assert torch.autograd.gradgradcheck(ORACLE.log_partition, theta)


def test_forbidden_parts_have_gradient_zero():
    theta = torch.tensor([[NEG, 1.0], [0.0, NEG]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(ORACLE.log_partition(theta).sum(), theta)
    assert gradient.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_follow_the_softmax(dtype):
    theta = torch.tensor([[0.0, 1.0, NEG, 2.0], [NEG, 0.0, NEG, NEG]], dtype=dtype)
    y = ORACLE.sample(theta, 20_000, torch.Generator().manual_seed(1))
    assert y.shape == (20_000, 2, 4)
    assert y.dtype == dtype
    assert torch.equal(y.sum(2), torch.ones(20_000, 2, dtype=dtype))
    torch.testing.assert_close(y.mean(0), theta.softmax(1), atol=0.015, rtol=0)
    assert torch.equal(y, ORACLE.sample(theta, 20_000, torch.Generator().manual_seed(1)))
    assert not torch.equal(y, ORACLE.sample(theta, 20_000))


# ----------------------------------------------------------------------------- the projection


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_projection_solves_its_quadratic_program(scale):
    theta = scores(scale=scale)
    for row, p in zip(theta, ORACLE.project(theta), strict=True):
        found = minimize(
            lambda q, row=row: float(((torch.from_numpy(q) - row) ** 2).sum()),
            x0=[0.2] * 5,
            jac=lambda q, row=row: 2 * (q - row.numpy()),
            bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert torch.allclose(p, torch.from_numpy(found.x), atol=1e-6)


def test_projection_by_hand():
    assert ORACLE.project(torch.tensor([[-2.0, 0.0, 0.5]])).tolist() == [[0, 0.25, 0.75]]
    assert ORACLE.project(torch.tensor([[1.0, 2.0, 0.0], [7.0, 7.0, NEG]])).tolist() == [[0, 1, 0], [0.5, 0.5, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_projection_is_a_distribution(dtype, scale):
    theta = scores(64, 200, dtype, scale) + 100 * scale
    p = ORACLE.project(theta)
    assert p.dtype == dtype
    assert bool((p >= 0).all())
    torch.testing.assert_close(p.sum(1), torch.ones(64, dtype=dtype))
    shifted = ORACLE.project(theta.double() - 5)
    torch.testing.assert_close(p.double(), shifted, atol=1e-4 if dtype == torch.float32 else 1e-9, rtol=0)


def test_projection_gradient():
    theta = scores(6, 7).requires_grad_()
    assert torch.autograd.gradcheck(ORACLE.project, theta)
    theta = torch.tensor([[1.0, NEG, 0.8]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(ORACLE.project(theta)[0, 0], theta)
    assert gradient.tolist() == [[0.5, 0, -0.5]]


# ----------------------------------------------------------------------------- forms


def test_labels_round_trip():
    theta = scores(3, 4, torch.float32)
    labels = torch.tensor([3, 0, 1])
    y = ORACLE.encode(labels, theta)
    assert y.dtype == theta.dtype
    assert torch.equal(ORACLE.decode(y), labels)
    assert torch.equal(ORACLE.encode(labels.int(), theta), y)
    with pytest.raises(InvalidInputError, match="between 0 and 3, got -1 at batch index 1"):
        ORACLE.encode(torch.tensor([0, -1, 0]), theta)
    with pytest.raises(InvalidInputError, match="got 4 at batch index 2"):
        ORACLE.encode(torch.tensor([0, 1, 4]), theta)


def test_hamming_cost_counts_wrong_choices():
    every = ORACLE.enumerate((3,))
    assert every.dtype == torch.float64
    for gold in every:
        cost = ORACLE.hamming_cost(gold[None])
        distance = ORACLE.score(cost, every) - ORACLE.score(cost, gold[None])
        assert torch.equal(distance, (every.argmax(1) != gold.argmax()).double())


def test_single_part_and_empty_batch():
    one = torch.randn(2, 1)
    assert ORACLE.argmax(one).tolist() == ORACLE.project(one).tolist() == [[1], [1]]
    assert torch.equal(ORACLE.log_partition(one), one[:, 0])
    empty = torch.randn(0, 3)
    assert ORACLE.argmax(empty).shape == ORACLE.marginals(empty).shape == ORACLE.project(empty).shape == (0, 3)
    assert ORACLE.log_partition(empty).shape == (0,)
    assert ORACLE.sample(empty, 2).shape == ORACLE.topk(empty, 2)[0].shape == (2, 0, 3)
    with pytest.raises(InvalidInputError, match="K = 0"):
        ORACLE.validate(torch.randn(2, 0))


@pytest.mark.parametrize(
    "call",
    [
        ORACLE.argmax,
        ORACLE.marginals,
        ORACLE.log_partition,
        ORACLE.project,
        lambda t: ORACLE.topk(t, 1),
        lambda t: ORACLE.sample(t, 1),
    ],
)
def test_nothing_to_choose(call):
    with pytest.raises(InfeasibleError, match="no choice of finite score exists for batch index 1") as caught:
        call(torch.tensor([[0.0, 1.0], [NEG, NEG]]))
    assert caught.value.batch_index == 1


def test_input_is_left_alone():
    base = torch.randn(6, 4)
    theta = base.T  # not contiguous
    before, version = theta.clone(), theta._version
    for call in (ORACLE.argmax, ORACLE.marginals, ORACLE.log_partition, ORACLE.project):
        torch.testing.assert_close(call(theta), call(before), rtol=0, atol=0)
    ORACLE.topk(theta, 2)
    ORACLE.sample(theta, 2)
    assert torch.equal(theta, before)
    assert theta._version == version
    assert not theta.requires_grad
