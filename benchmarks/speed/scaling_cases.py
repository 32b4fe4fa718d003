"""The calls whose growth ``benchmarks.speed --scaling`` measures, with the exponents of their algorithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import structinf as si
from structinf.parts import as_tuple

from .scaling import Scaling

__all__ = ["SCALINGS"]


# ----------------------------------------------------------------------------- calls


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _relax(
    relaxation: str, oracle: str, *shapes: Callable[[int], Sequence[int]], backward: bool = False, **options: Any
) -> Callable[[int], Callable[[], Any]]:
    """Return ``prepare`` for a relaxation; options may be functions of the size."""

    def prepare(size: int) -> Callable[[], Any]:
        made = {name: value(size) if callable(value) else value for name, value in options.items()}
        layer = si.Layer(oracle, relaxation, **made)
        tensors = tuple(_normal(*shape(size)) for shape in shapes)
        if layer.oracle.requires_nonpositive_theta:
            tensors = tuple(-t.abs() for t in tensors)
        leaves = tuple(t.requires_grad_(backward) for t in tensors)
        theta: Any = leaves if len(leaves) > 1 else leaves[0]

        def call() -> None:
            means = as_tuple(layer(theta))
            if backward:
                torch.autograd.grad([mean.square().sum() for mean in means], leaves)

        return call

    return prepare


def _square(size: int) -> tuple[int, ...]:
    return (1, size, size)


def _vector(size: int) -> tuple[int, ...]:
    return (1, size)


def _support(oracle: str) -> Callable[[int], Callable[[], Any]]:
    """Return ``prepare`` for the exact SparseMAP with its support."""

    def prepare(size: int) -> Callable[[], Any]:
        theta = _normal(4, size, size)

        def call() -> dict[str, float]:
            weights = si.infer(theta, oracle, "sparsemap", tolerance=0).weights
            return {"structures": (weights > 0).sum(0).double().mean().item()}

        return call

    return prepare


def _long_list_of_edges(size: int) -> Callable[[], Any]:
    generator = torch.Generator().manual_seed(0)
    nodes = max(2, size // 10)
    path = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)], 1)
    rest = torch.randint(nodes, (size - len(path), 2), generator=generator)
    rest[:, 1] = torch.where(rest[:, 0] == rest[:, 1], (rest[:, 1] + 1) % nodes, rest[:, 1])
    oracle = si.get_oracle("spanning_tree", edges=torch.cat([path, rest]).tolist())
    theta = _normal(1, size)
    return lambda: si.relax(theta, oracle, "map")


def _grid_graph(size: int) -> tuple[tuple[int, int], ...]:
    """Edges to the right and down in a grid with about ``size`` nodes."""
    n = max(2, math.isqrt(size))
    right = [(i * n + j, i * n + j + 1) for i in range(n) for j in range(n - 1)]
    return (*right, *((i * n + j, i * n + n + j) for i in range(n - 1) for j in range(n)))


def _graph(oracle: str, relaxation: str, **options: Any) -> Callable[[int], Callable[[], Any]]:
    """Return ``prepare`` for a structure of a grid graph, from its first to its last node."""

    def prepare(size: int) -> Callable[[], Any]:
        graph = _grid_graph(size)
        last = max(map(max, graph))
        made = {name: value(last) if callable(value) else value for name, value in options.items()}
        layer = si.Layer(oracle, relaxation, graph=graph, **made)
        theta = -_normal(1, len(graph)).abs()
        return lambda: layer(theta)

    return prepare


def _soft_dtw_of_series(size: int) -> Callable[[], Any]:
    x, y = _normal(1, size, 1), _normal(1, size, 1).flip(1)
    return lambda: si.soft_dtw_between(x, y)


def _sparsemax(batch: int) -> Callable[[], Any]:
    x = _normal(batch, 100)
    return lambda: si.simplex.sparsemax(x)


# ----------------------------------------------------------------------------- the table

BATCHES = (1, 16, 64, 256, 1024, 4096, 16384)
LENGTHS = (1000, 3000, 10_000, 30_000, 100_000)
SQUARES = (25, 50, 100, 200, 400)

SCALINGS: dict[str, Scaling] = {
    case.name: case
    for case in (
        Scaling(
            "scaling-chain-length",
            "chain marginals, forward and backward, 10 tags",
            "T",
            LENGTHS,
            _relax("marginals", "chain", lambda t: (1, t, 10), lambda t: (10, 10), backward=True),
            1,
            1,
        ),
        Scaling(
            "scaling-chain-tags",
            "chain marginals of 20 tokens",
            "S",
            (256, 512, 1024, 2048, 4096),
            _relax("marginals", "chain", lambda s: (1, 20, s), lambda s: (s, s)),
            2,
            2,
        ),
        Scaling(
            "scaling-chain-batch",
            "chain marginals, 20 tokens, 10 tags",
            "B",
            BATCHES,
            _relax("marginals", "chain", lambda b: (b, 20, 10), lambda b: (10, 10)),
            1,
            1,
        ),
        Scaling(
            "scaling-chain-sparsemap-length",
            "sparsemap of chains, 5 tags",
            "T",
            (25, 50, 100, 200, 400, 800),
            _relax("sparsemap", "chain", lambda t: (1, t, 5), lambda t: (5, 5)),
            1,
            1,
        ),
        Scaling(
            "scaling-semi-markov-length",
            "semi-Markov marginals, segments of up to 8 tokens, 5 tags",
            "T",
            LENGTHS,
            _relax("marginals", "semi_markov", lambda t: (1, t, 8, 5)),
            1,
            1,
        ),
        Scaling(
            "scaling-semi-markov-segments",
            "semi-Markov marginals of 1,000 tokens, 5 tags",
            "K",
            (4, 8, 16, 32, 64, 128),
            _relax("marginals", "semi_markov", lambda k: (1, 1000, k, 5)),
            1,
            1,
        ),
        Scaling(
            "scaling-dtw",
            "DTW marginals",
            "n",
            (256, 512, 1024, 2048, 4096, 8192),
            _relax("marginals", "dtw", _square),
            2,
            2,
        ),
        Scaling(
            "scaling-soft-dtw-series",
            "value of soft_dtw_between",
            "n",
            (512, 1024, 2048, 4096, 8192, 16384),
            _soft_dtw_of_series,
            2,
            2,
        ),
        Scaling(
            "scaling-needleman-wunsch",
            "Needleman-Wunsch marginals",
            "n",
            (64, 128, 256, 512, 1024, 2048),
            _relax("marginals", "needleman_wunsch", _square, lambda n: (1, 2)),
            2,
            2,
        ),
        Scaling(
            "scaling-monotonic-alignment",
            "monotonic alignment marginals",
            "n",
            (128, 256, 512, 1024, 2048, 4096),
            _relax("marginals", "monotonic_alignment", _square),
            2,
            2,
        ),
        Scaling(
            "scaling-grid-path",
            "grid path marginals, moves down and right",
            "n",
            (64, 128, 256, 512, 1024, 2048),
            _relax("marginals", "grid_path", _square),
            2,
            2,
        ),
        Scaling(
            "scaling-arborescence-argmax",
            "arborescence argmax",
            "n",
            SQUARES,
            _relax("map", "arborescence", _square),
            2,
            2,
        ),
        Scaling(
            "scaling-arborescence-marginals",
            "arborescence marginals",
            "n",
            SQUARES,
            _relax("marginals", "arborescence", _square),
            3,
            2,
        ),
        Scaling(
            "scaling-arborescence-sparsemap",
            "sparsemap of arborescences",
            "n",
            (8, 16, 32, 64, 128),
            _relax("sparsemap", "arborescence", _square),
            4,
            2,
        ),
        Scaling(
            "scaling-arborescence-support",
            "exact sparsemap of 4 arborescences with its support",
            "n",
            (4, 6, 8, 12, 16, 24, 32),
            _support("arborescence"),
            None,
            None,
        ),
        Scaling(
            "scaling-projective-tree",
            "projective tree marginals",
            "n",
            (12, 25, 50, 100, 200, 400),
            _relax("marginals", "projective_tree", _square),
            3,
            2,
        ),
        Scaling(
            "scaling-binary-tree",
            "binary tree (CKY) marginals",
            "n",
            (12, 25, 50, 100, 200, 400),
            _relax("marginals", "binary_tree", _square),
            3,
            2,
        ),
        Scaling(
            "scaling-spanning-tree-marginals",
            "spanning tree marginals of complete graphs",
            "n",
            SQUARES,
            _relax("marginals", "spanning_tree", _square),
            3,
            2,
        ),
        Scaling(
            "scaling-spanning-tree-edges",
            "spanning tree argmax of a list of edges, 10 edges a node",
            "m",
            (1000, 10_000, 100_000, 300_000, 1_000_000),
            _long_list_of_edges,
            1,
            1,
            quick=(40, 80),
        ),
        Scaling(
            "scaling-assignment",
            "assignment argmax",
            "n",
            (62, 125, 250, 500, 1000, 2000),
            _relax("map", "assignment", _square),
            3,
            2,
        ),
        Scaling(
            "scaling-assignment-batch",
            "assignment argmax, 10 × 10",
            "B",
            BATCHES,
            _relax("map", "assignment", lambda b: (b, 10, 10)),
            1,
            1,
        ),
        Scaling(
            "scaling-assignment-sparsemap",
            "sparsemap of assignments",
            "n",
            (10, 20, 40, 80, 160),
            _relax("sparsemap", "assignment", _square),
            3,
            2,
        ),
        Scaling(
            "scaling-sinkhorn",
            "Sinkhorn plans, temperature 1",
            "n",
            (62, 125, 250, 500, 1000, 2000),
            _relax("sinkhorn", "assignment", _square),
            2,
            2,
        ),
        Scaling(
            "scaling-transportation",
            "transportation argmax, supplies and demands of 2",
            "n",
            (25, 50, 100, 200, 400),
            _relax("map", "transportation", _square, supplies=lambda n: (2,) * n, demands=lambda n: (2,) * n),
            3,
            2,
        ),
        Scaling(
            "scaling-matching",
            "argmax of perfect matchings in complete graphs",
            "n",
            (8, 16, 32, 64, 128),
            _relax("map", "matching", _square),
            3,
            2,
        ),
        Scaling(
            "scaling-ranking",
            "ranking argmax",
            "n",
            (1000, 10_000, 100_000, 1_000_000),
            _relax("map", "ranking", _vector),
            1,
            1,
        ),
        Scaling(
            "scaling-subset",
            "subset marginals, k = 10",
            "n",
            (1000, 3000, 10_000, 30_000, 100_000),
            _relax("marginals", "subset", _vector, k=10),
            1,
            1,
            quick=(20, 40),
        ),
        Scaling(
            "scaling-correlated-subset",
            "correlated subset marginals, k = 10",
            "n",
            (1000, 3000, 10_000, 30_000, 100_000),
            _relax("marginals", "correlated_subset", _vector, lambda n: (1, n - 1), k=10),
            1,
            1,
            quick=(20, 40),
        ),
        Scaling(
            "scaling-knapsack",
            "knapsack marginals, capacity 100",
            "n",
            (100, 300, 1000, 3000, 10_000),
            _relax("marginals", "knapsack", _vector, weights=lambda n: (1, 2, 3, 4) * (n // 4), capacity=100),
            1,
            1,
        ),
        Scaling(
            "scaling-bits",
            "bits marginals",
            "n",
            (10_000, 100_000, 1_000_000, 10_000_000),
            _relax("marginals", "bits", _vector),
            1,
            1,
        ),
        Scaling(
            "scaling-categorical-sparsemap",
            "sparsemap of one choice (sparsemax)",
            "n",
            (10_000, 100_000, 1_000_000, 10_000_000),
            _relax("sparsemap", "categorical", _vector),
            1,
            1,
        ),
        Scaling(
            "scaling-sparsemax-batch",
            "sparsemax of 100 numbers",
            "B",
            BATCHES,
            _sparsemax,
            1,
            1,
        ),
        Scaling(
            "scaling-path",
            "shortest path in a grid graph",
            "nodes",
            (1000, 3000, 10_000, 30_000, 100_000),
            _graph("path", "map", source=0, target=lambda last: last),
            1,
            1,
        ),
        Scaling(
            "scaling-dag-path",
            "marginals of paths in a grid graph",
            "nodes",
            (1000, 3000, 10_000, 30_000, 100_000),
            _graph("dag_path", "marginals", source=0, target=lambda last: last),
            1,
            1,
        ),
        Scaling(
            "scaling-flow",
            "flow of 1 unit through a grid graph",
            "nodes",
            (100, 300, 1000, 3000),
            _graph("flow", "map", supplies=lambda last: {0: 1, last: -1}),
            2,
            1,
        ),
        Scaling(
            "scaling-milp",
            "milp argmax of one budget (HiGHS)",
            "n",
            (25, 50, 100, 200),
            _relax("map", "milp", _vector, A=lambda n: ((1.0,) * n,), upper=lambda n: (n / 4,)),
            1,
            1,
        ),
        Scaling(
            "scaling-tour",
            "tour argmax (CP-SAT)",
            "n",
            (5, 8, 12, 16),
            _relax("map", "tour", _square),
            None,
            None,
        ),
    )
}
