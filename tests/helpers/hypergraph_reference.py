"""Hypergraphs as plain lists of hyperedges, and every query over them by listing derivations, in Python's own numbers.

Nothing here knows the library: max_Ω is found by bisection, and a derivation's probability is the product of its
choices'.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

INF = math.inf

Part = tuple[int, ...]
"""Which tensor of θ, and the index in it."""

Grammar = tuple[Hashable, Callable[[Any], Sequence[tuple[Sequence[Part], Sequence[Hashable]]]]]
"""A start symbol, and from a symbol to its options, each parts and further symbols; ties go to the first."""

Edge = tuple[int, tuple[int, ...], int | None]
"""Head, tails, part."""


# ----------------------------------------------------------------------------- regularizers


def smoothed(x: Sequence[float], alpha: float) -> tuple[float, list[float]]:
    """max_Ω and its gradient: α of Tsallis' family, infinity for none, minus two for twice the negative entropy."""
    top = max(x)
    if top == -INF:
        return -INF, [0.0] * len(x)
    if alpha == INF:
        first = x.index(top)
        return top, [float(k == first) for k in range(len(x))]
    if alpha in (1, -2):
        scale = 2 if alpha == -2 else 1
        total = math.fsum(math.exp((v - top) / scale) for v in x)
        return top + scale * math.log(total), [math.exp((v - top) / scale) / total for v in x]
    a = alpha - 1
    low, high = -1 / a, 0.0  # of τ − top

    def probabilities(tau: float) -> list[float]:
        return [max(a * (v - top - tau), 0.0) ** (1 / a) for v in x]

    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if math.fsum(probabilities(middle)) > 1 else (low, middle)
    q = probabilities(low)
    omega = (math.fsum(p**alpha for p in q) - 1) / (alpha * a)
    return top + math.fsum(p * (v - top) for p, v in zip(q, x, strict=True) if p > 0) - omega, q


def tangent(q: Sequence[float], z: Sequence[float], alpha: float) -> list[float]:
    """∇²max_Ω z."""
    if alpha == INF:
        return [0.0] * len(q)
    power, scale = {1: (1.0, 1.0), -2: (1.0, 0.5)}.get(alpha, (2 - alpha, 1.0))
    s = [scale * p**power if p > 0 else 0.0 for p in q]
    mean = math.fsum(a * b for a, b in zip(s, z, strict=True)) / sum(s) if sum(s) else 0.0
    return [a * (b - mean) for a, b in zip(s, z, strict=True)]


# ----------------------------------------------------------------------------- hypergraphs


@dataclass(frozen=True)
class Derivation:
    """Its parts, with their numbers of times, and its hyperedges in no order."""

    parts: tuple[int, ...]
    edges: tuple[int, ...]


class Recursion:
    """What DP_Ω does at one θ."""

    def __init__(self, lists: Hyperedges, theta: Sequence[float], alpha: float) -> None:
        self.lists, self.theta, self.alpha = lists, theta, alpha
        self.v: dict[int, float] = {}
        self.q = [0.0] * len(lists.edges)
        for head, edges in lists.by_head.items():
            x = [self._score(edge, theta, self.v) for edge in edges]
            self.v[head], q = smoothed(x, alpha)
            for edge, p in zip(edges, q, strict=True):
                self.q[edge] = p

    def _score(self, edge: int, scores: Sequence[float], v: dict[int, float]) -> float:
        _, tails, part = self.lists.edges[edge]
        return (0.0 if part is None else scores[part]) + sum(v[tail] for tail in tails)

    def probability(self, derivation: Derivation) -> float:
        return math.prod(self.q[edge] for edge in derivation.edges)

    def support(self, goal: int) -> list[tuple[float, Derivation]]:
        """Those of a positive probability, with it, the most probable first."""
        found = [(self.probability(d), d) for d in self.lists.derivations(goal)]
        return sorted((pair for pair in found if pair[0] > 0), key=lambda pair: -pair[0])

    def mean(self, goal: int) -> list[float]:
        return self.expected({d: self.probability(d) for d in self.lists.derivations(goal)})

    def expected(self, weights: dict[Derivation, float]) -> list[float]:
        return [math.fsum(w * d.parts[p] for d, w in weights.items()) for p in range(self.lists.parts)]

    def entropy(self, goal: int) -> float:
        p = [self.probability(d) for d in self.lists.derivations(goal)]
        return -math.fsum(x * math.log(x) for x in p if x > 0)

    def hessian_product(self, goal: int, z: Sequence[float]) -> list[float]:
        v_dot: dict[int, float] = {}
        q_dot = [0.0] * len(self.q)
        for head, edges in self.lists.by_head.items():
            x_dot = [self._score(edge, z, v_dot) for edge in edges]
            q = [self.q[edge] for edge in edges]
            v_dot[head] = math.fsum(p * d for p, d in zip(q, x_dot, strict=True))
            for edge, d in zip(edges, tangent(q, x_dot, self.alpha), strict=True):
                q_dot[edge] = d
        # The derivative of a product, factor by factor.
        weights = {
            d: math.fsum(
                q_dot[e] * math.prod(self.q[other] for j, other in enumerate(d.edges) if j != i)
                for i, e in enumerate(d.edges)
            )
            for d in self.lists.derivations(goal)
        }
        return self.expected(weights)


