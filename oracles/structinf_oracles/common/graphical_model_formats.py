"""Readers of graphical models: cardinalities, scopes of factors, and tables of potentials."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from structinf.errors import InvalidInputError

__all__ = ["GraphicalModel", "read_networkx", "read_pgmpy", "read_uai"]


@dataclass(frozen=True)
class GraphicalModel:
    """The variables, in order, their cardinalities, the scope of each factor, and its table of nonnegative numbers."""

    variables: list[Hashable]
    cardinalities: list[int]
    factors: list[tuple[int, ...]]
    tables: list[np.ndarray]


def read_uai(text: str) -> GraphicalModel:
    """Read the text of a model in the UAI format, MARKOV or BAYES."""
    tokens = iter(text.split())

    def count(what: str) -> int:
        token = next(tokens, "the end of the text")
        if not token.isdigit():
            raise InvalidInputError(f"UAI format: expected {what}, a number, got {token!r}")
        return int(token)

    kind = next(tokens, "")
    if kind not in ("MARKOV", "BAYES"):
        raise InvalidInputError(f"UAI format: the text must begin with MARKOV or BAYES, got {kind!r}")
    variables = count("the number of variables")
    cardinalities = [count(f"the cardinality of variable {v}") for v in range(variables)]
    factors = []
    for k in range(count("the number of factors")):
        size = count(f"the number of variables of factor {k}")
        factors.append(tuple(count(f"a variable of factor {k}") for _ in range(size)))
        if any(v >= variables for v in factors[-1]):
            raise InvalidInputError(f"UAI format: factor {k} has variables {factors[-1]}, but there are {variables}")
    tables = []
    for k, factor in enumerate(factors):
        shape = [cardinalities[v] for v in factor]
        if (entries := count(f"the number of entries of table {k}")) != math.prod(shape):
            raise InvalidInputError(f"UAI format: table {k} must have {math.prod(shape)} entries, got {entries}")
        try:
            tables.append(np.array([float(next(tokens)) for _ in range(entries)]).reshape(shape))
        except (ValueError, StopIteration):
            raise InvalidInputError(f"UAI format: table {k} must have {entries} numbers") from None
    return GraphicalModel(list(range(variables)), cardinalities, factors, tables)


def read_pgmpy(model: Any) -> GraphicalModel:
    """Read a model of pgmpy: an object with ``get_factors()`` or ``get_cpds()``, of items with variables and values."""
    items = model.get_cpds() if hasattr(model, "get_cpds") else model.get_factors()
    number: dict[Hashable, int] = {}
    cardinalities: list[int] = []
    factors, tables = [], []
    for item in items:
        # A conditional table of pgmpy keeps ``values`` with an axis for each of its ``variables``, as a factor does.
        table = np.asarray(item.values, np.float64)
        for name, size in zip(item.variables, table.shape, strict=True):
            if number.setdefault(name, len(number)) == len(cardinalities):
                cardinalities.append(size)
        factors.append(tuple(number[name] for name in item.variables))
        tables.append(table)
    return GraphicalModel(list(number), cardinalities, factors, tables)


def read_networkx(graph: Any, cardinality: int | str) -> GraphicalModel:
    """Read a networkx graph: a factor for each node and for each edge, with tables of ones.

    ``cardinality`` is the number of values of every variable, or the name of a node attribute.
    """
    if graph.is_directed() or graph.is_multigraph():
        raise InvalidInputError("the networkx graph must be undirected, without parallel edges")
    nodes: Sequence[Hashable] = list(graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    sizes = [cardinality if isinstance(cardinality, int) else graph.nodes[node].get(cardinality) for node in nodes]
    for node, size in zip(nodes, sizes, strict=True):
        if size is None:
            raise InvalidInputError(f"the networkx graph has no attribute {cardinality!r} at node {node!r}")
    factors: list[tuple[int, ...]] = [(i,) for i in range(len(nodes))]
    factors += [(number[a], number[b]) for a, b in graph.edges if a != b]
    tables = [np.ones([sizes[v] for v in factor]) for factor in factors]
    return GraphicalModel(list(nodes), [int(size) for size in sizes if size is not None], factors, tables)
