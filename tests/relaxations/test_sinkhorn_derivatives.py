"""Derivatives of entropic transport, and its reference in torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structinf as si
from sinkhorn_inputs import backwards, draw, margins
from structinf.solvers import sinkhorn_torch
from structinf.solvers.sinkhorn import EntropicTransport, add_slack, forbid_unusable_cells

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize(("backward", "temperature"), [("implicit", 1.0), ("implicit", 0.3), ("unrolled", 1.0)])
def test_derivatives_in_the_scores(backward: str, temperature: float) -> None:
    theta = draw(1, 3, 3).requires_grad_()

    def plan(theta: Tensor) -> Tensor:
        return si.sinkhorn(theta, temperature=temperature, backward=backward)

    assert gradcheck(plan, theta, fast_mode=backward == "unrolled")
    assert gradgradcheck(plan, theta, fast_mode=True)


@backwards
def test_derivatives_in_the_margins(backward: str) -> None:
    theta, rows, columns = draw(2, 3, 4).requires_grad_(), margins(2, 3), margins(2, 4)
    inputs = (theta, rows.requires_grad_(), columns.requires_grad_())

    def solve(theta: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        columns = columns * (rows.sum(1) / columns.sum(1)).unsqueeze(1)
        found = si.sinkhorn(theta, rows, columns, 0.5, record=True, backward=backward)
        return found.mean, found.value

    assert gradcheck(solve, inputs)
    assert gradgradcheck(solve, inputs, fast_mode=True)


def test_margins_in_single_precision_are_no_bounds() -> None:
    """Their totals differ by rounding, of which no slack may come: prices would be other ones."""
    theta = draw(50, 30)
    prices = []
    for dtype in (torch.float32, torch.float64):
        rows, columns = (torch.full((size,), 1 / size, dtype=dtype, requires_grad=True) for size in theta.shape)
        value = si.sinkhorn(theta, rows, columns, 0.5, record=True).value
        prices.append([g.double() for g in torch.autograd.grad(value, (rows, columns))])
    torch.testing.assert_close(*prices, atol=1e-5, rtol=1e-5)


def test_both_gradients_agree() -> None:
    theta, direction = draw(3, 5, 5).requires_grad_(), draw(3, 5, 5, seed=1)
    gradients = [
        torch.autograd.grad((si.sinkhorn(theta, temperature=0.3, backward=b) * direction).sum(), theta)[0]
        for b in ("implicit", "unrolled")
    ]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)


def test_gradient_at_a_small_temperature() -> None:
    """Where the plan is nearly a vertex, its derivative is nearly 0: not what differences would leave."""
    theta = draw(4, 6, 6).requires_grad_()
    (gradient,) = torch.autograd.grad((si.sinkhorn(theta, temperature=1e-3) * draw(4, 6, 6, seed=1)).sum(), theta)
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1e-9


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_derivatives_are_linear_in_the_cotangent(scale: float, reference: bool) -> None:
    """However small a loss is: what counts for rounding is the size of the cotangent itself."""
    theta, v, none = draw(2, 4, 3), draw(2, 4, 3, seed=1), (torch.zeros(2, 4).double(), torch.zeros(2, 3).double())
    margins_of_both = (torch.ones(1, 4).double() * 0.75, torch.ones(1, 3).double())

    def product(v: Tensor) -> Tensor:
        function = EntropicTransport(0.1, 1e-12, 1000)
        if reference:
            return sinkhorn_torch.tangent(function.plan((theta, *margins_of_both)).plan, v, *none, 0.1)[0]
        return function.hessian_product((theta, *margins_of_both), (v, *none))[0]

    torch.testing.assert_close(product(v * scale) / scale, product(v), atol=1e-13, rtol=1e-10)


def test_slack_has_derivatives() -> None:
    theta = draw(2, 2, 3).requires_grad_()
    assert gradcheck(lambda t: si.sinkhorn(t, slack=True, total=1.5), theta)
    loss = si.FenchelYoungLoss("assignment", "sinkhorn", reduction="none")
    gold = torch.tensor([[1, 0], [2, 1]])
    assert gradcheck(lambda t: loss(t, gold), theta)
    assert gradgradcheck(lambda t: loss(t, gold), theta)


def test_third_derivative_of_the_value() -> None:
    theta = draw(1, 2, 3).requires_grad_()

    def slope(theta: Tensor) -> Tensor:
        value = si.sinkhorn(theta, slack=True, record=True).value.sum()
        (gradient,) = torch.autograd.grad(value, theta, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), theta, create_graph=True)
        return second

    assert gradcheck(slope, theta)


# ----------------------------------------------------------------------------- the reference in torch


@pytest.mark.parametrize(("n", "m"), [(6, 6), (7, 4), (1, 1)])
@pytest.mark.parametrize("temperature", [1.0, 0.02])
def test_torch_and_compiled_loops_agree(n: int, m: int, temperature: float) -> None:
    theta, rows, columns = draw(3, n, m), margins(3, n), margins(3, m)
    if n > 1:
        theta[0, 0, 0] = -torch.inf
        rows = torch.cat([torch.zeros(3, 1).double(), margins(3, n - 1)], 1)
        rows[0] = margins(n)
    problem = (forbid_unusable_cells(theta, rows, columns), rows, columns)
    compiled = EntropicTransport(temperature, 1e-12, 1000)
    found = compiled.plan(problem)
    expected = sinkhorn_torch.solve(*problem, temperature, 0.0, 1e-12, 1000)
    torch.testing.assert_close(found.plan, expected.plan, atol=1e-12, rtol=0)
    assert (expected.residual < 1e-12).all()
    v = (draw(3, n, m, seed=2), margins(3, n, seed=3), margins(3, m, seed=4))
    change, x, y = sinkhorn_torch.tangent(found.plan, *v, temperature)
    product = compiled.hessian_product(problem, v)
    torch.testing.assert_close(product[0], change, atol=1e-9, rtol=1e-9)
    prices = product[1][:, :, None] + product[2][:, None]
    kept = found.plan > 1e-12
    torch.testing.assert_close(prices[kept], -temperature * (x[:, :, None] + y[:, None])[kept], atol=1e-7, rtol=1e-7)


@pytest.mark.cuda
def test_cuda() -> None:
    theta, rows, columns = draw(3, 6, 5), margins(3, 6), margins(3, 5)
    on_gpu = theta.cuda().requires_grad_()
    plan = si.sinkhorn(on_gpu, rows.cuda(), columns.cuda(), 0.05)
    torch.testing.assert_close(plan.cpu(), si.sinkhorn(theta, rows, columns, 0.05), atol=1e-11, rtol=0)
    assert gradcheck(lambda t: si.sinkhorn(t, rows.cuda(), columns.cuda(), 0.5), on_gpu)


def test_slack_is_added_only_where_it_is_needed() -> None:
    ones = torch.ones(1, 3, dtype=torch.float64)
    scores, rows, columns = add_slack(draw(2, 3, 3), ones, ones * (1 + 1e-15), None)
    assert scores.shape == (2, 3, 3)
    scores, rows, columns = add_slack(draw(2, 3, 3), ones, 2 * ones, None)
    assert scores.shape == (2, 4, 3)
    assert rows[0].tolist() == [1, 1, 1, 3]
    assert columns[0].tolist() == [2, 2, 2]
    single = torch.full((1, 7), 1 / 7), torch.full((1, 3), 1 / 3)
    assert add_slack(draw(2, 7, 3), *single, None)[0].shape == (2, 7, 3)
