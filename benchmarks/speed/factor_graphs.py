"""LP-SparseMAP of factor graphs, compared with the C++ code of its authors, which takes one instance at a time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import structinf as si

from .case import STRUCTINF, Case, Contender

__all__ = ["CASES"]

LP_SPARSEMAP = "lp-sparsemap"
LOOP = "structinf, one instance at a time"

_THEIR_ITERATIONS = 5000


def _ours(graph: si.FactorGraph, theta: Tensor | tuple[Tensor, ...]) -> Iterator[Contender]:
    """Yield our solver for the batch, and in a loop; only the first tensor of scores differs between instances."""
    layer = si.Layer(graph, "lp_sparsemap", tolerance=1e-6, on_failure="raise")
    first, others = (theta[0], theta[1:]) if isinstance(theta, tuple) else (theta, ())

    def solve(scores: Tensor) -> Tensor:
        mean = layer((scores, *others) if others else scores)
        return mean[0] if isinstance(mean, tuple) else mean

    yield Contender(STRUCTINF, lambda: solve(first))
    yield Contender(LOOP, lambda: [solve(scores) for scores in first], torch.stack)


def _theirs(
    scores: Tensor, add: Callable[[Any, list[Any], Any], None], read: Callable[[Tensor], Tensor], extra: list[float]
) -> Contender:
    """Return a contender for scores (B, n) and additional scores; ``add`` adds the factors to a graph."""
    make = importlib.import_module("lpsmap.ad3qp.factor_graph").PFactorGraph
    rows = scores.double().numpy()

    def run() -> list[list[float]]:
        found = []
        for row in rows:
            graph = make()
            add(graph, [graph.create_binary_variable() for _ in row], extra)
            graph.set_log_potentials(row)
            # Many instances need more than the 1,000 iterations of the default.
            _, mean, _, _ = graph.solve_qp(max_iter=_THEIR_ITERATIONS, tol=1e-6)
            found.append(list(mean))
        return found

    return Contender(LP_SPARSEMAP, run, lambda found: read(torch.tensor(found)), exact=False)


def rows_and_columns(modules: Mapping[str, ModuleType], batch: int, n: int) -> Iterator[Contender]:
    """Cells of which each row and each column has exactly one."""
    theta = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(0))
    graph = si.FactorGraph((n, n))
    for line in (*graph.variables, *graph.variables.T):
        graph.add("xor", line)
    yield from _ours(graph, theta)
    if LP_SPARSEMAP not in modules:
        return

    def add(other: Any, variables: list[Any], _: Any) -> None:
        for line in (*graph.variables.tolist(), *graph.variables.T.tolist()):
            other.create_factor_logic("XOR", [variables[v] for v in line])

    yield _theirs(theta.flatten(1), add, lambda mean: mean.view(theta.shape), [])


def parser(modules: Mapping[str, ModuleType], batch: int, words: int) -> Iterator[Contender]:
    """Dependency trees in which each word has at most two dependents."""
    theta = torch.randn(batch, words + 1, words + 1, generator=torch.Generator().manual_seed(0))
    graph = si.FactorGraph((words + 1, words + 1))
    graph.add("arborescence", graph.variables)
    arcs = [(h, m) for m in range(1, words + 1) for h in range(words + 1) if h != m]
    for head in range(1, words + 1):
        graph.add("budget", [int(graph.variables[h, m]) for h, m in arcs if h == head], k=2)
    used = torch.zeros(words + 1, words + 1, dtype=torch.bool)
    used[tuple(zip(*arcs, strict=True))] = True
    theta = theta.where(used, 0.0)
    yield from _ours(graph, theta)
    if LP_SPARSEMAP not in modules:
        return
    tree = importlib.import_module("lpsmap.ad3ext.tree").PFactorTree
    heads, modifiers = zip(*arcs, strict=True)

    def add(other: Any, variables: list[Any], _: Any) -> None:
        factor = tree()
        factor.initialize(False, False, words)
        other.declare_factor(factor, variables, True)
        for head in range(1, words + 1):
            other.create_factor_budget([v for v, h in zip(variables, heads, strict=True) if h == head], 2)

    def read(mean: Tensor) -> Tensor:
        full = torch.zeros(theta.shape)
        full[:, heads, modifiers] = mean
        return full

    yield _theirs(theta[:, heads, modifiers], add, read, [])


def two_chains(modules: Mapping[str, ModuleType], batch: int, steps: int, states: int) -> Iterator[Contender]:
    """Tags that form a sequence of two chains, each with transitions of its own."""
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(batch, steps, states, generator=generator)
    transitions = [torch.randn(steps - 1, states, states, generator=generator) for _ in range(2)]
    graph = si.FactorGraph((steps, states))
    for t in transitions:
        graph.add("chain", graph.variables, additional=[tuple(t.shape)])
    yield from _ours(graph, (unary, *transitions))
    if LP_SPARSEMAP not in modules:
        return
    sequence = importlib.import_module("lpsmap.ad3ext.sequence").PFactorSequence
    edges = [t.flatten().double().tolist() for t in transitions]

    def add(other: Any, variables: list[Any], _: Any) -> None:
        for additional in edges:
            factor = sequence()
            factor.initialize([states] * steps)
            other.declare_factor(factor, variables, True)
            factor.set_additional_log_potentials(additional)

    yield _theirs(unary.flatten(1), add, lambda mean: mean.view(unary.shape), [])


def best_structure(modules: Mapping[str, ModuleType], batch: int, variables: int, solver: Any) -> Iterator[Contender]:
    """The best values of variables of which all pairs have scores, with another exact solver beside."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.combinations(torch.arange(variables)).tolist()
    unary = torch.randn(batch, variables, generator=generator)
    theta = unary, *torch.randn(len(pairs), batch, 2, 2, generator=generator)

    def layer(name: Any) -> si.Layer:
        graph = si.FactorGraph(variables, solver=name)
        for pair in pairs:
            graph.add("pair", pair)
        return si.Layer(graph, "map")

    ours, other = layer("milp"), layer(solver)
    yield Contender(STRUCTINF, lambda: ours(theta)[0])
    yield Contender(solver, lambda: other(theta)[0])


CASES = (
    Case(
        "factor-graph-rows-and-columns",
        "LP-SparseMAP of {n} × {n} cells with xor factors of rows and columns, B={batch}",
        rows_and_columns,
        {"batch": 64, "n": 10},
        {"batch": 2, "n": 3},
        peers=(LP_SPARSEMAP,),
    ),
    Case(
        "factor-graph-parser",
        "LP-SparseMAP of dependency trees of {words} words with at most two dependents of a word, B={batch}",
        parser,
        {"batch": 64, "words": 12},
        {"batch": 2, "words": 3},
        peers=(LP_SPARSEMAP,),
    ),
    Case(
        "factor-graph-two-chains",
        "LP-SparseMAP of two chains over the same tags, T={steps} S={states}, B={batch}",
        two_chains,
        {"batch": 64, "steps": 20, "states": 5},
        {"batch": 2, "steps": 3, "states": 2},
        peers=(LP_SPARSEMAP,),
    ),
    Case(
        "factor-graph-best-structure",
        "best values of {variables} binary variables, of which all pairs have scores, by milp, B={batch}",
        best_structure,
        {"batch": 4, "variables": 10, "solver": "branch_and_bound"},
        {"batch": 2, "variables": 3, "solver": "branch_and_bound"},
    ),
)
