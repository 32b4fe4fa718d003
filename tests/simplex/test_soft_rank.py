"""Soft ranks and soft sorts, against nearest points of lists of permutations and scipy's isotonic regression."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from torch.autograd import gradcheck, gradgradcheck

import enumerators
from structinf import soft_rank, soft_sort
from structinf.errors import InvalidInputError

DOUBLE = torch.float64
BOTH = pytest.mark.parametrize("function", [soft_rank, soft_sort])
SIZES = pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 300])


def plain(function, theta, temperature):
    """Both of one row, by scipy's isotonic regression."""
    order, ranks = np.argsort(theta, kind="stable"), np.arange(1.0, len(theta) + 1)
    point, vertex = (theta[order], ranks) if function is soft_rank else (ranks, theta[order])
    found = point / temperature - isotonic_regression(point / temperature - vertex).x
    if function is soft_sort:
        return found
    back = np.empty_like(found)
    back[order] = found
    return back


@pytest.mark.parametrize("temperature", [0.01, 0.3, 1, 20])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@BOTH
@SIZES
def test_values(n, function, dtype, temperature):
    theta = torch.randn(3, n, dtype=dtype)
    theta[1] = (2 * theta[1]).round()  # ties
    found = function(theta, temperature)
    assert found.dtype == dtype
    for row, mu in zip(theta.double().numpy(), found.double().numpy(), strict=True):
        expected = plain(function, row, temperature)
        np.testing.assert_allclose(mu, expected, rtol=1e-6 if dtype == torch.float32 else 1e-10, atol=1e-6)
        total = n * (n + 1) / 2 if function is soft_rank else row.sum()
        assert mu.sum() == pytest.approx(total, rel=1e-6, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_both_are_nearest_points_of_lists_of_permutations(temperature):
    for theta in np.random.default_rng(0).normal(size=(5, 4)):
        for function, target, vertex in (
            (soft_rank, theta / temperature, np.arange(1.0, 5.0)),
            (soft_sort, np.arange(1.0, 5.0) / temperature, theta),
        ):
            orders = [(np.array(p),) for p in itertools.permutations(vertex)]
            (expected,) = enumerators.projection((target,), orders)
            np.testing.assert_allclose(function(torch.from_numpy(theta), temperature), expected, atol=1e-6)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3, 1e30])
def test_scales_and_offsets_cost_no_precision(scale, dtype, function):
    theta = torch.randn(2, 40, dtype=dtype)
    scaled = function(theta * scale, scale if function is soft_rank else 1 / scale)
    exact = function(theta.double() * scale, scale if function is soft_rank else 1 / scale)
    size = 40 if function is soft_rank else 4 * scale
    torch.testing.assert_close(scaled.double(), exact, rtol=0, atol=size * (1e-6 if dtype == torch.float32 else 1e-12))
    # Whole numbers far from 0, whose differences are exact.
    near = torch.randint(-9, 9, (2, 40)).to(dtype)
    moved = function(near + 2**20) - (0 if function is soft_rank else 2**20)
    torch.testing.assert_close(moved, function(near), rtol=0, atol=1e-6 if function is soft_rank else 0.07)


def test_numbers_at_the_far_end_of_their_type():
    most = torch.finfo(DOUBLE).max
    theta = torch.tensor([most, -most, 0.5 * most, 1.0, 2.0], dtype=DOUBLE)
    assert soft_rank(theta).tolist() == [5, 1, 4, 2, 3]
    theta = 1e-20 * theta
    assert soft_sort(theta, 1e-300).tolist() == sorted(theta.tolist())


@BOTH
def test_hard_as_soon_as_gaps_exceed_the_temperature(function):
    theta = torch.tensor([[3.0, -1.0, 0.5, 7.0]], requires_grad=True)
    hard = function(theta, 1.0 if function is soft_rank else 0.1)
    assert hard.tolist() == [[3, 1, 2, 4]] if function is soft_rank else [[-1, 0.5, 3, 7]]
    (gradient,) = torch.autograd.grad((hard * torch.arange(4.0)).sum(), theta)
    assert gradient.tolist() == ([[0, 0, 0, 0]] if function is soft_rank else [[2, 0, 1, 3]])


def test_equal_numbers_have_equal_ranks():
    theta = torch.tensor([1.0, 0.0, -0.0, 1.0, 0.0, 5.0] * 10)  # long enough for the radix sort
    ranks = soft_rank(theta, 1e-3)
    assert ranks.tolist() == pytest.approx([45.5, 15.5, 15.5, 45.5, 15.5, 55.5] * 10, abs=10)
    for value in (0.0, 1.0, 5.0):
        of = ranks[theta == value]
        assert (of == of[0]).all()
    assert soft_rank(torch.zeros(3, 50)).eq(25.5).all()


def test_a_high_temperature_levels_all():
    theta = torch.randn(3, 9, dtype=DOUBLE)
    torch.testing.assert_close(soft_rank(theta, 1e9), torch.full((3, 9), 5.0, dtype=DOUBLE))
    torch.testing.assert_close(soft_sort(theta, 1e9), theta.mean(1, keepdim=True).expand(3, 9))


