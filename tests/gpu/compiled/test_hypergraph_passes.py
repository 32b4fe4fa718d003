"""The passes over hypergraphs, compiled for CUDA devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from structinf.dp import Hypergraph, HypergraphBuilder
from structinf.dp.device_tables import device_tables
from structinf.kernels.hypergraph import triton_derivations, triton_passes

MOST_REGISTERS = 128  # so that two programs of 8 warps fit a multiprocessor


def graph_of(degree: int, levels: int, width: int) -> Hypergraph:
    """Random layers of equal width, whose nodes have ``degree`` hyperedges with two tails."""
    rng = np.random.default_rng(0)
    builder = HypergraphBuilder((degree,))
    node = builder.nodes(levels, width)
    builder.add(node[0])
    for i in range(1, levels):
        tails = rng.integers(width, size=(2, degree, width)) + node[i - 1, 0]
        builder.add(node[i], *tails, part=builder.parts[:, None])
    goal = builder.node()
    builder.add(goal, node[-1])
    return builder.build(goal)


# Tiles of 64 hyperedges with all hyperedges of a node, and of 512 with 64 of the 70 hyperedges of a node.
SIZES = [(2, 3, 8), (70, 3, 20)]
CASES = list(itertools.product(SIZES, [1, 1.5, 2, math.inf], [torch.float32, torch.float64]))


@pytest.mark.parametrize(
    ("passes", "size", "alpha", "dtype"),
    [
        ("Hessian", SIZES[0], 1.5, torch.float32),
        pytest.param("sample", SIZES[1], 1, torch.float64, marks=pytest.mark.full),
        *[pytest.param("value mean Hessian sample", *case, marks=pytest.mark.full) for case in CASES],
    ],
)
def test_passes(
    passes: str, size: tuple[int, int, int], alpha: float, dtype: torch.dtype, compile_launches: Callable[..., Any]
) -> None:
    tables = device_tables(graph_of(*size), torch.device("cpu"))
    theta, goal = torch.zeros(2, tables.parts, dtype=dtype), torch.zeros(1).long().expand(2)

    def run() -> None:
        if "value" in passes:
            triton_passes.value(tables, theta, goal, alpha)
        if "mean" in passes:
            triton_passes.value_and_mean(tables, theta, goal, alpha)
            triton_passes.value_and_mean(tables, theta, goal, alpha, torch.ones(2))
        if "Hessian" in passes and alpha < math.inf:
            triton_passes.hessian_product(tables, theta, theta, goal, alpha)
        if "sample" in passes:
            nodes = triton_derivations.nodes_of(tables, theta, goal, alpha)
            uniforms, out = torch.zeros(3, 2, 9, dtype=torch.float64), theta.new_zeros(3, 2, tables.parts)
            triton_derivations.sample(tables, theta, goal, alpha, nodes, uniforms, out)

    # Divisions in float64 are calls, which keep registers on the stack.
    for kernel in compile_launches(run, most_spilled=16):
        assert kernel.registers <= MOST_REGISTERS, kernel


def test_used_parts(compile_launches: Callable[..., list[Any]]) -> None:
    tables = device_tables(graph_of(*SIZES[0]), torch.device("cpu"))
    compile_launches(lambda: triton_passes.used_parts(tables, torch.zeros(2).long()))
