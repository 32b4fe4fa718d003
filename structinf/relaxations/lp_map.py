"""lp_map: the linear program over the local polytope of a factor graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from typing_extensions import Self

from .. import autograd
from ..factor_graphs import FactorGraph
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..relaxation import zero_omega
from ..shapes import Float
from ..solution import Solution
from ..solvers.branch_and_bound import branch_and_bound, check_structures
from ..solvers.convergence import OnFailure, check_stopping, report_nonconvergence
from ..solvers.local_polytope_result import LocalPolytopeResult
from ..solvers.local_polytope_scores import LocalPolytope
from ..validation import check_natural
from .local_polytope import LocalPolytopeRelaxation
from .map import with_zero_gradient

__all__ = ["LPMAP"]


@dataclass(frozen=True, kw_only=True)
class LPMAP(LocalPolytopeRelaxation):
    """argmax ⟨θ, μ⟩ over the local polytope of a factor graph, the linear relaxation of the best structure.

    The local polytope holds all μ that are, for each factor, a mean of the factor's structures. If the mean has no
    fractions, it is the best structure. Otherwise the value is an upper bound of the best score. The field
    ``integral`` of the solution says which case holds.

    The solver is AD3, alternating directions dual decomposition, with an exact last step: it solves the optimality
    conditions on the supports of the factors, and one more call of the oracles bounds the error.

    The result is piecewise constant: its gradient is 0. As a loss (Ω = 0) it is the perceptron over the local
    polytope, and with a cost the structured SVM, both upper bounds of the losses of ``map``.

    Parameters
    ----------
    tolerance : float
        An instance is finished once the gap is at most ``tolerance`` times the scale of the scores. 0 solves to
        rounding errors, or to 1e-9 by branch and bound.
    max_iter : int
        Maximal number of iterations, at least 1.
    node_limit : int
        The number of further linear programs, at most, for an instance whose mean has fractions. They are the nodes of
        branch and bound, which fixes variables to 0 and 1 until it has the best structure. They are solved in
        pairs, so that their number may be higher by 1. 0, the default, returns the mean with fractions.
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances that miss the tolerance, or for which ``node_limit`` is too low: a ConvergenceWarning,
        a ConvergenceError, or nothing.

    References
    ----------
    A. Martins, M. Figueiredo, P. Aguiar, N. Smith & E. Xing, AD3: Alternating directions dual decomposition for MAP
    inference in graphical models, JMLR 16, 2015.

    Examples
    --------
    Three variables should all differ, but two of them are always equal. The best structures score −1, and the mean with
    fractions scores 0:

    >>> import structinf as si, torch
    >>> graph = si.FactorGraph(3)
    >>> for pair in ([0, 1], [1, 2], [2, 0]):
    ...     graph.add("pair", pair)
    >>> differ = torch.tensor([[-1.0, 0.0], [0.0, -1.0]])
    >>> theta = torch.zeros(3), differ, differ, differ
    >>> solution = si.infer(theta, graph, LPMAP())
    >>> solution.mean[0], solution.value, solution.integral
    (tensor([0.5000, 0.5000, 0.5000]), tensor(0.), tensor(False))

    Branch and bound finds a best structure:

    >>> si.infer(theta, graph, LPMAP(node_limit=100)).value
    tensor(-1.)
    """

    tolerance: float = 1e-6
    max_iter: int = 5000
    node_limit: int = 0
    on_failure: OnFailure = "warn"

    name = "lp_map"
    search_terms = ("ad3", "dual_decomposition", "local_polytope")

    def __post_init__(self) -> None:
        check_stopping(self.max_iter, self.tolerance, self.on_failure)
        check_natural("node_limit", self.node_limit, 0)

    @property
    def piecewise_constant(self) -> bool:
        return True

    def exact(self) -> Self:
        return replace(self, tolerance=0.0)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        problem, result, integral = self._best(cast(FactorGraph, oracle), theta)
        mean = problem.as_parts(result.mean, result.additional)
        value = result.value.to(problem.dtype)
        return Solution(
            mean=with_zero_gradient(mean, theta),
            value=autograd.attach_envelope_gradient(value, theta, mean),
            gap=result.gap.to(problem.dtype),
            residual=result.residual.to(problem.dtype),
            converged=result.converged,
            integral=integral,
            oracle_calls=result.oracle_calls,
        )

    def _best(self, graph: FactorGraph, theta: Parts) -> tuple[LocalPolytope, LocalPolytopeResult, Tensor]:
        """Return the scores, the solution, and whether the mean has no fractions, (B,)."""
        problem, result = self._run(graph, theta, curvature=0.0)
        integral = _is_integral(problem.as_parts(result.mean, result.additional))
        if self.node_limit and not bool(integral.all()):
            with torch.no_grad():
                result, infeasible = branch_and_bound(
                    graph.grouped_factors,
                    map_parts(Tensor.detach, theta),
                    result,
                    tolerance=self.tolerance,
                    max_iter=self.max_iter,
                    node_limit=self.node_limit,
                )
            check_structures(infeasible)
            integral = _is_integral(problem.as_parts(result.mean, result.additional))
            if not bool(result.converged.all()):
                index = int((~result.converged).nonzero()[0, 0])
                report_nonconvergence(
                    f"{self.label()} of {graph.label()} stopped after {self.node_limit} nodes at batch index {index}: "
                    f"the best score may be larger by {float(result.gap[index]):.3g}; raise node_limit",
                    self.on_failure,
                )
        return problem, result, integral

    def conjugate(self, oracle: Oracle, theta: Parts) -> Float[Tensor, " batch"]:
        """Return max ⟨θ, μ⟩, (B,); its gradient is the mean."""
        problem, result, _ = self._best(cast(FactorGraph, oracle), theta)
        # The upper bound keeps losses at least 0 up to rounding.
        bound = (result.value + result.gap).to(problem.dtype)
        return autograd.attach_envelope_gradient(bound, theta, problem.as_parts(result.mean, result.additional))

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """Return 0, (B,)."""
        return zero_omega(y)


def _is_integral(mean: Parts) -> Tensor:
    """Return whether an instance's parts have no fractions, (B,)."""
    return torch.stack([(t == t.round()).flatten(1).all(1) for t in as_tuple(mean)]).all(0)
