"""Kernels of noise, compiled for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf.kernels.noise import triton_noise


def test_normal(compile_launches: Callable[..., Any]) -> None:
    compile_launches(lambda: triton_noise.fill("normal", torch.empty(10), 2**62))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("key", [2**62, torch.tensor(3)], ids=["number", "tensor"])
def test_every_distribution(key: Any, dtype: torch.dtype, compile_launches: Callable[..., Any]) -> None:
    for name in ("normal", "gumbel", "logistic", "exponential"):
        compile_launches(lambda name=name: triton_noise.fill(name, torch.empty(10, dtype=dtype), key))
    compile_launches(lambda: triton_noise.fill_sum_of_gamma(2, 10, torch.empty(10, dtype=dtype), key))
