"""Flows and transport plans: argmax compared with ortools and scipy's linear programs, one instance at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_array
from torch import Tensor

import structinf as si

from .case import STRUCTINF, Case, Contender, Target

__all__ = ["CASES"]

ORTOOLS = "ortools in a loop"
SCIPY = "scipy's linprog in a loop"
# ortools takes integer scores, so results are compared by their scores.
PRECISION = 2.0**24


def flow(modules: Mapping[str, ModuleType], batch: int, nodes: int) -> Iterator[Contender]:
    """Find the best flow through a random network with five edges a node and scores of both signs."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, nodes, (5 * nodes, 2))
    capacities = rng.integers(5, 15, len(ends))
    some = rng.integers(0, capacities + 1) * (rng.random(len(ends)) < 0.3)  # a random flow defines feasible supplies
    supplies = _balance(ends, some, nodes)
    theta = torch.randn(batch, len(ends), generator=torch.Generator().manual_seed(0))
    layer = si.Layer(si.get_oracle("flow", graph=ends, supplies=supplies, capacities=capacities), "map")
    yield from _contenders(modules, lambda: layer(theta), theta, ends, capacities, supplies)


def transportation(modules: Mapping[str, ModuleType], batch: int, n: int) -> Iterator[Contender]:
    """Find the best plan for an average of ten units a row and a column."""
    rng = np.random.default_rng(0)
    rows, columns = (rng.multinomial(10 * n, np.full(n, 1 / n)) for _ in range(2))
    ends = np.stack([np.arange(n).repeat(n), n + np.tile(np.arange(n), n)], 1)
    theta = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(0))
    layer = si.Layer(si.get_oracle("transportation", supplies=rows, demands=columns), "map")
    capacities = np.minimum.outer(rows, columns).ravel()
    supplies = np.append(rows, -columns)
    yield from _contenders(modules, lambda: layer(theta).flatten(1), theta.flatten(1), ends, capacities, supplies)


def _contenders(
    modules: Mapping[str, ModuleType],
    ours: Callable[[], Tensor],
    theta: Tensor,
    ends: np.ndarray,
    capacities: np.ndarray,
    supplies: np.ndarray,
) -> Iterator[Contender]:
    def scores(flows: list[np.ndarray] | Tensor) -> Tensor:
        y = flows if isinstance(flows, Tensor) else torch.from_numpy(np.stack(flows))
        return (theta.double() * y).sum(1)

    yield Contender(STRUCTINF, ours, scores)
    if package := modules.get("ortools"):
        tails, heads = np.ascontiguousarray(ends.T, np.int32)
        nodes = np.arange(len(supplies), dtype=np.int32)

        def solve(costs: np.ndarray) -> np.ndarray:
            problem = package.SimpleMinCostFlow()
            edges = problem.add_arcs_with_capacity_and_unit_cost(tails, heads, capacities, costs)
            problem.set_nodes_supplies(nodes, supplies)
            problem.solve()
            return problem.flows(edges)

        yield Contender(
            ORTOOLS, lambda: [solve(np.rint(-PRECISION * s).astype(np.int64)) for s in theta.double().numpy()], scores
        )
    matrix = _incidence(ends, len(supplies))
    bounds = np.stack([np.zeros(len(ends)), capacities], 1)
    yield Contender(
        SCIPY,
        lambda: [linprog(-s, A_eq=matrix, b_eq=supplies, bounds=bounds).x for s in theta.double().numpy()],
        scores,
    )


def _incidence(ends: np.ndarray, nodes: int) -> csr_array:
    edges = np.arange(len(ends))
    signs = np.repeat([1.0, -1.0], len(ends))
    return csr_array((signs, (ends.T.ravel(), np.tile(edges, 2))), shape=(nodes, len(ends)))


def _balance(ends: np.ndarray, amounts: np.ndarray, nodes: int) -> np.ndarray:
    return (_incidence(ends, nodes) @ amounts).astype(np.int64)


CASES = (
    *(
        Case(
            f"flow-argmax-{nodes}",
            "flow argmax, B={batch}, {nodes} nodes, five edges each",
            flow,
            {"batch": batch, "nodes": nodes},
            {"batch": 2, "nodes": 4},
            peers=("ortools",),
            target=Target(1.5, (ORTOOLS,)),
        )
        for nodes, batch in ((20, 32), (100, 32), (1000, 4))
    ),
    *(
        Case(
            f"transportation-argmax-{n}",
            "transportation argmax, B={batch} n={n}",
            transportation,
            {"batch": batch, "n": n},
            {"batch": 2, "n": 3},
            peers=("ortools",),
            target=Target(ratio, (ORTOOLS,)),
        )
        for n, batch, ratio in ((10, 32, 1.0), (50, 32, 2.0), (100, 8, 2.0))
    ),
)
