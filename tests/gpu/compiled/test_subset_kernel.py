"""The kernel of best subsets, compiled for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf_oracles.kernels.subset import triton_top_k

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("d", "dtype"),
    [
        (1000, torch.float32),
        *(
            pytest.param(d, dtype, marks=pytest.mark.full)
            for d, dtype in ((9, torch.float64), (4096, torch.float64), (8192, torch.float32))
        ),
    ],
)
def test_highest_and_usable(compile_launches: Callable[..., Any], d: int, dtype: torch.dtype) -> None:
    scores, lengths, k = torch.zeros(3, d, dtype=dtype), torch.zeros(3, dtype=torch.int64), torch.ones(3, 1).long()

    def run() -> None:
        triton_top_k.highest(scores, k, lengths)
        triton_top_k.highest(scores, 2, at_most=True)
        triton_top_k.usable(scores, lengths)

    compile_launches(run)
