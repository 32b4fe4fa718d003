"""Transport with soft margins and the Sinkhorn divergence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structinf as si
from sinkhorn_inputs import draw, margins

DOUBLE = torch.float64
PENALTIES = ("kl", "squared_l2")

penalties = pytest.mark.parametrize("penalty", PENALTIES)


def penalty_of(kind: str, strength: float, a: Tensor, r: Tensor) -> Tensor:
    if kind == "kl":
        return strength * (torch.xlogy(a, a / r) - a + r).sum(-1)
    return strength / 2 * (a - r).square().sum(-1)


def objective(
    plan: Tensor, theta: Tensor, rows: Tensor, columns: Tensor, T: float, kind: str, strength: float
) -> Tensor:
    entropy = -torch.xlogy(plan, plan).sum((-2, -1))
    prices = penalty_of(kind, strength, plan.sum(-1), rows) + penalty_of(kind, strength, plan.sum(-2), columns)
    return (theta * plan).sum((-2, -1)) + T * entropy - prices


@penalties
@pytest.mark.parametrize("size", [(3, 2), (2, 3), (1, 1)])
def test_the_plan_is_the_best(size: tuple[int, int], penalty: str) -> None:
    theta, rows, columns = draw(1, *size)[0], margins(1, size[0])[0], 2 * margins(1, size[1])[0]
    found = si.unbalanced_sinkhorn(theta, rows, columns, 0.5, penalty=penalty, strength=0.7, record=True)

    def loss(log_plan: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.tensor(log_plan, requires_grad=True)
        value = -objective(x.exp().view(size), theta, rows, columns, 0.5, penalty, 0.7)
        value.backward()
        return value.item(), x.grad.numpy()

    best = minimize(loss, np.zeros(size[0] * size[1]), jac=True, method="BFGS", options={"gtol": 1e-9})
    torch.testing.assert_close(found.mean.flatten(), torch.from_numpy(np.exp(best.x)), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.value.item(), -best.fun, rtol=1e-9, atol=1e-9)


@penalties
@pytest.mark.parametrize("temperature", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("strength", [0.1, 10.0, 1e4])
def test_the_value_is_that_of_the_plan(strength: float, temperature: float, penalty: str) -> None:
    theta, rows, columns = draw(3, 6, 5), margins(3, 6), margins(3, 5) / 2
    found = si.unbalanced_sinkhorn(theta, rows, columns, temperature, penalty=penalty, strength=strength, record=True)
    assert found.converged.all()
    value = objective(found.mean, theta, rows, columns, temperature, penalty, strength)
    torch.testing.assert_close(found.value, value, rtol=1e-9, atol=1e-9)
    for b in range(3):  # alone, the plan is the same up to the tolerance
        one = si.unbalanced_sinkhorn(theta[b], rows[b], columns[b], temperature, penalty=penalty, strength=strength)
        torch.testing.assert_close(one, found.mean[b], rtol=1e-7, atol=1e-9)


@penalties
def test_strong_penalties_keep_the_margins(penalty: str) -> None:
    theta, rows, columns = draw(2, 4, 5), margins(2, 4), margins(2, 5)
    columns = columns * (rows.sum(1) / columns.sum(1))[:, None]
    hard = si.sinkhorn(theta, rows, columns, 0.3)
    torch.testing.assert_close(
        si.unbalanced_sinkhorn(theta, rows, columns, 0.3, penalty=penalty, strength=1e8), hard, rtol=1e-6, atol=1e-7
    )
    one_side = si.unbalanced_sinkhorn(theta, rows, 2 * columns, 0.3, penalty=penalty, strength=(math.inf, 1.0))
    torch.testing.assert_close(one_side.sum(2), rows)
    other = si.unbalanced_sinkhorn(theta.mT, 2 * columns, rows, 0.3, penalty=penalty, strength=(1.0, math.inf))
    torch.testing.assert_close(other.mT, one_side)


@pytest.mark.parametrize(("penalty", "hard"), [("kl", None), ("squared_l2", None), ("kl", 0), ("squared_l2", 1)])
def test_derivatives_of_both_orders(penalty: Any, hard: int | None) -> None:
    theta, rows, columns = draw(1, 3, 2), margins(1, 3), margins(1, 2)
    usable = torch.ones_like(theta, dtype=torch.bool)
    usable[0, 0, 1] = False
    numbers = [torch.tensor(x, dtype=DOUBLE) for x in (0.5, 0.7, 2.0)]
    leaves = tuple(t.requires_grad_() for t in (theta, rows, columns, *numbers))

    def solve(theta: Tensor, rows: Tensor, columns: Tensor, T: Tensor, *strengths: Tensor) -> tuple[Tensor, Tensor]:
        strength: Any = tuple(math.inf if side == hard else s for side, s in enumerate(strengths))
        found = si.unbalanced_sinkhorn(
            torch.where(usable, theta, -math.inf), rows, columns, T, penalty=penalty, strength=strength, record=True
        )
        return found.mean, found.value

    assert gradcheck(solve, leaves)
    assert gradgradcheck(solve, leaves, fast_mode=True)


@penalties
def test_empty_sides_forbidden_cells_and_margins_of_0(penalty: Any) -> None:
    ones = torch.ones(2, dtype=DOUBLE)
    nothing = 2.0 if penalty == "kl" else 1.0  # F(0) of two margins of 1
    for theta in (torch.zeros(2, 0, dtype=DOUBLE), torch.full((2, 2), -math.inf, dtype=DOUBLE)):
        columns = ones[: theta.shape[1]]
        found = si.unbalanced_sinkhorn(theta, ones, columns, penalty=penalty, record=True)
        assert found.mean.eq(0).all()
        assert found.value.item() == -nothing * (1 + len(columns) / 2)
    assert si.unbalanced_sinkhorn(torch.zeros(0, 2, 3), penalty=penalty).shape == (0, 2, 3)
    plan = si.unbalanced_sinkhorn(torch.zeros(2, 2), torch.tensor([0.0, 1.0]), penalty=penalty)
    assert plan.isfinite().all()
    assert (plan[0] == 0).all() == (penalty == "kl")


@penalties
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_dtypes_batches_and_strides(dtype: torch.dtype, penalty: Any) -> None:
    theta = draw(6, 4, 3)
    plan = si.unbalanced_sinkhorn(theta, penalty=penalty)
    rough = si.unbalanced_sinkhorn(theta.to(dtype).view(2, 3, 4, 3), penalty=penalty)
    assert rough.dtype == dtype
    rounding = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(rough.double().view(6, 4, 3), plan, rtol=rounding, atol=rounding)
    strided = theta.repeat_interleave(2, 2)[:, :, ::2]
    assert torch.equal(si.unbalanced_sinkhorn(strided, penalty=penalty), plan)
    large = si.unbalanced_sinkhorn(-1000 * theta.abs(), penalty=penalty, record=True)
    assert large.converged.all()


def test_refusals() -> None:
    theta = torch.zeros(2, 2)
    for options, message in (
        ({"strength": 0.0}, "strength must be a number above 0, or a pair of them, got 0.0"),
        ({"strength": (1.0, 2.0, 3.0)}, "a pair for rows and columns"),
        ({"strength": math.inf}, "use si.sinkhorn"),
        ({"strength": torch.tensor(True)}, "strength must be a number above 0"),
        ({"strength": (1.0, torch.tensor(1j))}, "strength must be a number above 0"),
        ({"strength": torch.ones(2)}, "strength must be a number above 0"),
        ({"strength": "1"}, "strength must be a number above 0"),
        ({"penalty": "tv"}, 'penalty must be "kl" or "squared_l2"'),
        ({"temperature": -1.0}, "temperature must be"),
        ({"rows": torch.tensor([-1.0, 1.0])}, "rows must be finite and at least 0"),
    ):
        with pytest.raises(si.InvalidInputError, match=message):
            si.unbalanced_sinkhorn(theta, **options)
    forbidden = torch.tensor([[-math.inf, -math.inf], [0.0, 0.0]])
    with pytest.raises(si.InfeasibleError, match="no plan has the margin 1 of row 0 at batch index 0"):
        si.unbalanced_sinkhorn(forbidden, strength=(math.inf, 1.0))
    with pytest.raises(si.InvalidInputError, match=r"larger than the largest float64.*batch index 1"):
        si.unbalanced_sinkhorn(torch.tensor([[[1.0]], [[3000.0]]]))
    with pytest.warns(si.ConvergenceWarning, match=r"2 of 2 instances missed the tolerance 1e-12.*after 1 Newton"):
        si.unbalanced_sinkhorn(draw(2, 5, 5), temperature=0.01, max_iter=1)


# ----------------------------------------------------------------------------- the Sinkhorn divergence


def squared(x: Tensor, y: Tensor) -> Tensor:
    return (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)


def test_divergence() -> None:
    x, y = draw(2, 5, 3), draw(2, 4, 3) + 1
    a, b = (side / side.sum(-1, keepdim=True) for side in (margins(2, 5), margins(2, 4)))

    def divergence(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        a, b = a / a.sum(-1, keepdim=True), b / b.sum(-1, keepdim=True)
        return si.sinkhorn_divergence(squared(x, y), squared(x, x), squared(y, y), a, b, 0.5)

    assert (divergence(x, y, a, b) > 0).all()
    torch.testing.assert_close(divergence(x, x, a, a), torch.zeros(2, dtype=DOUBLE))
    inputs = tuple(t.requires_grad_() for t in (x, y, a, b))
    assert gradcheck(divergence, inputs, fast_mode=True)
    # Weights of 1 / n by default; for a shift, the distance is close to its square.
    moved = si.sinkhorn_divergence(squared(x, x + 1), squared(x, x), squared(x, x), temperature=0.05)
    torch.testing.assert_close(moved, torch.full((2,), 3.0, dtype=DOUBLE), rtol=1e-6, atol=1e-6)
    with pytest.raises(si.InvalidInputError, match=r"cost_rows must have shape \(\.\.\., 5, 5\)"):
        si.sinkhorn_divergence(squared(x, y), squared(y, y), squared(y, y))
