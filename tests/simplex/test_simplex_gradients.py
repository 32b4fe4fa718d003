"""Derivatives of the maps to the simplex, of the first and second order, in scores, α and budgets."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from entropy_formulas import every_entropy
from simplex_map_reference import DOUBLE, INF, MAPS, double, every_dtype, every_map
from structinf.errors import InvalidInputError
from structinf.kernels.simplex import dispatch as compiled
from structinf.kernels.simplex import torch_backend
from structinf.simplex import (
    Entmax,
    RenyiEntropy,
    SquaredNormEntropy,
    TsallisEntropy,
    budget,
    entmax,
    entmax15,
    normmax,
    simplex_loss,
    softmax,
    sparsemax,
)

pytestmark = pytest.mark.slow

ALPHAS = [1, 1.25, 1.5, 1.9, 2, 3.0, 4.0]


def leaf(*shape) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE, requires_grad=True)


@every_map
def test_both_orders(name):
    for _ in range(3):
        x = leaf(2, 5)
        assert gradcheck(MAPS[name], x)
        assert gradgradcheck(MAPS[name], x)
    x = leaf(2, 3, 2)
    assert gradcheck(functools.partial(MAPS[name], dim=1), x)
    assert gradgradcheck(functools.partial(MAPS[name], dim=1), x)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_for_every_alpha(alpha):
    x = leaf(2, 5)
    assert gradcheck(lambda x: entmax(x, alpha), x)
    assert gradgradcheck(lambda x: entmax(x, alpha), x)


@pytest.mark.matrix
@pytest.mark.parametrize("alpha", [1.0003, 1.25, 1.5, 2, 2.7, 4])
@pytest.mark.parametrize("function", [entmax, normmax])
def test_in_alpha(function, alpha):
    if function is normmax and alpha < 1.1:
        pytest.skip("normmax is all but an argmax there")
    # One for each row, for each head, and for all.
    for shape in ((2, 2, 1), (2, 1, 1), ()):
        x, parameter = leaf(2, 2, 4), torch.full(shape, float(alpha), dtype=DOUBLE, requires_grad=True)
        assert gradcheck(function, (x, parameter))
        assert gradgradcheck(function, (x, parameter))


def test_in_alpha_at_1_from_above():
    x, weight = torch.randn(2, 3, 6, dtype=DOUBLE)
    alpha = torch.ones((), dtype=DOUBLE, requires_grad=True)
    (found,) = torch.autograd.grad((entmax(x, alpha) * weight).sum(), alpha, create_graph=True)
    p = softmax(x)
    square = p.log().square()
    expected = 0.5 * (weight * p * ((p * square).sum(-1, keepdim=True) - square)).sum()
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    (second,) = torch.autograd.grad(found, alpha)
    f = [(entmax(x, 1 + h) * weight).sum().item() for h in (0, 1e-4, 2e-4, 3e-4)]
    assert second.item() == pytest.approx((2 * f[0] - 5 * f[1] + 4 * f[2] - f[3]) / 1e-8, rel=1e-4)


def test_in_alpha_with_masked_scores():
    x = double(1, 2, -INF, 0.5).requires_grad_()
    for function in (entmax, normmax):
        for start in (1.0, 1.3, 2.0, 3.0):
            if function is normmax and start == 1:
                continue
            alpha = torch.tensor(start, dtype=DOUBLE, requires_grad=True)
            both = torch.autograd.grad((function(x, alpha) ** 2).sum(), (x, alpha), create_graph=True)
            short = double(1, 2, 0.5).requires_grad_()
            fewer = torch.autograd.grad((function(short, alpha) ** 2).sum(), (short, alpha))
            torch.testing.assert_close(both[0][[0, 1, 3]], fewer[0])
            torch.testing.assert_close(both[1], fewer[1])
            assert both[0][2] == 0
            again = torch.autograd.grad(both[0].square().sum() + both[1], (x, alpha))
            assert all(g.isfinite().all() for g in again)
            assert again[0][2] == 0


@pytest.mark.parametrize("k", [0.6, 1.4, 2.5])
def test_in_the_budget(k):
    for shape in ((2, 2, 1), (2, 1, 1), ()):
        x, parameter = leaf(2, 2, 4), torch.full(shape, k, dtype=DOUBLE, requires_grad=True)
        assert gradcheck(budget, (x, parameter))
        assert gradgradcheck(budget, (x, parameter))


# ---------------------------------------------------------------------------------------------- listed values


def test_listed_values():
    x = torch.tensor([[[-2, 0, 0.5]], [[0.1, 2, -0.4]]], dtype=DOUBLE, requires_grad=True)
    for function in (sparsemax, entmax15, softmax):
        (g,) = torch.autograd.grad(function(x).square().sum(), x)
        (flat,) = torch.autograd.grad(function(x.view(2, 3)).square().sum(), x)
        (turned,) = torch.autograd.grad(function(x.transpose(0, 2), 0).square().sum(), x)
        torch.testing.assert_close(g, flat)
        torch.testing.assert_close(g, turned)
    (g,) = torch.autograd.grad(sparsemax(x).square().sum(), x)
    # On the support {0, 0.5}: 2 (p − the mean 1/2).
    torch.testing.assert_close(g[0, 0], double(0, -0.5, 0.5))


def jacobian(p: torch.Tensor, alpha: float) -> torch.Tensor:
    s = torch.where(p > 0, p ** (2 - alpha), 0.0)
    return s.diag() - s.outer(s) / s.sum()


@every_dtype
@pytest.mark.parametrize("n", [1, 3, 64, 130])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_products_are_with_the_published_jacobian(alpha, n, dtype):
    x, g = torch.randn(3, n, dtype=dtype), torch.randn(3, n, dtype=dtype)
    p = compiled.entmax(x, alpha)
    product, _ = compiled.vjp(p, g, alpha)
    expected = torch.stack([jacobian(q, alpha) @ v for q, v in zip(p.double(), g.double(), strict=True)])
    rtol = 1e-5 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(product.double(), expected, rtol=rtol, atol=rtol * expected.abs().max().item())
    again = torch_backend.entmax_vjp(p.double(), g.double(), alpha)
    torch.testing.assert_close(again, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())


@pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 2.0, 3.5])
def test_compiled_slopes_are_those_of_torch(alpha):
    p, g = compiled.entmax(3 * torch.randn(4, 70, dtype=DOUBLE), alpha), torch.randn(4, 70, dtype=DOUBLE)
    slope = compiled.vjp(p, g, alpha, with_parameter_grad=True)[1]
    expected = torch_backend.entmax_alpha_vjp(p, g, alpha)
    torch.testing.assert_close(slope, expected, rtol=1e-11, atol=1e-12)


def test_one_tiny_probability_does_not_drown_the_others():
    """For α > 2 its s = p^(2 − α) exceeds the others by far; the product stays that of what is left, to rounding."""
    alpha, tiny = 4.0, 1e-9
    p = double(0.5 - tiny, 0.3, 0.2, tiny)
    g = double(1, -2, 0.7, 0.1)
    s = p**-2
    expected = s * (g - g[3])  # what is left where s[3] is infinite
    expected[3] = -expected[:3].sum()
    for product in (compiled.vjp(p, g, alpha)[0], torch_backend.entmax_vjp(p, g, alpha)):
        torch.testing.assert_close(product, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("alpha", [70.0, 120.0, 400.0, 5000.0])
def test_weights_that_overflow_leave_what_is_finite(alpha):
    """(p_0)^(2 − α) is beyond float64, and J, as of two numbers, has (p_1)^(2 − α) alone."""
    p = double(1e-6, 1 - 1e-6, 0)
    s = p[1].item() ** (2 - alpha)
    for g in (double(1, 3, 7), double(3, 1, 7), double(2, 2, 7)):
        change = s * (g[1] - g[0]).item()
        for product in (
            compiled.vjp(p[None], g[None], alpha)[0][0],
            torch_backend.entmax_vjp(p, g, alpha),
            torch_backend.entmax_vjp(p, g, torch.tensor([alpha])),
        ):
            torch.testing.assert_close(product, double(-change, change, 0), rtol=1e-9, atol=0)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 3.0])
def test_cotangents_that_differ_by_little_keep_their_digits_in_float32(alpha):
    p, g = torch.softmax(torch.randn(3, 100), -1), 1e4 + torch.randn(3, 100)
    s, wide = p.double() ** (2 - alpha), g.double()
    mean = (s * wide).sum(-1, keepdim=True) / s.sum(-1, keepdim=True)
    torch.testing.assert_close(compiled.vjp(p, g, alpha)[0].double(), s * (wide - mean), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.1, 2.5, 5.0])
def test_a_constant_in_the_cotangent_of_norms_costs_no_digits(alpha):
    x, g = leaf(3, 6), torch.randint(-99, 99, (3, 6)).double()
    parameter = torch.full((3, 1), alpha, dtype=DOUBLE, requires_grad=True)
    for p, leaves in (
        (normmax(x, parameter), [x, parameter]),
        (SquaredNormEntropy(alpha).probabilities(x), [x]),
        (RenyiEntropy(1 / alpha).probabilities(x), [x]),
    ):
        near, far = (torch.autograd.grad(p, leaves, each, retain_graph=True) for each in (g, g + 2.0**40))
        torch.testing.assert_close(far, near, rtol=1e-11, atol=1e-11)


@every_dtype
def test_slopes_beyond_all_numbers_are_infinite_and_not_nan(dtype):
    """All probabilities are 1/n, and the s of each is n^(α − 2)."""
    x = torch.zeros(2, 100, dtype=dtype, requires_grad=True)
    alpha = torch.full((2, 1), 400.0, dtype=dtype, requires_grad=True)
    weight = torch.arange(100, dtype=dtype) - 30
    by_x, by_alpha = torch.autograd.grad((entmax(x, alpha) * weight).sum(), (x, alpha))
    assert by_x[0].tolist() == [-math.inf] * 50 + [math.inf] * 50
    assert by_alpha.tolist() == [[0.0], [0.0]]
    p, g = torch.full((100,), 0.01, dtype=dtype), torch.arange(100, dtype=dtype)
    assert torch_backend.entmax_vjp(p, g, 400.0).tolist() == [-math.inf] * 50 + [math.inf] * 50
    assert torch_backend.entmax_vjp(p, torch.ones_like(p), 400.0).tolist() == [0.0] * 100
    g = g.roll(30)  # infinities of both signs beside the number that the others are compared with
    for product in (compiled.vjp(p, g, 400.0)[0], torch_backend.entmax_vjp(p, g, 400.0)):
        assert product.tolist() == [math.inf if number > 49 else -math.inf for number in g.tolist()]


# ---------------------------------------------------------------------------------------------- masks


@every_map
def test_masked_scores_have_gradient_0(name):
    x = double(0.3, -INF, 1, 0.7, -INF).expand(2, 5).clone()
    x[1] = -INF
    x.requires_grad_()
    p = MAPS[name](x)
    assert p[1].tolist() == [0.0] * 5
    (g,) = torch.autograd.grad((p * torch.arange(5.0)).sum(), x, create_graph=True)
    assert g[0, [1, 4]].tolist() == [0, 0]
    assert g[1].tolist() == [0.0] * 5
    if g.requires_grad:
        (h,) = torch.autograd.grad(g.square().sum(), x)
        assert h.isfinite().all()
        assert h[0, [1, 4]].tolist() == [0, 0]
    if name == "fusedmax":  # the mask keeps neighbours apart, who would meet if it were left out
        return
    fewer = double(0.3, 1, 0.7).requires_grad_()
    (without,) = torch.autograd.grad((MAPS[name](fewer) * double(0, 2, 3)).sum(), fewer)
    torch.testing.assert_close(g[0, [0, 2, 3]], without)


@every_map
def test_a_cotangent_of_what_has_no_probability_does_not_count(name):
    x = double(0, -INF, 0.5, 0.25).requires_grad_()
    p = MAPS[name](x)
    (g,) = torch.autograd.grad(p, x, double(1, 1e300, 2, 3))
    (expected,) = torch.autograd.grad(MAPS[name](x), x, double(1, 0, 2, 3))
    torch.testing.assert_close(g, expected, rtol=1e-9, atol=1e-9)


@every_map
def test_float32_gradients(name):
    x = torch.randn(4, 200)
    g = torch.randn(4, 200)
    found, expected = (
        torch.autograd.grad(MAPS[name](y), y, w)[0]
        for y, w in ((x.requires_grad_(), g), (x.detach().double().requires_grad_(), g.double()))
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6 * expected.abs().max().item())


@every_entropy
def test_gradients_in_weights_that_are_0(entropy):
    x = torch.tensor([[0.0, 1, -torch.inf], [0.3, 0, 0.2], [1, 0, 0]], dtype=torch.float64)
    weight, y = torch.tensor([0.0, 2, 0], dtype=torch.float64, requires_grad=True), torch.tensor([2, 1, 0])
    losses = simplex_loss(x, y, entropy, weight=weight, reduction="none")
    assert losses.tolist()[::2] == [0, 0]
    (g,) = torch.autograd.grad(losses.sum(), weight)
    alone = simplex_loss(x, y, entropy, reduction="none")
    torch.testing.assert_close(g, torch.stack([alone[2], alone[1], torch.zeros_like(alone[0])]))


# ---------------------------------------------------------------------------------------------- torch's other ways


@every_map
def test_functional_transforms(name):
    x, function = torch.randn(3, 4, dtype=DOUBLE), MAPS[name]
    torch.testing.assert_close(torch.func.vmap(function)(x.expand(2, 3, 4)), function(x).expand(2, 3, 4))
    torch.testing.assert_close(torch.func.vmap(function, in_dims=1)(x), function(x.T))
    by_rows = torch.func.vmap(torch.func.jacrev(function))(x)
    for row, found in zip(x, by_rows, strict=True):
        torch.testing.assert_close(found, torch.autograd.functional.jacobian(function, row))
    gradient = torch.func.grad(lambda x: function(x).square().sum())(x)
    y = x.clone().requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(function(y).square().sum(), y)[0])


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (entmax, "alpha must be a finite number of at least 1, .* got a tensor from 0 to 3"),
        (normmax, "alpha must be a finite number above 1, .* got a tensor from 0 to 3"),
        (budget, "k must be at most 4, the size of x along dim -1, got 5"),
    ],
)
def test_vmap_over_a_parameter(function, wrong):
    x, parameter = torch.randn(3, 4, dtype=DOUBLE), double(1.25, 2, 3)
    by_rows = function(x, parameter.unsqueeze(1))
    assert torch.equal(torch.func.vmap(function)(x, parameter), by_rows)
    assert torch.equal(torch.func.vmap(function, in_dims=(None, 0))(x, parameter)[1], function(x, 2.0))
    slopes = torch.func.vmap(torch.func.grad(lambda x, parameter: function(x, parameter)[0], argnums=1))(x, parameter)
    leaf = parameter.clone().requires_grad_()
    (expected,) = torch.autograd.grad(function(x, leaf.unsqueeze(1))[:, 0].sum(), leaf)
    torch.testing.assert_close(slopes, expected)
    with pytest.raises(InvalidInputError, match=wrong):
        torch.func.vmap(function)(x, double(5, 2, 3) if function is budget else double(0, 2, 3))


def test_vmap_over_the_last_dim_of_targets():
    x, y = torch.randn(4, 5, 3, dtype=DOUBLE), torch.softmax(torch.randn(4, 5, 3, dtype=DOUBLE), 1)
    loss = functools.partial(simplex_loss, entropy=TsallisEntropy(1.5))
    for target in (y, y.argmax(1)):
        found = torch.func.vmap(loss, in_dims=(2, -1))(x, target)
        torch.testing.assert_close(found, torch.stack([loss(x[..., i], target[..., i]) for i in range(3)]))
    with pytest.raises(InvalidInputError, match=r"got -1 at \(2, 1\)"):
        torch.func.vmap(loss, in_dims=-1)(
            x, torch.zeros(4, 3).long().index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(-1))
        )


def test_a_learnable_alpha_is_learnt():
    x = torch.randn(16, 6)
    target = entmax(x, 1.7)
    layer = Entmax(1.2, learnable=True)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        (layer(x) - target).square().sum().backward()
        optimizer.step()
    assert layer.alpha.item() == pytest.approx(1.7, abs=1e-2)
