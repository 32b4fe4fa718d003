"""Oracles of Pyomo models."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..errors import InvalidInputError
from ..solver_oracle import OnLimit, Outcome
from .model_oracle import ModelOracle, SolverModel, as_variable_array, import_package, limited

__all__ = ["PyomoModel", "from_pyomo"]

_GAP_OPTIONS = {"highs": "mip_rel_gap", "gurobi": "MIPGap", "glpk": "mipgap", "cbc": "ratioGap", "scip": "limits/gap"}
"""The option of each solver for the relative gap, by a part of the solver's name."""

_UNREAD = ("Arc", "Complementarity", "Disjunct", "Disjunction", "LogicalConstraint")
"""Types of components that a transformation replaces by constraints, and that solvers leave out."""


def from_pyomo(
    model: Any,
    variables: Any = None,
    *,
    solver: str = "appsi_highs",
    time_limit: float | None = None,
    gap: float = 0.0,
    on_limit: OnLimit = "raise",
    solver_options: Mapping[str, Any] | None = None,
) -> ModelOracle:
    """Return the oracle of a Pyomo model, which maximises ⟨θ, x⟩ over the solutions x of the model.

    The oracle copies the model once. The copy has one objective with mutable parameters for θ, so that a persistent
    solver translates the model once. The oracle ignores the objective of the model. If the model minimises costs c,
    pass θ = −c.

    Parameters
    ----------
    model : pyomo.environ.ConcreteModel or callable
        The whole model, with its active blocks, or a function without arguments that returns the model and the
        variables. Only an oracle of a function can be pickled, for example for :func:`structinf.parallel`.
    variables : Var, mapping, or nested sequence of variables
        The variables that θ scores, in the shape of θ. An indexed Var has the shape (n,), in the order of its index.
        The model may have more variables.
    solver : str
        A name of ``pyomo.environ.SolverFactory``. The default needs the package highspy.
    time_limit : float, optional
        Seconds allowed for each instance. Default: no limit.
    gap : float
        The relative gap at which the solver may stop. Solvers other than HiGHS, Gurobi, GLPK, CBC and SCIP accept only
        the default, which leaves the gap of the solver.
    on_limit : {"raise", "warn"}
        Whether a solution that is not proved optimal raises SolverLimitError or gives a ConvergenceWarning.
    solver_options : mapping, optional
        Options of the solver by name.

    Returns
    -------
    ModelOracle
        The oracle, which supports the relaxations that need only the argmax.

    Raises
    ------
    ImportError
        If pyomo is not installed.
    InvalidInputError
        If ``variables`` are not variables of the model, the solver is not available, the model is a block of another
        model, or a component such as a Disjunction needs a transformation.
    InfeasibleError, UnboundedError, SolverLimitError
        In a call, with the batch index of the instance.

    Notes
    -----
    Solutions satisfy the constraints within the tolerances of the solver, and integer variables are rounded. A model
    without integer variables is translated for each instance: a persistent solver would start at the last basis, and
    its answer would depend on earlier calls.

    Examples
    --------
    At most two of three items:

    >>> import pyomo.environ as pyo  # doctest: +SKIP
    >>> model = pyo.ConcreteModel()  # doctest: +SKIP
    >>> model.x = pyo.Var(range(3), domain=pyo.Binary)  # doctest: +SKIP
    >>> model.most = pyo.Constraint(
    ...     expr=pyo.quicksum(model.x.values()) <= 2
    ... )  # doctest: +SKIP
    >>> oracle = from_pyomo(model, model.x)  # doctest: +SKIP
    """
    return ModelOracle(
        PyomoModel,
        model,
        variables,
        solver=solver,
        solver_options=solver_options,
        time_limit=time_limit,
        gap=gap,
        on_limit=on_limit,
    )


