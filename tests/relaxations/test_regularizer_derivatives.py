"""Derivatives of smoothed maxima, to the fourth, against differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from regularizer_reference import INF, double, every_regularizer, every_smooth, off_the_kinks
from structinf.autograd import smooth_argmax, smooth_max
from structinf.regularizers import Negentropy, Tsallis


@every_smooth
def test_the_hessian_product_is_the_derivative_of_the_gradient(regularizer):
    x, z, step = off_the_kinks(6, regularizer), torch.randn(6, dtype=torch.float64), 1e-6
    difference = (regularizer.gradient(x + step * z) - regularizer.gradient(x - step * z)) / (2 * step)
    product = regularizer.hessian_product(regularizer.gradient(x), z)
    torch.testing.assert_close(product, difference, rtol=1e-6, atol=1e-8)
    assert float(product.sum()) == pytest.approx(0, abs=1e-14)


@every_regularizer
@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_gradcheck_to_the_third_derivative(regularizer, n):
    x = torch.stack([off_the_kinks(n, regularizer) if n > 1 else torch.zeros(1, dtype=torch.float64) for _ in range(2)])
    if n == 5:
        x = torch.nn.functional.pad(x, (1, 1), value=-INF)
    x.requires_grad_()
    for function in (smooth_max, smooth_argmax):
        assert gradcheck(lambda x, function=function: function(regularizer, x), (x,))
        assert gradgradcheck(lambda x, function=function: function(regularizer, x), (x,), atol=1e-4)


@pytest.mark.parametrize("regularizer", [Negentropy(), Tsallis(alpha=1.25), Tsallis()], ids=lambda r: f"{r.alpha}")
def test_the_fourth_derivative(regularizer):
    x = torch.cat([off_the_kinks(4, regularizer), double(-INF)]).requires_grad_()
    weight = torch.randn(5, dtype=torch.float64)

    def vjp(x: Tensor) -> Tensor:
        return torch.autograd.grad(smooth_argmax(regularizer, x) @ weight, x, create_graph=True)[0]

    assert gradgradcheck(vjp, (x,), atol=1e-3)


@every_regularizer
def test_the_hessian_product_is_differentiable_in_both_arguments(regularizer):
    """Along the simplex's face of q; zeros of q stay where they are, without NaN."""
    q = double(0.5, 0, 0.3, 0.2, 0).requires_grad_()
    z = torch.randn(5, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(regularizer.hessian_product(q, z).square().sum(), (q, z), create_graph=True)
    assert all(g.isfinite().all() for g in first)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), (q, z))
    assert all(g.isfinite().all() for g in second)
    assert (second[0][[1, 4]] == 0).all()


@every_regularizer
def test_float32_third_derivatives_stay_finite_with_zero_probabilities(regularizer):
    x = torch.cat([5 * torch.randn(200, 12), torch.full((200, 2), -INF)], 1).requires_grad_()
    derivative = smooth_max(regularizer, x).sum()
    for _ in range(3):
        (derivative,) = torch.autograd.grad(derivative, x, create_graph=True)
        assert derivative.isfinite().all()
        derivative = (derivative * torch.randn_like(x)).sum()
