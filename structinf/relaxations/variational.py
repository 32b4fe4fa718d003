"""The base class of relaxations that approximate the sums of a model of discrete variables."""

from __future__ import annotations

import abc
from typing import Any, cast

import torch
from torch import Tensor

from .. import autograd
from ..oracle import Factorized, GibbsOracle, Oracle
from ..parts import Parts, as_tuple
from ..relaxation import GradientRelaxation
from ..solution import Solution
from ..solvers.convergence import OnFailure, report_nonconvergence
from ..solvers.factor_groups import Layout, find_layout
from ..solvers.fixed_point import FixedPoint
from ..solvers.graph_factors import GraphFactors
from ..solvers.stationary_value import StationaryValue

__all__ = ["VariationalRelaxation"]


class VariationalRelaxation(GradientRelaxation):
    """A relaxation whose value is stationary in approximate marginals, which are hence its gradient."""

    requires = Factorized

    temperature: Any
    tolerance: Any
    max_iter: Any
    on_failure: Any

    def missing_sums(self, factors: GraphFactors) -> str | None:
        """Return the reason why a factor of a graph has no sums over its structures, as a clause; None if all have."""
        for group in factors.groups:
            if not isinstance(group.oracle, GibbsOracle):
                name = factors.names[group.numbers[0]].rstrip(",")
                return f"{name} has no log_partition; lp_map and lp_sparsemap need only its argmax"
        return None

    @abc.abstractmethod
    def solver(self, oracle: Oracle, layout: Layout) -> StationaryValue:
        """Return a new solver, which calls :meth:`report` once."""

    @property
    def value_may_miss_maximum(self) -> bool:
        return True

    def defers_checks(self, oracle: Oracle) -> bool:
        return False  # the iteration reads values

    def convex_function(self, oracle: Oracle) -> autograd.ConvexFunction:
        """Return the value with its derivatives of first and second order."""
        return self._function(self._solver(oracle))

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        solver, scaled = self._solver(oracle), self._scaled(theta)
        value, mean = autograd.value_and_gradient(self._function(solver), scaled)
        status = solver.status(scaled)
        return Solution(
            mean=mean,
            value=self._unscaled(value),
            residual=status.residual.to(as_tuple(theta)[0].dtype),
            converged=status.converged,
        )

    def report(self, oracle: Oracle, status: FixedPoint, remedy: str) -> None:
        """Report the instances that did not converge; ``remedy`` says what to do, as a clause."""
        missed = ~status.converged
        if self.on_failure == "ignore" or not bool(missed.any()):
            return
        worst = int(torch.where(missed, status.residual, -1).argmax())
        failure: OnFailure = self.on_failure
        report_nonconvergence(
            f"{self.label()} of {oracle.label()}: {int(missed.sum())} of {len(missed)} instances missed the tolerance "
            f"{self.tolerance:g} within {self.max_iter} iterations, the worst at batch index {worst} with a change of "
            f"{status.residual[worst].item():.2e} in the last iteration; {remedy}",
            failure,
        )

    def _solver(self, oracle: Oracle) -> StationaryValue:
        return self.solver(oracle, find_layout(*cast(Factorized, oracle).factorization()))

    def _function(self, solver: StationaryValue) -> autograd.ConvexFunction:
        def value(theta: Parts) -> Tensor:
            found = solver.value(theta)
            if torch.is_grad_enabled() and any(t.requires_grad for t in as_tuple(theta)):
                message = f"{self.label()} offers second derivatives of its value only; use the relaxation marginals"
                return autograd.raise_on_backward(found, theta, message)
            return found

        return autograd.ConvexFunction(
            value, solver.gradient, solver.value_and_gradient, solver.vjp, solver.hessian_product
        )
