"""Factors of several variables as arrays of edges, for compiled loops over the entries of one factor at a time."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .factor_groups import FactorTables, Layout

__all__ = ["EdgeGraph", "edge_graph", "flat_tables", "flat_values", "grouped_values"]


class EdgeGraph(NamedTuple):
    """Factors of several variables, in the order of the groups.

    Factor k has the entries ``first_entry[k]:first_entry[k + 1]`` of all tables, and the edges
    ``first_edge[k]:first_edge[k + 1]``, one for each of its variables. The values of a variable lie next to each other,
    from ``first_value[v]`` on. ``uses[first_use[v]:first_use[v + 1]]`` are the edges of variable v.
    """

    first_entry: np.ndarray
    first_edge: np.ndarray
    cardinality: np.ndarray
    edge_factor: np.ndarray
    edge_variable: np.ndarray
    edge_value: np.ndarray
    edge_message: np.ndarray
    first_value: np.ndarray
    first_use: np.ndarray
    uses: np.ndarray
    weight: np.ndarray
    largest_table: int
    largest_cardinality: int


@functools.lru_cache(maxsize=64)
def edge_graph(layout: Layout) -> EdgeGraph:
    """Return the edges of a model, with weights of 1; the edges of 64 models are kept."""
    entries, edges, cardinality, factor_of, variable_of, message_of = [0], [0], [], [], [], []
    first_value = np.cumsum([0, *layout.cardinalities])
    at = 0
    for group in layout.groups[layout.first_joint :]:
        starts = [at + len(group.factors) * sum(group.shape[:s]) for s in range(len(group.shape))]
        at += len(group.factors) * sum(group.shape)
        for f, k in enumerate(group.factors):
            for start, c, v in zip(starts, group.shape, layout.factors[k], strict=True):
                cardinality.append(c)
                factor_of.append(len(edges) - 1)
                variable_of.append(v)
                message_of.append(start + c * f)
            entries.append(entries[-1] + math.prod(group.shape))
            edges.append(len(cardinality))
    variables = np.array(variable_of, dtype=np.int64)
    counts = np.bincount(variables, minlength=len(layout.cardinalities))
    return EdgeGraph(
        first_entry=np.array(entries, dtype=np.int64),
        first_edge=np.array(edges, dtype=np.int64),
        cardinality=np.array(cardinality, dtype=np.int64),
        edge_factor=np.array(factor_of, dtype=np.int64),
        edge_variable=variables,
        edge_value=first_value[variables],
        edge_message=np.array(message_of, dtype=np.int64),
        first_value=first_value,
        first_use=np.concatenate([[0], np.cumsum(counts)]),
        uses=np.argsort(variables, kind="stable"),
        weight=np.ones(len(edges) - 1),
        largest_table=int(np.diff(entries).max(initial=0)),
        largest_cardinality=max(layout.cardinalities),
    )


def flat_tables(model: FactorTables) -> Tensor:
    """Return the scores of factors of several variables, (B | 1, P), factor by factor."""
    joint = [t for _, _, t, _ in model.joint()]
    rows = max((t.shape[-2] for t in joint), default=1)
    flat = [t.permute(-2, -1, *range(t.ndim - 2)).expand(rows, -1, *t.shape[:-2]).flatten(1) for t in joint]
    return torch.cat([torch.zeros(rows, 0, dtype=torch.float64, device=model.device), *flat], 1)


def flat_values(layout: Layout, values: dict[int, Tensor]) -> Tensor:
    """Return numbers for each value of the variables, (B, S), variable by variable."""
    return torch.cat([values[c][:, :, i].T for c, i in zip(layout.cardinalities, layout.places, strict=True)], 1)


def grouped_values(layout: Layout, flat: Tensor) -> dict[int, Tensor]:
    """Return the inverse of :func:`flat_values`."""
    pieces = flat.split(layout.cardinalities, 1)
    return {c: torch.stack([pieces[v].T for v in variables], 2) for c, variables in layout.variables.items()}
