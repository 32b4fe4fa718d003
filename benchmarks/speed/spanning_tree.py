"""Spanning trees: argmax of complete graphs and of edge lists, compared with scipy and rustworkx, one instance at a
time; k best trees, compared with networkx.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

import structinf as si
from structinf_oracles.spanning_tree import SpanningTree

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES"]

SCIPY = "scipy in a loop"
RUSTWORKX = "rustworkx in a loop"


def argmax(modules: Mapping[str, ModuleType], batch: int, n: int) -> Iterator[Contender]:
    """Find the best tree of all pairs of nodes. The peers take costs, and build a new graph for each instance."""
    theta = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(0))
    layer = si.Layer("spanning_tree", "map")
    low, high = np.triu_indices(n, 1)
    yield Contender(STRUCTINF, lambda: layer(theta), lambda y: y[:, low, high])
    # scipy reads a score of 0 as a missing edge, so no score is 0.
    yield Contender(SCIPY, lambda: [minimum_spanning_tree(costs) for costs in -theta.triu(1).numpy()], _of_matrices)
    yield from _rustworkx(modules, theta[:, low, high], np.stack([low, high], 1), n)


def argmax_of_list(modules: Mapping[str, ModuleType], batch: int, n: int, degree: int) -> Iterator[Contender]:
    """Find the best tree of a cycle with random chords; all instances share the graph."""
    rng = np.random.default_rng(0)
    chords = np.sort(rng.integers(0, n, (n * degree // 2, 2)), 1)
    cycle = np.sort(np.stack([np.arange(n), (np.arange(n) + 1) % n], 1), 1)
    ends = np.unique(np.concatenate([cycle, chords[chords[:, 0] < chords[:, 1]]]), axis=0)
    theta = torch.randn(batch, len(ends), generator=torch.Generator().manual_seed(0))
    layer = si.Layer(si.get_oracle("spanning_tree", edges=ends), "map")
    yield Contender(STRUCTINF, lambda: layer(theta))

    def solve() -> list[Any]:
        return [minimum_spanning_tree(csr_array((costs, ends.T), shape=(n, n))) for costs in -theta.numpy()]

    yield Contender(SCIPY, solve, lambda found: _of_matrices(found, ends))
    yield from _rustworkx(modules, theta, ends, n)


def k_best(modules: Mapping[str, ModuleType], batch: int, n: int, k: int) -> Iterator[Contender]:
    """List the k best trees of all pairs of nodes: by exchanges, by restrictions of the argmax, and by networkx."""
    theta = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(0))
    oracle = SpanningTree()
    yield Contender(STRUCTINF, lambda: si.topk(theta, oracle, k).scores, lambda scores: scores.T)
    yield Contender(
        "restrictions of the argmax", lambda: si.Restrictable.topk(oracle, theta, k)[1], lambda scores: scores.T
    )
    if package := modules.get("networkx"):
        pairs = np.transpose(np.triu_indices(n, 1)).tolist()
        graphs = [package.Graph() for _ in range(batch)]
        for graph, scores in zip(graphs, theta.tolist(), strict=True):
            graph.add_weighted_edges_from((i, j, scores[i][j]) for i, j in pairs)

        def trees(graph: Any) -> list[float]:
            found = itertools.islice(package.SpanningTreeIterator(graph, minimum=False), k)
            return [tree.size(weight="weight") for tree in found]

        yield Contender("networkx", lambda: [trees(graph) for graph in graphs], torch.tensor)


def _of_matrices(found: list[Any], ends: np.ndarray | None = None) -> Tensor:
    """Convert trees given as sparse matrices of costs to (B, E)."""
    n = found[0].shape[0]
    low, high = np.triu_indices(n, 1) if ends is None else ends.T
    return torch.from_numpy(np.stack([tree.toarray()[low, high] != 0 for tree in found])).float()


def _rustworkx(modules: Mapping[str, ModuleType], theta: Tensor, ends: np.ndarray, n: int) -> Iterator[Contender]:
    if (package := modules.get("rustworkx")) is None:
        return
    pairs, number = ends.tolist(), {tuple(pair): e for e, pair in enumerate(ends.tolist())}

    def solve() -> list[Any]:
        found = []
        for costs in (-theta).tolist():
            graph = package.PyGraph()
            graph.add_nodes_from(range(n))
            graph.add_edges_from([(low, high, cost) for (low, high), cost in zip(pairs, costs, strict=True)])
            found.append(package.minimum_spanning_edges(graph, weight_fn=float))
        return found

    def read(found: list[Any]) -> Tensor:
        y = torch.zeros(theta.shape)
        for b, tree in enumerate(found):
            y[b, [number[low, high] for low, high, _ in tree]] = 1
        return y

    yield Contender(RUSTWORKX, solve, read)


CASES = (
    *(
        Case(
            f"spanning-tree-argmax-{n}",
            "spanning tree argmax, B={batch} n={n}, all pairs",
            argmax,
            {"batch": 32, "n": n},
            {"batch": 2, "n": 4},
            peers=("rustworkx",),
            target=Target(5.0),
        )
        for n in (20, 40, 80)
    ),
    Case(
        "spanning-tree-argmax-list",
        "spanning tree argmax, B={batch} n={n}, a list of some n · {degree} / 2 edges",
        argmax_of_list,
        {"batch": 32, "n": 200, "degree": 8},
        {"batch": 2, "n": 5, "degree": 2},
        peers=("rustworkx",),
        target=Target(5.0),
    ),
    Case(
        "spanning-tree-k-best",
        "the {k} best spanning trees, B={batch} n={n}, all pairs",
        k_best,
        {"batch": 16, "n": 30, "k": 32},
        {"batch": 2, "n": 4, "k": 4},
        peers=("networkx",),
        target=Target(50.0, ("networkx",)),
    ),
)
