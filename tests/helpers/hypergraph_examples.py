"""Hypergraph programs made of plain lists of hyperedges, with potentials, goals and regularizers to try them with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from hypergraph_reference import INF, TWICE, Hyperedges, Recursion, random_hyperedges
from regularizers_by_alpha import REGULARIZERS
from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram


@dataclass(frozen=True)
class Listed(HypergraphProgram):
    """The hypergraph of a list, whose lengths number the goals."""

    lists: Hyperedges
    event_ndim: ClassVar[int] = 1
    instance_ndim: ClassVar[Any] = {"lengths": 0}

    def build(self, event_shape):
        graph = HypergraphBuilder(event_shape)
        nodes = graph.nodes(1 + max(head for head, _, _ in self.lists.edges))
        for head, tails, part in self.lists.edges:
            graph.add(nodes[head], *nodes[list(tails)], part=part)
        return graph.build(nodes[list(self.lists.goals)])


@dataclass(frozen=True)
class FewOnes(HypergraphProgram):
    """Binary strings without two adjacent ones, and at most k ones."""

    k: int
    event_ndim: ClassVar[int] = 1
    instance_ndim: ClassVar[Any] = {"lengths": 0}

    def build(self, event_shape: Any) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        zero, one = graph.nodes(2, event_shape[0] + 1, self.k + 1)  # the last of so many, with so many ones
        graph.add(zero[0, 0])
        graph.add(zero[1:], zero[:-1])
        graph.add(zero[1:], one[:-1])
        graph.add(one[1:, 1:], zero[:-1, :-1], part=graph.parts[:, None])
        goals = graph.nodes(event_shape[0] + 1)
        graph.add(goals[:, None], zero)
        graph.add(goals[:, None], one)
        return graph.build(goals, prune=True)


LISTS = (*map(random_hyperedges, range(6)), TWICE)

alphas = pytest.mark.parametrize("alpha", REGULARIZERS)
graphs = pytest.mark.parametrize("lists", LISTS, ids=[*map(str, range(6)), "twice"])


@dataclass(frozen=True)
class Batch:
    """Potentials, half of the instances with a forbidden part, and a goal for each."""

    oracle: Listed
    theta: Tensor

    @property
    def lists(self) -> Hyperedges:
        return self.oracle.lists

    def each(self, alpha: float) -> list[tuple[Recursion, int]]:
        """The recursion and goal of each instance."""
        goals = [self.lists.goals[n] for n in self.oracle.bound["lengths"].tolist()]
        return [(self.lists.at(row, alpha), goal) for row, goal in zip(self.theta.tolist(), goals, strict=True)]


def batch(lists: Hyperedges, size: int = 12, scale: float = 1.0, kind: str = "normal") -> Batch:
    theta = scale * torch.randn(size, lists.parts, dtype=torch.float64)
    if kind == "ties":
        theta = scale * torch.randint(0, 2, theta.shape).double()
    lengths = torch.arange(size) % len(lists.goals)
    for b in range(0, size, 2):
        forbidden = theta.clone()
        forbidden[b, torch.randint(lists.parts, ())] = -INF
        if lists.at(forbidden[b].tolist(), INF).v[lists.goals[int(lengths[b])]] > -INF:
            theta = forbidden
    return Batch(Listed(lists).bind(lengths=lengths), theta)


def rows(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, expected: Any, **tolerances: float) -> None:
    torch.testing.assert_close(found, rows(expected), **({"rtol": 1e-9, "atol": 1e-9} | tolerances))
