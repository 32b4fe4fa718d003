"""The kernels of sums over spanning trees of lists of edges, compiled for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import structinf as si
from structinf_oracles import spanning_tree
from structinf_oracles.kernels.arborescence import dispatch
from structinf_oracles.kernels.spanning_tree import triton_prim, triton_sums

pytestmark = pytest.mark.slow

EDGES = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 0)]


@pytest.fixture(autouse=True)
def without_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the kernels of the elimination, which other tests compile."""
    monkeypatch.setattr(spanning_tree, "uses_triton", lambda t: True)
    for name in ("log_partition_and_marginals", "covariance_product"):
        monkeypatch.setattr(dispatch, name, lambda arcs, *_: (arcs[:, 0, 0], torch.zeros_like(arcs)))


@pytest.mark.parametrize(
    ("edges", "dtype"),
    [
        (si.GraphBatch.of([EDGES, EDGES[:3]], directed=False), torch.float32),
        pytest.param(EDGES, torch.float64, marks=pytest.mark.full),
        pytest.param(EDGES[:3], torch.float32, marks=pytest.mark.full),
    ],
)
def test_sums_of_edge_lists(compile_launches: Callable[..., Any], edges: Any, dtype: torch.dtype) -> None:
    oracle = si.get_oracle("spanning_tree", edges=edges)
    theta = torch.zeros(2, len(EDGES[:3]) if edges == EDGES[:3] else len(EDGES), dtype=dtype)
    _, scores, graphs = oracle._sums(theta)

    def run() -> None:
        triton_sums.log_partition_and_marginals(scores, graphs)
        triton_sums.covariance_product(scores, theta[:1], graphs)
        triton_prim.argmax_of_edges(scores, graphs)

    compile_launches(run)


@pytest.mark.full
def test_sums_of_matrices(compile_launches: Callable[..., Any]) -> None:
    theta, graphs = torch.zeros(2, 4, 4), triton_sums.Matrices(torch.tensor([4, 2]))
    compile_launches(lambda: triton_sums.log_partition_and_marginals(theta, graphs))
    compile_launches(lambda: triton_sums.covariance_product(theta, theta[:1], triton_sums.Matrices()))
