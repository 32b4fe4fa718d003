"""Linear and quadratic programs over the local polytope of a factor graph.

The local polytope holds the values μ of the variables that are, for each factor, a mean of the factor's structures. It
contains the convex hull of the structures of the graph. The solver is ADMM: each factor has a copy of its variables,
and an iteration projects the copies of all factors onto the hulls of their structures. Since the iterations approach
the solution slowly, the solver tries at intervals whether the current supports contain the solution: it solves the
optimality conditions on the supports, and a call of the oracles at the multipliers bounds the error.

Two kinds of graphs have direct methods for the quadratic program: bounds of sums (`.cardinality_program`) and
recursions (`.joint_flows`).

References
----------
V. Niculae & A. Martins, LP-SparseMAP: Differentiable relaxed optimization for sparse structured prediction, ICML 2020.
A. Martins, M. Figueiredo, P. Aguiar, N. Smith & E. Xing, AD3: Alternating directions dual decomposition for MAP
inference in graphical models, JMLR 16, 2015.
S. Boyd, N. Parikh, E. Chu, B. Peleato & J. Eckstein, Distributed optimization and statistical learning via the
alternating direction method of multipliers, 2011, §3.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InfeasibleError
from .cardinality_program import CardinalitySolution, solve_cardinalities
from .face_search import ROUNDING, Faces, LocalProgram, bound_objective, search_faces
from .factor_projections import FactorProjection, FactorSupport
from .joint_flows import JointFlowSolution, solve_joint_flows
from .local_polytope_result import LocalPolytopeResult
from .local_polytope_scores import LocalPolytope

__all__ = ["solve_local_polytope"]

_RELAXATION = 1.6
"""The factor of a step towards the new copies; 1.5 to 1.8 in Boyd et al., §3.4.3."""

_PROXIMAL = 3e-3
"""The factor of the proximal term in searches with curvature 0, relative to the size of scores. With a smaller factor,
weights on a face that is not optimal turn negative sooner."""

_ROUNDS = 2
"""Rounds of the search from the supports of an iterate."""

_PROJECTION_ROUNDS = 3
"""Rounds of a projection. ADMM needs exact projections only at its end, when one or two rounds are enough."""

_LOOK_EVERY = 8
"""Iterations between two looks at the supports. A search starts once no copy has become or ceased to be 0 between two
looks."""

_FIRST_SEARCH = 32
"""The iteration after which all instances are searched. The next searches of all follow after half as many more."""


def solve_local_polytope(
    problem: LocalPolytope, *, curvature: float, tolerance: float, max_iter: int
) -> LocalPolytopeResult:
    """Maximise ⟨θ, μ⟩ − ½ curvature ‖μ‖² plus the additional scores over the local polytope, for each instance.

    Parameters
    ----------
    problem : LocalPolytope
        The graph with the scores.
    curvature : float
        1, or 0 for the linear program.
    tolerance : float
        An instance is finished once a bound shows an error ‖μ − μ*‖ of at most ``tolerance`` times ‖μ‖ or 1; with
        curvature 0, once the gap is at most ``tolerance`` times the scale of the scores. It is also finished once
        both residuals of ADMM, per part, are at most ``tolerance``. Values below the rounding errors act as the latter.
    max_iter : int
        Maximal number of iterations.

    Raises
    ------
    InfeasibleError
        If a factor has no structure of finite score, or the local polytope is empty.
    """
    if curvature:
        return _ADMM(problem, curvature, tolerance, max_iter).run()
    # A linear program has the same solution for scores of any scale, but tolerances count scores below 1 as small.
    factor = problem.raise_scores()
    result = _ADMM(problem, curvature, tolerance, max_iter).run()
    result.value, result.gap = result.value / factor, result.gap / factor
    _choose_structures(problem, result)
    return result


def _choose_structures(problem: LocalPolytope, result: LocalPolytopeResult) -> None:
    """Make the additional parts of a solution a structure if its coordinates have no fractions.

    If several structures of a factor have the variables of the solution, the solver may return their mean. All are
    solutions, since they are in the support of an optimal solution.
    """
    integral = (result.mean == result.mean.round()).all(1)
    for rows, supports in result.supports:
        for g, additional, s in zip(problem.groups, result.additional, supports, strict=True):
            if not additional.shape[2]:
                continue
            agrees = (s.weights > 0) & (s.parts == result.mean[rows][:, g.index][:, :, None]).all(3)
            best = (agrees * s.weights).argmax(2, keepdim=True)
            chosen = integral[rows, None, None] & agrees.any(2)[..., None]
            structure = s.additional.combine(torch.zeros_like(s.weights).scatter_(2, best, 1.0))
            additional[rows] = torch.where(chosen, structure, additional[rows])


class _ADMM:
    def __init__(self, problem: LocalPolytope, curvature: float, tolerance: float, max_iter: int) -> None:
        self.problem, self.curvature, self.tolerance, self.max_iter = problem, curvature, tolerance, max_iter
        size = len(problem.theta)
        theta, device = problem.theta, problem.theta.device
        self.is_free = problem.degree == 0
        # A variable of no factor has a solution of its own.
        alone = theta.clamp(0, 1) if curvature else (theta > 0).double()
        self.mean = torch.where(self.is_free & ~problem.forbidden, alone, 0.0)
        self.additional = [torch.zeros_like(g.additional) for g in problem.groups]
        value = torch.where(self.is_free, theta * self.mean - 0.5 * curvature * self.mean.square(), 0.0)
        self.value = value.sum(1)
        self.gap, self.residual = theta.new_zeros(size), theta.new_zeros(size)
        self.converged = torch.ones(size, dtype=torch.bool, device=device)
        self.iterations = torch.zeros(size, dtype=torch.int64, device=device)
        self.supports: list[tuple[Tensor, list[FactorSupport]]] = []
        self.oracle_calls = 0
        self.direct: tuple[Tensor, CardinalitySolution | JointFlowSolution] | None = None

    def run(self) -> LocalPolytopeResult:
        if self.problem.groups and len(self.mean):
            self._iterate()
        return LocalPolytopeResult(
            self.mean,
            self.additional,
            self.value,
            self.gap,
            self.residual,
            self.converged,
            self.iterations,
            self.oracle_calls,
            self.supports,
            self.direct,
        )

    # -- iterations --------------------------------------------------------------------------

    def _iterate(self) -> None:
        problem, q = self.problem, self.curvature
        degree = problem.degree.clamp(min=1)
        self.rows = torch.arange(len(self.mean), device=self.mean.device)
        self.projections = [FactorProjection(g, self.rows) for g in problem.groups]
        theta = problem.theta
        # θ is divided over the factors. The step follows its size.
        self.point = self.mean.clone() if q == 0 else (theta / degree).clamp(0, 1) * ~problem.forbidden
        start = ((theta - q * self.point) / degree).masked_fill(problem.forbidden, 0)
        self.multipliers = [start[:, g.index] for g in problem.groups]
        self.size = size = self._score_size()
        self.step = size.clamp(min=1 / float(degree.mean())) if q else torch.where(size > 0, size, 1.0)
        check, self.anchor = _FIRST_SEARCH, None
        self.nonzero: Tensor | None = None
        self.searched = torch.zeros_like(self.rows, dtype=torch.bool)
        self.copies = [y.clone() for y in self.multipliers]
        self.spread = [self.point[:, g.index] for g in problem.groups]
        self._solve_directly()
        if not len(self.rows):
            return
        for iteration in range(1, self.max_iter + 1):
            residuals = self._advance()
            if iteration % 10 == 0 and iteration <= 500:
                self._adapt(residuals)
            last, is_check = iteration == self.max_iter, iteration == check
            if is_check or last:
                check += check // 2
                tried = torch.arange(len(self.rows), device=self.rows.device)
            elif iteration % _LOOK_EVERY == 0:
                tried = self._settled_supports()
            else:
                continue
            if len(tried):
                left = self._search(iteration, residuals, tried, last)
                if len(tried) == len(self.rows) and iteration >= 30:
                    self._check_feasible(left, residuals[0])
                self._keep(tried, left)
            if is_check and q and iteration <= 500:  # instances that are left converge faster with a larger step
                self.step = 2 * self.step
            if not len(self.rows):
                return

    def _solve_directly(self) -> None:
        """Finish the instances that a direct method can solve: Newton's for bounds of sums, flows for recursions."""
        if not self.curvature:
            return
        found = solve_cardinalities(self.problem, self.curvature) or solve_joint_flows(self.problem)
        if found is None:
            return
        rows = found.solved.nonzero()[:, 0]
        for own, new in zip(
            (self.mean, self.value, self.gap, self.residual, *self.additional),
            (found.mean, found.value, found.gap, found.residual, *found.additional),
            strict=True,
        ):
            own[rows] = new[rows]
        self.direct = rows, found
        self.oracle_calls += found.oracle_calls
        self._keep(self.rows, (~found.solved).nonzero()[:, 0])

    def _score_size(self) -> Tensor:
        """Return the mean absolute score of a coordinate, plus that of an additional part, (B,)."""
        theta, others = self.problem.theta, [g.additional.flatten(1) for g in self.problem.groups]
        additional = torch.cat(others, 1).abs().nan_to_num(posinf=0.0)
        return theta.abs().sum(1) / theta.shape[1] + additional.sum(1) / max(additional.shape[1], 1)

    def _advance(self) -> tuple[Tensor, Tensor]:
        """Run one iteration; return the primal and the dual residual of each instance, per part."""
        problem, rows = self.problem, self.rows
        step = self.step[:, None, None]
        copies, sent = [], []
        for projection, y, point in zip(self.projections, self.multipliers, self.spread, strict=True):
            copy = projection.project(point + y / step, 1 / step, _PROJECTION_ROUNDS)
            copies.append(copy)
            sent.append(step * (_RELAXATION * copy + (1 - _RELAXATION) * point) - y)
        weight = self.curvature + self.step[:, None] * problem.degree
        new = (problem.theta[rows] + problem.collect(sent)) / weight.clamp(min=1e-300)
        new = torch.where(self.is_free, self.mean[rows], new.masked_fill(problem.forbidden[rows], 0))
        spread = [new[:, g.index] for g in problem.groups]
        self.multipliers = [step * point - s for point, s in zip(spread, sent, strict=True)]
        count = problem.degree.sum()
        primal = sum((c - point).square().sum((1, 2)) for c, point in zip(copies, spread, strict=True))
        dual = ((new - self.point).square() * problem.degree).sum(1)
        self.point, self.spread, self.copies = new, spread, copies
        return (primal / count).sqrt(), self.step * (dual / count).sqrt()

    def _adapt(self, residuals: tuple[Tensor, Tensor]) -> None:
        """Balance the residuals, as in Boyd et al., §3.4.1."""
        primal, dual = residuals
        dual = dual / self._dual_scale()
        factor = torch.where(primal > 4 * dual, 2.0, torch.where(dual > 4 * primal, 0.5, 1.0))
        self.step = self.step * factor

    def _dual_scale(self) -> Tensor:
        """Return the size of the multipliers, by which dual residuals are measured."""
        total = sum(y.square().sum((1, 2)) for y in self.multipliers)
        return (total / self.problem.degree.sum()).sqrt().clamp(min=1e-6)

    # -- the end of an instance ----------------------------------------------------------------

    def _settled_supports(self) -> Tensor:
        """Return the instances, positions in the rows, whose zero copies are those of the last look.

        A search starts once for the same zeros.
        """
        nonzero = torch.cat([(c > 1e-9).flatten(1) for c in self.copies], 1)
        if self.nonzero is None:
            same = torch.zeros_like(self.rows, dtype=torch.bool)
        else:
            same = (nonzero == self.nonzero).all(1)
        settled = same & ~self.searched
        self.nonzero, self.searched = nonzero, same
        return settled.nonzero()[:, 0]

    def _search(self, iteration: int, residuals: tuple[Tensor, Tensor], tried: Tensor, last: bool) -> Tensor:
        """Search the solution of the instances ``tried``, positions in the rows; return those that are not finished.

        The ``last`` search finishes all.
        """
        program = self._program(tried)
        supports = [projection.support(tried) for projection in self.projections]
        proximal = _PROXIMAL * torch.where(self.size > 0, self.size, 1.0)[program.rows]
        found = search_faces(
            program, supports, [y[tried] for y in self.multipliers], self.point[tried], proximal, _ROUNDS
        )
        limit = max(self.tolerance, ROUNDING)
        primal, dual = (r[tried] for r in residuals)
        exact = torch.stack([p.is_exact for p in self.projections]).all(0)[tried]
        settled = ~found.accepted & exact & (primal <= limit) & (dual <= limit * self._dual_scale()[tried].clamp(min=1))
        # The face of the limit is often known before the multipliers prove it.
        near = (found.mean - self.point[tried]).masked_fill(program.fixed, 0).abs().amax(1) <= 10 * limit
        found.accepted |= settled & found.valid & near
        done = found.accepted | settled | last
        self.converged[program.rows[done]] = (found.accepted | settled)[done]
        self.iterations[program.rows[done]] = iteration
        self._store_faces(program.rows, found.accepted.nonzero()[:, 0], found)
        others = (done & ~found.accepted).nonzero()[:, 0]
        if len(others):
            self._store_iterates(tried[others], [s.select(others) for s in supports])
        return tried[~done]

    def _program(self, positions: Tensor) -> LocalProgram:
        problem, rows = self.problem, self.rows[positions]
        fixed = problem.forbidden[rows] | self.is_free
        return LocalProgram(
            problem.groups, problem.degree, rows, problem.theta[rows], fixed, self.curvature, self.tolerance
        )

    def _store_faces(self, rows: Tensor, keep: Tensor, found: Faces) -> None:
        """Store the faces ``keep`` of those found for the instances ``rows``."""
        if not len(keep):
            return
        rows = rows[keep]
        self.mean[rows] = torch.where(self.is_free, self.mean[rows], found.mean[keep])
        for own, one in zip(self.additional, found.additional, strict=True):
            own[rows] = one[keep]
        self.value[rows] += found.value[keep]
        self.gap[rows], self.residual[rows] = found.gap[keep], found.residual[keep]
        self.supports.append((rows, [s.select(keep) for s in found.supports]))

    def _store_iterates(self, positions: Tensor, supports: list[FactorSupport]) -> None:
        """Store the last iterates of ADMM, whose copies differ, for ``positions`` in the rows."""
        problem, rows, mean = self.problem, self.rows[positions], self.point[positions]
        linear = torch.zeros_like(self.step[positions])
        apart = []
        for g, own, copy, s in zip(problem.groups, self.additional, self.copies, supports, strict=True):
            w = s.additional.combine(s.weights)
            own[rows] = w
            linear += torch.where(w != 0, g.additional[rows] * w, 0.0).sum((1, 2))
            apart.append((copy[positions] - mean[:, g.index]).abs().flatten(1).amax(1))
        value = (problem.theta[rows] * mean - 0.5 * self.curvature * mean.square())[:, ~self.is_free].sum(1) + linear
        bound, _ = bound_objective(self._program(positions), [y[positions] for y in self.multipliers])
        self.mean[rows] = torch.where(self.is_free, self.mean[rows], mean)
        self.value[rows] += value
        self.gap[rows] = (bound - value).clamp(min=0)
        self.residual[rows] = torch.stack(apart).amax(0)
        self.supports.append((rows, supports))

    def _keep(self, tried: Tensor, left: Tensor) -> None:
        """Remove the instances that were ``tried`` and are not ``left``."""
        if len(tried) == len(left):
            return
        stays = torch.ones_like(self.rows, dtype=torch.bool)
        stays[tried] = False
        stays[left] = True
        keep = stays.nonzero()[:, 0]
        for projection in self.projections:
            if not len(keep):
                self.oracle_calls += projection.oracle_calls
            projection.select(keep)
        self.rows, self.point, self.step = self.rows[keep], self.point[keep], self.step[keep]
        self.multipliers = [y[keep] for y in self.multipliers]
        self.copies = [c[keep] for c in self.copies]
        self.spread = [c[keep] for c in self.spread]
        self.searched = self.searched[keep]
        if self.nonzero is not None:
            self.nonzero = self.nonzero[keep]
        if self.anchor is not None:
            self.anchor = [a[keep] for a in self.anchor]

    # -- empty polytopes -------------------------------------------------------------------------

    def _check_feasible(self, left: Tensor, primal: Tensor) -> None:
        """Raise InfeasibleError if the multipliers of an instance that is ``left`` diverge along a certificate.

        Multipliers d that sum to 0 at each variable, with Σ_f max_y ⟨d_f, y⟩ < 0, prove the local polytope to be empty.
        """
        anchor, self.anchor = self.anchor, self.multipliers
        suspects = torch.zeros_like(primal, dtype=torch.bool)
        suspects[left] = primal[left] > 1e-4
        if anchor is None or not bool(suspects.any()):
            return
        problem = self.problem
        moves = [y - a for y, a in zip(self.multipliers, anchor, strict=True)]
        size = torch.stack([d.square().sum((1, 2)) for d in moves]).sum(0).sqrt()
        moves = [d / size.clamp(min=1e-300)[:, None, None] for d in moves]
        sums = problem.collect(moves).masked_fill(problem.forbidden[self.rows], 0) / problem.degree.clamp(min=1)
        moves = [d - sums[:, g.index] for d, g in zip(moves, problem.groups, strict=True)]
        best = [(d * g.maximise(self.rows, d, 0.0)[0]).sum((1, 2)) for g, d in zip(problem.groups, moves, strict=True)]
        empty = suspects & (sum(best) < -1e-6)
        if bool(empty.any()):
            b = int(empty.nonzero()[0, 0])
            apart = {}
            for g, c in zip(problem.groups, self.copies, strict=True):
                far = (c - self.point[:, g.index])[b].abs().amax(1)
                apart.update(zip(g.group.numbers, far.tolist(), strict=True))
            worst = sorted(k for k, far in apart.items() if far >= 0.5 * max(apart.values()))
            names = " and ".join(problem.factors.names[k].rstrip(",") for k in worst[:3])
            rows = self.rows[empty].tolist()
            raise InfeasibleError(
                f"the factors of the graph contradict each other, most of all {names}; no values satisfy all factors",
                rows[0],
                rows,
            )
