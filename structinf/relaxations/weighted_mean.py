"""Base class of sparsemap and frank_wolfe, whose solvers return the mean as a weighted sum of structures."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import Self

from .. import autograd
from ..errors import renumber_instances
from ..oracle import Oracle
from ..parts import Parts, divide_by_temperature, map_parts, multiply_by_temperature, select_rows
from ..relaxation import RegularizedRelaxation
from ..shapes import Float
from ..solution import Solution
from ..solvers.convergence import IterativeResult, OnFailure, report_unconverged
from ..solvers.direct_mean import DirectMean, complete
from ..solvers.weighted_mean import WeightedMeanResult

__all__ = ["WeightedMeanRelaxation"]


class WeightedMeanRelaxation(RegularizedRelaxation):
    """argmax ⟨θ, μ⟩ − temperature · Ω(μ) over μ ∈ conv(Y), by a solver or by the oracle's closed form.

    Attributes
    ----------
    temperature : float or Tensor
        Positive factor of Ω.
    tolerance : float
        Tolerance of the solver's duality gap.
    max_iter : int
        Maximal number of the solver's iterations.
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances that miss the tolerance.
    """

    temperature: float | Tensor
    tolerance: float
    max_iter: int
    on_failure: OnFailure

    @abc.abstractmethod
    def _closed_form(self, oracle: Oracle) -> Callable[[Parts], Parts] | None:
        """Return the oracle's closed form of the mean as a function of θ / temperature, or None."""

    def _run_direct_solver(self, oracle: Oracle, scaled: Parts) -> DirectMean | None:
        """Run a solver that needs no structures on ``scaled`` = θ / temperature; None if no such solver applies."""
        return None

    @abc.abstractmethod
    def _run_solver(self, oracle: Oracle, scaled: Parts, options: dict[str, Any]) -> WeightedMeanResult:
        """Run the solver on ``scaled`` = θ / temperature with the options tolerance, max_iter and warm_start."""

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        scaled = divide_by_temperature(theta, self.temperature)
        result = self._result(oracle, scaled, warm_start)
        mean, weights = self._attach_gradient(result, oracle, scaled)
        return Solution(
            mean=mean,
            value=self._attach_envelope(result.value, theta, scaled, mean),
            weights=weights,
            gap=multiply_by_temperature(result.gap, self.temperature).detach(),
            converged=result.converged,
            oracle_calls=result.oracle_calls,
            make_support=result.support,
        )

    def defers_checks(self, oracle: Oracle) -> bool:
        return self._closed_form(oracle) is not None

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        scaled = divide_by_temperature(theta, self.temperature)
        closed_form = self._closed_form(oracle)
        if closed_form is not None:
            return closed_form(scaled)
        return self._mean_and_maximum(oracle, scaled)[0]

    def conjugate(self, oracle: Oracle, theta: Parts) -> Float[Tensor, " batch"]:
        """Return max ⟨θ, μ⟩ − temperature · Ω(μ), (B,)."""
        if self._closed_form(oracle) is None:
            scaled = divide_by_temperature(theta, self.temperature)
            mean, maximum = self._mean_and_maximum(oracle, scaled)
            return self._attach_envelope(maximum, theta, scaled, mean)
        if isinstance(self.temperature, Tensor):
            scaled, unit = divide_by_temperature(theta, self.temperature), self._at_temperature_1()
            return multiply_by_temperature(unit.conjugate(oracle, scaled), self.temperature)
        return self._conjugate_at(self.mean(oracle, theta), oracle, theta)

    def _at_temperature_1(self) -> Self:
        return replace(cast(Any, self), temperature=1.0)

    def _attach_envelope(self, maximum: Tensor, theta: Parts, scaled: Parts, mean: Parts) -> Tensor:
        """Return the value temperature · ``maximum`` with its gradient, for the maximum at ``scaled``."""
        if isinstance(self.temperature, Tensor):
            return multiply_by_temperature(autograd.attach_envelope_gradient(maximum, scaled, mean), self.temperature)
        return autograd.attach_envelope_gradient(self.temperature * maximum, theta, mean)

    def _estimate_maximum(self, value: Tensor, gap: Tensor) -> Tensor:
        """Return an estimate of the maximum of the objective, which lies between ``value`` and ``value`` + ``gap``."""
        return value

    def _mean_and_maximum(self, oracle: Oracle, scaled: Parts) -> tuple[Parts, Tensor]:
        """Return the mean with its gradient, and an estimate of max ⟨scaled, μ⟩ − Ω(μ), (B,)."""
        detached = map_parts(torch.Tensor.detach, scaled)
        with torch.no_grad():
            direct = self._run_direct_solver(oracle, detached)
            if direct is not None and not direct.all_converged:
                direct = complete(direct, lambda rows: self._solve_rows(oracle, detached, rows))
                self._report(oracle, direct)
        result = self._result(oracle, scaled) if direct is None else direct
        differentiable = result if isinstance(result, WeightedMeanResult) else result.without_support()
        mean, _ = self._attach_gradient(differentiable, oracle, scaled)
        return mean, self._estimate_maximum(result.value, result.gap)

    def _attach_gradient(self, result: autograd.WeightedMean, oracle: Oracle, scaled: Parts) -> tuple[Parts, Tensor]:
        return autograd.attach_vjp(result, scaled, f"{self.label()} of {oracle.label()}")

    def _result(self, oracle: Oracle, scaled: Parts, warm_start: Parts | None = None) -> WeightedMeanResult:
        result = self._solve(oracle, map_parts(torch.Tensor.detach, scaled), warm_start)
        self._report(oracle, result)
        return result

    def _solve(self, oracle: Oracle, scaled: Parts, warm_start: Parts | None = None) -> WeightedMeanResult:
        options = {"tolerance": self.tolerance, "max_iter": self.max_iter, "warm_start": warm_start}
        with torch.no_grad():
            return self._run_solver(oracle, scaled, options)

    def _solve_rows(self, oracle: Oracle, scaled: Parts, rows: Tensor) -> WeightedMeanResult:
        """Return the result of :meth:`_solve` for the instances ``rows``."""
        with renumber_instances(rows):
            return self._solve(oracle[rows], select_rows(scaled, rows))

    def _report(self, oracle: Oracle, result: IterativeResult) -> None:
        what = f"{self.label()} of {oracle.label()}"
        report_unconverged(what, result, self.max_iter, self.tolerance, self.on_failure)
