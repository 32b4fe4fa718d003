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
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..errors import ConvergenceWarning, InfeasibleError, SolverLimitError, warn_user
from ..parts import Parts, as_tuple, map_parts
from .graph_factors import GraphFactors
from .local_polytope import solve_local_polytope
from .local_polytope_result import LocalPolytopeResult
from .local_polytope_scores import LocalPolytope

__all__ = ["OnLimit", "best_joint_structure", "branch_and_bound", "check_structures"]

OnLimit = Literal["raise", "warn"]

_ITERATIONS = 5000
"""Maximal number of the solver's iterations for each linear program."""

_ACCURACY = 1e-9
"""The tolerance of the linear programs, whose scores are larger by the rewards; smaller gaps are rounding errors."""

_GROWTH = 8.0
"""The factor of the reward where a solution does not keep to the fixed values."""


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
        """Return the fixed values and rewards of the children; a single one to solve the node with a larger reward.

        A larger reward is for a solution that does not keep to the fixed values, or that has them all only up to
        rounding.
        """
        if not _keeps(self.mean, self.fixed) or bool((self.fixed != 0).all()):
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
    factors: GraphFactors,
    theta: Parts,
    root: LocalPolytopeResult,
    *,
    tolerance: float,
    max_iter: int,
    node_limit: int,
) -> tuple[LocalPolytopeResult, Tensor]:
    """Search for the best structure of each instance whose linear program has fractions.

    Parameters
    ----------
    factors : GraphFactors
        The factors.
    theta : (B, *event) Tensor, or tuple of them
        The scores.
    root : LocalPolytopeResult
        The solutions of the linear programs.
    tolerance : float
        An instance is finished once its gap is at most ``tolerance`` times the largest size of its scores; a tolerance
        below 1e-9 acts as 1e-9.
    max_iter : int
        Maximal number of the solver's iterations for each linear program.
    node_limit : int
        The number of further linear programs after which an instance stops.

    Returns
    -------
    best : LocalPolytopeResult
        The best structures, or the solutions of ``root`` where no structure was found. ``gap`` bounds the difference
        between the best score and the value. ``converged`` is False for instances that are not finished.
    infeasible : (B,) bool Tensor
        Whether the search proved that the graph has no structure for an instance.

    Notes
    -----
    Each round solves one batch: the two children of the node of the highest bound, for each instance that is not
    finished.
    """
    return _Search(factors, theta, root, tolerance).run(node_limit, max_iter)


