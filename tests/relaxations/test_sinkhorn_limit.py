"""sinkhorn at temperatures too low for the digits of float64: the plan is the vertex of highest score."""

from __future__ import annotations

import warnings

import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog

import oracle_examples
import structinf as si
from structinf import ConvergenceWarning, InvalidInputError, TransportPolytope

LOW = [1e-12, 1e-13, 1e-14, 1e-15, 1e-16, 1e-20, 1e-100, 1e-300]
low = pytest.mark.parametrize("temperature", LOW)
backwards = pytest.mark.parametrize("backward", ["implicit", "unrolled"])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.matrix
@low
@backwards
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_assignments(temperature, backward, dtype, scale):
    theta = (scale * normal(5, 4, 4, dtype=dtype)).requires_grad_()
    solution = si.infer(
        theta, "assignment", "sinkhorn", temperature=temperature * scale, backward=backward, max_iter=300,
        on_failure="ignore",
    )  # fmt: skip
    if backward == "implicit" or temperature < 1e-13:
        assert solution.converged.all()
        for plan, scores in zip(solution.mean.detach(), theta.detach(), strict=True):
            rows, columns = linear_sum_assignment(scores.double().numpy(), maximize=True)
            best = torch.zeros_like(plan)
            best[rows, columns] = 1
            torch.testing.assert_close(plan, best, rtol=0, atol=2e-4)
        value = torch.linalg.vecdot(theta.detach().flatten(1), solution.mean.detach().flatten(1))
        torch.testing.assert_close(solution.value.detach(), value, rtol=1e-5, atol=1e-12)
    (gradient,) = torch.autograd.grad((solution.mean * normal(4, 4, dtype=dtype)).sum(), theta, retain_graph=True)
    assert gradient.isfinite().all()
    if temperature < 1e-15:
        assert not gradient.any()
    (slope,) = torch.autograd.grad(solution.value.sum(), theta)
    torch.testing.assert_close(slope, solution.mean.detach(), rtol=0, atol=2e-4)


@low
@pytest.mark.parametrize("slack", [False, True])
def test_plans_with_real_margins(temperature, slack):
    theta = normal(3, 4, 5, seed=1).requires_grad_()
    rows, columns = normal(4, seed=2).exp(), normal(5, seed=3).exp()
    columns = columns * (1.5 if slack else 1.0) * rows.sum() / columns.sum()
    plan = si.sinkhorn(theta, rows, columns, temperature, slack=slack)
    torch.testing.assert_close(plan.sum(2), rows.expand(3, 4), rtol=1e-4, atol=0)
    if slack:
        assert (plan.sum(1) <= columns * 1.0001).all()
    else:
        torch.testing.assert_close(plan.sum(1), columns.expand(3, 5), rtol=1e-4, atol=1e-4)
    eye_rows, eye_columns = torch.eye(4).repeat_interleave(5, 1), torch.eye(5).repeat(1, 4)
    bounds = {"A_ub": eye_columns.numpy(), "b_ub": columns.numpy()} if slack else {}
    equal = torch.cat([eye_rows] if slack else [eye_rows, eye_columns]).numpy()
    sums = torch.cat([rows] if slack else [rows, columns]).numpy()
    for scores, found in zip(theta.detach(), plan.detach(), strict=True):
        best = -linprog(-scores.flatten().numpy(), A_eq=equal, b_eq=sums, **bounds).fun
        assert (scores * found).sum().item() == pytest.approx(best, rel=1e-4)
    plan.square().sum().backward()
    assert theta.grad.isfinite().all()


# With one row or column, the forbidden cell would leave no plan.
@oracle_examples.parametrize(
    lambda e: (
        isinstance(e.oracle(), TransportPolytope)
        and si.get_relaxation("sinkhorn").unsupported_reason(e.oracle()) is None
        and min(e.event_shape) > 1
    )
)
def test_every_oracle_with_margins(example):
    oracle, theta = example.oracle(), normal(4, *example.event_shape, seed=4)
    theta[0].view(-1)[0] = -torch.inf
    plan = si.relax(theta, oracle, "sinkhorn", temperature=1e-20)
    torch.testing.assert_close(plan, si.relax(theta, oracle, "map"), rtol=0, atol=1e-15)


def test_only_instances_without_digits_are_vertices():
    theta = torch.stack([normal(3, 3), 1e-15 * normal(3, 3, seed=5)]).requires_grad_()
    plan = si.relax(theta, "assignment", "sinkhorn", temperature=1e-15)
    alone = si.relax(theta[1:], "assignment", "sinkhorn", temperature=1e-15)
    torch.testing.assert_close(plan[1:], alone)
    assert ((plan[0] == 0) | (plan[0] == 1)).all()
    (gradient,) = torch.autograd.grad((plan * normal(3, 3, seed=6)).sum(), theta)
    assert not gradient[0].any()
    assert gradient[1].any()


def test_losses_are_finite_at_every_temperature():
    theta = normal(3, 4, 4).requires_grad_()
    for temperature in LOW:
        loss = si.FenchelYoungLoss("assignment", "sinkhorn", temperature=temperature, reduction="none")
        losses = loss(theta, torch.arange(4).expand(3, 4))
        perceptron = si.FenchelYoungLoss("assignment", "map", reduction="none")(theta, torch.arange(4).expand(3, 4))
        torch.testing.assert_close(losses, perceptron, rtol=1e-3, atol=1e-3)
        assert (losses >= 0).all()
        assert torch.autograd.grad(losses.sum(), theta)[0].isfinite().all()


def test_margins_have_no_gradient_at_a_vertex():
    rows = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(InvalidInputError, match=r"temperature 1e-20 is too small for gradients of the margins"):
        si.sinkhorn(normal(3, 3), rows, torch.ones(3), 1e-20)


@backwards
def test_the_warning_states_the_iterations_that_were_used(backward):
    with pytest.warns(ConvergenceWarning, match=r"after 7 iterations; raise max_iter \(now 7\) or the temperature"):
        si.relax(normal(6, 6), "assignment", "sinkhorn", temperature=1e-3, max_iter=7, backward=backward)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        si.relax(normal(6, 6), "assignment", "sinkhorn", temperature=1e-3)  # the remedy of the warning
