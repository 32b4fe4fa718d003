"""Best assignments, arborescences and spanning trees, compiled for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from structinf_oracles.arborescence import MOST_ON_GPU as MOST_WORDS
from structinf_oracles.assignment import MOST_ON_GPU
from structinf_oracles.kernels.arborescence import triton_argmax
from structinf_oracles.kernels.assignment import triton_shortest_augmenting_paths
from structinf_oracles.kernels.spanning_tree import triton_prim
from structinf_oracles.spanning_tree import MOST_ON_GPU as MOST_NODES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("size", "dtype", "has_sizes"),
    [
        (MOST_ON_GPU, torch.float32, True),
        pytest.param(MOST_ON_GPU, torch.float64, False, marks=pytest.mark.full),
        pytest.param(20, torch.float32, False, marks=pytest.mark.full),
        pytest.param(1, torch.float64, True, marks=pytest.mark.full),
    ],
)
def test_assignments(compile_launches: Callable[..., Any], size: int, dtype: torch.dtype, has_sizes: bool) -> None:
    theta, sizes = torch.zeros(2, size, size, dtype=dtype), torch.tensor([[size, size], [1, size]])
    kernels = compile_launches(lambda: triton_shortest_augmenting_paths.argmax(theta, sizes if has_sizes else None, 0))
    assert all(kernel.registers <= 128 for kernel in kernels)


@pytest.mark.parametrize(
    ("words", "dtype", "single_root"),
    [
        (MOST_WORDS, torch.float32, True),
        pytest.param(MOST_WORDS, torch.float64, False, marks=pytest.mark.full),
        pytest.param(20, torch.float32, False, marks=pytest.mark.full),
        pytest.param(1, torch.float64, True, marks=pytest.mark.full),
    ],
)
def test_arborescences(compile_launches: Callable[..., Any], words: int, dtype: torch.dtype, single_root: bool) -> None:
    theta, lengths = torch.zeros(2, words + 1, words + 1, dtype=dtype), torch.tensor([words, 1])
    kernels = compile_launches(lambda: triton_argmax.argmax(theta, lengths, single_root), most_spilled=32)
    assert all(kernel.registers <= 255 for kernel in kernels)


@pytest.mark.parametrize(
    ("nodes", "dtype"),
    [
        (MOST_NODES, torch.float32),
        *(pytest.param(n, torch.float64, marks=pytest.mark.full) for n in (MOST_NODES, 20, 1)),
    ],
)
def test_spanning_trees(compile_launches: Callable[..., Any], nodes: int, dtype: torch.dtype) -> None:
    theta, lengths = torch.zeros(2, nodes, nodes, dtype=dtype), torch.tensor([nodes, 1])
    kernels = compile_launches(lambda: triton_prim.argmax(theta, lengths))
    assert all(kernel.registers <= 128 for kernel in kernels)