def best_joint_structure(
    factors: GraphFactors,
    theta: Parts,
    *,
    node_limit: int,
    on_limit: OnLimit,
    label: str,
    fixed: Tensor | None = None,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return a structure of highest score of all ``factors``, in the form of θ (B, *event), and which exist, (B,).

    Parameters
    ----------
    factors : GraphFactors
        The factors.
    theta : tuple of (B, *event) Tensor
        The scores.
    node_limit : int
        As for :func:`branch_and_bound`.
    on_limit : "raise" or "warn"
        Whether a structure without a proof raises SolverLimitError, or gives a ConvergenceWarning.
    label : str
        The name of the graph in messages.
    fixed : (B, n) float64 Tensor, optional
        1 and −1 for variables fixed to 1 and 0, 0 for the others.

    Raises
    ------
    InfeasibleError
        If an instance has no structure of finite score, without ``fixed``. With ``fixed``, its values do not matter.
    SolverLimitError
        If ``node_limit`` is too low to find a structure, or, with "raise", to prove it the best.
    """
    with torch.no_grad():
        problem = LocalPolytope(factors, map_parts(Tensor.detach, theta), False)
        if fixed is None:
            root = solve_local_polytope(problem, curvature=0.0, tolerance=0.0, max_iter=_ITERATIONS)
            best, infeasible = branch_and_bound(
                factors, problem.form, root, tolerance=0.0, max_iter=_ITERATIONS, node_limit=node_limit
            )
            check_structures(infeasible)
        else:
            search = _Search(factors, problem.form, _unsolved(problem), 0.0, fixed)
            best, infeasible = search.run(node_limit, _ITERATIONS)
        y = as_tuple(problem.as_parts(best.mean, best.additional))
    found = torch.stack([(t == t.round()).flatten(1).all(1) for t in y]).all(0) & best.value.isfinite()
    exists = found & ~infeasible
    stopped = ~infeasible & (~found if on_limit == "warn" else ~(found & best.converged))
    if bool(stopped.any()):
        rows = stopped.nonzero()[:, 0].tolist()
        without = [row for row in rows if not found[row]]
        what = f"with a structure whose score may be below the best by {float(best.gap[rows[0]]):.3g}"
        raise SolverLimitError(
            f"{label}: branch and bound stopped after {node_limit} nodes for batch index {(without or rows)[0]} "
            f"{'without any structure' if without else what}; raise node_limit of FactorGraph"
            f"{'' if without else ', or pass on_limit=' + chr(34) + 'warn' + chr(34) + ' to accept the structure'}",
            (without or rows)[0],
            without or rows,
        )
    if not bool(best.converged.all()):
        index = int((~best.converged).nonzero()[0, 0])
        warn_user(
            f"{label}: branch and bound stopped after {node_limit} nodes; the score may be below the best by "
            f"{float(best.gap[index]):.3g} at batch index {index}; raise node_limit of FactorGraph",
            ConvergenceWarning,
        )
    return y, exists


def _unsolved(problem: LocalPolytope) -> LocalPolytopeResult:
    """Return a record for the search, without structures."""
    mean, additional = problem.from_parts(map_parts(torch.zeros_like, problem.form))
    none = mean.new_full((len(mean),), -torch.inf)
    zeros = torch.zeros_like(none)
    return LocalPolytopeResult(
        mean, additional, none, -none, zeros, zeros.bool(), torch.zeros_like(none, dtype=torch.int64), 0, []
    )


def check_structures(infeasible: Tensor) -> None:
    """Raise InfeasibleError for the instances that have no structure, by :func:`branch_and_bound`."""
    if bool(infeasible.any()):
        rows = infeasible.nonzero()[:, 0].tolist()
        raise InfeasibleError(
            "no values of the variables satisfy all factors of the graph with a finite score", rows[0], rows
        )


class _Search:
    """The open nodes and the best structures of a batch.

    Parameters
    ----------
    factors, theta, root, tolerance
        As for :func:`branch_and_bound`.
    fixed : (B, n) Tensor, optional
        Values of variables in all structures, 1 and −1 for 1 and 0, or 0. The solutions of ``root`` are then not used.
    """

    def __init__(
        self,
        factors: GraphFactors,
        theta: Parts,
        root: LocalPolytopeResult,
        tolerance: float,
        fixed: Tensor | None = None,
    ) -> None:
        self.factors, self.theta = factors, theta
        size = len(root.mean)
        finite = [t.double().masked_fill(t.isneginf(), 0).abs().flatten(1).expand(size, -1) for t in as_tuple(theta)]
        scores = torch.cat(finite, 1)
        # A structure of finite score scores at least −unit.
        total = scores.sum(1)
        self.unit = torch.where(total > 0, total, 1.0)
        self.slack = max(tolerance, _ACCURACY) * scores.amax(1)
        self.best = replace(
            root,
            mean=root.mean.clone(),
            additional=[a.clone() for a in root.additional],
            value=root.value.clone(),
            gap=root.gap.clone(),
            residual=root.residual.clone(),
            converged=root.converged.clone(),
        )
        self.found = _is_integral(root.mean)
        self.nodes = [0] * size
        # Of each instance: nodes by their bounds, the highest first, then the newest.
        self.count = itertools.count(step=-1)
        self.open: dict[int, list[tuple[float, int, _Node]]] = {}
        self.first: list[tuple[int, Tensor, float]] = []
        if fixed is not None:
            self.found = torch.zeros_like(self.found)
            self.open = {b: [] for b in range(size)}
            self.first = [(b, f, 2 * float(self.unit[b])) for b, f in enumerate(fixed)]
            return
        for b in (~self.found | (root.gap > self.slack)).nonzero()[:, 0].tolist():
            node = _Node(torch.zeros_like(root.mean[b]), 0.0, root.mean[b])
            self.open[b] = [(-float(root.value[b] + root.gap[b]), next(self.count), node)]

    def run(self, node_limit: int, max_iter: int) -> tuple[LocalPolytopeResult, Tensor]:
        """Return the best structures, and which instances have none."""
        if self.first:
            self.solve(self.first, max_iter)
        while work := self.next_children(node_limit):
            self.solve(work, max_iter)
        return self.result()

    def next_children(self, node_limit: int) -> list[tuple[int, Tensor, float]]:
        """Return the instance, the fixed values and the reward of the next nodes."""
        work = []
        for b, heap in self.open.items():
            enough = float(self.best.value[b] + self.slack[b]) if bool(self.found[b]) else -torch.inf
            if not heap or self.nodes[b] >= node_limit or -heap[0][0] <= enough:
                continue
            *_, node = heapq.heappop(heap)
            children = node.branch(2 * float(self.unit[b]))
            self.nodes[b] += len(children)
            work += [(b, fixed, reward) for fixed, reward in children]
        return work

    def solve(self, work: list[tuple[int, Tensor, float]], max_iter: int) -> None:
        """Solve the linear programs of nodes; keep the best structures, and the nodes that are still open."""
        best, size = self.best, len(self.best.mean)
        rows = torch.tensor([b for b, *_ in work], device=best.mean.device)
        fixed = torch.stack([f for _, f, _ in work])
        reward = torch.tensor([r for *_, r in work], dtype=fixed.dtype, device=fixed.device)
        theta = map_parts(lambda t: t.expand(size, *t.shape[1:])[rows], self.theta)
        problem = LocalPolytope(self.factors[rows], theta, False)
        problem.theta = problem.theta + reward[:, None] * fixed
        result = solve_local_polytope(problem, curvature=0.0, tolerance=_ACCURACY, max_iter=max_iter)
        best.oracle_calls += result.oracle_calls
        value = result.value - reward * (fixed > 0).sum(1)
        for i, (b, f, r) in enumerate(work):
            mean, bound, slack = result.mean[i], float(value[i] + result.gap[i]), float(self.slack[b])
            is_structure = _keeps(mean, f) and bool(_is_integral(mean[None]))
            if is_structure and (not self.found[b] or value[i] > best.value[b]):
                self.found[b], best.value[b], best.mean[b] = True, value[i], mean
                best.residual[b] = result.residual[i]
                for own, one in zip(best.additional, result.additional, strict=True):
                    own[b] = one[i]
            has_none = bound < -2 * float(self.unit[b])
            is_solved = is_structure and (bool((f != 0).all()) or float(result.gap[i]) <= slack)
            if not (has_none or is_solved):
                heapq.heappush(self.open[b], (-bound, next(self.count), _Node(f, r, mean)))

    def result(self) -> tuple[LocalPolytopeResult, Tensor]:
        """Return the best structures found so far, and which instances have none."""
        best, infeasible = self.best, torch.zeros_like(self.found)
        for b, heap in self.open.items():
            bounds = [-heap[0][0]] if heap else []
            bounds += [float(best.value[b])] if bool(self.found[b]) else []
            infeasible[b] = not bounds
            best.gap[b] = max(max(bounds) - float(best.value[b]), 0.0) if bounds else 0.0
            best.converged[b] = infeasible[b] | (self.found[b] & (best.gap[b] <= self.slack[b]))
        return best, infeasible


def _keeps(mean: Tensor, fixed: Tensor) -> bool:
    """Return whether all fixed variables have their values."""
    return bool(((mean - (fixed > 0).to(mean)).abs().masked_fill(fixed == 0, 0) <= _ACCURACY).all())


def _is_integral(mean: Tensor) -> Tensor:
    """Return whether the coordinates (B, n) have no fractions, (B,)."""
    return (mean == mean.round()).all(1)
