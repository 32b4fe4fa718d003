"""Constraint programs: CP-SAT models, solved repeatedly with different scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from structinf.errors import InvalidInputError
from structinf.kernels.interrupts import call_interruptibly
from structinf.shapes import Int64
from structinf.solver_oracle import Outcome, SolverOracle
from structinf.validation import MOST_ENUMERATED, check_enumerable

from .integer_solver import integer_scores

__all__ = ["Bounds", "ConstraintProgram", "load_cp_model", "tightened"]

# CP-SAT requires objectives within half of the int64 range for all values of the variables.
MOST_OBJECTIVE = 2**60
# Leaves at least 29 bits of the objective for the differences of scores.
MOST_VALUE = 2**31
# The size of the cache of checked structures.
MOST_CHECKED = 4096


Bounds = tuple[np.ndarray, np.ndarray] | None
"""The least and the largest values of all parts, or None."""


def tightened(low: np.ndarray, high: np.ndarray, bounds: tuple[np.ndarray, np.ndarray]) -> Any:
    """Return the larger lower bounds and the smaller upper bounds."""
    return np.maximum(low, bounds[0]), np.minimum(high, bounds[1])


def load_cp_model() -> Any:
    """Return the ortools module for CP-SAT models; ImportError with the command to install ortools."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError("CP-SAT needs ortools; run pip install ortools") from error
    return cp_model


