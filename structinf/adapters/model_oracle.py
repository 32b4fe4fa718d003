"""Base of the oracles of models written with another package, whose objective is set to ⟨θ, y⟩."""

from __future__ import annotations

import abc
import importlib
import math
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..errors import InvalidInputError, PluginError, StructinfError, UnsupportedError
from ..kernels.interrupts import call_interruptibly
from ..parts import AnyParts, Parts
from ..solver_oracle import (
    Maximiser,
    OnLimit,  # noqa: F401  typing.get_type_hints looks for it here
    Outcome,
    SolverOracle,
)

__all__ = ["ModelOracle", "SolverModel", "as_variable_array", "import_package", "limited"]


class SolverModel(abc.ABC):
    """A model of another package, with d variables whose scores are set for each instance.

    Attributes
    ----------
    package : str
        The name of the package, in messages.
    function : str
        The name of the function that makes an oracle, in messages.
    extra : str
        The extra of structinf that installs the package.
    score_bits : int
        The largest score is scaled to about 2^score_bits, which makes the absolute tolerances of a solver small.
    shape : tuple of int
        The shape of the variables, *event.
    low, high : (d,) array
        The least and the largest value of each variable.
    is_integer : (d,) bool array
        Whether each variable is an integer.
    """

    package: ClassVar[str]
    function: ClassVar[str]
    extra: ClassVar[str]
    score_bits: int = 24
    shape: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray
    is_integer: np.ndarray

    @classmethod
    @abc.abstractmethod
    def is_model(cls, value: Any) -> bool:
        """Return whether ``value`` is a model of the package. ImportError is raised if the package is missing."""

    @abc.abstractmethod
    def __init__(self, model: Any, variables: Any, solver: Any, solver_options: Mapping[str, Any]) -> None:
        """Copy the model without its objective, or raise InvalidInputError."""

    @abc.abstractmethod
    def solve(self, scores: np.ndarray, fixed: np.ndarray, limits: SolverOracle) -> Outcome:
        """Return a solution that maximises the finite ``scores`` (d,), with 0 for the variables that are ``fixed``.

        ``limits`` is the oracle, read for its time limit and gap. The result must not depend on earlier calls. The
        status "unbounded" also means that the solver cannot tell whether the model is unbounded or infeasible.
        """

    def stop(self) -> None:
        """Ask the solver to stop, from another thread, if the package has a way."""


def as_variable_array(variables: Any, key: Callable[[Any], Hashable]) -> np.ndarray:
    """Return ``variables`` as an object array.

    Parameters
    ----------
    variables : mapping, array or nested sequence
        The variables; of a mapping, the values in their order. A sequence may hold mappings and arrays of one shape.
    key : callable
        Returns the identity of a variable, or raises InvalidInputError for objects that are no variables.
    """
    items = _as_list(variables)
    try:
        array = np.array(items, dtype=object)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"variables must be a list or an array of variables ({error})") from None
    if isinstance(items, list) and any(isinstance(item, list) for item in array.flat):
        raise InvalidInputError(
            "variables: the nested lists or arrays have different shapes; give one flat list of all variables"
        )
    if array.ndim == 0 or array.size == 0:
        raise InvalidInputError(
            f"variables must be a list or an array with at least one variable, got {type(variables).__name__}; wrap a "
            "single variable in a list"
        )
    seen: dict[Hashable, int] = {}
    for i, variable in enumerate(array.flat):
        first = seen.setdefault(key(variable), i)
        if first != i:
            raise InvalidInputError(f"variables: {variable} is given twice, at index {first} and {i}; give it once")
    return array


def _as_list(variables: Any) -> Any:
    """Return mappings and arrays as lists, also inside sequences, and other objects themselves."""
    values: Any = getattr(variables, "values", None)
    if callable(values):
        found: Any = values()
        found = list(found)
        # A scalar variable of Pyomo holds itself.
        variables = variables if len(found) == 1 and found[0] is variables else found
    elif hasattr(variables, "tolist"):
        variables = variables.tolist()
    return [_as_list(item) for item in variables] if isinstance(variables, list | tuple) else variables


def limited(values: np.ndarray | None, gap: float, reason: str) -> Outcome:
    """Return the outcome of a solver that stopped early for a ``reason`` other than its time limit, or for "time"."""
    why = "its time limit" if reason == "time" else f"the status {reason}"
    return Outcome("limit", values, gap if math.isfinite(gap) else math.inf, why)


