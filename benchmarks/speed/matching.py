"""Perfect matchings: argmax compared with direct calls of rustworkx."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import structinf as si

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES"]

RUSTWORKX = "rustworkx in a loop"


def complete(n: int) -> np.ndarray:
    """Return all pairs of n nodes, (E, 2)."""
    return np.stack(np.triu_indices(n, 1), 1)


def grid(side: int) -> np.ndarray:
    """Return the pairs of neighbours in a square of nodes, (E, 2)."""
    node = np.arange(side * side).reshape(side, side)
    steps = [(node[:, :-1], node[:, 1:]), (node[:-1], node[1:])]
    return np.concatenate([np.stack([low.ravel(), high.ravel()], 1) for low, high in steps])


def argmax(modules: Mapping[str, ModuleType], batch: int, n: int, ends: Any) -> Iterator[Contender]:
    """Find the best perfect matching. The peer takes integers: scores times 2^40."""
    pairs = ends(n)
    theta = torch.randn(batch, len(pairs), generator=torch.Generator().manual_seed(0))
    layer = si.Layer(si.get_oracle("matching", edges=pairs), "map")
    yield Contender(STRUCTINF, lambda: layer(theta))
    if (package := modules.get("rustworkx")) is None:
        return
    nodes, number = int(pairs.max()) + 1, {tuple(pair): e for e, pair in enumerate(pairs.tolist())}

    def solve() -> list[Any]:
        found = []
        for scores in theta.tolist():
            graph = package.PyGraph()
            graph.add_nodes_from(range(nodes))
            graph.add_edges_from([(low, high, score) for (low, high), score in zip(number, scores, strict=True)])
            integer = lambda score: int(score * 2**40)  # noqa: E731
            found.append(package.max_weight_matching(graph, max_cardinality=True, weight_fn=integer))
        return found

    def read(found: list[Any]) -> Tensor:
        y = torch.zeros(theta.shape)
        for b, matching in enumerate(found):
            y[b, [number[min(pair), max(pair)] for pair in matching]] = 1
        return y

    yield Contender(RUSTWORKX, solve, read)


def _case(name: str, what: str, ends: Any, n: int, least: int) -> Case:
    def contenders(modules: Mapping[str, ModuleType], batch: int, n: int) -> Iterator[Contender]:
        return argmax(modules, batch, n, ends)

    return Case(
        f"matching-argmax-{name}",
        f"perfect matching argmax, B={{batch}}, {what}",
        contenders,
        {"batch": 32, "n": n},
        {"batch": 2, "n": least},
        peers=("rustworkx",),
        target=Target(2, (RUSTWORKX,)),
    )


CASES = (
    _case("20", "all pairs of {n} nodes", complete, 20, 4),
    _case("40", "all pairs of {n} nodes", complete, 40, 4),
    _case("grid", "neighbours in a grid of {n} × {n} nodes", grid, 8, 2),
)
