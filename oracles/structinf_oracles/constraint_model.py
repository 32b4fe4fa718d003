"""The solutions of a CP-SAT constraint model written by the user."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.kernels import to_numpy
from structinf.oracle import Enumerable
from structinf.parts import Parts
from structinf.restriction import Restrictable
from structinf.solver_oracle import Maximiser, SolverOracle

from .common.constraint_program import ConstraintProgram
from .common.integer_solver import cost_of_changes
from .common.labels import reject_labels

__all__ = ["ConstraintModel"]


@dataclass(frozen=True)
class ConstraintModel(SolverOracle, Restrictable, Enumerable):
    """Solutions of a CP-SAT model: combinatorial problems described by constraints on integer variables.

    CP-SAT maximises ⟨θ, y⟩ over the solutions. The model may have further variables without scores.

    - Scores θ, shape (..., *event), any sign: the score of each variable returned by ``build``, in the same shape.
      −inf fixes a variable to 0; if the variable cannot be 0, the instance is infeasible.
    - Structure y, shape (..., *event): the values of the variables.
    - Labels, shape (..., *event): y as integers.

    Parameters
    ----------
    build : callable
        Function without arguments that creates an ``ortools.sat.python.cp_model.CpModel`` with all constraints and no
        objective. The function returns the model and the parts, as a nested list or an object array of any shape. A
        part is a variable of the model, the negation of a 0/1 variable, or an integer for a constant part. The
        function is called once per oracle, and once more after unpickling. To be pickled, the function must be
        importable.
    time_limit : float, optional
        Seconds allowed for each instance. Default: no limit.
    gap : float, default 0.0
        Relative gap to the optimal score at which the solver may stop; see :class:`SolverOracle`.
    seed : int, default 0
        Seed of the solver's random choices.
    on_limit : {"raise", "warn"}, default "raise"
        Whether a structure not proved optimal within ``time_limit`` raises an error or gives a warning; see
        :class:`SolverOracle`.

    Notes
    -----
    Each instance is solved in a copy of the model, by one CPU thread, and deterministically. Scores are rounded to
    integers such that Σ |θ_i| max |y_i| is about 2^60. Sums of float32 or float64 scores of variables in [0, 1] are
    not more precise.

    Two oracles are equal if their ``build`` functions are equal.

    References
    ----------
    L. Perron, F. Didier & S. Gay, The CP-SAT-LP solver (CP 2023).

    Examples
    --------
    Four people sit in a row, and the first two must not sit side by side. θ[i, j] is the score of person i on seat j.

    >>> from ortools.sat.python import cp_model
    >>> def seats():
    ...     model = cp_model.CpModel()
    ...     sits = [
    ...         [model.new_bool_var(f"{i} on {j}") for j in range(4)]
    ...         for i in range(4)
    ...     ]
    ...     for line in [*sits, *zip(*sits)]:
    ...         model.add_exactly_one(line)
    ...     for j in range(3):
    ...         model.add_at_most_one(
    ...             sits[i][j + k] for i in range(2) for k in range(2)
    ...         )
    ...     return model, sits
    >>> oracle = ConstraintModel(seats)
    >>> theta = torch.tensor([[
    ...     [3.0, 2.0, 0.0, 0.0],
    ...     [2.0, 3.0, 1.0, 0.0],
    ...     [0.0, 1.0, 1.0, 0.0],
    ...     [0.0, 0.0, 1.0, 1.0],
    ... ]])
    >>> oracle.argmax(theta)
    tensor([[[1., 0., 0., 0.],
             [0., 0., 1., 0.],
             [0., 1., 0., 0.],
             [0., 0., 0., 1.]]])
    """

    name: ClassVar[str] = "constraint_model"
    search_terms: ClassVar[tuple[str, ...]] = ("cp_sat", "constraint_programming")
    padding_stays_in_place: ClassVar[bool] = True
    structure_name: ClassVar[str] = "solution of the model"

    build: Callable[[], tuple[Any, Any]]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.build):
            raise InvalidInputError(f"build must be a function that returns (CpModel, variables), got {self.build!r}")
        ndim = len(self.event_shape)
        # Other oracles declare these as class attributes; here they depend on the model.
        object.__setattr__(self, "event_ndim", ndim)
        object.__setattr__(self, "label_ndim", ndim)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of the variables that ``build`` returns."""
        return self._built[0]

    @property
    def _program(self) -> ConstraintProgram:
        return self._built[1]

    @functools.cached_property
    def _built(self) -> tuple[tuple[int, ...], ConstraintProgram]:
        returned = self.build()
        if not isinstance(returned, tuple) or len(returned) != 2 or not hasattr(returned[0], "add_exactly_one"):
            raise InvalidInputError(
                f"build must return a tuple of a CpModel and an array of its variables, got {returned!r}"
            )
        variables = np.array(returned[1], dtype=object)
        if variables.size == 0:
            raise InvalidInputError("build returned no variables; return the variables that theta scores")
        if variables.ndim == 0:
            raise InvalidInputError(
                f"build must return a list or an array of variables, got {returned[1]!r}; wrap the variable in a list"
            )
        return variables.shape, ConstraintProgram(returned[0], variables.ravel().tolist())

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the model, which cannot be pickled; ``build`` creates the model again."""
        return {key: value for key, value in vars(self).items() if key != "_built"}

    # -- shapes and labels -----------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        if theta.shape[1:] != self.event_shape:
            raise InvalidInputError(
                f"theta must have the shape of the model's variables, {self.event_shape}, after the batch dimensions; "
                f"got {tuple(theta.shape[1:])}"
            )

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        if labels.shape[1:] != self.event_shape:
            raise InvalidInputError(
                f"labels must have the shape of the model's variables, {self.event_shape}, after the batch dimensions; "
                f"got {tuple(labels.shape)} with the batch dimensions flattened"
            )
        outcomes = [self._program.check(tuple(row), self) for row in labels.flatten(1).tolist()]
        wrong = torch.tensor([outcome.status == "infeasible" for outcome in outcomes], device=labels.device)
        reject_labels(wrong[:, None], labels, "no solution of the model has these values")
        for index, outcome in enumerate(outcomes):
            self.values_or_error(outcome, index)
        return labels.to(like.dtype)

    def decode(self, y: Tensor) -> Tensor:
        return y.round().long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs that count the 0/1 parts wrongly 0 or 1. For other integers see :func:`cost_of_changes`."""
        program = self._program
        return cost_of_changes(y.flatten(1), program.low, program.high).reshape(y.shape)

    # -- optimisation ----------------------------------------------------------------------

    def maximiser(self, theta: Tensor) -> Maximiser:
        program = self._program
        return lambda _, scores: program.maximise(scores, self)

    def part_bounds(self, theta: Tensor) -> tuple[Parts, Parts]:
        shape = (1, *self.event_shape)
        low, high = (torch.from_numpy(end).to(theta).reshape(shape) for end in (self._program.low, self._program.high))
        return low, high

    def restricted_argmax(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Parts, Tensor]:
        program, bounds = self._program, to_numpy(low.double().flatten(1), high.double().flatten(1))
        return self.best_of_feasible(
            theta, lambda i, scores: program.maximise(scores, self, (bounds[0][i], bounds[1][i]))
        )

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all values of the variables in solutions, (|Y|, *event) in float64, sorted; at most a million."""
        solutions = self._program.solutions("solutions of the model")
        return torch.from_numpy(solutions).double().reshape(-1, *self.event_shape)
