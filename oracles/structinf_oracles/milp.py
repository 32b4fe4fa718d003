"""Mixed-integer linear programs."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError, UnsupportedError
from structinf.oracle import Enumerable
from structinf.shapes import Int
from structinf.validation import check_enumerable

from .common.constraint_program import ConstraintProgram
from .common.integer_solver import Maximiser, SolverOracle, cost_of_changes
from .common.labels import reject_labels
from .common.linear_program import LinearProgram, Matrix

__all__ = ["MILP"]


@dataclass(frozen=True)
class MILP(SolverOracle, Enumerable):
    """Points of a polyhedron, all or some of whose coordinates are integers.

        max ⟨θ, y⟩   with   lower ≤ A y ≤ upper,   low ≤ y ≤ high,   y_i an integer where integrality says so

    θ is (..., d), any sign. −inf fixes a variable to 0; where 0 is out of its bounds that is infeasible. By default
    variables are 0 or 1. Labels, if all variables are integers, are y in integers, (..., d). Without any integers y is
    a vertex of the polyhedron.

    Parameters
    ----------
    A : (m, d) array, nested sequence, or sparse matrix of scipy
        A row for each constraint.
    lower, upper : float or (m,) array, optional
        Bounds of the rows. None for no bounds; −inf and +inf for none of some row.
    bounds : pair of float or (d,) array
        The least and the largest values of the variables; −inf and +inf for none.
    integrality : bool or (d,) array of bool
        Which variables are integers.
    solver : {"highs", "cp_sat"}
        "highs" takes any program. "cp_sat" takes integers within finite bounds, and integers in A.
    time_limit, gap, seed, on_limit
        As :class:`SolverOracle` says. The seed is CP-SAT's; HiGHS has its own, which is always the same.

    Notes
    -----
    Either solver answers the same way every time, one instance a CPU thread, and proves its answer best. HiGHS, through
    scipy, works with rounded numbers: another point may score more by 1e-13 of the largest |θ_i|, and rows may be off
    by 1e-6; integers are exact all the same. CP-SAT, of ``pip install 'structinf[solvers]'``, works with integers, to
    which scores are rounded at some 2^-60 of their sum, and holds all rows exactly. Where it can be used it is often
    the faster one on small programs: about 0.6 ms each, where HiGHS takes up to 5 ms once it has to branch.

    HiGHS takes bounds of 1e20 and more for none. A program that is both infeasible and, without its constraints,
    unbounded is infeasible.

    References
    ----------
    Q. Huangfu & J. A. J. Hall, Parallelizing the dual revised simplex method (Mathematical Programming Computation 10,
    2018), of HiGHS. L. Perron, F. Didier & S. Gay, The CP-SAT-LP solver (CP 2023).

    Examples
    --------
    At most two of four, the last one only along with the first.

    >>> oracle = MILP([[1, 1, 1, 1], [-1, 0, 0, 1]], upper=[2, 0])
    >>> oracle.argmax(torch.tensor([[0.5, 1.0, 1.2, 1.5]]))
    tensor([[0., 1., 1., 0.]])
    >>> oracle.argmax(torch.tensor([[0.9, 1.0, 1.2, 1.5]]))
    tensor([[1., 0., 0., 1.]])
    """

    name: ClassVar[str] = "milp"
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    label_ndim: ClassVar[int] = 1
    padding_stays_in_place: ClassVar[bool] = True
    structure_name: ClassVar[str] = "point"

    A: Any
    lower: Any = field(default=None, kw_only=True)
    upper: Any = field(default=None, kw_only=True)
    bounds: Any = field(default=(0, 1), kw_only=True)
    integrality: Any = field(default=True, kw_only=True)
    solver: Literal["highs", "cp_sat"] = field(default="highs", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        matrix = Matrix.of(self.A)
        m, d = matrix.shape
        if self.solver not in ("highs", "cp_sat"):
            raise InvalidInputError(f'solver must be "highs" or "cp_sat", got {self.solver!r}')
        if not isinstance(self.bounds, tuple | list) or len(self.bounds) != 2:
            raise InvalidInputError(f"bounds must be a pair, the least and the largest values, got {self.bounds!r}")
        low, high = self.bounds
        checked = {
            "A": matrix,
            "lower": _numbers("lower", -math.inf if self.lower is None else self.lower, m, "row of A"),
            "upper": _numbers("upper", math.inf if self.upper is None else self.upper, m, "row of A"),
            "bounds": (
                _numbers("bounds, the least,", low, d, "variable"),
                _numbers("bounds, the largest,", high, d, "variable"),
            ),
            "integrality": _flags(self.integrality, d),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.solver == "highs" and self.seed:
            raise InvalidInputError('seed: HiGHS takes none through scipy; leave it 0, or use solver="cp_sat"')
        if self.solver == "cp_sat":
            self._constraint_program  # noqa: B018  # says so now if it cannot be

    @functools.cached_property
    def _program(self) -> LinearProgram:
        return LinearProgram(self.A, (self.lower, self.upper), self.bounds, self.integrality)

    @functools.cached_property
    def _constraint_program(self) -> ConstraintProgram:
        return self._program.as_constraint_program()

    def __getstate__(self) -> dict[str, Any]:
        """The options; what is made of them is made again."""
        return {key: value for key, value in vars(self).items() if key not in ("_program", "_constraint_program")}

    # -- shapes and labels -----------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        d = self.A.shape[1]
        if theta.shape[1] != d:
            raise InvalidInputError(
                f"theta: A has {d} columns, and milp takes a score for each of them, (..., {d}); got {theta.shape[1]} "
                "after the batch dimensions"
            )

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        self._check_integral("no integer labels; pass y itself, in the dtype of theta")
        d = self.A.shape[1]
        if labels.shape[1:] != (d,):
            raise InvalidInputError(
                f"labels: the values of the {d} variables are needed, (..., {d}); got {tuple(labels.shape)} with the "
                "batch flat"
            )
        points, program = labels.cpu().double().numpy(), self._program
        outside = torch.from_numpy((points < program.low) | (points > program.high))
        reject_labels(outside.to(labels.device), labels, "a variable is out of its bounds")
        broken = torch.from_numpy(~program.holds(points))[:, None]
        reject_labels(broken.to(labels.device), labels, "a row of A is out of its bounds")
        return labels.to(like.dtype)

    def decode(self, y: Tensor) -> Int[Tensor, "batch d"]:
        self._check_integral("no integer labels; use y itself")
        return y.round().long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Costs of 1 for each part wrongly 0 or 1; of other variables, see :func:`cost_of_changes`."""
        return cost_of_changes(y, self._program.low, self._program.high)

    def _check_integral(self, lacks: str) -> None:
        if not all(self.integrality):
            raise UnsupportedError(f"milp with variables that are no integers has {lacks}")

    # -- optimisation ----------------------------------------------------------------------

    def maximiser(self, theta: Tensor) -> Maximiser:
        program = self._program if self.solver == "highs" else self._constraint_program
        return lambda _, scores: program.maximise(scores, self)

    def enumerate(self, event_shape: Any) -> Tensor:
        """All points, (|Y|, d) in float64, in order, if all are integers in a box of at most a million."""
        self._check_integral("no list of its points, of which there are too many")
        program = self._program
        if not (np.isfinite(program.low).all() and np.isfinite(program.high).all()):
            raise InvalidInputError("bounds: the points of an infinite box cannot be listed; give finite bounds")
        ranges = [range(int(a), int(b) + 1) for a, b in zip(program.low, program.high, strict=True)]
        check_enumerable(math.prod(map(len, ranges)), "points within the bounds of milp")
        box = np.array(list(itertools.product(*ranges)), np.float64).reshape(-1, len(ranges))
        return torch.from_numpy(box[program.holds(box)])


def _numbers(name: str, given: Any, count: int, each: str) -> tuple[float, ...]:
    """``given`` for each of ``count``; InvalidInputError if it is no number or that many, or NaN."""
    try:
        numbers = np.broadcast_to(np.asarray(given, np.float64), (count,))
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be a number or one for each {each}, ({count},), got {given!r}") from None
    if np.isnan(numbers).any():
        raise InvalidInputError(f"{name} holds NaN at {int(np.isnan(numbers).argmax())}")
    return tuple(numbers.tolist())


def _flags(given: Any, count: int) -> tuple[bool, ...]:
    numbers = _numbers("integrality", given, count, "variable")
    if not set(numbers) <= {0.0, 1.0}:
        raise InvalidInputError(f"integrality must be True or False for each variable, got {given!r}")
    return tuple(map(bool, numbers))
