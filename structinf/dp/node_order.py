"""Topological order of the nodes of a hypergraph, with errors for cycles and missing hyperedges.

In all functions, ``nodes`` is the number of nodes N, ``heads`` is (E,), and ``tails`` is (E, 2) with −1 for no tail.
"""

from __future__ import annotations

import numpy as np

from ..errors import InvalidInputError

__all__ = ["check_dangling", "group_offsets", "levels_of", "needed_nodes"]


def group_offsets(values: np.ndarray, count: int) -> np.ndarray:
    """Return the start of each number 0, ..., ``count`` in sorted ``values``, (count + 1,) int64."""
    return np.concatenate([[0], np.cumsum(np.bincount(values, minlength=count))]).astype(np.int64)


def levels_of(nodes: int, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """Return the level of each node, −1 for underivable nodes; raise InvalidInputError if hyperedges form a cycle."""
    waiting = (tails >= 0).sum(1)  # number of tails without a level, for each hyperedge
    open_edges = np.bincount(heads, minlength=nodes)  # number of waiting hyperedges, for each node
    underivable = open_edges == 0
    level = np.full(nodes, -1)
    edge, which = np.nonzero(tails >= 0)
    by_tail = np.argsort(tails[edge, which], kind="stable")
    edge_of, start = edge[by_tail], group_offsets(tails[edge, which], nodes)
    # First drop underivable nodes, and the hyperedges with underivable tails, since neither affects other levels.
    alive = np.ones(len(heads), np.bool_)
    frontier = np.flatnonzero(underivable)
    while len(frontier):
        dead_edges = _edges_at(frontier, edge_of, start)
        dead_edges = np.unique(dead_edges[alive[dead_edges]])
        alive[dead_edges] = False
        np.subtract.at(open_edges, heads[dead_edges], 1)
        touched = np.unique(heads[dead_edges])
        frontier = touched[(open_edges[touched] == 0) & ~underivable[touched]]
        underivable[frontier] = True
    ready = np.flatnonzero(alive & (waiting == 0))
    depth = 0
    while len(ready):
        np.subtract.at(open_edges, heads[ready], 1)
        touched = np.unique(heads[ready])
        new_nodes = touched[open_edges[touched] == 0]
        level[new_nodes] = depth
        depth += 1
        freed_edges = _edges_at(new_nodes, edge_of, start)
        np.subtract.at(waiting, freed_edges, 1)
        freed_edges = np.unique(freed_edges)
        ready = freed_edges[alive[freed_edges] & (waiting[freed_edges] == 0)]
    stuck = (level < 0) & ~underivable
    if stuck.any():
        cycle = _find_cycle(stuck, heads[alive], tails[alive])
        raise InvalidInputError(
            f"the hyperedges form a cycle, {' -> '.join(map(str, cycle))}: a recursion needs an order of the nodes "
            "with tails before heads"
        )
    return level


def _edges_at(nodes: np.ndarray, edge_of: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the concatenation of ``edge_of[start[i]:start[i + 1]]`` over i in ``nodes``."""
    count = start[nodes + 1] - start[nodes]
    return edge_of[np.arange(count.sum()) + np.repeat(start[nodes] - (np.cumsum(count) - count), count)]


def needed_nodes(nodes: int, heads: np.ndarray, tails: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """Return a mask of the nodes used by derivations of the goals, (N,) bool."""
    by_head, start = np.argsort(heads, kind="stable"), group_offsets(heads, nodes)
    needed = np.zeros(nodes + 1, np.bool_)
    needed[-1] = True  # index −1 is a missing tail, which never enters the frontier
    frontier = np.unique(goals)
    while len(frontier):
        needed[frontier] = True
        below = np.unique(tails[_edges_at(frontier, by_head, start)])
        frontier = below[~needed[below]]
    return needed[:-1]


def check_dangling(nodes: int, heads: np.ndarray, tails: np.ndarray) -> None:
    """Raise InvalidInputError if a tail is a node without hyperedges."""
    is_dangling = np.zeros(nodes, np.bool_)
    is_dangling[tails[tails >= 0]] = True
    is_dangling[heads] = False
    dangling = np.flatnonzero(is_dangling)
    if len(dangling):
        raise InvalidInputError(
            f"node {dangling[0]} is a tail, but no hyperedge leads to it; add({dangling[0]}) makes it a leaf, and "
            "build(..., prune=True) drops underivable nodes"
        )


def _find_cycle(stuck: np.ndarray, heads: np.ndarray, tails: np.ndarray) -> list[int]:
    """Return the nodes of one cycle, tails before heads, with the first node repeated at the end."""
    stuck_tail = (tails >= 0) & stuck[tails]
    from_node = {}
    for edge in np.flatnonzero(stuck_tail.any(1)):
        from_node.setdefault(int(heads[edge]), int(tails[edge][stuck_tail[edge]][0]))
    # Every stuck node waits for a stuck tail, so following stuck tails returns to a visited node.
    place, node = {}, next(iter(from_node))
    while node not in place:
        place[node] = len(place)
        node = from_node[node]
    return [node, *reversed(list(place)[place[node] :])]
