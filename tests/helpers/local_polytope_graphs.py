"""Factor graphs with cycles, and normal scores."""

from __future__ import annotations

import torch

import structinf as si

DOUBLE = torch.float64
EXACT = si.get_relaxation("lp_sparsemap", tolerance=0.0)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def cycle_of_three() -> si.FactorGraph:
    graph = si.FactorGraph(3)
    for pair in ([0, 1], [1, 2], [0, 2]):
        graph.add("pair", pair)
    return graph


def bits_in_a_chain() -> si.FactorGraph:
    graph = si.FactorGraph(4)
    both = torch.stack([graph.variables, graph.variables], 1)
    graph.add("chain", both, negated=torch.tensor([True, False]), additional=[(2, 2)])
    graph.add("budget", graph.variables, k=2)
    graph.add("budget", graph.variables, k=2, negated=True)
    return graph


BITS = torch.tensor([0.6, 0.1, -0.2, 0.3], dtype=DOUBLE), torch.tensor([[0.0, 0.0], [0.0, 0.8]], dtype=DOUBLE)


def rows_and_columns(n: int) -> si.FactorGraph:
    graph = si.FactorGraph((n, n))
    for line in (*graph.variables, *graph.variables.T):
        graph.add("xor", line)
    return graph


def disjunctions(n: int) -> si.FactorGraph:
    graph = si.FactorGraph((n, n))
    for line in (*graph.variables, *graph.variables.T):
        graph.add("or_out", line)  # no bound of a sum, so that the solver is ADMM
    return graph


def random_graph(seed: int, *, cyclic: bool) -> tuple[si.FactorGraph, tuple]:
    """Return a graph of logic factors and tables over six variables, and the event shapes of its scores."""
    generator = torch.Generator().manual_seed(seed)
    graph, shapes, seen = si.FactorGraph(6), [(6,)], [int(torch.randint(6, (), generator=generator))]
    names = ["xor", "or", "at_most_one", "imply", "or_out", "and_out", "pair", "table"]
    for _ in range(3):
        name = names[int(torch.randint(len(names), (), generator=generator))]
        new = [v for v in torch.randperm(6, generator=generator).tolist() if cyclic or v not in seen]
        chosen = [seen[int(torch.randint(len(seen), (), generator=generator))], *new]
        index = list(dict.fromkeys(chosen))[: 2 if name == "pair" else 3]
        if len(index) < 2:
            break
        graph.add(name, index, negated=torch.rand(len(index), generator=generator) < 0.3)
        if name in ("pair", "table"):
            shapes.append((2,) * len(index))
        seen = list(dict.fromkeys([*seen, *index]))
    return graph, tuple(shapes) if len(shapes) > 1 else shapes[0]


def scores_for(shapes: tuple, batch: int, seed: int) -> object:
    several = isinstance(shapes[0], tuple)
    drawn = [normal(batch, *shape, seed=seed + k) for k, shape in enumerate(shapes if several else [shapes])]
    return tuple(drawn) if several else drawn[0]
