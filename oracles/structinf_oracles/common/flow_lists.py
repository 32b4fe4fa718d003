"""Lists of the flows of one network: all integer flows, or all vertices of the polytope of flows."""

from __future__ import annotations

import itertools
import math

import numpy as np

from structinf.shapes import Int
from structinf.validation import check_enumerable

__all__ = ["integer_flows", "vertices"]


def integer_flows(
    tails: np.ndarray, heads: np.ndarray, capacities: np.ndarray, supplies: np.ndarray
) -> Int[np.ndarray, "flows edges"]:
    """Return all integer flows, sorted by the amounts on the edges; at most a million.

    Parameters
    ----------
    tails, heads, capacities : (E,) int64 array
        The end nodes and the capacity of each edge.
    supplies : (N,) int64 array
        The supply of each node.
    """
    # [e]: the amounts that the edges from e on can take from, and bring to, each node.
    out, into = (np.zeros((len(capacities) + 1, len(supplies)), np.int64) for _ in range(2))
    for e in reversed(range(len(capacities))):
        out[e], into[e] = out[e + 1], into[e + 1]
        if tails[e] != heads[e]:
            out[e, tails[e]] += capacities[e]
            into[e, heads[e]] += capacities[e]
    flows, left = np.zeros((1, 0), np.int64), supplies[None]
    for e, capacity in enumerate(capacities):
        check_enumerable(len(flows) * (int(capacity) + 1), "beginnings of flows or more")
        amounts = np.tile(np.arange(capacity + 1), len(flows))
        flows = np.column_stack([flows.repeat(capacity + 1, 0), amounts])
        left = left.repeat(capacity + 1, 0)
        left[:, tails[e]] -= amounts
        left[:, heads[e]] += amounts
        possible = ((left <= out[e + 1]) & (left >= -into[e + 1])).all(1)
        flows, left = flows[possible], left[possible]
    return flows[(left == 0).all(1)]


def vertices(
    tails: np.ndarray, heads: np.ndarray, capacities: np.ndarray, supplies: np.ndarray, unlimited: int
) -> Int[np.ndarray, "flows edges"]:
    """Return all vertices of the flows with 0 ≤ y ≤ capacities, sorted by the amounts on the edges.

    A flow is a vertex if the edges that are neither empty nor full form no cycle. The other edges then determine it.

    Parameters
    ----------
    tails, heads, capacities : (E,) int64 array
        The end nodes and the capacity of each edge.
    supplies : (N,) int64 array
        The supply of each node.
    unlimited : int
        The capacity of edges without a limit.
    """
    usable = np.flatnonzero(capacities > 0)
    rank = _rank(tails[usable], heads[usable], len(supplies))
    outside = len(usable) - rank
    check_enumerable(math.comb(len(usable), rank) * 2 ** min(outside, 40), "bases of flows or more")
    found = [np.zeros((0, len(tails)), np.int64)]
    for tree in itertools.combinations(usable.tolist(), rank):
        basis = np.array(tree, np.int64)
        if _rank(tails[basis], heads[basis], len(supplies)) < rank:
            continue
        others = np.setdiff1d(usable, basis)
        ends = [(0,) if capacities[e] == unlimited else (0, int(capacities[e])) for e in others]
        flows = np.zeros((math.prod(map(len, ends)), len(tails)), np.int64)
        flows[:, others] = np.array(list(itertools.product(*ends)), np.int64).reshape(len(flows), outside)
        left = np.tile(supplies, (len(flows), 1))
        for e in others:
            left[:, tails[e]] -= flows[:, e]
            left[:, heads[e]] += flows[:, e]
        _balance(flows, left, tails, heads, basis)
        fits = (left == 0).all(1) & (flows >= 0).all(1) & (flows <= capacities).all(1)
        found.append(flows[fits])
    return np.unique(np.concatenate(found), axis=0)


def _balance(flows: np.ndarray, left: np.ndarray, tails: np.ndarray, heads: np.ndarray, forest: np.ndarray) -> None:
    """Write the amounts on the edges of a ``forest`` that balance the nodes with the supplies ``left`` (K, N)."""
    remaining = forest.tolist()
    while remaining:
        degree = np.bincount(np.concatenate([tails[remaining], heads[remaining]]), minlength=left.shape[1])
        for e in list(remaining):
            for leaf, other, sign in ((tails[e], heads[e], 1), (heads[e], tails[e], -1)):
                if degree[leaf] == 1:
                    flows[:, e] = sign * left[:, leaf]
                    left[:, other] += left[:, leaf]
                    left[:, leaf] = 0
                    degree[[leaf, other]] -= 1
                    remaining.remove(e)
                    break


def _rank(tails: np.ndarray, heads: np.ndarray, nodes: int) -> int:
    """Return the number of edges of the largest forest in the graph."""
    component = np.arange(nodes)
    count = 0
    for tail, head in zip(tails.tolist(), heads.tolist(), strict=True):
        if component[tail] != component[head]:
            component[component == component[head]] = component[tail]
            count += 1
    return count