class PyomoModel(SolverModel):
    """A copy of a Pyomo model whose objective has mutable parameters."""

    package: ClassVar[str] = "pyomo"
    function: ClassVar[str] = "from_pyomo"
    extra: ClassVar[str] = "pyomo"

    @classmethod
    def is_model(cls, value: Any) -> bool:
        return isinstance(value, _pyomo().Block | import_package(PyomoModel, "pyomo.core.base.block").BlockData)

    def __init__(self, model: Any, variables: Any, solver: Any, solver_options: Mapping[str, Any]) -> None:
        pyo = _pyomo()
        if not model.is_constructed():
            raise InvalidInputError("model is abstract; call model.create_instance() first")
        if model.parent_block() is not None:
            raise InvalidInputError(
                f"model is the block {model.name} of another model; pass the whole model, with variables of the block"
            )
        for component in model.component_objects(active=True):
            kind = component.ctype.__name__
            if kind in _UNREAD:
                raise InvalidInputError(
                    f"model: solvers leave out the {kind} {component.name}; replace it by constraints first, with a "
                    'transformation of pyomo, for example pyo.TransformationFactory("gdp.bigm").apply_to(model) for '
                    "disjunctions"
                )
        array = as_variable_array(variables, lambda variable: _number(variable, model))
        self.shape = array.shape
        self._model = copy = model.clone()
        own = self._variables = [copy.find_component(variable) for variable in array.flat]
        for objective in copy.component_data_objects(pyo.Objective, active=True):
            objective.deactivate()
        unused = import_package(PyomoModel, "pyomo.common.modeling").unique_component_name
        self._scores = pyo.Param(range(len(own)), mutable=True, initialize=0.0)
        copy.add_component(unused(copy, "structinf_scores"), self._scores)
        total = sum(self._scores[i] * v for i, v in enumerate(own))
        copy.add_component(unused(copy, "structinf_objective"), pyo.Objective(expr=total, sense=pyo.maximize))
        bounds = [(v.value, v.value) if v.fixed else v.bounds for v in own]
        self.low = np.array([-math.inf if low is None else low for low, _ in bounds], np.float64)
        self.high = np.array([math.inf if high is None else high for _, high in bounds], np.float64)
        self.is_integer = np.array([v.is_integer() or v.is_binary() for v in own])
        self._is_fixed = np.array([v.fixed for v in own])
        self._has_integers = any(not v.is_continuous() for v in copy.component_data_objects(pyo.Var))
        self._solver_name, self._options = solver, dict(solver_options)
        self._solver = self._new_solver()

    def _new_solver(self) -> Any:
        name = self._solver_name
        if not isinstance(name, str):
            raise InvalidInputError(f'solver must be a name of SolverFactory, for example "appsi_highs", got {name!r}')
        log = import_package(PyomoModel, "pyomo.common.log")
        solver: Any = None
        with log.LoggingIntercept(module="pyomo"), contextlib.suppress(Exception):  # an unknown solver logs its error
            solver = _pyomo().SolverFactory(name)
            solver = solver if solver.available(exception_flag=False) else None
        if solver is None:
            raise InvalidInputError(
                f'solver="{name}" is not available to pyomo; install the solver, for example by pip install highspy '
                'for "appsi_highs"'
            )
        return solver

    def solve(self, scores: np.ndarray, fixed: np.ndarray, limits: Any) -> Outcome:
        pyo, solver = _pyomo(), self._solver if self._has_integers else self._new_solver()
        for i, score in enumerate(scores.tolist()):
            self._scores[i] = score
        # Bounds of 0, as persistent solvers handle new bounds better than fixed variables.
        own = [self._variables[i] for i in np.flatnonzero(fixed & ~self._is_fixed)]
        ends = [(v.lower, v.upper) for v in own]
        arguments: dict[str, Any] = {"options": {**self._gap_options(limits.gap), **self._options}}
        if limits.time_limit is not None:
            arguments["timelimit"] = limits.time_limit
        try:
            for v in own:
                v.setlb(0)
                v.setub(0)
            results = solver.solve(self._model, load_solutions=False, **arguments)
            condition, kinds = results.solver.termination_condition, pyo.TerminationCondition
            if condition == kinds.infeasible:
                return Outcome("infeasible")
            if condition in (kinds.unbounded, kinds.infeasibleOrUnbounded):
                return Outcome("unbounded")
            values = None
            if len(results.solution):
                self._model.solutions.load_from(results)
                values = np.array([self._value(i) for i in range(len(self._variables))], np.float64)
        finally:
            for v, (low, high) in zip(own, ends, strict=True):
                v.setlb(low)
                v.setub(high)
        if condition in (kinds.optimal, kinds.globallyOptimal, kinds.locallyOptimal):
            return Outcome("best", values)
        return limited(values, math.inf, "time" if condition == kinds.maxTimeLimit else str(condition))

    def _value(self, i: int) -> float:
        """Return the value of variable i; a variable without a score and without constraints has no value."""
        value = self._variables[i].value
        return float(np.clip(0.0, self.low[i], self.high[i])) if value is None else float(value)

    def _gap_options(self, gap: float) -> dict[str, float]:
        for name, option in _GAP_OPTIONS.items():
            if name in self._solver_name and self._has_integers:
                return {option: gap}
        if gap > 0 and self._has_integers:
            raise InvalidInputError(
                f'gap: the option of solver="{self._solver_name}" is not known; pass it in solver_options'
            )
        return {}


def _number(variable: Any, model: Any) -> int:
    is_variable = getattr(variable, "is_variable_type", None)
    if is_variable is None or not is_variable() or getattr(variable, "is_indexed", lambda: False)():
        raise InvalidInputError(f"variables must be variables of the model, got {variable!r}")
    if variable.model() is not model.model() or model.find_component(variable) is not variable:
        raise InvalidInputError(f"variables: {variable.name} is no variable of this model")
    return id(variable)


def _pyomo() -> Any:
    return import_package(PyomoModel, "pyomo.environ")
