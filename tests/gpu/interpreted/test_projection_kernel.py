"""Projections onto transport polytopes in a Triton kernel, against the CPU loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import structinf as si
from launch_counter import LaunchCounter, on_device
from structinf.kernels.transport import triton_projection
from structinf.solvers import transport_projection

# Name: row sums, column sums, and the totals of rests of the rows and of the columns.
MARGINS = {
    "equal totals": ([1.0, 2.0, 1.0], [2.0, 1.0, 1.0], [0.0, 0.0]),
    "bounds of rows": ([1.0, 2.0, 1.0], [1.0, 0.0, 2.0], [1.0, 0.0]),
    "bounds of columns": ([1.0, 1.0], [2.0, 1.0, 1.0], [0.0, 2.0]),
    "bounds of both": ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0]),
}


def project(scores: Tensor, margins: str, max_iter: int = 100) -> list[tuple[Tensor, ...]]:
    """Return the results of the kernel and of the CPU loops."""
    rows, columns, slack = (torch.tensor([numbers], dtype=torch.float64) for numbers in MARGINS[margins])
    arguments = scores, rows, columns, slack.expand(len(scores), 2), max_iter
    found = triton_projection.project(*arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport_projection, "uses_triton", lambda _: False)
        return [found, transport_projection.solve_projection(*arguments)]


def draw(margins: str, *, scale: float = 1.0, batch: int = 1) -> Tensor:
    rows, columns, _ = MARGINS[margins]
    generator = torch.Generator().manual_seed(1)
    return scale * torch.randn(batch, len(rows), len(columns), dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(
    ("margins", "scale"),
    [
        ("equal totals", 1.0),
        ("bounds of both", 1.0),
        *(
            pytest.param(margins, scale, marks=pytest.mark.full)
            for margins in MARGINS
            for scale in (0.0, 0.1, 3.0, 1000.0)
        ),
        pytest.param("bounds of rows", 1.0, marks=pytest.mark.full),
        pytest.param("bounds of columns", 1.0, marks=pytest.mark.full),
    ],
)
def test_agrees_with_the_cpu(margins: str, scale: float) -> None:
    scores = draw(margins, scale=scale)
    found, expected = project(scores, margins)
    assert found[5].item() <= 1e-13
    assert expected[5].item() <= 1e-13
    for index in (0, 3):
        x, y = found[index].clamp(min=0), expected[index].clamp(min=0)
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12 * (1 + scale))
    assert found[4].item() <= 1e-12 * (1 + scale)


def test_forbidden_cells_and_instances_without_a_plan() -> None:
    scores = draw("bounds of both", batch=3)
    scores[0, 0, 1:], scores[1], scores[2, 1] = -torch.inf, -torch.inf, -torch.inf
    found, expected = project(scores, "bounds of both")
    assert (found[5] <= 1e-13).tolist() == (expected[5] <= 1e-13).tolist() == [True, False, True]
    torch.testing.assert_close(found[0][0].clamp(min=0), expected[0][0].clamp(min=0), rtol=0, atol=1e-12)


def test_few_iterations() -> None:
    found, expected = project(draw("equal totals", scale=3.0), "equal totals", 1)
    assert found[5].item() > 1e-13
    torch.testing.assert_close(found[5], expected[5])
    torch.testing.assert_close(found[0], expected[0])


def test_scores_of_nan_end() -> None:
    scores = draw("equal totals")
    scores[0, 1, 1] = torch.nan
    assert not project(scores, "equal totals", 3)[0][5].item() <= 1e-13


def test_work_of_sparsemap() -> None:
    theta = draw("bounds of both", batch=2).float()
    weight, leaf = theta.flip(0), theta.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport_projection, "uses_triton", lambda _: False)
        expected = si.relax(leaf, "assignment", "sparsemap")
        (expected_gradient,) = torch.autograd.grad(expected, leaf, weight)
    on_gpu, cotangent = on_device(theta, requires_grad=True), on_device(weight)
    with LaunchCounter() as count:
        mean = si.relax(on_gpu, "assignment", "sparsemap")
        (gradient,) = torch.autograd.grad(mean, on_gpu, cotangent)
    assert (count.triton_launches, count.copies) == (3, 0)
    assert count.launches <= 95, count.report()
    assert count.synchronisations <= 3, count.report()
    torch.testing.assert_close(mean.detach().cpu(), expected.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient.cpu(), expected_gradient, rtol=0, atol=1e-6)
