"""Mixed-integer linear programs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError, UnsupportedError
from structinf.kernels import to_numpy
from structinf.oracle import Enumerable
from structinf.parts import Parts
from structinf.restriction import Restrictable, in_order
from structinf.shapes import Int
from structinf.solver_oracle import Maximiser, Outcome, SolverOracle
from structinf.validation import check_enumerable, check_instances, check_natural

from .common.constraint_program import ConstraintProgram
from .common.distinct_rows import number_of_dimensions, refuse_gradient
from .common.integer_solver import cost_of_changes
from .common.labels import reject_labels
from .common.linear_program import LinearProgram, Matrix

__all__ = ["MILP"]


@dataclass(frozen=True)
class MILP(SolverOracle, Restrictable, Enumerable):
    """Points of a polyhedron with integer coordinates: mixed-integer linear programs.

        max ⟨θ, y⟩   with   lower ≤ A y ≤ upper   and   low ≤ y ≤ high

    y_i is an integer if ``integrality`` is True for variable i. By default all variables are 0 or 1.

    - Scores θ, shape (..., d), any sign: the score of each variable. −inf fixes a variable to 0; if 0 is out of the
      variable's bounds, the instance is infeasible.
    - Structure y, shape (..., d): the values of the variables. Without integer variables, y is a vertex of the
      polyhedron.
    - Labels, shape (..., d): y as integers, if all variables are integers.
    - Instance data ``A``, shape (..., m, d), and ``lower`` and ``upper``, shape (..., m): the constraints of each
      instance. Default: the options. In a call, a matrix as ``A``, and a number or one dimension as ``lower`` or
      ``upper``, are the options.

    Parameters
    ----------
    A : (m, d) array, nested sequence, or scipy sparse matrix, optional
        The coefficients of the m constraints, one constraint per row. Needed without instance data ``A``.
    lower : float or (m,) array, optional
        Lower bound of each row of A y. −inf, or None for all rows, is no bound.
    upper : float or (m,) array, optional
        Upper bound of each row of A y. +inf, or None for all rows, is no bound.
    bounds : pair of float or (d,) array, default (0, 1)
        The least and the largest values of the variables; −inf and +inf are no bounds.
    integrality : bool or (d,) array of bool, default True
        Whether each variable is an integer.
    solver : {"highs", "cp_sat"}, default "highs"
        "highs" takes any program. "cp_sat" requires integer variables with finite bounds, and integers in A.
    time_limit : float, optional
        Seconds allowed for each instance. Default: no limit.
    gap : float, default 0.0
        Relative gap to the optimal score at which the solver may stop; see :class:`SolverOracle`.
    seed : int, default 0
        Seed of the random choices of CP-SAT. With HiGHS it must be 0, as scipy passes no seed on.
    on_limit : {"raise", "warn"}, default "raise"
        Whether a structure not proved optimal within ``time_limit`` raises an error or gives a warning; see
        :class:`SolverOracle`.

    Notes
    -----
    If all rows are integer weights of at least 0 with an upper bound, and the variables are 0 or 1, the oracle
    ``knapsack`` solves the program faster: one of 40 variables and 2 rows in 0.03 ms to 0.6 ms, and HiGHS in 13 ms to
    950 ms.

    Both solvers are deterministic, solve each instance in one CPU thread, and prove that the answer is optimal.

    HiGHS, called through scipy, computes with tolerances. Another point may score higher by up to 1e-13 of the
    largest |θ_i|, and rows may be violated by up to 1e-6. Integers are exact. Bounds of magnitude 1e20 or more count
    as no bounds. A program both infeasible and, without its constraints, unbounded is reported as infeasible.

    CP-SAT, from ``pip install 'structinf[solvers]'``, computes with integers and satisfies all rows exactly. Scores
    are rounded to integers with an error of about 2^-60 of their sum. A program of a few variables takes CP-SAT about
    0.6 ms, and HiGHS up to 5 ms if HiGHS has to branch.

    After Ctrl-C, KeyboardInterrupt reaches the caller within a second. CP-SAT stops. scipy has no way to stop HiGHS,
    which goes on in a background thread until the instance is solved or ``time_limit`` has passed.

    References
    ----------
    Q. Huangfu & J. A. J. Hall, Parallelizing the dual revised simplex method (Mathematical Programming Computation
    10, 2018), of HiGHS. L. Perron, F. Didier & S. Gay, The CP-SAT-LP solver (CP 2023).

    Examples
    --------
    At most two of four items, and the last item only together with the first:

    >>> oracle = MILP([[1, 1, 1, 1], [-1, 0, 0, 1]], upper=[2, 0])
    >>> oracle.argmax(torch.tensor([[0.5, 1.0, 1.2, 1.5]]))
    tensor([[0., 1., 1., 0.]])
    >>> oracle.argmax(torch.tensor([[0.9, 1.0, 1.2, 1.5]]))
    tensor([[1., 0., 0., 1.]])
    """

    name: ClassVar[str] = "milp"
    search_terms: ClassVar[tuple[str, ...]] = ("ilp", "integer_program", "linear_program", "highs")
    event_ndim: ClassVar[int | tuple[int, ...]] = 1
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"A": 2, "lower": 1, "upper": 1})
    label_ndim: ClassVar[int] = 1
    padding_stays_in_place: ClassVar[bool] = True
    structure_name: ClassVar[str] = "point"

    A: Any = None
    lower: Any = field(default=None, kw_only=True)
    upper: Any = field(default=None, kw_only=True)
    bounds: Any = field(default=(0, 1), kw_only=True)
    integrality: Any = field(default=True, kw_only=True)
    solver: Literal["highs", "cp_sat"] = field(default="highs", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solver not in ("highs", "cp_sat"):
            raise InvalidInputError(f'solver must be "highs" or "cp_sat", got {self.solver!r}')
        if not isinstance(self.bounds, tuple | list) or len(self.bounds) != 2:
            raise InvalidInputError(f"bounds must be a pair (least values, largest values), got {self.bounds!r}")
        if self.A is not None:
            self._check_program()
        if self.solver == "highs" and self.seed:
            raise InvalidInputError(
                f'seed must be 0 with solver="highs", as scipy passes no seed to HiGHS, got {self.seed!r}; leave out '
                'seed or use solver="cp_sat"'
            )
        if self.solver == "cp_sat" and self.A is not None:
            self._constraint_program  # noqa: B018  # raises an error for programs that CP-SAT cannot take

    def _check_program(self) -> None:
        """Convert the options to the form of :class:`LinearProgram`."""
        matrix = Matrix.of(self.A)
        m, d = matrix.shape
        low, high = self.bounds
        checked = {
            "A": matrix,
            "lower": _numbers("lower", -math.inf if self.lower is None else self.lower, m, "row of A"),
            "upper": _numbers("upper", math.inf if self.upper is None else self.upper, m, "row of A"),
            "bounds": (
                _numbers("bounds (least values)", low, d, "variable"),
                _numbers("bounds (largest values)", high, d, "variable"),
            ),
            "integrality": _flags(self.integrality, d),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def reads_as_option(cls, name: str, value: Any) -> bool:
        """Return whether ``value`` is one matrix, or bounds of rows without a batch dimension.

        Parameters
        ----------
        name : str
            "A", "lower" or "upper".
        value : object
            The value of a call's keyword.
        """
        return isinstance(value, Matrix) or number_of_dimensions(value) <= (2 if name == "A" else 1)

    # -- constraints of instances ----------------------------------------------------------

    def _oracles(self, batch: int) -> list[MILP]:
        """Return an oracle without instance data for each instance; equal instances share an oracle."""
        if not self.bound:
            return [self] * batch
        known: tuple[Any, list[MILP]] | None = vars(self).get("_of_batch")
        if known is not None and known[0] is self.bound:
            return known[1]
        data = {name: values.cpu().double().numpy() for name, values in self.bound.items()}
        alone: dict[tuple[bytes, ...], MILP] = {}
        oracles = []
        for b in range(len(next(iter(data.values())))):
            key = tuple(values[b].tobytes() for values in data.values())
            if key not in alone:
                alone[key] = replace(self, **{name: values[b] for name, values in data.items()})
            oracles.append(alone[key])
        object.__setattr__(self, "_of_batch", (self.bound, oracles))
        return oracles

    def _maximise(self, scores: np.ndarray, bounds: Any = None) -> Outcome:
        program = self._program if self.solver == "highs" else self._constraint_program
        return program.maximise(scores, self, bounds)

    @functools.cached_property
    def _program(self) -> LinearProgram:
        return LinearProgram(self.A, (self.lower, self.upper), self.bounds, self.integrality)

    @functools.cached_property
    def _constraint_program(self) -> ConstraintProgram:
        return self._program.as_constraint_program()

    def __getstate__(self) -> dict[str, Any]:
        """Return the options without the cached programs, which are built again on first use."""
        return {
            key: value
            for key, value in vars(self).items()
            if key not in ("_program", "_constraint_program", "_of_batch")
        }

    # -- shapes and labels -----------------------------------------------------------------

    def validate(self, theta: Tensor) -> None:
        for name, values in self.bound.items():
            check_instances(name, values, len(theta), shared=False)
            refuse_gradient(name, values)
        if self.A is None and "A" not in self.bound:
            raise InvalidInputError("milp needs A, as an option or with the scores as instance data")
        m, d = self.bound["A"].shape[1:] if "A" in self.bound else Matrix.of(self.A).shape
        if theta.shape[1] != d:
            raise InvalidInputError(
                f"theta: milp takes a score for each of the {d} columns of A, shape (..., {d}); got {theta.shape[1]} "
                "after the batch dimensions"
            )
        for name in ("lower", "upper"):
            if name in self.bound and self.bound[name].shape[1] != m:
                raise InvalidInputError(
                    f"{name} must hold a number for each of the {m} rows of A, shape (..., {m}), got "
                    f"{self.bound[name].shape[1]} numbers for each instance"
                )
        self._oracles(len(theta))  # raises errors for NaN and infinite coefficients

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        self._check_integral("no integer labels; pass y itself, in the dtype of theta")
        d = like.shape[1]
        if labels.shape[1:] != (d,):
            raise InvalidInputError(
                f"labels must be the values of the {d} variables, shape (..., {d}); got {tuple(labels.shape)} with the "
                "batch flat"
            )
        points, programs = labels.cpu().double().numpy(), [oracle._program for oracle in self._oracles(len(labels))]
        if programs:
            low, high = programs[0].low, programs[0].high
            outside = torch.from_numpy((points < low) | (points > high))
            reject_labels(outside.to(labels.device), labels, "a variable is out of its bounds")
        holds = [bool(program.holds(point[None])[0]) for program, point in zip(programs, points, strict=True)]
        broken = ~torch.tensor(holds, dtype=torch.bool, device=labels.device)[:, None]
        reject_labels(broken, labels, "a row of A is out of its bounds")
        return labels.to(like.dtype)

    def decode(self, y: Tensor) -> Int[Tensor, "batch d"]:
        self._check_integral("no integer labels; use y itself")
        return y.round().long()

    def hamming_cost(self, y: Tensor) -> Tensor:
        """Return costs that count the 0/1 variables wrongly 0 or 1. For other variables see :func:`cost_of_changes`."""
        low, high = self._box(y.shape[1])
        return cost_of_changes(y, low, high)

    def _check_integral(self, lacks: str) -> None:
        if not np.all(self.integrality):
            raise UnsupportedError(f"milp with continuous variables has {lacks}")

    # -- optimisation ----------------------------------------------------------------------

    def maximiser(self, theta: Tensor) -> Maximiser:
        oracles = self._oracles(len(theta))
        return lambda i, scores: oracles[i]._maximise(scores)

    def _box(self, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the largest values of the d variables, which all instances share."""
        low, high = (np.broadcast_to(np.asarray(end, np.float64), (d,)) for end in self.bounds)
        integral = np.broadcast_to(np.asarray(self.integrality, np.bool_), (d,))
        return np.where(integral, np.ceil(low), low), np.where(integral, np.floor(high), high)

    def part_bounds(self, theta: Tensor) -> tuple[Parts, Parts]:
        self._check_integral("no list of k best points; set integrality=True")
        low, high = (torch.from_numpy(end).to(theta)[None] for end in self._box(theta.shape[1]))
        return low, high

    def restricted_argmax(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Parts, Tensor]:
        oracles, bounds = self._oracles(len(theta)), to_numpy(low.double(), high.double())
        return self.best_of_feasible(
            theta, lambda i, scores: oracles[i]._maximise(scores, (bounds[0][i], bounds[1][i]))
        )

    def topk(self, theta: Any, k: int) -> tuple[Parts, Tensor, Tensor]:
        low, high = self._box(theta.shape[1])
        if not np.all(self.integrality) or (low < 0).any() or (high > 1).any():
            return super().topk(theta, k)
        check_natural("k", k)
        theta = theta.detach()
        values, found = self.rank_by_cuts(theta, self.argmax(theta), k, theta.shape[1])
        scores = torch.where(found, (values.double() * theta.double().nan_to_num(neginf=0.0)).sum(2), -math.inf)
        values, scores = in_order(values, scores)
        return values, scores.to(theta), ~scores.isneginf()

    def rank_by_cuts(self, theta: Tensor, best: Tensor, k: int, columns: int) -> tuple[Tensor, Tensor]:
        """Return the k best points that differ in the first variables, which are 0 or 1, best first.

        A constraint excludes each point found, so that a point takes one call of the solver (E. Balas & R. Jeroslow,
        Canonical cuts on the unit hypercube, SIAM Journal on Applied Mathematics 23, 1972).

        Parameters
        ----------
        theta : (B, d) Tensor
            The scores.
        best : (B, d) Tensor
            The best points.
        k : int
            The number of points.
        columns : int
            The number of variables in which the points differ.

        Returns
        -------
        values : (k, B, d) Tensor
            The points, 0 beyond the last.
        found : (k, B) bool Tensor
            Whether a point exists.
        """
        oracles, values = list(self._oracles(len(theta))), [best]
        found = [torch.ones(len(theta), dtype=torch.bool, device=theta.device)]

        def maximise(index: int, scores: np.ndarray) -> Outcome:
            return oracles[index]._maximise(scores) if left[index] else Outcome("infeasible")

        while len(values) < k and bool(found[-1].any()):
            left = found[-1].tolist()
            for i, point in enumerate(values[-1][:, :columns].round().cpu().double().numpy()):
                if left[i]:
                    oracles[i] = oracles[i]._without(point)
            following, exists = self.best_of_feasible(theta, maximise)
            values.append(following)
            found.append(exists)
        missing = k - len(values)
        values += [torch.zeros_like(best)] * missing
        found += [torch.zeros_like(found[0])] * missing
        return torch.stack(values), torch.stack(found)

    def _without(self, point: np.ndarray) -> MILP:
        """Return the program without the points whose first variables are ``point``, an array of 0 and 1."""
        from scipy.sparse import coo_array, vstack

        columns = np.arange(len(point))
        cut = coo_array((1 - 2 * point, (0 * columns, columns)), shape=(1, self.A.shape[1]))
        rows = vstack([self.A.as_scipy(), cut], format="csc")
        return replace(self, A=rows, lower=(*self.lower, 1 - point.sum()), upper=(*self.upper, math.inf))

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all points, (|Y|, d) in float64, sorted. The bounds must hold at most a million integer points."""
        self._check_integral("infinitely many points, which cannot be listed; set integrality=True")
        program = self._oracles(1)[0]._program
        if not (np.isfinite(program.low).all() and np.isfinite(program.high).all()):
            raise InvalidInputError("bounds must be finite to list all points; give finite bounds for each variable")
        ranges = [range(int(a), int(b) + 1) for a, b in zip(program.low, program.high, strict=True)]
        check_enumerable(math.prod(map(len, ranges)), "points within the bounds of milp")
        box = np.array(list(itertools.product(*ranges)), np.float64).reshape(-1, len(ranges))
        return torch.from_numpy(box[program.holds(box)])


def _numbers(name: str, given: Any, count: int, each: str) -> tuple[float, ...]:
    """Return ``given`` broadcast to ``count`` floats; InvalidInputError for other shapes, non-numbers and NaN."""
    try:
        numbers = np.broadcast_to(np.asarray(given, np.float64), (count,))
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{name} must be a number, or a number for each {each}, shape ({count},), got {given!r}"
        ) from None
    if np.isnan(numbers).any():
        raise InvalidInputError(f"{name} must not hold NaN, got NaN at index {int(np.isnan(numbers).argmax())}")
    return tuple(numbers.tolist())


def _flags(given: Any, count: int) -> tuple[bool, ...]:
    numbers = _numbers("integrality", given, count, "variable")
    if not set(numbers) <= {0.0, 1.0}:
        raise InvalidInputError(f"integrality must be True or False for each variable, got {given!r}")
    return tuple(map(bool, numbers))