@dataclass(frozen=True)
class Hyperedges:
    """Nodes are numbers, tails below heads."""

    edges: tuple[Edge, ...]
    parts: int
    goals: tuple[int, ...]

    @cached_property
    def by_head(self) -> dict[int, list[int]]:
        heads = sorted({head for head, _, _ in self.edges})
        return {h: [i for i, (head, _, _) in enumerate(self.edges) if head == h] for h in heads}

    @cached_property
    def _found(self) -> dict[int, list[Derivation]]:
        return {}

    def derivations(self, goal: int) -> list[Derivation]:
        """In the order of their hyperedges, from the goal down."""
        if goal not in self._found:
            self._found[goal] = [
                Derivation(
                    tuple(sum(d.parts[p] for d in below) + (self.edges[e][2] == p) for p in range(self.parts)),
                    (e, *(x for d in below for x in d.edges)),
                )
                for e in self.by_head[goal]
                for below in itertools.product(*(self.derivations(tail) for tail in self.edges[e][1]))
            ]
        return self._found[goal]

    def counts(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for head, edges in self.by_head.items():
            found[head] = sum(math.prod(found[tail] for tail in self.edges[e][1]) for e in edges)
        return found

    def at(self, theta: Sequence[float], alpha: float) -> Recursion:
        return Recursion(self, theta, alpha)

    def score(self, derivation: Derivation, theta: Sequence[float]) -> float:
        return math.fsum(n * t for n, t in zip(derivation.parts, theta, strict=True) if n)


def of_grammar(grammar: Grammar, shapes: Sequence[tuple[int, ...]]) -> Hyperedges:
    """Symbols as nodes and options as hyperedges, but for those that derive nothing; parts in the order of θ's."""
    start, options = grammar
    first = [sum(map(math.prod, shapes[:which])) for which in range(len(shapes))]
    edges: list[Edge] = []
    nodes, leaves = itertools.count(), dict[int, int]()
    number: dict[Hashable, int | None] = {}

    def leaf(part: int) -> int:
        """A node of one part, for options of several."""
        if part not in leaves:
            leaves[part] = next(nodes)
            edges.append((leaves[part], (), part))
        return leaves[part]

    def visit(symbol: Hashable) -> int | None:
        if symbol not in number:
            found = []
            for parts, symbols in options(symbol):
                tails = [visit(s) for s in symbols]
                flat = [first[which] + int(np.ravel_multi_index(index, shapes[which])) for which, *index in parts]
                if None not in tails:
                    found.append(((*tails, *map(leaf, flat[1:])), flat[0] if flat else None))
            number[symbol] = head = next(nodes) if found else None
            edges.extend((head, *edge) for edge in found)  # type: ignore[arg-type]
        return number[symbol]

    goal = visit(start)
    assert goal is not None
    return Hyperedges(tuple(edges), sum(map(math.prod, shapes)), (goal,))


def random_hyperedges(seed: int, most: int = 60) -> Hyperedges:
    """Leaves, then nodes with up to three hyperedges of up to two tails each; three goals, of ``most`` derivations.

    Each hyperedge of a choice has a part of its own.
    """
    draw = random.Random(seed)
    while True:
        edges: list[Edge] = [(0, (), None), (1, (), 0), (1, (), 1)]
        part, nodes = 2, draw.randint(6, 9)
        for head in range(2, nodes):
            number = draw.randint(1, 3)
            for _ in range(number):
                tails = tuple(draw.randrange(head) for _ in range(draw.choice((0, 1, 1, 2, 2))))
                edges.append((head, tails, part if number > 1 or draw.random() < 0.5 else None))
                part += edges[-1][2] is not None
        lists = Hyperedges(tuple(edges), part, (nodes - 2, nodes - 3, nodes - 1))
        counts = lists.counts()
        if counts[nodes - 1] > 1 and all(counts[goal] <= most for goal in lists.goals):
            return lists


# Nodes 0 and 1 come twice in derivations of 3, which all have different parts; two hyperedges share part 2.
TWICE = Hyperedges(
    ((0, (), 0), (1, (0, 0), 1), (2, (1, 1), 2), (2, (0, 1), 3), (3, (2,), 2), (3, (1, 1), 4), (3, (), None)), 5, (3,)
)
