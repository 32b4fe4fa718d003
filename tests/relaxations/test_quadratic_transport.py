"""Transport with a squared-norm regularizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structinf as si

DOUBLE = torch.float64


def draw(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(2, n, m, dtype=DOUBLE, generator=generator)
    rows, columns = (torch.rand(2, k, dtype=DOUBLE, generator=generator) for k in (n, m))
    return theta, rows.softmax(1), columns.softmax(1)


@pytest.mark.parametrize("size", [(3, 4), (4, 2), (1, 1)])
def test_the_plan_and_the_value_solve_the_quadratic_program(size: tuple[int, int]) -> None:
    theta, rows, columns = draw(*size)
    found = si.quadratic_transport(theta, rows, columns, 0.7, record=True)
    for b in range(2):
        constraints = [
            {"type": "eq", "fun": lambda p, b=b: p.reshape(size).sum(1) - rows[b].numpy()},
            {"type": "eq", "fun": lambda p, b=b: p.reshape(size).sum(0)[1:] - columns[b].numpy()[1:]},
        ][: 1 if size[1] == 1 else 2]
        best = minimize(
            lambda p, b=b: 0.35 * p @ p - theta[b].numpy().ravel() @ p,
            np.outer(rows[b], columns[b]).ravel(),
            bounds=[(0, None)] * theta[b].numel(),
            constraints=constraints,
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert found.value[b].item() == pytest.approx(-best.fun, abs=1e-7)
        assert np.allclose(found.mean[b].ravel(), best.x, atol=1e-4)


@pytest.mark.parametrize("size", [(3, 4), (3, 2)])
def test_derivatives_of_both_orders(size: tuple[int, int]) -> None:
    temperature = torch.tensor(1.2, dtype=DOUBLE)
    inputs = [t.requires_grad_() for t in (*draw(*size), temperature)]

    def plan_and_value(theta: Tensor, rows: Tensor, columns: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        margins = rows / rows.sum(1, keepdim=True), columns / columns.sum(1, keepdim=True)
        found = si.quadratic_transport(theta, *margins, temperature, record=True)
        return found.mean, found.value

    assert gradcheck(plan_and_value, inputs)
    assert gradgradcheck(plan_and_value, inputs)


def test_plans_that_do_not_exist() -> None:
    theta = torch.zeros(2, 2)
    with pytest.raises(si.InvalidInputError, match="equal totals"):
        si.quadratic_transport(theta, torch.ones(2), torch.ones(2) / 2)
    with pytest.raises(si.InfeasibleError):
        si.quadratic_transport(theta.masked_fill(torch.eye(2) < 2, -torch.inf))


def test_positive_cells_in_several_components() -> None:
    theta = torch.tensor([[0.0, -9.0], [-9.0, 0.0]], dtype=DOUBLE, requires_grad=True)
    margins = torch.tensor([0.3, 0.7], dtype=DOUBLE, requires_grad=True)
    found = si.quadratic_transport(theta, margins, margins, 0.1, record=True)
    assert torch.allclose(found.mean, torch.diag(margins), atol=1e-12)
    assert found.value.item() == pytest.approx(-0.05 * (0.3**2 + 0.7**2))
    gradients = torch.autograd.grad(found.value, (theta, margins))
    assert torch.allclose(gradients[0], torch.diag(margins), atol=1e-12)
    # Margins that change together keep the plan diagonal, with the value −0.05 ‖margins‖².
    assert torch.allclose(gradients[1], -0.1 * margins, atol=1e-9)


def test_empty_rows_and_forbidden_cells() -> None:
    theta = torch.tensor([[0.0, 1.0], [-torch.inf, 0.0], [0.2, 0.3]], dtype=DOUBLE, requires_grad=True)
    rows, columns = torch.tensor([0.0, 1.0, 1.0], dtype=DOUBLE), torch.tensor([0.5, 1.5], dtype=DOUBLE)
    plan = si.quadratic_transport(theta, rows, columns, 0.5)
    assert torch.allclose(plan, torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.5, 0.5]], dtype=DOUBLE), atol=1e-12)
    assert torch.autograd.grad(plan.square().sum(), theta)[0].isfinite().all()
