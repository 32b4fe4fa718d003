"""The active-set iteration, compiled for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import structinf as si
from structinf.solvers.active_set_triton import TritonBackend
from structinf.solvers.mean_problem import MeanProblem

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("slots", "last"),
    [
        (16, False),
        pytest.param(64, False, marks=pytest.mark.full),
        pytest.param(256, False, marks=pytest.mark.full),
        pytest.param(16, True, marks=pytest.mark.full),
    ],
)
def test_resources(compile_launches: Callable[..., Any], slots: int, last: bool) -> None:
    problem = MeanProblem(si.get_oracle("assignment"), torch.zeros(2, 20, 20), False)
    backend = TritonBackend(problem)
    while backend.used.shape[1] < slots:
        backend._double_capacity()
    structure = [torch.zeros(2, 400, dtype=torch.float64)]
    kernels = compile_launches(lambda: backend.add_and_solve(structure, 0.0, 0.0, last))
    assert {kernel.name for kernel in kernels} == {"add_and_solve"}
    assert all(kernel.registers <= 255 for kernel in kernels)
