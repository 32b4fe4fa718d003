"""The elimination of trees, compiled for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf_oracles.kernels.arborescence.triton_elimination import covariance_product, log_partition_and_marginals

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("derivative", ["first", "second"])
@pytest.mark.parametrize(
    ("words", "dtype", "single_root"),
    [
        (40, torch.float32, False),
        pytest.param(40, torch.float64, True, marks=pytest.mark.full),
        pytest.param(5, torch.float32, True, marks=pytest.mark.full),
        pytest.param(300, torch.float32, False, marks=pytest.mark.full),
    ],
)
def test_resources(
    compile_launches: Callable[..., Any], words: int, dtype: torch.dtype, single_root: bool, derivative: str
) -> None:
    theta, lengths = torch.zeros(2, words + 1, words + 1, dtype=dtype), torch.tensor([words, words])

    def run() -> None:
        if derivative == "first":
            log_partition_and_marginals(theta, lengths, single_root)
        else:
            covariance_product(theta, theta, lengths, single_root)

    kernels = compile_launches(run, most_spilled=16)
    assert {kernel.name for kernel in kernels} == {"_forward", "_backward"}
    assert all(kernel.registers <= 255 for kernel in kernels)
