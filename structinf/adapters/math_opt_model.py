"""Oracles of ortools.math_opt models."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..errors import InvalidInputError
from ..solver_oracle import OnLimit, Outcome
from .model_oracle import ModelOracle, SolverModel, as_variable_array, import_package, limited

__all__ = ["MathOptModel", "from_math_opt"]


def from_math_opt(
    model: Any,
    variables: Any = None,
    *,
    solver: Any = None,
    time_limit: float | None = None,
    gap: float = 0.0,
    on_limit: OnLimit = "raise",
    solver_options: Mapping[str, Any] | None = None,
) -> ModelOracle:
    """Return the oracle of a model of ortools' MathOpt, which maximises ⟨θ, x⟩ over the solutions x of the model.

    The oracle copies the model once, and sets only the objective for each instance. It ignores the objective of the
    model. If the model minimises costs c, pass θ = −c.

    Parameters
    ----------
    model : ortools.math_opt.python.mathopt.Model or callable
        The model, or a function without arguments that returns the model and the variables. Only an oracle of a
        function can be pickled, for example for :func:`structinf.parallel`.
    variables : mapping or nested sequence of mathopt.Variable
        The variables that θ scores, in the shape of θ. A mapping has the shape (n,), in its order. The model may have
        more variables.
    solver : str or mathopt.SolverType, optional
        The solver, for example ``"cp_sat"``. Default: ``"glop"`` for linear constraints without integer variables,
        else ``"gscip"``.
    time_limit : float, optional
        Seconds allowed for each instance. Default: no limit.
    gap : float
        The relative gap at which the solver may stop.
    on_limit : {"raise", "warn"}
        Whether a solution that is not proved optimal raises SolverLimitError or gives a ConvergenceWarning.
    solver_options : mapping, optional
        Further arguments of ``mathopt.SolveParameters``, for example ``{"threads": 1}``.

    Returns
    -------
    ModelOracle
        The oracle, which supports the relaxations that need only the argmax.

    Raises
    ------
    ImportError
        If ortools is not installed.
    InvalidInputError
        If ``variables`` are not variables of the model, or the solver is unknown.
    InfeasibleError, UnboundedError, SolverLimitError
        In a call, with the batch index of the instance.

    Notes
    -----
    Solutions satisfy the constraints within the tolerances of the solver, and integer variables are rounded.

    Examples
    --------
    At most two of three items, and the last item only together with the first:

    >>> import torch
    >>> import structinf as si
    >>> from ortools.math_opt.python import mathopt
    >>> model = mathopt.Model()
    >>> x = [model.add_binary_variable() for _ in range(3)]
    >>> _ = model.add_linear_constraint(x[0] + x[1] + x[2] <= 2)
    >>> _ = model.add_linear_constraint(x[2] <= x[0])
    >>> oracle = from_math_opt(model, x)
    >>> theta = torch.tensor([[-1.0, 1.0, 0.5], [-1.0, 1.0, 3.0]])
    >>> si.relax(theta, oracle, "map")
    tensor([[0., 1., 0.],
            [1., 0., 1.]])
    """
    return ModelOracle(
        MathOptModel,
        model,
        variables,
        solver=solver,
        solver_options=solver_options,
        time_limit=time_limit,
        gap=gap,
        on_limit=on_limit,
    )


class MathOptModel(SolverModel):
    """A copy of a MathOpt model whose objective is set for each instance."""

    package: ClassVar[str] = "ortools"
    function: ClassVar[str] = "from_math_opt"
    extra: ClassVar[str] = "solvers"

    @classmethod
    def is_model(cls, value: Any) -> bool:
        return isinstance(value, _mathopt().Model)

    def __init__(self, model: Any, variables: Any, solver: Any, solver_options: Mapping[str, Any]) -> None:
        mathopt = _mathopt()

        def number(variable: Any) -> int:
            if not isinstance(variable, mathopt.Variable):
                raise InvalidInputError(f"variables must be variables of the model, got {variable!r}")
            try:
                model.check_compatible(variable)
            except ValueError as error:
                raise InvalidInputError(f"variables: {variable!r} is no variable of this model") from error
            return variable.id

        array = as_variable_array(variables, number)
        self.shape = array.shape
        self._model = copy = mathopt.Model.from_model_proto(model.export_model())
        for objective in list(copy.auxiliary_objectives()):
            copy.delete_auxiliary_objective(objective)
        own = self._variables = [copy.get_variable(variable.id) for variable in array.flat]
        self.is_integer = np.array([v.integer for v in own])
        self.low, self.high = (np.array([getattr(v, f"{end}_bound") for v in own]) for end in ("lower", "upper"))
        is_linear = not (
            any(v.integer for v in copy.variables())
            or copy.get_num_quadratic_constraints()
            or copy.get_num_indicator_constraints()
        )
        self._solver = _solver_type(mathopt, ("glop" if is_linear else "gscip") if solver is None else solver)
        self._options = dict(solver_options)
        try:
            mathopt.SolveParameters(**self._options)
        except TypeError as error:
            raise InvalidInputError(f"solver_options: {error}; pass arguments of mathopt.SolveParameters") from error

    def solve(self, scores: np.ndarray, fixed: np.ndarray, limits: Any) -> Outcome:
        mathopt, model = _mathopt(), self._model
        model.maximize_linear_objective(
            mathopt.LinearSum(score * v for score, v in zip(scores.tolist(), self._variables, strict=True))
        )
        own: dict[str, Any] = {}
        if limits.time_limit is not None:
            own["time_limit"] = datetime.timedelta(seconds=limits.time_limit)
        if any(v.integer for v in model.variables()):
            own.update(relative_gap_tolerance=float(limits.gap), absolute_gap_tolerance=0.0)
        places = np.flatnonzero(fixed).tolist()
        try:
            for i in places:
                self._variables[i].lower_bound = self._variables[i].upper_bound = 0.0
            result = mathopt.solve(model, self._solver, params=mathopt.SolveParameters(**{**own, **self._options}))
        finally:
            for i in places:
                self._variables[i].lower_bound, self._variables[i].upper_bound = self.low[i], self.high[i]
        reasons, end = mathopt.TerminationReason, result.termination
        if end.reason == reasons.INFEASIBLE:
            return Outcome("infeasible")
        if end.reason in (reasons.UNBOUNDED, reasons.INFEASIBLE_OR_UNBOUNDED):
            return Outcome("unbounded")
        values = np.array(result.variable_values(self._variables)) if result.has_primal_feasible_solution() else None
        if end.reason == reasons.OPTIMAL:
            return Outcome("best", values)
        bounds = end.objective_bounds
        gap = abs(bounds.dual_bound - bounds.primal_bound) / max(abs(bounds.primal_bound), 1e-12)
        return limited(values, gap, "time" if end.limit == mathopt.Limit.TIME else (end.limit or end.reason).name)


def _solver_type(mathopt: Any, solver: Any) -> Any:
    """Return the SolverType given by name, such as "gscip", or as itself."""
    if isinstance(solver, mathopt.SolverType):
        return solver
    names = [kind.name.lower() for kind in mathopt.SolverType]
    if not isinstance(solver, str) or solver.lower() not in names:
        raise InvalidInputError(f"solver must be one of {', '.join(names)}, or a mathopt.SolverType, got {solver!r}")
    return mathopt.SolverType[solver.upper()]


def _mathopt() -> Any:
    return import_package(MathOptModel, "ortools.math_opt.python.mathopt")
