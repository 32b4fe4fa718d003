"""The solutions of programs over the local polytope, and their Jacobian."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .cardinality_program import CardinalitySolution
from .face_system import FaceSystem
from .factor_projections import FactorSupport
from .joint_flows import JointFlowSolution
from .local_polytope_scores import LocalPolytope

__all__ = ["LocalPolytopeResult", "jacobian_product"]


@dataclass
class LocalPolytopeResult:
    """The solutions of a batch.

    Attributes
    ----------
    mean : (B, n) Tensor
        The coordinates μ.
    additional : list of (B, F, a) Tensor
        The additional parts of each group.
    value : (B,) Tensor
        The objective at μ.
    gap : (B,) Tensor
        Upper bound of the difference between the maximum and the value.
    residual : (B,) Tensor
        The largest difference between a coordinate and a factor's copy.
    converged : (B,) bool Tensor
        Whether the instance met the tolerance.
    iterations : (B,) int64 Tensor
        The number of ADMM iterations; 0 for a direct method.
    oracle_calls : int
        The number of batched calls of oracles.
    supports : list of (rows, supports)
        The supports of the factors, for each part of the batch.
    direct : (rows, solution) or None
        The instances that a direct method has solved, without supports.
    """

    mean: Tensor
    additional: list[Tensor]
    value: Tensor
    gap: Tensor
    residual: Tensor
    converged: Tensor
    iterations: Tensor
    oracle_calls: int
    supports: list[tuple[Tensor, list[FactorSupport]]]
    direct: tuple[Tensor, CardinalitySolution | JointFlowSolution] | None = None


def jacobian_product(
    problem: LocalPolytope, result: LocalPolytopeResult, curvature: float, mean: Tensor, additional: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the products of cotangents with the Jacobian of the solution, on the supports.

    Parameters
    ----------
    problem : LocalPolytope
        The graph with the scores.
    result : LocalPolytopeResult
        The solutions.
    curvature : float
        The curvature, above 0.
    mean : (B, n) Tensor
        The cotangent of the coordinates.
    additional : list of (B, F, a) Tensor
        The cotangents of the additional parts.

    Returns
    -------
    theta : (B, n) Tensor
        The product for the scores of the coordinates.
    additional : list of (B, F, a) Tensor
        The products for the additional scores.
    """
    # A variable of no factor is its score over the curvature, cut to [0, 1].
    inside = (problem.degree == 0) & (result.mean > 0) & (result.mean < 1)
    theta, others = torch.where(inside, mean / curvature, 0.0), [torch.zeros_like(a) for a in additional]
    if result.direct is not None:
        rows, solution = result.direct
        found, more = solution.vjp(mean, additional)
        theta[rows] = torch.where(problem.degree == 0, theta[rows], found[rows])
        for own, one in zip(others, more, strict=True):
            own[rows] = one[rows]
    for rows, supports in result.supports:
        fixed = problem.forbidden[rows] | (problem.degree == 0)
        inverse = (~fixed).double() / curvature
        system = FaceSystem(problem.groups, supports, inverse, problem.degree, [s.weights > 0 for s in supports])
        found, more = system.vjp(mean[rows], [a[rows] for a in additional])
        theta[rows] += found
        for own, one in zip(others, more, strict=True):
            own[rows] = one
    return theta, others
