"""Branch and bound over the local polytope of a factor graph: the best structure, with a proof.

A node fixes some variables of one instance to 0 or 1. Its linear program rewards each fixed variable that has its
value. The reward bounds the score of the structures in the node for any size, so the size needs no proof of its own:
it grows only if a solution does not keep to the fixed values.

References
----------
A. Land & A. Doig, An automatic method of solving discrete programming problems, Econometrica 28, 1960.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..factor_graphs import FactorGraph
from ..parts import Parts, as_tuple, map_parts
from .local_polytope import LocalPolytopeResult, solve_local_polytope
from .local_polytope_scores import LocalPolytope

__all__ = ["BranchAndBoundResult", "branch_and_bound"]

_ACCURACY = 1e-9
"""The tolerance of the linear programs, whose scores are larger by the rewards."""

_GROWTH = 8.0
"""The factor of the reward where a solution does not keep to the fixed values."""


@dataclass
class BranchAndBoundResult:
    """The best structures found for a batch.

    Attributes
    ----------
    mean : (B, n) Tensor
        The structure, or the solution of the linear program if no structure was found.
    additional : list of (B, F, a) Tensor
        The additional parts of each group.
    value : (B,) Tensor
        The score of the mean.
    gap : (B,) Tensor
        Upper bound of the difference between the best score and the value.
    found : (B,) bool Tensor
        Whether the mean is a structure.
    infeasible : (B,) bool Tensor
        Whether the search proved that the graph has no structure.
    finished : (B,) bool Tensor
        Whether the mean is the best structure up to the tolerance, or the graph has none.
    nodes : (B,) int64 Tensor
        The number of linear programs after the first.
    oracle_calls : int
        The number of batched calls of oracles.
    """

    mean: Tensor
    additional: list[Tensor]
    value: Tensor
    gap: Tensor
    found: Tensor
    infeasible: Tensor
    finished: Tensor
    nodes: Tensor
    oracle_calls: int


@dataclass
class _Node:
    """A part of the structures of one instance.

    Attributes
    ----------
    fixed : (n,) Tensor
        1 and −1 for variables fixed to 1 and 0, 0 for the others.
    reward : float
        The reward of a fixed variable with its value.
    mean : (n,) Tensor
        The solution of the linear program.
    """

    fixed: Tensor
    reward: float
    mean: Tensor

    def branch(self, reward: float) -> list[tuple[Tensor, float]]:
        """Return the fixed values and rewards of the children; a single one if fixed values are not kept."""
        if not _keeps(self.mean, self.fixed):
            return [(self.fixed, self.reward * _GROWTH)]
        distance = (self.mean - 0.5).abs().masked_fill(self.fixed != 0, 1.0)
        variable = int(distance.argmin())
        children = []
        for value in (1.0, -1.0) if self.mean[variable] >= 0.5 else (-1.0, 1.0):
            fixed = self.fixed.clone()
            fixed[variable] = value
            children.append((fixed, max(reward, self.reward)))
        return children


def branch_and_bound(
    graph: FactorGraph,
    theta: Parts,
    root: LocalPolytopeResult,
    *,
    tolerance: float,
    max_iter: int,
    node_limit: int,
) -> BranchAndBoundResult:
    """Search for the best structure of each instance whose linear program has fractions.

    Parameters
    ----------
    graph : FactorGraph
        The graph.
    theta : (B, *event) Tensor, or tuple of them
        The scores.
    root : LocalPolytopeResult
        The solutions of the linear programs.
    tolerance : float
        An instance is finished once its gap is at most ``tolerance`` times the scale of its scores.
    max_iter : int
        Maximal number of the solver's iterations for each linear program.
    node_limit : int
        The number of linear programs after which an instance stops.

    Notes
    -----
    Each round solves one batch: the two children of the node of the highest bound, for each instance that is not
    finished.
    """
    return _Search(graph, theta, root, tolerance, max_iter, node_limit).run()


class _Search:
    def __init__(
        self,
        graph: FactorGraph,
        theta: Parts,
        root: LocalPolytopeResult,
        tolerance: float,
        max_iter: int,
        node_limit: int,
    ) -> None:
        self.graph, self.theta, self.max_iter, self.node_limit = graph, theta, max_iter, node_limit
        size = len(root.mean)
        finite = [t.double().masked_fill(t.isneginf(), 0).abs().flatten(1).expand(size, -1) for t in as_tuple(theta)]
        scores = torch.cat(finite, 1)
        # A structure of finite score scores at least −unit.
        total = scores.sum(1)
        self.unit = torch.where(total > 0, total, 1.0)
        self.slack = tolerance * scores.amax(1)
        self.mean, self.additional = root.mean.clone(), [a.clone() for a in root.additional]
        self.value, self.bound = root.value.clone(), root.value + root.gap
        self.found = _is_integral(root.mean)
        self.nodes = torch.zeros(size, dtype=torch.int64, device=root.mean.device)
        self.oracle_calls = root.oracle_calls
        # Of each instance: nodes by their bounds, the highest first, then the newest.
        self.count = itertools.count(step=-1)
        self.open: dict[int, list[tuple[float, int, _Node]]] = {}
        for b in (~self.found).nonzero()[:, 0].tolist():
            node = _Node(torch.zeros_like(root.mean[b]), 0.0, root.mean[b])
            self.open[b] = [(-float(self.bound[b]), next(self.count), node)]

    def run(self) -> BranchAndBoundResult:
        searched = list(self.open)
        while work := self._next_children():
            self._solve(work)
        for b in searched:
            best = float(self.value[b]) if bool(self.found[b]) else -torch.inf
            highest = max(best, -self.open[b][0][0] if self.open[b] else -torch.inf)
            self.bound[b] = highest
        infeasible = torch.zeros_like(self.found)
        infeasible[searched] = self.bound[searched].isneginf()
        gap = torch.where(infeasible, 0.0, self.bound - self.value).clamp(min=0)
        finished = infeasible | (self.found & (gap <= self.slack))
        return BranchAndBoundResult(
            self.mean, self.additional, self.value, gap, self.found, infeasible, finished, self.nodes, self.oracle_calls
        )

    def _next_children(self) -> list[tuple[int, Tensor, float]]:
        """Return the instance, the fixed values and the reward of the next nodes."""
        work = []
        for b, heap in self.open.items():
            limit = float(self.value[b] + self.slack[b]) if bool(self.found[b]) else -torch.inf
            if not heap or int(self.nodes[b]) >= self.node_limit or -heap[0][0] <= limit:
                continue
            *_, node = heapq.heappop(heap)
            children = node.branch(2 * float(self.unit[b]))
            self.nodes[b] += len(children)
            work += [(b, fixed, reward) for fixed, reward in children]
        return work

    def _solve(self, work: list[tuple[int, Tensor, float]]) -> None:
        rows = torch.tensor([b for b, *_ in work], device=self.mean.device)
        fixed = torch.stack([f for _, f, _ in work])
        reward = torch.tensor([r for *_, r in work], dtype=fixed.dtype, device=fixed.device)
        size = len(self.mean)
        problem = LocalPolytope(self.graph, map_parts(lambda t: t.expand(size, *t.shape[1:])[rows], self.theta), False)
        problem.theta = problem.theta + reward[:, None] * fixed
        result = solve_local_polytope(problem, curvature=0.0, tolerance=_ACCURACY, max_iter=self.max_iter)
        self.oracle_calls += result.oracle_calls
        rewarded = reward * (fixed > 0).sum(1)
        value, bound = result.value - rewarded, result.value + result.gap - rewarded
        for i, (b, f, r) in enumerate(work):
            mean = result.mean[i]
            is_structure = _keeps(mean, f) and bool(_is_integral(mean[None]))
            if is_structure and (not self.found[b] or value[i] > self.value[b]):
                self.found[b], self.value[b], self.mean[b] = True, value[i], mean
                for own, one in zip(self.additional, result.additional, strict=True):
                    own[b] = one[i]
            has_none = float(bound[i]) < -2 * float(self.unit[b])
            is_solved = is_structure and (bool((f != 0).all()) or float(result.gap[i]) <= float(self.slack[b]))
            if not (has_none or is_solved):
                heapq.heappush(self.open[b], (-float(bound[i]), next(self.count), _Node(f, r, mean)))


def _keeps(mean: Tensor, fixed: Tensor) -> bool:
    """Return whether all fixed variables have their values."""
    return bool(((mean - (fixed > 0).to(mean)).abs().masked_fill(fixed == 0, 0) <= _ACCURACY).all())


def _is_integral(mean: Tensor) -> Tensor:
    """Return whether the coordinates (B, n) have no fractions, (B,)."""
    return (mean == mean.round()).all(1)
