"""The kernel of ranks, compiled for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf.kernels.permutahedron import triton_ranks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.full)])
def test_ranks(compile_launches: Callable[..., Any], dtype: torch.dtype) -> None:
    theta = torch.zeros(2, 100, dtype=dtype)
    compile_launches(lambda: triton_ranks.ranks(theta, torch.tensor([100, 3])))
    compile_launches(lambda: triton_ranks.ranks(theta))
