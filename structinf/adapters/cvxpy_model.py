"""Oracles of cvxpy problems."""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..errors import InvalidInputError
from ..solver_oracle import OnLimit, Outcome
from .model_oracle import ModelOracle, SolverModel, import_package, limited

__all__ = ["CvxpyModel", "from_cvxpy"]

# Two oracles of one problem write to the same variables and parameters.
_lock = threading.Lock()

_TOLERANCE = 1e-5
"""The violation of constraints tolerated in a solution that is not proved optimal."""


def from_cvxpy(
    problem: Any,
    variable: Any = None,
    *,
    solver: str | None = None,
    time_limit: float | None = None,
    gap: float = 0.0,
    on_limit: OnLimit = "raise",
    solver_options: Mapping[str, Any] | None = None,
) -> ModelOracle:
    """Return the oracle of a cvxpy problem, which maximises ⟨θ, x⟩ over the feasible x of the problem.

    θ is a parameter of one problem, so that cvxpy compiles the problem once. The oracle ignores the objective of the
    problem. If the problem minimises costs c, pass θ = −c.

    Parameters
    ----------
    problem : cvxpy.Problem or callable
        The problem, or a function without arguments that returns the problem and the variable. Only an oracle of a
        function can be pickled, for example for :func:`structinf.parallel`.
    variable : cvxpy.Variable, or an affine expression
        The variable that θ scores, in the shape of θ. For several variables, an expression such as
        ``cvxpy.hstack([x, y])``. The problem may have more variables.
    solver : str, optional
        A name of ``cvxpy.installed_solvers()``. Default: HiGHS for linear constraints, whose answers are vertices;
        otherwise the default of cvxpy.
    time_limit : float, optional
        Seconds allowed for each instance, for the solvers CLARABEL, GUROBI, HIGHS, OSQP, SCIPY and SCS. Default: no
        limit.
    gap : float
        The relative gap at which the solver may stop, for GUROBI, HIGHS and SCIPY. Other solvers accept only the
        default, which leaves the gap of the solver.
    on_limit : {"raise", "warn"}
        Whether a solution that is not proved optimal raises SolverLimitError or gives a ConvergenceWarning.
    solver_options : mapping, optional
        Further arguments of ``Problem.solve``.

    Returns
    -------
    ModelOracle
        The oracle, which supports the relaxations that need only the argmax.

    Raises
    ------
    ImportError
        If cvxpy is not installed.
    InvalidInputError
        If the constraints are not convex by the rules of cvxpy, or ``variable`` does not belong to the problem.
    InfeasibleError, UnboundedError, SolverLimitError
        In a call, with the batch index of the instance.

    Notes
    -----
    The constraints may be convex without being linear. The set of answers is then infinite, and the active set of
    ``sparsemap`` comes only close to the mean. On ties, a solver of cones may return a point between the best points.

    Solutions satisfy the constraints within the tolerances of the solver, and integer variables are rounded. A call
    overwrites the values of the variables of ``problem``. Oracles of cvxpy solve one instance at a time in a process.

    HiGHS prints its version once in a process.

    Each call reads the present values of the parameters in the constraints. Structures kept by ``pooled``, or by the
    pool of a loss, come from the earlier values: make a new pool after a change.

    Examples
    --------
    At most two of three items:

    >>> import cvxpy as cp  # doctest: +SKIP
    >>> x = cp.Variable(3, boolean=True)  # doctest: +SKIP
    >>> most = [cp.sum(x) <= 2]  # doctest: +SKIP
    >>> problem = cp.Problem(cp.Maximize(0), most)  # doctest: +SKIP
    >>> oracle = from_cvxpy(problem, x)  # doctest: +SKIP
    """
    return ModelOracle(
        CvxpyModel,
        problem,
        variable,
        solver=solver,
        solver_options=solver_options,
        time_limit=time_limit,
        gap=gap,
        on_limit=on_limit,
    )


