"""Graphical models: exact marginals of grids compared with pgmpy, and belief propagation compared with PGMax."""

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

PGMPY = "pgmpy in a loop"
PGMAX = "PGMax, jit and vmap"
ITERATIONS = 60


def grid(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return the pairs of neighbours in a grid, numbered row by row."""
    right = [(columns * i + j, columns * i + j + 1) for i in range(rows) for j in range(columns - 1)]
    return right + [(columns * i + j, columns * (i + 1) + j) for i in range(rows - 1) for j in range(columns)]


def draw(batch: int, rows: int, columns: int) -> tuple[si.Oracle, Tensor, Tensor]:
    """Return a model of a grid of binary variables, and scores of its variables and pairs."""
    edges, n = grid(rows, columns), rows * columns
    field = si.get_oracle("markov_field", cardinalities=(2,) * n, factors=[*((v,) for v in range(n)), *edges])
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(batch, n, 2, generator=generator)
    return field, unary, torch.randn(batch, len(edges), 2, 2, generator=generator)


def marginals(modules: Mapping[str, ModuleType], batch: int, rows: int, columns: int) -> Iterator[Contender]:
    """Find the marginals of the variable in the middle; ours finds the marginals of all variables and pairs."""
    field, unary, pair = draw(batch, rows, columns)
    middle, edges = rows * columns // 2, grid(rows, columns)
    layer, theta = si.Layer(field, "marginals"), (*unary.unbind(1), *pair.unbind(1))
    yield Contender(STRUCTINF, lambda: layer(theta), lambda mean: mean[middle])
    if (package := modules.get("pgmpy")) is None:
        return
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.models import DiscreteMarkovNetwork

    def infer(unary: np.ndarray, pair: np.ndarray) -> Any:
        network = DiscreteMarkovNetwork(edges)
        network.add_factors(*(DiscreteFactor([v], [2], table) for v, table in enumerate(unary)))
        network.add_factors(*(DiscreteFactor(list(e), [2, 2], table) for e, table in zip(edges, pair, strict=True)))
        return package.VariableElimination(network)

    engines = [infer(u, p) for u, p in zip(unary.exp().double().numpy(), pair.exp().double().numpy(), strict=True)]
    yield Contender(
        PGMPY,
        lambda: [engine.query([middle], show_progress=False) for engine in engines],
        lambda found: torch.from_numpy(np.stack([f.values / f.values.sum() for f in found])).float(),
    )


def belief_propagation(modules: Mapping[str, ModuleType], batch: int, rows: int, columns: int) -> Iterator[Contender]:
    """Run 60 iterations of parallel sum-product messages without damping, in float64; the peer in float32."""
    field, unary, pair = draw(batch, rows, columns)
    n, edges = rows * columns, grid(rows, columns)
    layer = si.Layer(field, "belief_propagation", max_iter=ITERATIONS, tolerance=0, damping=0.0, on_failure="ignore")
    theta = (*unary.unbind(1), *pair.unbind(1))
    yield Contender(STRUCTINF, lambda: layer(theta), lambda mean: torch.stack(mean[:n], 1))
    if (infer := modules.get("pgmax")) is None:
        return
    import jax
    from pgmax import fgraph, fgroup, vgroup

    variables = vgroup.NDVarArray(num_states=2, shape=(n,))
    graph = fgraph.FactorGraph(variable_groups=variables)
    factors = fgroup.PairwiseFactorGroup([[variables[i], variables[j]] for i, j in edges], pair[0].numpy())
    graph.add_factors(factors)
    inferer = infer.build_inferer(graph.bp_state, backend="bp")

    def beliefs(unary: Any, pair: Any) -> Any:
        arrays = inferer.init(evidence_updates={variables: unary}, log_potentials_updates={factors: pair})
        arrays = inferer.run(arrays, num_iters=ITERATIONS, damping=0.0, temperature=1.0)
        return infer.get_marginals(inferer.get_beliefs(arrays))[variables]

    run, arrays = jax.jit(jax.vmap(beliefs)), (unary.numpy(), pair.numpy())
    yield Contender(PGMAX, lambda: run(*arrays).block_until_ready(), lambda found: torch.from_numpy(np.array(found)))


SIZE, QUICK = {"batch": 64, "rows": 4, "columns": 32}, {"batch": 2, "rows": 2, "columns": 3}

CASES = (
    Case(
        "graphical-model-marginals",
        "exact marginals of a variable of {rows} × {columns} binary grids, B={batch}",
        marginals,
        SIZE,
        QUICK,
        peers=("pgmpy",),
        target=Target(20.0),
    ),
    Case(
        "graphical-model-belief-propagation",
        f"{ITERATIONS} iterations of sum-product messages, " + "{rows} × {columns} binary grids, B={batch}",
        belief_propagation,
        SIZE,
        QUICK,
        peers=("pgmax",),
        target=Target(1.0),
    ),
)
