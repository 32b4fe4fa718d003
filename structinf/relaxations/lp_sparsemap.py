"""lp_sparsemap: the quadratically regularized mean over the local polytope of a factor graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor
from typing_extensions import Self

from .. import autograd
from ..factor_graphs import FactorGraph
from ..oracle import Oracle
from ..parts import Parts, as_tuple, divide_by_temperature
from ..regularizers import check_temperature
from ..shapes import Float
from ..solution import Solution
from ..solvers.convergence import OnFailure, check_stopping
from ..solvers.direct_mean import DirectMean
from ..solvers.local_polytope_result import LocalPolytopeResult, jacobian_product
from ..solvers.local_polytope_scores import LocalPolytope
from ..validation import check_choice
from .local_polytope import LocalPolytopeRelaxation

__all__ = ["LPSparseMAP"]


@dataclass(frozen=True, kw_only=True)
class LPSparseMAP(LocalPolytopeRelaxation):
    """argmax ⟨θ, μ⟩ − ½ temperature ‖μ‖² over the local polytope of a factor graph.

    Each variable is penalised once, whatever the number of its factors. The local polytope holds all μ that are, for
    each factor, a mean of the factor's structures. It contains conv(Y), and equals conv(Y) if the graph has no cycle,
    or a single factor without repeated variables; the mean is then that of ``sparsemap``. In general, the local
    polytope also has vertices with fractions.

    If all factors but one are bounds of sums of variables, Newton's method solves the dual. If all factors are
    recursions, such as chains, an interior-point method on the CPU solves the program over their flows. Otherwise the
    solver is ADMM over batches of all factors with the same oracle. At intervals, it solves the optimality conditions
    on the supports of the factors, and one more call of the oracles bounds the error. The gradient is the Jacobian on
    the supports, or on the face of the flows.

    Parameters
    ----------
    penalty : "readout" or "all"
        The penalised parts. "readout" penalises the variables, "all" also the additional parts of factors, such as a
        chain's transitions.
    temperature : float
        Positive factor of the penalty.
    tolerance : float
        Bound of the error ‖μ − μ*‖ over the penalised parts, relative to ‖μ‖ or 1. 0 solves to rounding errors.
    max_iter : int
        Maximal number of iterations of ADMM, at least 1.
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances that miss the tolerance: a ConvergenceWarning, a ConvergenceError, or nothing.

    References
    ----------
    V. Niculae & A. Martins, LP-SparseMAP: Differentiable relaxed optimization for sparse structured prediction, ICML
    2020.

    Examples
    --------
    Exactly two of four items, and at most one of the first two:

    >>> import structinf as si
    >>> graph = si.FactorGraph(4)
    >>> graph.add("subset", graph.variables, k=2)
    >>> graph.add("at_most_one", graph.variables[:2])
    >>> si.relax(torch.tensor([1.0, 0.8, 0.5, 0.3]), graph, LPSparseMAP())
    tensor([0.6000, 0.4000, 0.6000, 0.4000])
    """

    penalty: Literal["readout", "all"] = "readout"
    temperature: float = 1.0
    tolerance: float = 1e-6
    max_iter: int = 5000
    on_failure: OnFailure = "warn"

    name = "lp_sparsemap"
    search_terms = ("factor_graph", "admm")

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_choice("penalty", self.penalty, ("readout", "all"))
        check_stopping(self.max_iter, self.tolerance, self.on_failure)

    def exact(self) -> Self:
        return replace(self, tolerance=0.0)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        scaled = divide_by_temperature(theta, self.temperature)
        result, direct = self._solve(cast(FactorGraph, oracle), scaled)
        mean = self._attach_gradient(direct, oracle, scaled)
        dtype = as_tuple(theta)[0].dtype
        return Solution(
            mean=mean,
            value=autograd.attach_envelope_gradient(self.temperature * direct.value, theta, mean),
            gap=self.temperature * direct.gap,
            residual=result.residual.to(dtype),
            converged=result.converged,
            oracle_calls=result.oracle_calls,
        )

    def conjugate(self, oracle: Oracle, theta: Parts) -> Float[Tensor, " batch"]:
        """Return max ⟨θ, μ⟩ − ½ temperature ‖μ‖², (B,)."""
        scaled = divide_by_temperature(theta, self.temperature)
        _, direct = self._solve(cast(FactorGraph, oracle), scaled)
        mean = self._attach_gradient(direct, oracle, scaled)
        # The upper bound keeps losses at least 0 up to rounding.
        return autograd.attach_envelope_gradient(self.temperature * (direct.value + direct.gap), theta, mean)

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """Return ½ temperature ‖y‖² over the penalised parts, (B,)."""
        penalised = as_tuple(y) if self.penalty == "all" else as_tuple(y)[:1]
        return 0.5 * self.temperature * torch.stack([t.square().flatten(1).sum(1) for t in penalised]).sum(0)

    def _attach_gradient(self, direct: DirectMean, oracle: Oracle, scaled: Parts) -> Parts:
        return autograd.attach_vjp_to_mean(direct.without_support(), scaled, f"{self.label()} of {oracle.label()}")

    def _solve(self, oracle: FactorGraph, theta: Parts) -> tuple[LocalPolytopeResult, DirectMean]:
        """Return the solver's result for θ / temperature, and the mean with its gradient in the form of θ."""
        problem, result = self._run(oracle, theta, curvature=1.0, additional_parts=self.penalty == "all")
        direct = DirectMean(
            mean=problem.as_parts(result.mean, result.additional),
            value=result.value.to(problem.dtype),
            gap=result.gap.to(problem.dtype),
            converged=result.converged,
            vjp=lambda cotangent: _vjp(problem, result, cotangent),
            oracle_calls=result.oracle_calls,
        )
        return result, direct


def _vjp(problem: LocalPolytope, result: LocalPolytopeResult, cotangent: Parts) -> Parts:
    """Return the product of a cotangent (B, *event) with the Jacobian of the mean."""
    return problem.as_parts(*jacobian_product(problem, result, 1.0, *problem.from_parts(cotangent)))