@dataclass(frozen=True, eq=False, repr=False)
class ModelOracle(SolverOracle):
    """The oracle that ``from_cvxpy``, ``from_gurobi``, ``from_math_opt`` and ``from_pyomo`` return.

    The solutions of a model, in the shape of its variables. The oracle has one copy of the model, so it solves one
    instance at a time.

    Parameters
    ----------
    kind : type of SolverModel
        The class for models of the package.
    model : object
        The model, or a function without arguments that returns the model and the variables.
    variables : object
        The variables; None if ``model`` is a function.
    solver, solver_options
        The solver and its options, as for the functions above.
    time_limit, gap, on_limit
        The limits of the solver; see :class:`~structinf.solver_oracle.SolverOracle`.
    """

    structure_name: ClassVar[str] = "solution of the model"
    takes_threads: ClassVar[bool] = False
    padding_stays_in_place: ClassVar[bool] = True

    _lock: ClassVar[threading.Lock]
    """Held while the model solves an instance. Each oracle and its copies have one."""

    kind: type[SolverModel]
    model: Any
    variables: Any = None
    solver: Any = field(default=None, kw_only=True)
    solver_options: Mapping[str, Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_lock", threading.Lock())
        if self.solver_options is not None and not isinstance(self.solver_options, Mapping):
            raise InvalidInputError(f"solver_options must be a mapping of names to values, got {self.solver_options!r}")
        object.__setattr__(self, "event_ndim", len(self._solver_model.shape))

    # A model has no equality, and different oracles differ in their models.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"{self.kind.function}({self.kind.package} model with variables {self._solver_model.shape})"

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.kind.package} model"

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of the variables."""
        return self._solver_model.shape

    # -- the model -------------------------------------------------------------------------

    @property
    def _is_built(self) -> bool:
        """Whether ``model`` is a function that builds the model."""
        return not self.kind.is_model(self.model)

    @property
    def _solver_model(self) -> SolverModel:
        # The threads that share an unpickled oracle must build one model.
        with self._lock:
            built = vars(self).get("_built_model")
            if built is None:
                built = vars(self)["_built_model"] = self._new_model()
            return built

    def _new_model(self) -> SolverModel:
        kind, model, variables = self.kind, self.model, self.variables
        if self._is_built:
            if not callable(model) or variables is not None:
                raise InvalidInputError(
                    f"model must be a {kind.package} model with its variables, or a function without arguments that "
                    f"returns both, got {type(model).__name__}"
                )
            returned = model()
            if not isinstance(returned, tuple) or len(returned) != 2 or not kind.is_model(returned[0]):
                raise InvalidInputError(
                    f"model must return a tuple of a {kind.package} model and its variables, got {returned!r}"
                )
            model, variables = returned
        elif variables is None:
            raise InvalidInputError("variables: pass the variables of the model that theta scores")
        return kind(model, variables, self.solver, self.solver_options or {})

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the model, which the function ``model`` builds again."""
        if not self._is_built:
            raise UnsupportedError(
                f"a {self.kind.package} model cannot be pickled; pass a function that returns the model and its "
                f"variables: {self.kind.function}(build)"
            )
        return {key: value for key, value in vars(self).items() if key not in ("_built_model", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def __copy__(self) -> ModelOracle:
        return self._shared()

    def __deepcopy__(self, memo: Any) -> ModelOracle:
        return self._shared()

    def _shared(self) -> ModelOracle:
        """Return a copy that shares the model, whose state no call depends on."""
        new = object.__new__(type(self))
        vars(new).update(vars(self))
        return new

    # -- the oracle protocol ---------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        received = tuple(theta.shape[1:])
        if received != self.event_shape:
            raise InvalidInputError(
                f"theta: a score for each variable of the {self.label()} is needed, shape (..., "
                f"{', '.join(map(str, self.event_shape))}); got {received} after the batch dimensions"
            )

    def has_binary_parts(self, theta: AnyParts) -> bool:
        own = self._solver_model
        return bool((own.is_integer & (own.low >= 0) & (own.high <= 1)).all())

    def hamming_cost(self, y: Tensor) -> Parts:
        """Return 1 − 2 y, whose scores count the 0/1 variables that differ. Other variables raise UnsupportedError."""
        if not self.has_binary_parts(y):
            raise UnsupportedError(
                f"{self.label()} has variables that are not 0/1, and no Hamming cost; pass the cost of each part as a "
                "tensor"
            )
        return 1 - 2 * y

    def maximiser(self, theta: Tensor) -> Maximiser:
        own, lock = self._solver_model, self._lock

        def solve(scores: np.ndarray, fixed: np.ndarray) -> Outcome:
            with lock:
                return own.solve(scores, fixed, self)

        def maximise(index: int, scores: np.ndarray) -> Outcome:
            try:
                return call_interruptibly(lambda: _best(own, solve, scores), own.stop)
            except StructinfError:
                raise
            except Exception as error:
                # Some packages fail in the translation of an error, whose cause tells more.
                first = error.__context__ or error
                raise PluginError(
                    f"{self.label()} failed at batch index {index}: {type(first).__name__}: {first}"
                ) from error

        return maximise


def _best(own: SolverModel, solve: Callable[[np.ndarray, np.ndarray], Outcome], scores: np.ndarray) -> Outcome:
    """Return the outcome for ``scores`` (d,), with −inf for variables that must be 0."""
    fixed = np.isneginf(scores)
    if ((own.low > 0) | (own.high < 0))[fixed].any():
        return Outcome("infeasible")
    scores = np.where(fixed, 0.0, scores)
    scores = np.ldexp(scores, own.score_bits - np.frexp(np.abs(scores).max(initial=0.0))[1])
    outcome = solve(scores, fixed)
    if outcome.status == "unbounded":
        any_solution = solve(np.zeros_like(scores), fixed)
        if any_solution.status == "limit":
            return Outcome("limit", None, any_solution.gap, any_solution.why)  # not a solution of the best score
        # Scores of 0 are bounded, so that a solver that reports "infeasible or unbounded" means infeasible.
        return outcome if any_solution.status == "best" else Outcome("infeasible")
    values = outcome.values
    if values is None:
        return outcome
    if not np.isfinite(values).all():
        raise ValueError(f"the solver gave no finite value to the variable {int((~np.isfinite(values)).argmax())}")
    values = np.where(own.is_integer, np.rint(values), values).clip(own.low, own.high)
    return Outcome(outcome.status, np.where(fixed, 0.0, values) + 0.0, outcome.gap, outcome.why)  # no −0


def import_package(kind: type[SolverModel], module: str) -> Any:
    """Return a module of the package of ``kind``; ImportError with the extra if the package is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"{kind.function} needs {kind.package}; run pip install 'structinf[{kind.extra}]'") from None