class CvxpyModel(SolverModel):
    """The constraints of a cvxpy problem, with a parameter for the scores."""

    package: ClassVar[str] = "cvxpy"
    function: ClassVar[str] = "from_cvxpy"
    extra: ClassVar[str] = "cvxpy"

    @classmethod
    def is_model(cls, value: Any) -> bool:
        return isinstance(value, _cvxpy().Problem)

    def __init__(self, problem: Any, variable: Any, solver: Any, solver_options: Mapping[str, Any]) -> None:
        cvxpy = _cvxpy()
        if isinstance(variable, Sequence):
            variable = _joined(variable)
        if not _is_expression(variable) or not variable.is_affine() or variable.is_complex():
            raise InvalidInputError(
                "variable must be a variable of the problem, or a real affine expression of its variables, got "
                f"{variable!r}"
            )
        known = {v.id for v in problem.variables()}
        for v in variable.variables():
            if v.id not in known:
                raise InvalidInputError(
                    f"variable: {v.name()} occurs in no constraint of the problem; add a constraint with the variable"
                )
        if variable.ndim == 0:
            raise InvalidInputError("variable must have at least one dimension; reshape it to (1,)")
        self.shape, self._expression, self._constraints = tuple(variable.shape), variable, list(problem.constraints)
        self.low, self.high, self.is_integer = _domain(variable)
        self._theta = cvxpy.Parameter(variable.shape)
        self._problem = self._with_constraints([])
        self._parameters = [p for p in self._problem.parameters() if p is not self._theta]
        self._check_parameters()
        if not self._problem.is_dcp():
            wrong = [str(c) for c in self._constraints if not c.is_dcp()]
            raise InvalidInputError(f"problem: the constraint {wrong[0]} is not convex by the rules of cvxpy")
        if solver is not None and (not isinstance(solver, str) or solver.upper() not in cvxpy.installed_solvers()):
            raise InvalidInputError(
                f"solver must be one of cvxpy.installed_solvers(), {', '.join(cvxpy.installed_solvers())}; got "
                f"{solver!r}"
            )
        is_linear = all(c.is_dqcp() and _is_linear(c) for c in self._constraints)
        is_linear = is_linear and not any(v.attributes["PSD"] or v.attributes["NSD"] for v in problem.variables())
        default = "HIGHS" if "HIGHS" in cvxpy.installed_solvers() else "SCIPY"
        self._solver = solver.upper() if solver is not None else default if is_linear else None
        if not is_linear:
            self.score_bits = 0  # solvers of cones have relative tolerances
        self._options = dict(solver_options)

    def _check_parameters(self) -> None:
        for parameter in self._parameters:
            if parameter.value is None:
                raise InvalidInputError(f"problem: the parameter {parameter.name()} has no value; set its value first")

    def _with_constraints(self, more: list[Any]) -> Any:
        cvxpy = _cvxpy()
        objective = cvxpy.Maximize(cvxpy.sum(cvxpy.multiply(self._theta, self._expression)))
        return cvxpy.Problem(objective, [*self._constraints, *more])

    @functools.cached_property
    def _with_fixes(self) -> tuple[Any, Any]:
        """The problem with the constraint fixes · x = 0, and the parameter ``fixes``."""
        cvxpy = _cvxpy()
        fixes = cvxpy.Parameter(self.shape)
        return self._with_constraints([cvxpy.multiply(fixes, self._expression) == 0]), fixes

    def solve(self, scores: np.ndarray, fixed: np.ndarray, limits: Any) -> Outcome:
        with _lock:
            self._check_parameters()
            return self._solve(scores, fixed, limits)

    def _solve(self, scores: np.ndarray, fixed: np.ndarray, limits: Any) -> Outcome:
        cvxpy, problem = _cvxpy(), self._problem
        self._theta.value = scores.reshape(self.shape)
        if fixed.any():
            problem, fixes = self._with_fixes
            fixes.value = fixed.reshape(self.shape).astype(np.float64)
        arguments = {"warm_start": False, **self._limits(limits, problem.is_mixed_integer()), **self._options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cvxpy warns of statuses that the oracle reports
            try:
                problem.solve(solver=self._solver, **arguments)
            except cvxpy.error.SolverError as error:
                return limited(None, math.inf, f"solver_error ({error})")
        status = problem.status
        if status.startswith("infeasible") and "unbounded" not in status:
            return Outcome("infeasible")
        if "unbounded" in status:
            return Outcome("unbounded")
        values = self._values()
        if status == cvxpy.OPTIMAL:
            return Outcome("best", values)
        # At its time limit a solver may leave values that are no solution.
        if values is not None and not all(bool(np.all(c.value(_TOLERANCE))) for c in problem.constraints):
            values = None
        return limited(values, math.inf, "time" if status == cvxpy.settings.USER_LIMIT else status)

    def _values(self) -> np.ndarray | None:
        """Return the value of the expression for rounded integer variables."""
        for v in self._expression.variables():
            low, high, is_integer = _domain(v)
            if v.attributes["complex"] or v.attributes["imag"] or not is_integer.any():
                continue
            values = _dense(v)
            if values is None:
                return None
            v.save_value(np.where(is_integer, np.rint(values), values).clip(low, high).reshape(v.shape))
        return _dense(self._expression)

    def _limits(self, limits: Any, is_mixed: bool) -> dict[str, Any]:
        """Return the time limit and the gap as arguments of the solver."""
        seconds, solver = limits.time_limit, self._solver
        names = {"HIGHS": "time_limit", "SCIPY": "time_limit", "GUROBI": "TimeLimit", "SCS": "time_limit_secs"}
        names |= {"CLARABEL": "time_limit", "OSQP": "time_limit"}
        gaps = {"HIGHS": "mip_rel_gap", "SCIPY": "mip_rel_gap", "GUROBI": "MIPGap"}
        given: dict[str, Any] = {}
        for option, value, known in (("time_limit", seconds, names), ("gap", limits.gap, gaps)):
            if solver in known:
                if value is not None and (option == "time_limit" or is_mixed):
                    given[known[solver]] = value
            elif value:
                raise InvalidInputError(
                    f"{option} has no known option of solver={solver!r}; pass one of {', '.join(known)} as solver, or "
                    "the option in solver_options"
                )
        if solver == "SCIPY":
            return {"scipy_options": given} if given else {}
        return given


def _joined(variables: Any) -> Any:
    """Return the expression of a list of expressions, and other sequences themselves."""
    if not variables or not all(_is_expression(v) for v in variables):
        return variables
    try:
        return _cvxpy().hstack(variables)
    except ValueError as error:
        raise InvalidInputError(
            f"variable: cvxpy.hstack cannot join the list ({error}); pass one expression, for example "
            "cvxpy.hstack([cvxpy.vec(x, order='C'), y])"
        ) from error


def _domain(expression: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the least and largest values of an expression, and which are integers, as far as its attributes say."""
    joined = {"Hstack": np.hstack, "Vstack": np.vstack}.get(type(expression).__name__)
    if joined is not None:
        parts = [[end.reshape(a.shape) for end in _domain(a)] for a in expression.args]
        low, high, is_integer = (joined(ends).reshape(-1) for ends in zip(*parts, strict=True))
        return low, high, is_integer
    low, high, is_integer = (
        np.full(expression.shape, -np.inf),
        np.full(expression.shape, np.inf),
        np.zeros(expression.shape, np.bool_),
    )
    attributes = getattr(expression, "attributes", None)
    if attributes is not None:
        for name in ("boolean", "integer"):
            places = attributes[name]
            if places is True:
                is_integer[...] = True
            elif places:
                is_integer[tuple(map(list, places))] = True  # the coordinates of each dimension
            if name == "boolean":
                low[is_integer], high[is_integer] = 0.0, 1.0
        # Bounds that are expressions of parameters may change.
        ends = [None if _is_expression(end) else end for end in attributes.get("bounds") or (None, None)]
        low = low if ends[0] is None else np.maximum(low, ends[0])
        high = high if ends[1] is None else np.minimum(high, ends[1])
        if expression.is_nonneg():
            low = np.maximum(low, 0.0)
        if expression.is_nonpos():
            high = np.minimum(high, 0.0)
    return low.reshape(-1), high.reshape(-1), is_integer.reshape(-1)


def _dense(expression: Any) -> np.ndarray | None:
    """Return the value of an expression as a vector in row-major order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cvxpy warns of dense values of sparse variables
        value = expression.value
    value = value.toarray() if hasattr(value, "toarray") else value
    return None if value is None else np.asarray(value, np.float64).reshape(-1)


def _is_linear(constraint: Any) -> bool:
    """Return whether a constraint is a linear equation or inequality."""
    kind = type(constraint).__name__
    return kind in ("Equality", "Inequality", "Zero", "NonPos", "NonNeg") and all(a.is_pwl() for a in constraint.args)


def _is_expression(value: Any) -> bool:
    return isinstance(value, _cvxpy().Expression)


def _cvxpy() -> Any:
    return import_package(CvxpyModel, "cvxpy")
