"""Linear constraints of chosen edges that connect all nodes, by a flow that reaches each node."""

from __future__ import annotations

import numpy as np

from structinf.linear_constraints import LinearConstraints

__all__ = ["connecting_constraints"]


def connecting_constraints(
    arcs: tuple[np.ndarray, np.ndarray, np.ndarray],
    nodes: int,
    size: int,
    rows: tuple[np.ndarray, np.ndarray],
    totals: tuple[np.ndarray, np.ndarray],
) -> LinearConstraints:
    """Return the constraints of parts that are edges, such that the chosen edges connect node 0 to all nodes.

    Further variables are a flow that brings one unit from node 0 to each other node: at most n − 1 units along the arcs
    of a chosen part, and none along other arcs. Parts without an arc are 0.

    Parameters
    ----------
    arcs : three (A,) integer arrays
        The tail, the head and the part of each arc. An undirected edge is two arcs of the same part.
    nodes : int
        The number of nodes n.
    size : int
        The number of parts.
    rows : two (K,) integer arrays
        Sums of parts: the number of the sum, and a part in it.
    totals : two (m,) float64 arrays
        The least and the largest value of each sum.

    References
    ----------
    T. Magnanti & L. Wolsey, Optimal trees (Handbooks in Operations Research 7, 1995), §3. B. Gavish & S. Graves, The
    travelling salesman problem and related problems, MIT Operations Research Center 078-78, 1978.
    """
    tails, heads, parts = arcs
    count, sums, rest = len(tails), len(totals[0]), max(nodes - 1, 0)
    flow, arc = size + np.arange(count), np.arange(count)
    others = np.setdiff1d(np.arange(size), parts)
    into, out = heads > 0, tails > 0
    # The sums; the flow into a node minus the flow out of it; the capacity of each arc; the parts without an arc.
    capacity = sums + rest + arc
    blocks = [
        (*rows, 1.0),
        (sums + heads[into] - 1, flow[into], 1.0),
        (sums + tails[out] - 1, flow[out], -1.0),
        (capacity, flow, 1.0),
        (capacity, parts, -float(rest)),
        (np.full(len(others), sums + rest + count), others, 1.0),
    ]
    row, column = (np.concatenate([block[i] for block in blocks]) for i in range(2))
    value = np.concatenate([np.full(len(block[0]), block[2]) for block in blocks])
    units = np.ones(rest)
    lower = np.concatenate([totals[0], units, np.full(count, -np.inf), [0.0]])
    upper = np.concatenate([totals[1], units, np.zeros(count), [0.0]])
    return LinearConstraints.of((row, column, value), size + count, lower, upper, has_integers=False)
