"""Kernels of chains, compiled for CUDA devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf_oracles.kernels.chain import triton_dispatch
from structinf_oracles.kernels.chain.triton_indicators import tag_indicators

DTYPES = [torch.float32, torch.float64]
SIZES = [16, 32, 64, 70, 1000]
SAMPLE = [
    ("value_and_mean", 1.0, torch.float32, 64, 1),
    ("hessian_product", 1.5, torch.float32, 16, 3),
    ("best_tags", None, torch.float32, 64, 1),
    ("sample", 1.0, torch.float32, 16, 1),
]
ALL = [
    *itertools.product(
        ["value", "value_and_mean", "hessian_product", "sample"], [1.0, 1.5, 2.0], DTYPES, SIZES, [1, 3]
    ),
    *itertools.product(["best_tags", "topk"], [None], DTYPES, SIZES, [1, 3]),
]


@pytest.mark.parametrize(
    ("name", "alpha", "dtype", "states", "matrices"),
    [pytest.param(*case, marks=[] if case in SAMPLE else pytest.mark.full) for case in ALL],
)
def test_kernels_compile(
    compile_launches: Callable[..., Any],
    name: str,
    alpha: float | None,
    dtype: torch.dtype,
    states: int,
    matrices: int,
) -> None:
    unary, transition = torch.zeros(2, 4, states, dtype=dtype), torch.zeros(1, matrices, states, states, dtype=dtype)
    more: dict[str, Any] = {
        "value_and_mean": [torch.ones(2, dtype=dtype)],
        "hessian_product": [unary, transition],
        "sample": [torch.zeros(5, 2, 4, dtype=torch.float64)],
        "topk": [5],
    }
    regularizer = [] if alpha is None else [alpha]
    function = getattr(triton_dispatch, name)
    # Below the limit of 255 registers, ptxas spills 2 to 4 registers of certain variants for sm_90.
    compile_launches(
        lambda: function(unary, transition, torch.full((2,), 4), *regularizer, *more.get(name, [])), most_spilled=32
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_shared", [True, False])
def test_indicators(compile_launches: Callable[..., Any], dtype: torch.dtype, is_shared: bool) -> None:
    tags, lengths = torch.zeros(2, 3, 4, dtype=torch.int64), torch.tensor([4, 3, 2])
    compile_launches(lambda: tag_indicators(tags, lengths, 5, dtype, has_nodes=is_shared, is_shared=is_shared))
