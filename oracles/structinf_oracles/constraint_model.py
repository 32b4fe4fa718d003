"""The solutions of a constraint model of one's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.oracle import Enumerable

from .common.constraint_program import ConstraintProgram
from .common.integer_solver import Maximiser, SolverOracle, cost_of_changes
from .common.labels import reject_labels

__all__ = ["ConstraintModel"]


@dataclass(frozen=True)
class ConstraintModel(SolverOracle, Enumerable):
    """Solutions of a CP-SAT model: any combinatorial problem that constraints on integers describe.

    θ has the shape of the variables that ``build`` returns, any sign, and y their values: ⟨θ, y⟩ is what CP-SAT
    maximises. The model may have other variables, which are not scored. −inf fixes a part to 0, where it may be 0.
    Labels are y in integers.

    Parameters
    ----------
    build : callable
        Without arguments, makes an ``ortools.sat.python.cp_model.CpModel`` with all its constraints and no objective.
        It returns the model and the parts, a nested list or an object array of any shape: variables of the model,
        negations of 0/1 variables, or integers, for parts that never change. It is called once for each oracle, and
        again where the oracle has been unpickled, for which it must be a function that can be imported.
    time_limit, gap, seed, on_limit
        As :class:`SolverOracle` says.

    Notes
    -----
    The model is copied for each instance; instances are solved on CPU threads, one each, the same way every time.
    Scores are rounded to integers such that Σ |θ_i| max |y_i| is some 2^60: sums of float32 and float64 of variables
    in [0, 1] cannot tell the difference.

    Two oracles are equal if their functions are.

    References
    ----------
    L. Perron, F. Didier & S. Gay, The CP-SAT-LP solver (CP 2023).

    Examples
    --------
    Four people in a row of whom the first two do not sit side by side; θ[i, j] scores person i on seat j.

    >>> from ortools.sat.python import cp_model
    >>> def seats():
    ...     model = cp_model.CpModel()
    ...     sits = [[model.new_bool_var(f"{i} on {j}") for j in range(4)] for i in range(4)]
    ...     for line in [*sits, *zip(*sits)]:
    ...         model.add_exactly_one(line)
    ...     for j in range(3):
    ...         model.add_at_most_one(sits[i][j + k] for i in range(2) for k in range(2))
    ...     return model, sits
    >>> oracle = ConstraintModel(seats)
    >>> theta = torch.tensor([[[3.0, 2.0, 0.0, 0.0], [2.0, 3.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]]])
    >>> oracle.argmax(theta)
    tensor([[[1., 0., 0., 0.],
             [0., 0., 1., 0.],
             [0., 1., 0., 0.],
             [0., 0., 0., 1.]]])
    """

    name: ClassVar[str] = "constraint_model"
    padding_stays_in_place: ClassVar[bool] = True
    structure_name: ClassVar[str] = "solution of the model"

    build: Callable[[], tuple[Any, Any]]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.build):
            raise InvalidInputError(
                f"build must be a function that returns a CpModel and its variables, got {self.build!r}"
            )
        ndim = len(self.event_shape)
        # What other oracles say of all their kind is the model's own here.
        object.__setattr__(self, "event_ndim", ndim)
        object.__setattr__(self, "label_ndim", ndim)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of the variables."""
        return self._built[0]

    @property
    def _program(self) -> ConstraintProgram:
        return self._built[1]

    @functools.cached_property
    def _built(self) -> tuple[tuple[int, ...], ConstraintProgram]:
        returned = self.build()
        if not isinstance(returned, tuple) or len(returned) != 2 or not hasattr(returned[0], "add_exactly_one"):
            raise InvalidInputError(f"build must return a CpModel and an array of its variables, got {returned!r}")
        variables = np.array(returned[1], dtype=object)
        if variables.size == 0:
            raise InvalidInputError("build returned no variables; return those that theta is to score")
        if variables.ndim == 0:
            raise InvalidInputError(
                f"build must return a list or an array of variables, got {returned[1]!r}; put it in one"
            )
        return variables.shape, ConstraintProgram(returned[0], variables.ravel().tolist())

    def __getstate__(self) -> dict[str, Any]:
        """Models cannot be pickled; the function that makes them can."""
        return {key: value for key, value in vars(self).items() if key != "_built"}

    # -- shapes and labels -----------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        if theta.shape[1:] != self.event_shape:
            raise InvalidInputError(
                f"theta: the model's variables have shape {self.event_shape}, and so must their scores; got "
                f"{tuple(theta.shape[1:])} after the batch dimensions"
            )

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        if labels.shape[1:] != self.event_shape:
            raise InvalidInputError(
                f"labels: the values of variables of shape {self.event_shape} are needed; got {tuple(labels.shape)} "
                "with the batch flat"
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
        """Costs of 1 for each part wrongly 0 or 1; of other integers, see :func:`cost_of_changes`."""
        program = self._program
        return cost_of_changes(y.flatten(1), program.low, program.high).reshape(y.shape)

    # -- optimisation ----------------------------------------------------------------------

    def maximiser(self, theta: Tensor) -> Maximiser:
        program = self._program
        return lambda _, scores: program.maximise(scores, self)

    def enumerate(self, event_shape: Any) -> Tensor:
        """All values that the variables have in solutions, (|Y|, *event) in float64, in order. At most a million."""
        solutions = self._program.solutions("solutions of the model")
        return torch.from_numpy(solutions).double().reshape(-1, *self.event_shape)
