"""Branch and bound for knapsacks with too many states for the dynamic program."""

from __future__ import annotations

import numpy as np

from structinf.kernels import parallel_rows
from structinf.shapes import Bool, Float64, Int64

__all__ = ["best_subsets"]

_MOST_NODES = 2**21
"""Nodes of the search for an instance, about 20 ms."""
_WORK = 4_000_000
"""Operations of an instance, an estimate that lets Ctrl-C take effect between two instances."""


def best_subsets(
    theta: Float64[np.ndarray, "batch d"],
    weights: Int64[np.ndarray, "batch m d"],
    capacities: Int64[np.ndarray, "batch m"],
) -> tuple[Float64[np.ndarray, "batch d"], Bool[np.ndarray, " batch"]]:
    """Return the best subsets, (B, d) of 0 and 1, and for which instances the search has ended.

    Subsets are best up to rounding errors of sums of scores. The other instances take another solver.

    Parameters
    ----------
    theta : (B, d) float64 array
        The value of each item; −inf forbids an item.
    weights : (B, m, d) int64 array
        The weights of the items, at least 0, with sums of at most 2^53.
    capacities : (B, m) int64 array
        The capacities, from 0 to 2^53.
    """
    from ..kernels.knapsack.branch_and_bound import best_subsets as search

    y, solved = np.zeros(theta.shape), np.zeros(len(theta), np.bool_)
    # Powers of two change no order. Sums of scores near the largest number would overflow. No subset needs an item of a
    # negative score.
    exponent = np.frexp(theta.max(1, initial=0.0))[1]
    scores = np.ldexp(np.maximum(theta, 0.0), -exponent[:, None])
    tables = (np.ascontiguousarray(table, np.float64) for table in (weights, capacities))
    parallel_rows(search, len(theta), scores, *tables, _MOST_NODES, y, solved, work=_WORK * len(theta))
    return y, solved
