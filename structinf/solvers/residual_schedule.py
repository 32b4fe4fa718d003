"""The residual schedule of belief propagation, as a compiled loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..kernels import parallel_rows, to_numpy, zeros
from .factor_groups import FactorTables, Layout
from .fixed_point import FixedPoint

__all__ = ["residual_messages"]


class _Graph(NamedTuple):
    """Factors of several variables, in the order of the groups, for `structinf.kernels.message_passing.residual`."""

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


def residual_messages(
    model: FactorTables, rhos: Sequence[Tensor], maximise: bool, limit: Tensor, max_iter: int
) -> FixedPoint:
    """Return the messages (c, B, F) of factors of several variables, computed one after the other.

    Parameters
    ----------
    model : FactorTables
        The model, with θ_k / ρ_k in groups of several variables, on the CPU.
    rhos : sequence of (F,) Tensor
        ρ_k of each group with several variables.
    maximise : bool
        Whether messages maximise instead of summing.
    limit : (B,) Tensor
        The accepted change of a message.
    max_iter : int
        The number of updates for each message, on average.
    """
    if model.device.type != "cpu":
        raise UnsupportedError(
            f'{model.label}: schedule="residual" runs on the CPU, but theta is on {model.device}; use "parallel"'
        )
    from ..kernels.message_passing.residual import residual_messages as run

    layout, joint = model.layout, [t for _, _, t, _ in model.joint()]
    graph = _graph(layout, rhos)
    rows = max(t.shape[-2] for t in joint)
    flat = [t.permute(-2, -1, *range(t.ndim - 2)).expand(rows, -1, *t.shape[:-2]).flatten(1) for t in joint]
    tables = torch.cat(flat, 1)
    base = torch.cat([model.base[c][:, :, i].T for c, i in zip(layout.cardinalities, layout.places, strict=True)], 1)
    message = zeros(model.size, int(graph.cardinality.sum()), dtype=torch.float64)
    residual = zeros(model.size, dtype=torch.float64)
    work = 20 * max_iter * tables.shape[1] * model.size
    updates = max_iter * len(graph.cardinality)
    arrays = to_numpy(tables, base)
    parallel_rows(
        run, model.size, *arrays, graph, maximise, *to_numpy(limit), updates, *to_numpy(message, residual), work=work
    )
    found, at = [], 0
    for group in layout.groups[layout.first_joint :]:
        for c in group.shape:
            size = c * len(group.factors)
            block = message[:, at : at + size].view(model.size, len(group.factors), c)
            found.append(block.permute(2, 0, 1).contiguous())
            at += size
    return FixedPoint(found, residual, residual <= limit)


def _graph(layout: Layout, rhos: Sequence[Tensor]) -> _Graph:
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
    return _Graph(
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
        weight=np.concatenate(to_numpy(*rhos)),
        largest_table=int(np.diff(entries).max()),
        largest_cardinality=max(cardinality),
    )
