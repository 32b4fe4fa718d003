"""The residual schedule of belief propagation, as a compiled loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..kernels import parallel_rows, to_numpy, zeros
from .factor_edges import edge_graph, flat_tables, flat_values
from .factor_groups import FactorTables
from .fixed_point import FixedPoint

__all__ = ["residual_messages"]


def residual_messages(
    model: FactorTables, rhos: Sequence[Tensor], maximise: bool, limit: Tensor, max_iter: int, damping: float
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
    damping : float
        The share of the old message in a new one.
    """
    if model.device.type != "cpu":
        raise UnsupportedError(
            f'{model.label}: schedule="residual" runs on the CPU, but theta is on {model.device}; use "parallel"'
        )
    from ..kernels.message_passing.residual import residual_messages as run

    layout = model.layout
    graph = edge_graph(layout)._replace(weight=np.concatenate(to_numpy(*rhos)))
    tables, base = flat_tables(model), flat_values(layout, model.base)
    message = zeros(model.size, int(graph.cardinality.sum()), dtype=torch.float64)
    residual = zeros(model.size, dtype=torch.float64)
    work = 20 * max_iter * tables.shape[1] * model.size
    updates = max_iter * len(graph.cardinality)
    arrays, results = to_numpy(tables, base), to_numpy(message, residual)
    parallel_rows(
        run, model.size, *arrays, graph, maximise, *to_numpy(limit), updates, float(damping), *results, work=work
    )
    found, at = [], 0
    for group in layout.groups[layout.first_joint :]:
        for c in group.shape:
            size = c * len(group.factors)
            block = message[:, at : at + size].view(model.size, len(group.factors), c)
            found.append(block.permute(2, 0, 1).contiguous())
            at += size
    return FixedPoint(found, residual, residual <= limit)
