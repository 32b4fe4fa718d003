"""Elimination of the variables of a graphical model: the order, and the variables that each step joins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

__all__ = ["eliminate", "min_fill_order"]


def min_fill_order(variables: int, scopes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return an order of elimination: next is always the variable that joins the fewest pairs of neighbours.

    Ties go to the variable with fewer neighbours, then to the lowest number.

    Parameters
    ----------
    variables : int
        The number of variables.
    scopes : iterable of sequences of int
        The variables of each factor.

    References
    ----------
    D. Koller & N. Friedman, Probabilistic Graphical Models, MIT Press 2009, §9.4.3.
    """
    neighbours: list[set[int]] = [set() for _ in range(variables)]
    for scope in scopes:
        for a, b in combinations(scope, 2):
            neighbours[a].add(b)
            neighbours[b].add(a)

    def cost(v: int) -> tuple[int, int, int]:
        pairs = combinations(neighbours[v], 2)
        return sum(b not in neighbours[a] for a, b in pairs), len(neighbours[v]), v

    costs, order = {v: cost(v) for v in range(variables)}, []
    while costs:
        v = min(costs, key=costs.__getitem__)
        del costs[v]
        order.append(v)
        around = neighbours[v]
        for u in around:
            neighbours[u] |= around
            neighbours[u] -= {u, v}
        # The number of missing pairs changes for the neighbours, and for variables next to two of them.
        for u in around.union(*(neighbours[u] for u in around)):
            costs[u] = cost(u)
    return tuple(order)


def eliminate(order: Sequence[int], scopes: Sequence[Sequence[int]]) -> list[tuple[list[int], list[int], list[int]]]:
    """Return the steps of elimination, one for each variable of ``order``.

    A step joins factors and the results of earlier steps, and takes the maximum over its variable. The result of a step
    depends on the other variables of the joined ones.

    Returns
    -------
    list of (factors, steps, rest)
        The numbers of the factors, and of the earlier steps, that the step joins, and the variables that its result
        depends on, ascending.
    """
    place = {v: i for i, v in enumerate(order)}
    factors: list[list[int]] = [[] for _ in order]
    for k, scope in enumerate(scopes):
        factors[min(map(place.__getitem__, scope))].append(k)
    earlier: list[list[int]] = [[] for _ in order]
    steps = []
    for i, v in enumerate(order):
        joined = {u for k in factors[i] for u in scopes[k]}.union(*(steps[j][2] for j in earlier[i]))
        rest = sorted(joined - {v})
        steps.append((factors[i], earlier[i], rest))
        if rest:
            earlier[min(map(place.__getitem__, rest))].append(i)
    return steps
