"""The inner problem of the dual in :mod:`.cardinality_program`: its solution μ, and the Jacobian of μ.

The problem is max ⟨r, μ⟩ − ½ curvature ‖μ‖² over 0 ≤ μ ≤ 1. With one other factor, the coordinates of this factor are
in the hull of its structures instead.
"""

from __future__ import annotations

import abc
from typing import cast

import torch
from torch import Tensor

from .active_set import ActiveSetResult, active_set
from .direct_mean import DirectlySolvable, DirectMean, complete, describes_argmax
from .factor_projections import MOST_ROUNDS, FactorProjection, FactorSupport, GroupScores
from .graph_factors import check_values
from .local_polytope_scores import LocalPolytope

__all__ = ["Box", "BoxFace", "make_hull"]

_DIRECT_ITERATIONS = 50
"""The largest number of iterations of an oracle's own solver for one instance."""

_PRECISION = 1e-13
"""The violation of a bound at which an instance is finished, relative to the scores or 1."""


def make_hull(problem: LocalPolytope, curvature: float, group: GroupScores) -> Box:
    """Return the problem over the hull of the structures of a group of one factor, without additional parts."""
    return (_DirectHull if _solves_directly(group) else _ActiveSetHull)(problem, curvature, group)


def _solves_directly(group: GroupScores) -> bool:
    """Return whether the oracle of a group has its own solver of the inner problem."""
    oracle = group.oracle
    return (
        isinstance(oracle, DirectlySolvable)
        and describes_argmax(type(oracle), "solve_quadratic")
        and len(group.group.shapes) == 1
    )


class Box:
    """max ⟨r, μ⟩ − ½ curvature ‖μ‖² over 0 ≤ μ ≤ 1.

    Parameters
    ----------
    problem : LocalPolytope
        The graph.
    curvature : float
        The curvature.
    """

    precision = _PRECISION
    oracle_calls = 0

    def __init__(self, problem: LocalPolytope, curvature: float) -> None:
        self.forbidden, self.curvature = problem.forbidden, curvature
        self.is_solvable = torch.ones(len(problem.theta), dtype=torch.bool, device=problem.theta.device)

    def solve(self, reduced: Tensor) -> Tensor:
        """Return μ for scores r (R, n) of the instances that are left."""
        self._mean = (reduced / self.curvature).clamp(0, 1).masked_fill(self.forbidden, 0)
        return self._mean

    def face(self, rows: Tensor) -> BoxFace:
        """Return the Jacobian of the last solutions of the instances ``rows``, positions in those that are left."""
        mean = self._mean[rows]
        return BoxFace((mean > 0) & (mean < 1), self.curvature)

    def select(self, keep: Tensor) -> None:
        """Keep only the instances ``keep``, positions in those that are left."""
        self.forbidden, self._mean = self.forbidden[keep], self._mean[keep]


class BoxFace:
    """The Jacobian J of the solutions of an inner problem, a multiple of a projection.

    Parameters
    ----------
    inside : (R, n) bool Tensor
        The coordinates between 0 and 1.
    curvature : float
        The curvature.
    """

    def __init__(self, inside: Tensor, curvature: float) -> None:
        self.inside, self.curvature = inside, curvature

    def apply(self, v: Tensor) -> Tensor:
        """Return J v for vectors (R, n)."""
        return self.inside * v / self.curvature

    def hessian(self, matrix: Tensor) -> Tensor:
        """Return E J Eᵀ, (R, M, M), for the matrix E (M, n)."""
        weighted = matrix * self.inside[:, None].to(matrix)
        products = (weighted.flatten(0, 1) @ matrix.mT).view(len(weighted), len(matrix), len(matrix))
        return products / self.curvature


class _HullOfFactor(Box, abc.ABC):
    """The same problem over the hull of a factor's structures; other coordinates are between 0 and 1."""

    precision = 1e-11

    def __init__(self, problem: LocalPolytope, curvature: float, group: GroupScores) -> None:
        super().__init__(problem, curvature)
        self.scores, self.index = group, group.index[0]
        self.rows = torch.arange(len(problem.theta), device=problem.theta.device)
        # The oracle's scores cannot fix a part at 1: at 1 minus a variable of score −inf.
        self.is_solvable = ~(problem.forbidden[:, self.index] & (group.sign[0] < 0)).any(1)

    def solve(self, reduced: Tensor) -> Tensor:
        found = self.project(reduced[:, self.index] / self.curvature)
        self._mean = super().solve(reduced).index_copy(1, self.index, found)
        return self._mean

    @abc.abstractmethod
    def project(self, target: Tensor) -> Tensor:
        """Return the projections of ``target`` (R, m) onto the hull."""

    def inside(self, rows: Tensor) -> Tensor:
        """Return the other coordinates between 0 and 1 in the last solutions of instances, (R, n) bool."""
        return super().face(rows).inside.index_fill(1, self.index, False)

    def select(self, keep: Tensor) -> None:
        super().select(keep)
        self.rows = self.rows[keep]


class _ActiveSetHull(_HullOfFactor):
    """The hull with projections by the active-set method or in closed form."""

    def __init__(self, problem: LocalPolytope, curvature: float, group: GroupScores) -> None:
        super().__init__(problem, curvature, group)
        self.projection = FactorProjection(group, self.rows)

    def project(self, target: Tensor) -> Tensor:
        return self.projection.project(target[:, None], target.new_ones(len(target), 1, 1))[:, 0]

    @property
    def oracle_calls(self) -> int:
        return self.projection.oracle_calls

    def face(self, rows: Tensor) -> BoxFace:
        support = self.projection.support(rows)
        group = self.scores.group
        check_values(support.parts[..., : group.variables.shape[1]], self.scores.names[group.numbers[0]])
        return _AffineFace.of(self.inside(rows), self.curvature, self.index, support)

    def select(self, keep: Tensor) -> None:
        super().select(keep)
        self.projection.select(keep)


