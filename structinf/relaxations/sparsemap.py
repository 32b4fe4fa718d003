"""sparsemap: the quadratically regularised mean, a few structures with their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeGuard

import torch
from torch import Tensor

from .. import autograd
from ..oracle import Oracle, Projectable
from ..parts import Parts, as_tuple, divide_by_temperature, map_parts
from ..regularizers import check_temperature
from ..relaxation import RegularizedRelaxation
from ..shapes import Float
from ..solution import Solution
from ..solvers.active_set import ActiveSetSolution, active_set
from ..solvers.convergence import OnFailure, check_stopping, report_unconverged
from ..validation import check_choice

__all__ = ["SparseMAP"]


@dataclass(frozen=True, kw_only=True)
class SparseMAP(RegularizedRelaxation):
    """argmax ⟨θ, μ⟩ − ½ temperature ‖μ‖² over μ ∈ conv(Y), by the active-set method.

    The mean is a weighted sum of a few structures. Its gradient, and that of the weights, is the
    generalised Jacobian on these structures, exact wherever the support is locally constant.

    Parameters
    ----------
    penalty : "all" or "readout"
        Penalise all parts (the Euclidean projection of θ / temperature onto conv(Y)), or only
        those that ``oracle.readout`` keeps, as first published (a chain's unary parts).
    temperature : float
        Above 0; smaller is closer to the argmax.
    tolerance : float
        The solver stops on a duality gap below this, relative to the scores' scale.
    max_iter : int
        Most calls of the oracle after the first; at least 1.
    on_failure : "warn", "raise" or "ignore"
        What to do about instances that did not meet the tolerance.

    References
    ----------
    Niculae, Martins, Blondel & Cardie 2018, SparseMAP: Differentiable Sparse Structured Inference, §3.

    Examples
    --------
    >>> import structinf as si
    >>> solution = si.infer(torch.tensor([[0.9, 0.5], [0.2, 0.5]]), "assignment", SparseMAP())
    >>> solution.mean, solution.weights
    (tensor([[0.6750, 0.3250],
            [0.3250, 0.6750]]), tensor([0.6750, 0.3250]))
    """

    penalty: Literal["all", "readout"] = "all"
    temperature: float = 1.0
    tolerance: float = 1e-12
    max_iter: int = 1000
    on_failure: OnFailure = "warn"

    name = "sparsemap"

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_choice("penalty", self.penalty, ("all", "readout"))
        check_stopping(self.max_iter, self.tolerance, self.on_failure)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        scaled = divide_by_temperature(theta, self.temperature)
        result = self._run(oracle, scaled, warm_start)
        mean, weights = self._attach(result, oracle, scaled)
        value = result.value if self.temperature == 1 else result.value * self.temperature
        return Solution(
            mean=mean,
            value=autograd.attach_envelope_gradient(value, theta, mean),
            weights=weights,
            gap=result.gap * self.temperature,
            converged=result.converged,
            oracle_calls=result.oracle_calls,
            make_support=result.support,
        )

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        scaled = divide_by_temperature(theta, self.temperature)
        if self._has_closed_form(oracle):
            return oracle.project(scaled)
        return self._attach(self._run(oracle, scaled, None), oracle, scaled)[0]

    def conjugate(self, oracle: Oracle, theta: Parts) -> Float[Tensor, " batch"]:
        """max ⟨θ, μ⟩ − ½ temperature ‖μ‖², (B,)."""
        if not self._has_closed_form(oracle):
            return self.solve(oracle, theta).value
        return self._conjugate_at(self.mean(oracle, theta), oracle, theta)

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """½ temperature ‖y‖² over the penalised parts, (B,)."""
        penalised = oracle.readout(y) if self.penalty == "readout" else y
        squares = [t.square().flatten(1).sum(1) for t in as_tuple(penalised)]
        return 0.5 * self.temperature * torch.stack(squares).sum(0)

    def _has_closed_form(self, oracle: Oracle) -> TypeGuard[Projectable]:
        penalises_all = self.penalty == "all" or type(oracle).readout is Oracle.readout
        return penalises_all and isinstance(oracle, Projectable)

    def _attach(self, result: ActiveSetSolution, oracle: Oracle, scaled: Parts) -> tuple[Parts, Tensor]:
        return autograd.attach_vjp(result, scaled, f"{self.label()} of {oracle.label()}")

    def _run(self, oracle: Oracle, theta: Parts, warm_start: Parts | None) -> ActiveSetSolution:
        with torch.no_grad():
            result = active_set(
                oracle,
                map_parts(torch.Tensor.detach, theta),
                readout=self.penalty == "readout",
                tolerance=self.tolerance,
                max_iter=self.max_iter,
                warm_start=warm_start,
            )
        what = f"{self.label()} of {oracle.label()}"
        report_unconverged(what, result, self.max_iter, self.tolerance, self.on_failure)
        return result