@given(st.lists(st.sampled_from([-math.pi, -1.0, -0.0, 0.0, 1e-40, 1e-3, 1.0, 2.0, 1e30]), min_size=1, max_size=70))
def test_sorting_is_right_for_numbers_of_any_kind(numbers):
    for dtype in (torch.float32, DOUBLE):
        theta = torch.tensor(numbers, dtype=dtype)
        assert torch.equal(soft_sort(theta, 1e-300) + 0.0, theta.sort().values + 0.0)


# ----------------------------------------------------------------------------- derivatives


@BOTH
@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_derivatives(n, temperature, function):
    theta = torch.randn(2, n, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(lambda t: function(t, temperature), theta)
    assert gradgradcheck(lambda t: function(t, temperature), theta)
    # Of a function of it, the second derivative is that of the linear piece.
    (first,) = torch.autograd.grad(function(theta, temperature).square().sum(), theta, create_graph=True)
    v = torch.randn_like(first)
    (second,) = torch.autograd.grad((first * v).sum(), theta)
    jacobian = torch.autograd.functional.jacobian(lambda t: function(t, temperature), theta).flatten(2).flatten(0, 1)
    torch.testing.assert_close(second.flatten(), 2 * jacobian.T @ (jacobian @ v.flatten()))


@BOTH
def test_the_gradient_belongs_to_the_blocks(function):
    theta = torch.tensor([0.0, 10.0, 0.2, 10.1], requires_grad=True)
    (gradient,) = torch.autograd.grad(function(theta)[0], theta)
    expected = [0.5, 0, -0.5, 0] if function is soft_rank else [0.5, 0, 0.5, 0]
    if function is soft_rank:
        assert gradient.tolist() == pytest.approx(expected)
    else:
        assert gradient.sum() == pytest.approx(1)


# ----------------------------------------------------------------------------- forms


@BOTH
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_dimensions(dim, function):
    theta = torch.randn(3, 4, 5, dtype=DOUBLE, requires_grad=True)
    found = function(theta, 0.5, dim=dim)
    rows = function(theta.movedim(dim, -1).reshape(-1, theta.shape[dim]), 0.5)
    torch.testing.assert_close(found.movedim(dim, -1).reshape(rows.shape), rows)
    assert gradcheck(lambda t: function(t, 0.5, dim=dim), theta, fast_mode=True)


def test_descending_is_the_same_reversed():
    theta = torch.randn(2, 3, 6, dtype=DOUBLE)
    for dim in (1, -1):
        down = soft_sort(theta, dim=dim, descending=True)
        torch.testing.assert_close(down, soft_sort(theta, dim=dim).flip(dim))
        torch.testing.assert_close(down, -soft_sort(-theta, dim=dim))


@BOTH
@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
def test_nothing_to_sort(shape, function):
    theta = torch.zeros(shape, requires_grad=True)
    for dim in range(len(shape)):
        found = function(theta, dim=dim)
        assert found.shape == shape
        found.sum().backward()


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_lifted(dtype, function):
    theta = torch.randn(300).to(dtype).requires_grad_()
    found = function(theta)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, function(theta.float()))
    found.square().sum().backward()
    assert theta.grad is not None
    assert theta.grad.dtype == dtype


@BOTH
def test_inputs_are_left_alone(function):
    theta = torch.randn(6, 4).T
    before = theta.clone()
    found = function(theta)
    torch.testing.assert_close(found, function(theta.contiguous()))
    assert torch.equal(theta, before)
    assert not theta.requires_grad
    with torch.inference_mode():
        assert torch.equal(function(theta), found)
    with torch.no_grad():
        assert not function(theta.clone().requires_grad_()).requires_grad
    assert torch.equal(function(theta)[2], function(theta[2:3])[0])


@BOTH
def test_refusals(function):
    with pytest.raises(InvalidInputError, match=r"theta holds nan at \(1, 0\); it must be finite"):
        function(torch.tensor([[0.0, 1.0], [math.nan, -math.inf]]))
    with pytest.raises(InvalidInputError, match=r"theta holds -inf at \(1,\)"):
        function(torch.tensor([0.0, -math.inf]))
    with pytest.raises(InvalidInputError, match=r"theta holds inf at \(0,\)"):
        function(torch.tensor([math.inf, -math.inf]))
    with pytest.raises(TypeError, match=r"floating point, got a tensor of torch.int64"):
        function(torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="got list"):
        function([1.0])
    for temperature in (0, -1.0, math.nan, math.inf, "1", torch.tensor(1.0)):
        with pytest.raises(InvalidInputError, match="temperature must be a finite number above 0"):
            function(torch.zeros(2), temperature)
    what = "theta" if function is soft_rank else "the ranks"
    with pytest.raises(InvalidInputError, match=f"temperature 1e-308 is too small: {what} / temperature overflows"):
        function(torch.full((20,), 20.0, dtype=DOUBLE), 1e-308)
    with pytest.raises(InvalidInputError, match="temperature 1e-310 is too small"):
        function(torch.zeros(3), 1e-310)
    for dim in (1, -2, 0.5, True, None):
        with pytest.raises(InvalidInputError, match=r"dim must be a dimension of theta, which has shape \(3,\), got"):
            function(torch.zeros(3), dim=dim)
    with pytest.raises(InvalidInputError, match=r"dim must be a dimension of theta, which has shape \(\)"):
        function(torch.tensor(1.0))