class ConstraintProgram:
    """A CP-SAT model without an objective, some of whose variables are the parts of a structure.

    Parameters
    ----------
    model : ortools.sat.python.cp_model.CpModel
        The model with all constraints.
    variables : sequence
        The d parts: variables of the model, negations of 0/1 variables, or integers for constant parts.

    Attributes
    ----------
    low, high : (d,) int64 array
        The least and the largest value of each part.
    """

    def __init__(self, model: Any, variables: Sequence[Any]) -> None:
        self.model, self.variables = model, list(variables)
        if model.has_objective():
            raise InvalidInputError("the model has an objective; remove it, as theta defines the objective")
        if fault := model.validate():
            raise InvalidInputError(f"CP-SAT refuses the model: {fault}")
        # Part i is offset + sign · variable[index]. The sign is 0 for a constant part.
        rows = [self._described(i, variable) for i, variable in enumerate(self.variables)]
        self._index, self._sign, self._offset, low, high = np.array(rows, np.int64).reshape(-1, 5).T
        ends = self._offset + self._sign * np.stack([low, high])
        self.low, self.high = ends.min(0), ends.max(0)
        self._checked: dict[tuple[int, ...], Outcome] = {}

    def _described(self, i: int, variable: Any) -> tuple[int, int, int, int, int]:
        """Return the index, sign, offset, and the least and the largest value of part i."""
        if isinstance(variable, Integral):
            _check_values(i, int(variable), int(variable))
            return 0, 0, int(variable), 0, 0
        if not hasattr(variable, "negated"):
            raise InvalidInputError(
                "variables must be variables of the model, negations of 0/1 variables, or integers, got "
                f"{variable!r} at index {i}; for an expression, add a variable equal to the expression"
            )
        is_plain = isinstance(variable, load_cp_model().IntVar)
        plain = variable if is_plain else variable.negated()
        index, own = int(plain.index), self.model.proto
        if index >= len(own.variables) or getattr(plain, "model_proto", own) is not own:
            raise InvalidInputError(
                f"variables: {variable!r} at index {i} belongs to another model; return variables of the returned model"
            )
        domain = list(self.model.proto.variables[index].domain)
        _check_values(i, domain[0], domain[-1])
        return index, 1 if is_plain else -1, 0 if is_plain else 1, domain[0], domain[-1]

    def maximise(self, scores: np.ndarray, oracle: SolverOracle, bounds: Bounds = None) -> Outcome:
        """Return a solution of highest score, for scores (d,); a score of −inf fixes a part to 0.

        Parameters
        ----------
        scores : (d,) array
            The score of each part.
        oracle : SolverOracle
            The oracle, read for its limits.
        bounds : pair of (d,) array, optional
            Further bounds of the parts.
        """
        allowed = ~np.isneginf(scores)
        low, high = (self.low, self.high) if bounds is None else tightened(self.low, self.high, bounds)
        if ((low > 0) | (high < 0))[~allowed].any() or (low > high).any():
            return Outcome("infeasible")
        scored = np.flatnonzero(allowed & (self._sign != 0))
        weights = integer_scores(scores[scored], MOST_OBJECTIVE, np.maximum(-self.low, self.high)[scored])
        terms, weights = scored[weights != 0], weights[weights != 0]
        model = self.model.clone()
        for i in np.flatnonzero(~allowed & (self._sign != 0)):
            model.add(self.variables[i] == 0)
        for i in np.flatnonzero(allowed & (self._sign != 0) & ((low > self.low) | (high < self.high))):
            model.add_linear_constraint(self.variables[i], int(low[i]), int(high[i]))
        if len(terms):
            parts = [self.variables[i] for i in terms]
            model.maximize(load_cp_model().LinearExpr.weighted_sum(parts, weights.tolist()))
        return self._solve(model, oracle)

    def check(self, values: tuple[int, ...], oracle: SolverOracle) -> Outcome:
        """Return whether the parts can have these ``values``; if not, the outcome has the status "infeasible"."""
        outcome = self._checked.get(values)  # a loss checks the same structures in every epoch
        if outcome is None:
            outcome = self._check(values, oracle)
            if outcome.status != "limit":
                if len(self._checked) >= MOST_CHECKED:
                    self._checked.clear()
                self._checked[values] = outcome
        return outcome

    def _check(self, values: tuple[int, ...], oracle: SolverOracle) -> Outcome:
        if (np.array(values) < self.low).any() or (np.array(values) > self.high).any():
            return Outcome("infeasible")
        model = self.model.clone()
        for variable, value, sign in zip(self.variables, values, self._sign, strict=True):
            if sign:
                model.add(variable == value)
        return self._solve(model, oracle)

    def solutions(self, what: str) -> Int64[np.ndarray, "solutions parts"]:
        """Return all joint values of the parts; InvalidInputError if the model has too many solutions."""
        cp_model = load_cp_model()
        found: list[list[int]] = []
        parts = self.variables

        class Collector(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                found.append([self.value(part) for part in parts])
                if len(found) > MOST_ENUMERATED:
                    self.stop_search()

        solver = _new_solver()
        solver.parameters.enumerate_all_solutions = True
        call_interruptibly(lambda: solver.solve(self.model, Collector()), solver.stop_search)
        check_enumerable(len(found), what)
        return np.unique(np.array(found, np.int64).reshape(-1, len(parts)), axis=0)

    def _solve(self, model: Any, oracle: SolverOracle) -> Outcome:
        cp_model = load_cp_model()
        solver = _new_solver()
        solver.parameters.random_seed = int(oracle.seed)
        solver.parameters.relative_gap_limit = float(oracle.gap)
        if oracle.time_limit is not None:
            solver.parameters.max_time_in_seconds = float(oracle.time_limit)
        status = call_interruptibly(lambda: solver.solve(model), solver.stop_search)
        if status == cp_model.INFEASIBLE:
            return Outcome("infeasible")
        if status == cp_model.UNKNOWN:
            return Outcome("limit")
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            raise InvalidInputError(f"CP-SAT refuses the model: {model.validate()}")
        values = self._offset + self._sign * np.array([*solver.response_proto.solution, 0], np.int64)[self._index]
        if status == cp_model.OPTIMAL:
            return Outcome("best", values)
        score, bound = solver.objective_value, solver.best_objective_bound
        return Outcome("limit", values, abs(bound - score) / abs(score) if score else math.inf)


def _new_solver() -> Any:
    solver = load_cp_model().CpSolver()
    solver.parameters.num_workers = 1  # a single thread makes the solver deterministic
    # CP-SAT's own handler of Ctrl-C would end the search as a time limit does, and Python would not see the signal.
    solver.parameters.catch_sigint_signal = False
    return solver


def _check_values(i: int, low: int, high: int) -> None:
    if max(-low, high) > MOST_VALUE:
        raise InvalidInputError(
            f"variables must take values within ±2^31, got the range {low} to {high} at index {i}; restrict the domain"
        )
