"""Linear constraints of connected sets of edges, by a flow that reaches each node."""

from __future__ import annotations

import numpy as np

__all__ = ["unit_flow_rows"]


def unit_flow_rows(
    tails: np.ndarray, heads: np.ndarray, nodes: int
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Return rows of a flow that brings one unit from node 0 to each other node, as entries and right sides.

    If an edge carries flow only where it is chosen, the chosen edges connect node 0 to all nodes (Gavish & Graves
    1978).

    Parameters
    ----------
    tails, heads : (A,) integer array
        The nodes of each directed edge.
    nodes : int
        The number of nodes n.

    Returns
    -------
    entries : rows, columns and values
        The entries of the n − 1 rows; column a is the flow of edge a.
    right : (n − 1,) float64 array
        The value of each row.

    References
    ----------
    B. Gavish & S. Graves, The travelling salesman problem and related problems, MIT Operations Research Center 078-78,
    1978.
    """
    edge = np.arange(len(tails))
    row, column = np.concatenate([heads, tails]) - 1, np.concatenate([edge, edge])
    value = np.concatenate([np.ones(len(edge)), -np.ones(len(edge))])
    inside = row >= 0
    return (row[inside], column[inside], value[inside]), np.ones(max(nodes - 1, 0))
