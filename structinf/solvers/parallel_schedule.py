"""The parallel schedule of belief propagation on the CPU, as a compiled loop."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..kernels import parallel_rows, to_numpy, zeros
from .factor_groups import FactorGroup, FactorTables, Layout
from .fixed_point import MOST_DAMPING, WINDOW, FixedPoint

__all__ = ["parallel_messages"]


class _Graph(NamedTuple):
    """Groups of factors of several variables, for `structinf.kernels.message_passing.parallel`."""

    factors: np.ndarray
    entries: np.ndarray
    table_at: np.ndarray
    weight_at: np.ndarray
    first_slot: np.ndarray
    group: np.ndarray
    cardinality: np.ndarray
    message_at: np.ndarray
    value_at: np.ndarray
    value: np.ndarray
    weight: np.ndarray
    largest_group: int
    largest_slot: int


def parallel_messages(
    model: FactorTables,
    rhos: Sequence[Tensor],
    maximise: bool,
    limit: Tensor,
    max_iter: int,
    damping: float | None,
    patience: int,
) -> FixedPoint:
    """Return the messages (c, B, F) of factors of several variables, as :func:`.fixed_point.find_fixed_point` does.

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
        Maximal number of iterations.
    damping : float, optional
        The share of the old messages.
    patience : int
        The number of iterations before the first rise of the damping.
    """
    from ..kernels.message_passing.parallel import parallel_messages as run

    layout, joint = model.layout, [t for _, _, t, _ in model.joint()]
    graph = _arrays(layout)._replace(weight=np.concatenate(to_numpy(*rhos)))
    rows = max(t.shape[-2] for t in joint)
    tables = torch.cat([t.movedim(-2, 0).expand(rows, *t.shape[:-2], -1).flatten(1) for t in joint], 1)
    base = torch.cat([t.permute(1, 2, 0).flatten(1) for t in model.base.values()], 1)
    message = zeros(model.size, int(graph.message_at[-1]), dtype=torch.float64)
    residual = zeros(model.size, dtype=torch.float64)
    rise = max(patience, WINDOW), WINDOW, MOST_DAMPING
    start = -1.0 if damping is None else float(damping)
    arrays, results = to_numpy(tables, base), to_numpy(message, residual)
    parallel_rows(
        run, model.size, *arrays, graph, maximise, *to_numpy(limit), max_iter, start, rise, *results,
        work=400 * tables.shape[1] * model.size,
    )  # fmt: skip
    found, at = [], 0
    for group in _joint(layout):
        for c in group.shape:
            size = c * len(group.factors)
            found.append(message[:, at : at + size].view(model.size, c, -1).movedim(1, 0).contiguous())
            at += size
    return FixedPoint(found, residual, residual <= limit)


def _joint(layout: Layout) -> list[FactorGroup]:
    return layout.groups[layout.first_joint :]


@functools.lru_cache(maxsize=64)
def _arrays(layout: Layout) -> _Graph:
    groups = _joint(layout)
    counts = [len(g.factors) for g in groups]
    entries = [math.prod(g.shape) for g in groups]
    slots = [(j, c) for j, g in enumerate(groups) for c in g.shape]
    lengths = [counts[j] for j, _ in slots]
    # The values of the variables of a cardinality lie next to each other, variable by variable.
    first_value, at = {}, 0
    for c, variables in layout.variables.items():
        first_value[c] = at
        at += c * len(variables)
    value = [
        first_value[c] + c * place
        for g in groups
        for c, places in zip(g.shape, g.places, strict=True)
        for place in places
    ]

    def starts(sizes: Sequence[int]) -> np.ndarray:
        return np.cumsum([0, *sizes], dtype=np.int64)

    return _Graph(
        factors=np.array(counts, dtype=np.int64),
        entries=np.array(entries, dtype=np.int64),
        table_at=starts([n * e for n, e in zip(counts, entries, strict=True)]),
        weight_at=starts(counts),
        first_slot=starts([len(g.shape) for g in groups]),
        group=np.array([j for j, _ in slots], dtype=np.int64),
        cardinality=np.array([c for _, c in slots], dtype=np.int64),
        message_at=starts([c * n for (_, c), n in zip(slots, lengths, strict=True)]),
        value_at=starts(lengths),
        value=np.array(value, dtype=np.int64),
        weight=np.ones(sum(counts)),
        largest_group=max(n * e for n, e in zip(counts, entries, strict=True)),
        largest_slot=max(c * n for (_, c), n in zip(slots, lengths, strict=True)),
    )
