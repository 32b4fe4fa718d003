"""Shortest paths in grids and in graphs with cycles: argmax compared with scipy and a Python program, one instance at
a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

import structinf as si

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES"]

MOVES = [(di, dj) for di in (-1, 0, 1) for dj in (-1, 0, 1) if di or dj]
SCIPY, PYTHON = "scipy in a loop", "Python with heapq"


def grid(modules: Mapping[str, ModuleType], batch: int, n: int, peer: str) -> Iterator[Contender]:
    """Find the best path by eight neighbours through n × n cells with costs."""
    costs = torch.rand(batch, n, n, generator=torch.Generator().manual_seed(0))
    layer = si.Layer("grid_path", "map", moves="8-neighbours")
    yield Contender(STRUCTINF, lambda: layer(-costs), lambda y: y.flatten(1))
    if peer == PYTHON:
        yield Contender(PYTHON, lambda: [_dijkstra(c) for c in costs.tolist()], _stack)
        return
    # All instances share the graph. A step costs the cost of its target cell.
    ahead = [_neighbours(cell, n) for cell in range(n * n)]
    head, offset = np.concatenate(ahead), np.cumsum([0, *map(len, ahead)])

    def run() -> list[np.ndarray]:
        graphs = (csr_array((cost[head], head, offset), shape=(n * n, n * n)) for cost in costs.flatten(1).numpy())
        return [dijkstra(graph, indices=0, return_predecessors=True)[1] for graph in graphs]

    yield Contender(SCIPY, run, lambda found: _stack(map(_cells, found)))


def roads(modules: Mapping[str, ModuleType], batch: int, nodes: int) -> Iterator[Contender]:
    """Find the cheapest path between two nodes of a graph with about six neighbours a node; costs are compared."""
    rng = np.random.default_rng(0)
    ends = np.vstack([np.stack([np.arange(nodes - 1), np.arange(1, nodes)], 1), rng.integers(0, nodes, (2 * nodes, 2))])
    ends = np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], 1), axis=0)
    costs = torch.rand(batch, len(ends), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer = si.Layer(si.get_oracle("path", graph=ends, source=0, target=nodes - 1, directed=False), "map")
    yield Contender(STRUCTINF, lambda: layer(-costs), lambda y: (y * costs).sum(1))
    tail, head = np.append(*ends.T), np.append(*ends.T[::-1])
    order = np.lexsort((head, tail))
    offset = np.append(0, np.bincount(tail, minlength=nodes).cumsum())
    edge, head = np.tile(np.arange(len(ends)), 2)[order], head[order]

    def run() -> list[np.ndarray]:
        graphs = (csr_array((cost[edge], head, offset), shape=(nodes, nodes)) for cost in costs.numpy())
        return [dijkstra(graph, indices=0, return_predecessors=True)[0] for graph in graphs]

    yield Contender(SCIPY, run, lambda found: torch.tensor([distance[-1] for distance in found]))


def _neighbours(cell: int, n: int) -> list[int]:
    around = ((cell // n + di, cell % n + dj) for di, dj in MOVES)
    return [a * n + b for a, b in around if 0 <= a < n and 0 <= b < n]


def _dijkstra(costs: Sequence[Sequence[float]]) -> np.ndarray:
    """Return the cells of the best path through rows of costs, 0 or 1 each, by the textbook algorithm."""
    n = len(costs)
    start, last = (0, 0), (n - 1, n - 1)
    distance, before, heap = {start: costs[0][0]}, {start: -1}, [(costs[0][0], start)]
    while heap:
        length, cell = heapq.heappop(heap)
        if cell == last:
            break
        if length > distance[cell]:
            continue
        for di, dj in MOVES:
            a, b = cell[0] + di, cell[1] + dj
            if 0 <= a < n and 0 <= b < n:
                longer = length + costs[a][b]
                if longer < distance.get((a, b), float("inf")):
                    distance[a, b], before[a, b] = longer, cell[0] * n + cell[1]
                    heapq.heappush(heap, (longer, (a, b)))
    return _cells([before.get(divmod(cell, n), -1) for cell in range(n * n)])


def _cells(before: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the cells from the last cell back to the first. ``before`` gives the previous cell, negative at the
    start.
    """
    y, cell = np.zeros(len(before), np.float32), len(before) - 1
    while cell >= 0:
        y[cell] = 1
        cell = before[cell]
    return y


def _stack(paths: Iterator[np.ndarray] | Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(list(paths)))


CASES = (
    *(
        Case(
            f"grid-path-{name}",
            "grid path by 8 neighbours, B={batch} {n} × {n}",
            grid,
            {"batch": 32, "n": 12, "peer": peer},
            {"batch": 2, "n": 4, "peer": peer},
            target=Target(ratio, (peer,)),
        )
        for name, peer, ratio in (("12", SCIPY, 2.0), ("12-python", PYTHON, 20.0))
    ),
    Case(
        "path-1000",
        "path in a graph, B={batch} N={nodes}",
        roads,
        {"batch": 32, "nodes": 1000},
        {"batch": 2, "nodes": 20},
        target=Target(1.0, (SCIPY,)),
    ),
)
