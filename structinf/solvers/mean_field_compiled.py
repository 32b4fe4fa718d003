"""Coordinate ascent of mean field on the CPU, as compiled loops."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from ..kernels import parallel_rows, to_numpy, zeros
from .factor_edges import edge_graph, flat_tables, flat_values, grouped_values
from .factor_groups import FactorTables, Layout
from .fixed_point import ROUNDING, FixedPoint

__all__ = ["ascend", "tangents"]

Values = dict[int, Tensor]


def ascend(model: FactorTables, start: Values, limit: Tensor, max_iter: int) -> tuple[Values, FixedPoint]:
    """Return the distributions, and the largest change of a probability in the last sweep.

    Parameters
    ----------
    model : FactorTables
        The model, on the CPU.
    start : dict of (c, B, n) Tensor
        The first distributions.
    limit : (B,) Tensor
        The accepted change of a probability.
    max_iter : int
        Maximal number of sweeps.
    """
    from ..kernels.message_passing.coordinate_ascent import ascend as run

    q = flat_values(model.layout, start).clone()
    residual = zeros(model.size, dtype=torch.float64)
    arrays = to_numpy(flat_tables(model), flat_values(model.layout, model.base))
    parallel_rows(
        run, model.size, *arrays, edge_graph(model.layout), _order(model.layout), *to_numpy(limit), max_iter,
        *to_numpy(q, residual), work=_work(model),
    )  # fmt: skip
    return grouped_values(model.layout, q), FixedPoint([], residual, residual <= limit)


def tangents(
    model: FactorTables, q: Values, given: Values, tolerance: float, max_iter: int
) -> tuple[Values, FixedPoint]:
    """Return the derivatives of the distributions ``q`` if the expected scores change by ``given`` at a fixed q.

    Parameters
    ----------
    model : FactorTables
        The model, on the CPU.
    q : dict of (c, B, n) Tensor
        The distributions.
    given : dict of (c, B, n) Tensor
        The change of the expected scores.
    tolerance : float
        The accepted change of a derivative in a sweep, at least its rounding error.
    max_iter : int
        Maximal number of sweeps.
    """
    from ..kernels.message_passing.coordinate_ascent import tangents as run

    flat = flat_values(model.layout, q)
    change = zeros(*flat.shape, dtype=torch.float64)
    residual, scale = zeros(model.size, dtype=torch.float64), zeros(model.size, dtype=torch.float64)
    arrays = to_numpy(flat_tables(model), flat_values(model.layout, given))
    parallel_rows(
        run, model.size, *arrays, edge_graph(model.layout), _order(model.layout), *to_numpy(flat),
        (float(tolerance), ROUNDING), max_iter, *to_numpy(change, residual, scale), work=_work(model),
    )  # fmt: skip
    converged = residual <= (ROUNDING * (1 + scale)).clamp(min=tolerance)
    return grouped_values(model.layout, change), FixedPoint([], residual, converged)


@functools.lru_cache(maxsize=64)
def _order(layout: Layout) -> np.ndarray:
    return np.array([v for colour in layout.colours for v in colour], dtype=np.int64)


def _work(model: FactorTables) -> int:
    return 200 * model.size * (sum(model.layout.cardinalities) + sum(t[..., 0, :].numel() for t in model.tables))
