"""A layout of directed acyclic graphs in layers from left to right, with few crossings."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..dp.paths import DAG

__all__ = ["Layout", "lay_out", "separate_heights"]

# Strength of the pull of a neighbour, by the number of waypoints among the two; a strong pull keeps long edges
# straight.
BARYCENTER_WEIGHT = (1.0, 2.0, 8.0)


class Layout(NamedTuple):
    """The layer and the height of each node, (N,), and the heights at which each edge crosses intermediate layers."""

    layer: np.ndarray
    height: np.ndarray
    passes: list[np.ndarray]


def lay_out(dag: DAG) -> Layout:
    """Return a layout. The layer of a node is the number of edges of the longest path to the node.

    After K. Sugiyama, S. Tagawa & M. Toda, Methods for visual understanding of hierarchical system structures, IEEE
    Transactions on Systems, Man, and Cybernetics 11 (1981): an edge across several layers has a waypoint in each
    intermediate layer, and each layer is sorted by the mean positions of its neighbours. The strengths of the pull are
    from E. R. Gansner, E. Koutsofios, S. C. North & K.-P. Vo, A technique for drawing directed graphs, IEEE
    Transactions on Software Engineering 19 (1993), §4.
    """
    depth, chains = _depths(dag), []
    layer = depth.tolist()
    for start, end in dag.ends.tolist():
        crossed_layers = range(depth[start] + 1, depth[end])
        chains.append([start, *range(len(layer), len(layer) + len(crossed_layers)), end])
        layer += crossed_layers
    before = np.zeros((len(layer), len(layer)))  # the pull on a node or waypoint by a neighbour in the layer before
    for one, other in (link for chain in chains for link in pairwise(chain)):
        before[other, one] += BARYCENTER_WEIGHT[(one >= len(depth)) + (other >= len(depth))]
    rows = [np.flatnonzero(np.equal(layer, k)) for k in range(max(layer) + 1)]
    height = np.zeros(len(layer))
    for row in rows:
        height[row] = separate_heights(np.zeros(len(row)))
    for order, pull in 4 * [(rows, before), (rows[::-1], before.T)] + 8 * [(rows, before + before.T)]:
        for row in order:
            total = pull[row].sum(1)
            target = np.where(total > 0, pull[row] @ height / np.maximum(total, 1), height[row])
            row = row[target.argsort(kind="stable")]
            height[row] = separate_heights(np.sort(target))
    return Layout(depth, height[: len(depth)], [height[chain[1:-1]] for chain in chains])


def _depths(dag: DAG) -> np.ndarray:
    start, end = dag.ends.T
    depth, deeper = np.full(len(dag.nodes), -1), np.zeros(len(dag.nodes), int)
    while (deeper > depth).any():
        depth = deeper
        deeper = depth.copy()
        np.maximum.at(deeper, end, depth[start] + 1)
    return depth


def separate_heights(target: np.ndarray) -> np.ndarray:
    """Return heights at least 1 apart in the given order, with the least sum of squared distances to ``heights``.

    After subtracting 0, 1, 2, ..., the problem is isotonic regression: neighbours in decreasing order are pooled.
    """
    blocks: list[tuple[float, int]] = []  # mean and size
    for mean in (target - np.arange(len(target))).tolist():
        size = 1
        while blocks and blocks[-1][0] >= mean:
            other, more = blocks.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        blocks.append((mean, size))
    return np.repeat([mean for mean, _ in blocks], [size for _, size in blocks]) + np.arange(len(target))
