"""Sinkhorn's algorithm in Triton kernels, against torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.kernels.gpu import uses_triton
from structinf.kernels.transport import triton_plans, triton_steps
from structinf.solvers import sinkhorn, sinkhorn_torch
from structinf.solvers.sinkhorn_torch import SinkhornResult
from structinf.solvers.sinkhorn_triton import TritonState


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def uniform(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    return torch.full((1, rows), float(columns)).double(), torch.full((1, columns), float(rows)).double()


def compare(scores: Tensor, rows: Tensor, columns: Tensor, *settings: float, atol: float = 1e-12) -> SinkhornResult:
    """Solve on both paths, compare, and return the result of the kernel."""
    found = SinkhornResult(*triton_plans.solve(scores, rows, columns, *settings[:3], int(settings[3])))
    expected = sinkhorn_torch.solve(scores, rows, columns, *settings[:3], int(settings[3]))
    scale = float(rows.max())
    torch.testing.assert_close(found.plan, expected.plan, rtol=0, atol=atol * scale)
    assert (found.residual <= found.target_residual).tolist() == (
        expected.residual <= expected.target_residual
    ).tolist()
    return found


@pytest.mark.parametrize(
    ("scale", "temperature"),
    [
        (1.0, 1.0),
        pytest.param(10.0, 0.3, marks=pytest.mark.full),
        pytest.param(1000.0, 1.0, marks=pytest.mark.full),
        (0.0, 1.0),
    ],
)
def test_agrees_with_torch(scale: float, temperature: float) -> None:
    scores = draw(1, 4, 3, scale=scale)
    # At scale / temperature of 1000, each potential has an error of 1000 roundings.
    atol = 1e-12 * max(1.0, scale / temperature)
    found = compare(scores, *uniform(4, 3), temperature, 0.0, 1e-12, 1000, atol=atol)
    torch.testing.assert_close(found.plan.sum(1), torch.full((1, 3), 4.0).double(), rtol=0, atol=40 * atol)


def test_a_loose_tolerance_stops_after_the_same_number_of_sweeps() -> None:
    scores, (rows, columns) = draw(2, 2, 3), uniform(2, 3)
    found = compare(scores, rows, columns, 1.0, 0.0, 1e-3, 1000)
    expected = sinkhorn_torch.solve(scores, rows, columns, 1.0, 0.0, 1e-3, 1000)
    assert torch.equal(found.iterations, expected.iterations)
    torch.testing.assert_close(found.columns, expected.columns, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.rows, expected.rows, rtol=0, atol=1e-12)


def test_few_iterations() -> None:
    scores, (rows, columns) = draw(1, 3, 3, scale=30), uniform(3, 3)
    found = SinkhornResult(*triton_plans.solve(scores, rows, columns, 0.1, 0.0, 1e-12, 3))
    expected = sinkhorn_torch.solve(scores, rows, columns, 0.1, 0.0, 1e-12, 3)
    assert found.iterations.tolist() == expected.iterations.tolist() == [3]
    assert (found.residual > found.target_residual).all()


def test_margins_of_zero_and_forbidden_cells() -> None:
    scores = draw(2, 3, 3)
    scores[0, 0, 1] = scores[1, 2, 2] = -math.inf
    rows = torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.5, 0.5]], dtype=torch.float64)
    columns = torch.tensor([[1.0, 2.0, 0.0], [0.25, 0.75, 0.5]], dtype=torch.float64)
    found = compare(scores, rows, columns, 1.0, 0.0, 1e-6, 1000, atol=1e-6)
    assert found.plan[0, :, 2].eq(0).all()
    assert found.plan[0, 1].eq(0).all()
    assert found.columns[0, 2] == -math.inf
    assert found.rows[0, 1] == -math.inf


def test_a_higher_first_temperature() -> None:
    compare(draw(1, 2, 2), *uniform(2, 2), 0.5, 1.0, 1e-3, 1000, atol=1e-3)


def test_one_row_and_one_column() -> None:
    compare(draw(1, 1, 3), *uniform(1, 3), 1.0, 0.0, 1e-12, 100)
    compare(draw(1, 3, 1), *uniform(3, 1), 1.0, 0.0, 1e-12, 100)


def test_derivatives() -> None:
    scores, (rows, columns) = draw(2, 4, 3), uniform(4, 3)
    plan = sinkhorn_torch.solve(scores, rows, columns, 0.7, 0.0, 1e-12, 1000).plan
    arguments = plan, draw(2, 4, 3).flip(0), draw(2, 4), draw(2, 3)
    arguments[3].sub_((arguments[3].sum(1) - arguments[2].sum(1))[:, None] / 3)
    for found, expected in zip(
        triton_plans.tangent(*arguments, 0.7), sinkhorn_torch.tangent(*arguments, 0.7), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


# ----------------------------------------------------------------------------- one launch for each step


@pytest.fixture
def takes_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one launch for each step of all matrices, in blocks of 2 rows or columns."""
    monkeypatch.setattr(triton_plans, "MAX_COLUMNS", 0)
    monkeypatch.setattr(triton_steps, "_TILE", 2)


