"""Oracles of gurobipy models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..errors import InvalidInputError
from ..solver_oracle import OnLimit, Outcome
from .model_oracle import ModelOracle, SolverModel, as_variable_array, import_package, limited

__all__ = ["GurobiModel", "from_gurobi"]


def from_gurobi(
    model: Any,
    variables: Any = None,
    *,
    time_limit: float | None = None,
    gap: float = 0.0,
    on_limit: OnLimit = "raise",
    solver_options: Mapping[str, Any] | None = None,
) -> ModelOracle:
    """Return the oracle of a gurobipy model, which maximises ⟨θ, x⟩ over the solutions x of the model.

    The oracle copies the model once, and sets only the objective for each instance. It ignores the objective of the
    model. If the model minimises costs c, pass θ = −c.

    Parameters
    ----------
    model : gurobipy.Model or callable
        The model with its parameters, or a function without arguments that returns the model and the variables. Only
        an oracle of a function can be pickled, for example for :func:`structinf.parallel`.
    variables : MVar, tupledict, or nested sequence of Var
        The variables that θ scores, in the shape of θ. A tupledict has the shape (n,), in its order. The model may
        have more variables.
    time_limit : float, optional
        Seconds allowed for each instance. Default: no limit.
    gap : float
        The relative gap at which the solver may stop.
    on_limit : {"raise", "warn"}
        Whether a solution that is not proved optimal raises SolverLimitError or gives a ConvergenceWarning.
    solver_options : mapping, optional
        Parameters of Gurobi by name, for example ``{"Threads": 1}``.

    Returns
    -------
    ModelOracle
        The oracle, which supports the relaxations that need only the argmax.

    Raises
    ------
    ImportError
        If gurobipy is not installed.
    InvalidInputError
        If ``variables`` are not variables of the model.
    InfeasibleError, UnboundedError, SolverLimitError
        In a call, with the batch index of the instance.

    Notes
    -----
    Each instance starts without the solution of the last one, so that an answer does not depend on earlier calls.
    Solutions satisfy the constraints within the tolerances of Gurobi, and integer variables are rounded.

    Examples
    --------
    At most two of three items:

    >>> import gurobipy  # doctest: +SKIP
    >>> model = gurobipy.Model()  # doctest: +SKIP
    >>> x = model.addMVar(3, vtype="B")  # doctest: +SKIP
    >>> most = model.addConstr(x.sum() <= 2)  # doctest: +SKIP
    >>> oracle = from_gurobi(model, x)  # doctest: +SKIP
    """
    return ModelOracle(
        GurobiModel, model, variables, solver_options=solver_options, time_limit=time_limit, gap=gap, on_limit=on_limit
    )


class GurobiModel(SolverModel):
    """A copy of a gurobipy model whose objective is set for each instance."""

    package: ClassVar[str] = "gurobipy"
    function: ClassVar[str] = "from_gurobi"
    extra: ClassVar[str] = "gurobi"
    score_bits = 20  # Gurobi advises against larger coefficients

    @classmethod
    def is_model(cls, value: Any) -> bool:
        return isinstance(value, _gurobipy().Model)

    def __init__(self, model: Any, variables: Any, solver: Any, solver_options: Mapping[str, Any]) -> None:
        gurobipy = _gurobipy()
        model.update()
        own = model.getVars()

        def index(variable: Any) -> int:
            if not isinstance(variable, gurobipy.Var):
                raise InvalidInputError(f"variables must be variables of the model, got {variable!r}")
            i = variable.index
            if not 0 <= i < len(own) or not own[i].sameAs(variable):
                raise InvalidInputError(f"variables: {variable} is no variable of this model")
            return i

        array = as_variable_array(variables, index)
        self.shape = array.shape
        self._model = copy = model.copy()
        copy.Params.OutputFlag = 0
        self._options = {name.lower() for name in solver_options}
        for name, value in solver_options.items():
            try:
                copy.setParam(name, value)
            except (AttributeError, TypeError, gurobipy.GurobiError) as error:
                raise InvalidInputError(f"solver_options: Gurobi refuses {name}={value!r}: {error}") from error
        all_variables = copy.getVars()
        self._variables = [all_variables[index(variable)] for variable in array.flat]
        if copy.NumObj > 1:
            copy.NumObj = 1
        copy.setObjective(0.0, gurobipy.GRB.MAXIMIZE)
        copy.setAttr("Obj", all_variables, [0.0] * len(all_variables))
        kinds = np.array(copy.getAttr("VType", self._variables))
        self._low, self._high = (np.array(copy.getAttr(end, self._variables), np.float64) for end in ("LB", "UB"))
        self.is_integer = np.isin(kinds, ["B", "I", "N"])
        # A semi-continuous or semi-integer variable may also be 0.
        is_semi = np.isin(kinds, ["S", "N"])
        low, high = (np.where(abs(end) >= 1e20, np.copysign(np.inf, end), end) for end in (self._low, self._high))
        self.low, self.high = np.where(is_semi, np.minimum(low, 0), low), np.where(is_semi, np.maximum(high, 0), high)

    def solve(self, scores: np.ndarray, fixed: np.ndarray, limits: Any) -> Outcome:
        gurobipy, model, variables = _gurobipy(), self._model, self._variables
        model.reset()
        model.setAttr("Obj", variables, scores.tolist())
        for name, end in (("LB", self._low), ("UB", self._high)):
            model.setAttr(name, variables, np.where(fixed, 0.0, end).tolist())
        own = {"TimeLimit": limits.time_limit, "MIPGap": limits.gap, "MIPGapAbs": 0.0}
        for name, value in own.items():
            if value is not None and name.lower() not in self._options:
                model.setParam(name, value)
        model.optimize()
        codes, status = gurobipy.GRB.Status, model.Status
        if status == codes.INFEASIBLE:
            return Outcome("infeasible")
        if status in (codes.UNBOUNDED, codes.INF_OR_UNBD):
            return Outcome("unbounded")
        values = np.array(model.getAttr("X", variables)) if model.SolCount else None
        if status == codes.OPTIMAL:
            return Outcome("best", values)
        names = {getattr(codes, name): name for name in dir(codes) if name.isupper()}
        gap = model.MIPGap if values is not None and model.IsMIP else np.inf
        return limited(values, gap, "time" if status == codes.TIME_LIMIT else names.get(status, str(status)))

    def stop(self) -> None:
        self._model.terminate()


def _gurobipy() -> Any:
    return import_package(GurobiModel, "gurobipy")
