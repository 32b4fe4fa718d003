"""Kernels of maps to the simplex, compiled for CUDA devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf.kernels.simplex import triton_capped_simplex, triton_conjugate, triton_maps, triton_vjp

ALPHAS = {"1": 1.0, "1.3": 1.3, "1.5": 1.5, "2": 2.0, "3": 3.0}
SIZES = [9, 1000, 2048, 4096, 8192, 20000]
MOST_SPILLED = 64
"""ptxas stores up to 14 registers of a thread during a loop, for α > 2 in float64, to run more programs at a time."""


def scores(n: int, dtype: torch.dtype, *, strided: bool = False) -> torch.Tensor:
    return torch.zeros(n, 3, dtype=dtype).T if strided else torch.zeros(3, n, dtype=dtype)


def run_all(n: int, dtype: torch.dtype, alpha: Any, *, strided: bool = False) -> None:
    x = scores(n, dtype, strided=strided)
    triton_maps.entmax(x, alpha)
    triton_vjp.entmax_vjp(x, x, alpha, isinstance(alpha, torch.Tensor))
    if isinstance(alpha, float):
        triton_conjugate.tsallis_conjugate(x, x, x[:, 0].contiguous(), alpha)
        if alpha in (1, 1.5, 2):
            triton_maps.smooth_max(x, alpha)


def test_sample(compile_launches: Callable[..., Any]) -> None:
    compile_launches(lambda: triton_maps.entmax(scores(1000, torch.float32), 1.5))
    compile_launches(lambda: triton_capped_simplex.capped_simplex(scores(9, torch.float32), 2.0))
    compile_launches(lambda: triton_vjp.entmax_vjp(scores(9, torch.float32), scores(9, torch.float32), 1.5, False))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", SIZES)
def test_every_size_and_alpha(n: int, dtype: torch.dtype, compile_launches: Callable[..., Any]) -> None:
    for alpha in [*ALPHAS.values(), torch.full((3, 1), 1.5, dtype=dtype)]:
        is_general = isinstance(alpha, torch.Tensor) or alpha > 2
        if not (is_general and n > 2048):
            compile_launches(lambda alpha=alpha: run_all(n, dtype, alpha), MOST_SPILLED)


@pytest.mark.full
def test_strided_rows_and_sums(compile_launches: Callable[..., Any]) -> None:
    for dtype, n in itertools.product([torch.float32, torch.float64], [9, 1000]):
        compile_launches(lambda dtype=dtype, n=n: run_all(n, dtype, 1.5, strided=True), MOST_SPILLED)
        compile_launches(lambda dtype=dtype, n=n: run_all(n, dtype, 1.3, strided=True), MOST_SPILLED)
    for dtype, n in itertools.product([torch.float32, torch.float64], [1000, 4096]):
        p = scores(n, dtype)
        for k in (2.0, torch.ones(3, 1, dtype=dtype)):
            compile_launches(lambda p=p, k=k: triton_capped_simplex.capped_simplex(p, k), MOST_SPILLED)
        compile_launches(lambda p=p: triton_vjp.capped_simplex_vjp(p, p, True), MOST_SPILLED)
