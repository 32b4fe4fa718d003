"""Kernels that overwrite padding and check arguments, compiled for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf.kernels.padding import triton_masks, triton_padding, triton_products


@pytest.mark.parametrize(("columns", "nested"), [(1, False), (2, False), (2, True)])
def test_lengths(columns: int, nested: bool, compile_launches: Callable[..., Any]) -> None:
    lengths = torch.ones(columns, 2, dtype=torch.int64)
    compile_launches(lambda: triton_padding.clamp_lengths(tuple(lengths), 1, (2, 5)[:columns], nested=nested))


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.full), pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("has_masks", [True, False])
def test_scores(count: int, dtype: torch.dtype, has_masks: bool, compile_launches: Callable[..., Any]) -> None:
    tensors = [torch.ones(2, 3, 4, dtype=dtype)] * count
    masks = [torch.ones(2, 3, 1, dtype=torch.bool)] * count if has_masks else None
    compile_launches(lambda: triton_padding.keep_valid(tensors, masks))


@pytest.mark.parametrize("order", [pytest.param(order, marks=pytest.mark.full) for order in triton_masks.ORDERS])
def test_masks(order: str | None, compile_launches: Callable[..., Any]) -> None:
    lengths, device = torch.ones(2, 2, dtype=torch.int64), torch.device("cpu")
    compile_launches(lambda: triton_masks.mask((3, 4), device, lengths, 0, 1, order=order, more=1))
    compile_launches(lambda: triton_masks.mask((3, 4, 2), device, order=order))


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_goals(shape: tuple[int, ...], compile_launches: Callable[..., Any]) -> None:
    table, lengths = torch.zeros(shape, dtype=torch.int64), torch.ones(2, len(shape), dtype=torch.int64)
    compile_launches(lambda: triton_masks.goals(table, lengths))


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.full)])
def test_inner_products(count: int, dtype: torch.dtype, compile_launches: Callable[..., Any]) -> None:
    theta, y = torch.ones(2, 3, 4, dtype=dtype), torch.ones(1, 3, 4, dtype=dtype)
    compile_launches(lambda: triton_products.inner_products([theta] * count, [y] * count))
