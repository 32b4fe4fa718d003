"""Sinkhorn's algorithm, compiled for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf.kernels.transport import triton_plans

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