@pytest.mark.usefixtures("takes_steps")
@pytest.mark.parametrize(
    ("scale", "temperature", "tolerance"),
    [
        (1.0, 1.0, 1e-3),
        pytest.param(10.0, 0.3, 1e-12, marks=pytest.mark.full),
        pytest.param(1000.0, 1.0, 1e-6, marks=pytest.mark.full),
        (0.0, 1.0, 1e-12),
    ],
)
def test_steps_agree_with_torch(scale: float, temperature: float, tolerance: float) -> None:
    scores, (rows, columns) = draw(1, 3, 3, scale=scale), uniform(3, 3)
    settings = temperature, 0.0, tolerance, 1000
    found = sinkhorn_torch.solve(scores, rows, columns, *settings, TritonState)
    expected = sinkhorn_torch.solve(scores, rows, columns, *settings)
    atol = 1e-12 * max(1.0, scale / temperature)
    torch.testing.assert_close(found.plan, expected.plan, rtol=0, atol=4 * atol)
    if scale < 1000:
        assert torch.equal(found.iterations, expected.iterations)
    assert (found.residual <= found.target_residual).all()


@pytest.mark.full
@pytest.mark.usefixtures("takes_steps")
def test_steps_with_margins_of_zero_and_forbidden_cells() -> None:
    scores = draw(2, 3, 3)
    scores[0, 0, 1] = scores[1, 2, 2] = -math.inf
    rows = torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.5, 0.5]], dtype=torch.float64)
    columns = torch.tensor([[1.0, 2.0, 0.0], [0.25, 0.75, 0.5]], dtype=torch.float64)
    found = sinkhorn_torch.solve(scores, rows, columns, 1.0, 0.0, 1e-3, 20, TritonState)
    expected = sinkhorn_torch.solve(scores, rows, columns, 1.0, 0.0, 1e-3, 20)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    found = sinkhorn_torch.solve(scores[:, :1], rows[:, :1], 0 * columns, 1.0, 0.0, 1e-6, 3, TritonState)
    assert found.plan.eq(0).sum() > 3


@pytest.mark.full
@pytest.mark.usefixtures("takes_steps")
def test_public_calls_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for choice in (uses_triton, lambda t: False):
        monkeypatch.setattr(sinkhorn, "uses_triton", choice)
        scores = draw(1, 3, 4).requires_grad_()
        plan = si.relax(scores, "assignment", si.get_relaxation("sinkhorn", temperature=2.0))
        (gradient,) = torch.autograd.grad((plan * draw(1, 3, 4).flip(1)).sum(), scores)
        results.append((plan.detach(), gradient))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert si.relax(torch.zeros(0, 3, 3), "assignment", "sinkhorn").shape == (0, 3, 3)


def test_public_calls() -> None:
    scores = draw(1, 3, 3).requires_grad_()
    relaxation = si.get_relaxation("sinkhorn", temperature=1.0)
    plan = si.relax(scores, "assignment", relaxation)
    torch.testing.assert_close(plan.sum(1), torch.ones(1, 3).double())
    weight = draw(1, 3, 3).flip(1)
    (gradient,) = torch.autograd.grad((plan * weight).sum(), scores)
    change, _, _ = sinkhorn_torch.tangent(
        plan.detach(), weight, torch.zeros(1, 3).double(), torch.zeros(1, 3).double(), 1
    )
    torch.testing.assert_close(gradient, change, rtol=0, atol=1e-10)