class _DirectHull(_HullOfFactor):
    """The hull with projections by the oracle's own solver."""

    oracle_calls = 0

    def project(self, target: Tensor) -> Tensor:
        scores = self.scores
        if not self.oracle_calls:  # the values of one structure per instance, as projections show no structures
            scores.maximise(self.rows, target[:, None])
            self.oracle_calls = 1
        theta = cast(Tensor, scores.as_scores(self.rows, scores.sign * (target[:, None] - scores.offset)))
        oracle = scores.oracle_of(self.rows)

        def solve_rest(rows: Tensor) -> ActiveSetResult:
            result = active_set(oracle[rows], theta[rows], max_iter=MOST_ROUNDS)
            self.oracle_calls += result.oracle_calls
            return result

        with scores.named(self.rows):
            direct = cast(DirectlySolvable, oracle).solve_quadratic(theta, 0.0, _DIRECT_ITERATIONS)
            self._direct = complete(direct, solve_rest)
        self._places = torch.arange(len(self.rows), device=self.rows.device)
        return scores.to_coordinates(cast(Tensor, self._direct.mean).flatten(1)[:, None])[:, 0]

    def face(self, rows: Tensor) -> BoxFace:
        sign, places = self.scores.sign[0], self._places[rows]
        return _DirectFace(self.inside(rows), self.curvature, self.index, sign, self._direct, places)

    def select(self, keep: Tensor) -> None:
        super().select(keep)
        self._places = self._places[keep]


class _HullFace(BoxFace):
    """The Jacobian on the coordinates ``index`` (m,) of a factor, and on the others between 0 and 1, ``inside``."""

    def __init__(self, inside: Tensor, curvature: float, index: Tensor) -> None:
        super().__init__(inside, curvature)
        self.index = index


class _DirectFace(_HullFace):
    """The Jacobian of an oracle's own solver.

    Parameters
    ----------
    sign : (m,) Tensor
        −1 for coordinates that the factor negates, else 1.
    direct : DirectMean
        The solutions.
    places : (R,) int64 Tensor
        The positions of the instances in the batch of the solutions.
    """

    def __init__(
        self, inside: Tensor, curvature: float, index: Tensor, sign: Tensor, direct: DirectMean, places: Tensor
    ) -> None:
        super().__init__(inside, curvature, index)
        self.sign, self.direct, self.places = sign, direct, places

    def apply(self, v: Tensor) -> Tensor:
        mean = cast(Tensor, self.direct.mean)
        cotangent = mean.new_zeros(len(mean), self.index.numel())
        cotangent[self.places] = self.sign * v[:, self.index]
        product = cast(Tensor, self.direct.vjp(cotangent.view_as(mean))).flatten(1)[self.places]
        return super().apply(v).index_copy(1, self.index, self.sign * product / self.curvature)

    def hessian(self, matrix: Tensor) -> Tensor:
        mean, columns = cast(Tensor, self.direct.mean), self.sign * matrix[:, self.index]
        vectors = [c.expand(len(mean), -1).reshape(mean.shape) for c in columns]
        products = [cast(Tensor, self.direct.vjp(v)).flatten(1) @ columns.mT for v in vectors]
        inner = torch.stack(products, 1)[self.places] / self.curvature
        others = matrix.index_fill(1, self.index, 0)
        return inner + super().hessian(others) if bool(others.any()) else inner


class _AffineFace(_HullFace):
    """The projection onto the affine hull of a support.

    Parameters
    ----------
    basis : (R, K, m) Tensor
        Directions of the affine hull, 0 beyond its dimension.
    factor : (R, K, K) Tensor
        The Cholesky factors of the inner products of the basis, with 1 on the diagonal for directions of 0.
    """

    def __init__(self, inside: Tensor, curvature: float, index: Tensor, basis: Tensor, factor: Tensor) -> None:
        super().__init__(inside, curvature, index)
        self.basis, self.factor = basis, factor

    @classmethod
    def of(cls, inside: Tensor, curvature: float, index: Tensor, support: FactorSupport) -> _AffineFace:
        """Return the projection for the supports of one factor."""
        weights, parts = support.weights[:, 0], support.parts[:, 0]
        # One vertex is the origin. The differences to other vertices of an active set are linearly independent.
        best = weights.argmax(1)
        origin = parts.gather(1, best[:, None, None].expand(-1, 1, parts.shape[2]))
        basis = (parts - origin) * (weights > 0)[..., None]
        gram = basis @ basis.mT
        diagonal = gram.diagonal(dim1=1, dim2=2)
        diagonal.add_((diagonal == 0).to(gram))
        return cls(inside, curvature, index, basis, torch.linalg.cholesky_ex(gram)[0])

    def _coefficients(self, v: Tensor) -> Tensor:
        return torch.cholesky_solve(self.basis @ v, self.factor)

    def apply(self, v: Tensor) -> Tensor:
        inner = (self.basis.mT @ self._coefficients(v[:, self.index, None]))[..., 0] / self.curvature
        return super().apply(v).index_copy(1, self.index, inner)

    def hessian(self, matrix: Tensor) -> Tensor:
        columns = matrix[:, self.index].mT.expand(len(self.basis), -1, -1)
        inner = (self.basis @ columns).mT @ self._coefficients(columns)
        return super().hessian(matrix) + inner / self.curvature
