"""Kernels of segmentations scored by steps, boundaries and durations, compiled for CUDA devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf_oracles.kernels.semi_markov import triton_dispatch

SAMPLE = [("value_and_mean", torch.float32, 8, True)]
ALL = itertools.product(
    ["value", "value_and_mean", "hessian_product", "walk", "sample"],
    [torch.float32, torch.float64],
    [8, 64, 256],
    [False, True],
)


@pytest.mark.parametrize(
    ("name", "dtype", "labels", "transition"),
    [pytest.param(*case, marks=[] if case in SAMPLE else pytest.mark.full) for case in ALL],
)
def test_kernels_compile(
    compile_launches: Callable[..., Any], name: str, dtype: torch.dtype, labels: int, transition: bool
) -> None:
    shapes = [(2, 5, labels), (2, 5, 2, labels), (1, 100, labels), (1, labels, labels)]
    theta = tuple(torch.zeros(shape, dtype=dtype) for shape in shapes[: 4 if transition else 3])
    more: dict[str, Any] = {"hessian_product": [theta], "sample": [torch.zeros(3, 2, 10, dtype=torch.float64)]}
    function = getattr(triton_dispatch, "walk" if name == "sample" else name)
    # Below the limit of 255 registers, ptxas spills 2 to 4 registers of certain variants.
    compile_launches(lambda: function(theta, torch.full((2,), 5), *more.get(name, [])), most_spilled=32)
