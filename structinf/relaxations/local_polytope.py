"""Base class of lp_map and lp_sparsemap, relaxations over the local polytope of a factor graph."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..factor_graphs import FactorGraph
from ..oracle import Oracle
from ..parts import Parts, map_parts
from ..relaxation import RegularizedRelaxation
from ..solvers.convergence import OnFailure, report_unconverged
from ..solvers.local_polytope import solve_local_polytope
from ..solvers.local_polytope_result import LocalPolytopeResult
from ..solvers.local_polytope_scores import LocalPolytope

__all__ = ["LocalPolytopeRelaxation"]


class LocalPolytopeRelaxation(RegularizedRelaxation):
    """argmax ⟨θ, μ⟩ − Ω(μ) over the local polytope of a factor graph, for Ω = 0 or a squared norm.

    Attributes
    ----------
    tolerance : float
        The tolerance of the solver.
    max_iter : int
        Maximal number of iterations of ADMM. The direct methods, where they apply, take at most 60 steps.
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances that miss the tolerance.
    """

    requires = FactorGraph

    tolerance: float
    max_iter: int
    on_failure: OnFailure

    @property
    def mean_may_leave_hull(self) -> bool:
        return True

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        if isinstance(oracle, FactorGraph):
            return None
        return (
            f"{oracle.label()} is no FactorGraph; use {self.name.removeprefix('lp_')}, the same map for one structure"
        )

    def _run(
        self, oracle: FactorGraph, theta: Parts, *, curvature: float, additional_parts: bool = False
    ) -> tuple[LocalPolytope, LocalPolytopeResult]:
        with torch.no_grad():
            problem = LocalPolytope(oracle.grouped_factors, map_parts(Tensor.detach, theta), additional_parts)
            result = solve_local_polytope(
                problem, curvature=curvature, tolerance=self.tolerance, max_iter=self.max_iter
            )
        what = f"{self.label()} of {oracle.label()}"
        report_unconverged(what, result, self.max_iter, self.tolerance, self.on_failure)
        return problem, result

    def refuse_warm_start(self, warm_start: Parts | None) -> None:
        if warm_start is not None:
            raise UnsupportedError(f"{self.label()} takes no warm_start: its mean is no weighted sum of structures")
