"""Sinkhorn's algorithm, compiled for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf.kernels.transport import triton_plans, triton_projection, triton_steps
from structinf.solvers.sinkhorn_triton import TritonState

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("columns", "tolerance"),
    [
        (50, 1e-3),
        pytest.param(50, 1e-12, marks=pytest.mark.full),
        pytest.param(5, 1e-3, marks=pytest.mark.full),
    ],
)
def test_resources(compile_launches: Callable[..., Any], columns: int, tolerance: float) -> None:
    scores = torch.zeros(2, 50, columns, dtype=torch.float64)
    rows, sums = torch.ones(1, 50).double(), torch.ones(2, columns).double()
    # The calls of divisions in float64 use some bytes of the stack.
    kernels = compile_launches(lambda: triton_plans.solve(scores, rows, sums, 1.0, 0.0, tolerance, 100), 32)
    kernels += compile_launches(lambda: triton_plans.tangent(scores, scores, rows.expand(2, 50), sums, 1.0), 32)
    assert {kernel.name for kernel in kernels} == {"_solve", "_tangent"}


@pytest.mark.parametrize("columns", [100, pytest.param(triton_steps.MAX_COLUMNS, marks=pytest.mark.full)])
def test_resources_of_steps(compile_launches: Callable[..., Any], columns: int) -> None:
    scores, each = torch.zeros(2, 100, columns, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    rows, sums = torch.ones(2, 100).double(), torch.ones(2, columns).double()

    def run() -> None:
        state = TritonState(scores, rows, sums, each, each)
        state.update(sums, each)
        state.direction()

    kernels = compile_launches(run, 32)
    expected = {"_row_sums", "_column_pass", "_residuals", "_laplacian_weights", "_eliminate"}
    assert {kernel.name for kernel in kernels} == expected
    assert all(kernel.registers <= 255 for kernel in kernels)


@pytest.mark.full  # takes 8 seconds for each size and capability
@pytest.mark.parametrize("columns", [20, triton_projection.MAX_COLUMNS])
def test_resources_of_projections(compile_launches: Callable[..., Any], columns: int) -> None:
    scores = torch.zeros(2, 50, columns, dtype=torch.float64)
    rows, sums, slack = torch.ones(1, 50).double(), torch.ones(2, columns).double(), torch.zeros(2, 2).double()
    # The kernel has 168 of 255 registers with 20 columns; calls of divisions save the registers that they use.
    kernels = compile_launches(lambda: triton_projection.project(scores, rows, sums, slack, 100), 128)
    assert {kernel.name for kernel in kernels} == {"transport_projection"}
