"""Linear constraints of the derivations of a hypergraph, as flows."""

from __future__ import annotations

import numpy as np

from ..linear_constraints import LinearConstraints
from .hypergraph import Hypergraph

__all__ = ["flow_constraints"]


def flow_constraints(graph: Hypergraph, goal: int, outside: np.ndarray) -> LinearConstraints:
    """Return the constraints of a flow: it enters the goal once, and each other node as often as it leaves it.

    The variables are the parts, and then the flow of each hyperedge, which counts how often a derivation uses it. R.
    Martin, R. Rardin & B. Campbell, Polyhedral characterization of discrete dynamic programming, Operations Research
    38, 1990.

    Parameters
    ----------
    graph : Hypergraph
        The hypergraph.
    goal : int
        The node of the goal.
    outside : (n,) integer array
        Parts of no structure, which the hypergraph need not know. They are 0.
    """
    edges = np.arange(graph.edges)
    entries = [(graph.head, edges, 1.0)]
    for tails in graph.tails.T:
        used = edges[tails < graph.nodes]
        entries.append((tails[used], used, -1.0))
    used = edges[graph.part < graph.parts]
    entries.append((graph.nodes + graph.part[used], used, -1.0))
    parts = np.arange(graph.parts)
    first = graph.nodes + graph.parts
    rows = [np.asarray(row) for row, *_ in entries] + [graph.nodes + parts, first + np.arange(len(outside))]
    columns = [graph.parts + column for _, column, _ in entries] + [parts, outside]
    values = [np.full(len(row), value) for row, _, value in entries] + [np.ones(graph.parts), np.ones(len(outside))]
    total = np.zeros(first + len(outside))
    total[goal] = 1
    places = np.concatenate(rows), np.concatenate(columns), np.concatenate(values)
    return LinearConstraints.of(places, graph.parts + graph.edges, total, total)
