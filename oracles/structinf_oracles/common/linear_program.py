"""Mixed-integer linear programs: rows, bounds and integrality in one form, and their solution by HiGHS."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from structinf.errors import InvalidInputError
from structinf.shapes import Bool, Shaped
from structinf.solver_oracle import Outcome, SolverOracle

from .constraint_program import MOST_VALUE, ConstraintProgram, load_cp_model, tightened
from .constraint_program import Bounds as VariableBounds

__all__ = ["LinearProgram", "Matrix"]

# HiGHS treats objectives that differ by 1e-6 as equal, and reduced costs of 1e-7 as 0. If the largest score is about
# 2^24, these tolerances are 1e-13 of the largest score, and the rounding errors of float64 are far below them.
SCORE_BITS = 24
# The violation of rows tolerated by HiGHS, and the relative rounding error of their sums.
TOLERANCE, ROUNDING = 1e-6, 1e-9
# Sums of integers are exact in float64 up to this size.
MOST_EXACT = 2.0**53


@dataclass(frozen=True, eq=False, repr=False)
class Matrix:
    """A sparse matrix with equality and a hash, made by :meth:`of` from arrays, nested lists and scipy matrices.

    Attributes
    ----------
    shape : (int, int)
        The numbers of rows and columns.
    data, row, indptr : array
        The columns in the format of scipy's csc_array, sorted and without zeros.
    checksum : int
        A checksum of the entries, used as the hash.
    """

    shape: tuple[int, int]
    data: np.ndarray
    row: np.ndarray
    indptr: np.ndarray
    checksum: int = field(init=False)

    def __post_init__(self) -> None:
        for array in (self.data, self.row, self.indptr):
            array.setflags(write=False)
        object.__setattr__(self, "checksum", zlib.crc32(self.data.tobytes(), zlib.crc32(self.row.tobytes())))

    @classmethod
    def of(cls, given: Any) -> Matrix:
        """Return the matrix made from ``given``; InvalidInputError if it is not a matrix of finite numbers."""
        from scipy.sparse import csc_array, issparse

        if isinstance(given, Matrix):
            return given
        try:
            dense = given if issparse(given) else np.asarray(given, np.float64)
            if dense.ndim != 2:
                raise InvalidInputError(f"A must be a matrix with a row for each constraint, got shape {dense.shape}")
            matrix: Any = csc_array(dense, dtype=np.float64, copy=True)
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise InvalidInputError(f"A must be an (m, d) array of numbers, dense or sparse, got {given!r}") from error
        if not np.isfinite(matrix.data).all():
            raise InvalidInputError("A must hold finite numbers, got NaN or infinity")
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        m, d = matrix.shape
        return cls((int(m), int(d)), matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32))

    def as_scipy(self) -> Any:
        """Return the matrix as a csc_array."""
        from scipy.sparse import csc_array

        return csc_array((self.data, self.row, self.indptr), shape=self.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Matrix):
            return NotImplemented
        pairs = ((self.data, other.data), (self.row, other.row), (self.indptr, other.indptr))
        return self.shape == other.shape and all(np.array_equal(a, b) for a, b in pairs)

    def __hash__(self) -> int:
        return self.checksum

    def __repr__(self) -> str:
        return f"Matrix({self.shape[0]} rows, {self.shape[1]} columns, {len(self.data)} non-zeros)"


class LinearProgram:
    """The program lower ≤ A y ≤ upper, low ≤ y ≤ high, with integer variables where ``integral``.

    Parameters
    ----------
    matrix : Matrix
        A, (m, d).
    rows : pair of (m,) sequence
        The bounds lower and upper of the rows.
    bounds : pair of (d,) sequence
        The bounds low and high of the variables.
    integral : (d,) sequence of bool
        Whether each variable is an integer.
    """

    def __init__(
        self,
        matrix: Matrix,
        rows: tuple[Any, Any],
        bounds: tuple[Any, Any],
        integral: Any,
    ) -> None:
        self.rows = matrix.as_scipy()
        self.lower: Any
        self.upper: Any
        self.lower, self.upper = map(np.array, rows)
        low, high = map(np.array, bounds)
        self.integral = np.array(integral, np.bool_)
        self.low = np.where(self.integral, np.ceil(low), low)
        self.high = np.where(self.integral, np.floor(high), high)
        self._sizes = abs(self.rows)

    @property
    def is_empty(self) -> bool:
        """Whether a lower bound exceeds an upper bound."""
        return bool((self.low > self.high).any() or (self.lower > self.upper).any())

    def holds(self, y: Shaped[np.ndarray, "points d"]) -> Bool[np.ndarray, " points"]:
        """Return which of the points satisfy all rows, within the tolerance of HiGHS, and all bounds."""
        activity, tolerance = y @ self.rows.T, TOLERANCE + ROUNDING * (np.abs(y) @ self._sizes.T)
        rows = (activity >= self.lower - tolerance) & (activity <= self.upper + tolerance)
        return rows.all(1) & ((y >= self.low) & (y <= self.high)).all(1)

    # -- HiGHS -----------------------------------------------------------------------------

    def maximise(self, scores: np.ndarray, oracle: SolverOracle, bounds: VariableBounds = None) -> Outcome:
        """Return a point of highest score, for scores (d,); a score of −inf fixes a variable to 0.

        Parameters
        ----------
        scores : (d,) array
            The score of each variable.
        oracle : SolverOracle
            The oracle, read for its limits.
        bounds : pair of (d,) array, optional
            Further bounds of the variables.
        """
        forbidden = np.isneginf(scores)
        low, high = (self.low, self.high) if bounds is None else tightened(self.low, self.high, bounds)
        if self.is_empty or ((low > 0) | (high < 0))[forbidden].any() or (low > high).any():
            return Outcome("infeasible")
        if len(scores) == 0:
            return Outcome("best", scores) if self.holds(scores[None])[0] else Outcome("infeasible")
        low, high = (np.where(forbidden, 0.0, end) for end in (low, high))
        scores = np.where(forbidden, 0.0, scores)
        scores = np.ldexp(scores, SCORE_BITS - np.frexp(np.abs(scores).max(initial=0.0))[1])
        result = self._run(scores, low, high, oracle)
        if result.status in (3, 4):
            return self._without_best(result, low, high, oracle)
        if result.x is None:
            return Outcome("infeasible" if result.status == 2 else "limit")
        point = self._rounded(result.x)
        if not self.holds(point[None])[0] and not self.integral.all():
            # The continuous variables fit the integers before rounding. Solve again with the rounded integers fixed.
            low, high = (np.where(self.integral, point, end) for end in (low, high))
            relaxed = self._run(scores, low, high, oracle)
            point = point if relaxed.x is None else self._rounded(relaxed.x)
        if not self.holds(point[None])[0]:
            return Outcome("limit", why="its limit of precision, as its rounded answer violates constraints,")
        return Outcome("best", point) if result.status == 0 else Outcome("limit", point, float(result.mip_gap))

    def _without_best(self, result: Any, low: np.ndarray, high: np.ndarray, oracle: SolverOracle) -> Outcome:
        """Return whether the program is unbounded or infeasible; if HiGHS cannot tell, solve without scores."""
        if result.status == 4 and "Not Set" in result.message and oracle.time_limit is not None:
            return Outcome("limit")  # the time limit passed before HiGHS began
        if result.status == 4 and "unbounded or infeasible" not in result.message:
            return Outcome("limit", why=f"a numerical difficulty ({result.message})")
        any_point = self._run(np.zeros(len(low)), low, high, oracle)
        if any_point.status == 2:
            return Outcome("infeasible")
        return Outcome("unbounded" if any_point.x is not None else "limit")

    def _run(self, scores: np.ndarray, low: Any, high: Any, oracle: SolverOracle) -> Any:
        from scipy.optimize import Bounds, LinearConstraint, milp

        options: dict[str, Any] = {"mip_rel_gap": float(oracle.gap)}
        if oracle.time_limit is not None:
            options["time_limit"] = float(oracle.time_limit)
        return milp(
            -scores,
            integrality=self.integral,
            bounds=Bounds(low, high),
            constraints=LinearConstraint(self.rows, self.lower, self.upper),
            options=options,
        )

    def _rounded(self, point: np.ndarray) -> np.ndarray:
        """Return ``point`` with integers rounded, clipped to the bounds, as HiGHS has a tolerance."""
        return np.where(self.integral, np.rint(point), point).clip(self.low, self.high) + 0.0  # no −0

    # -- CP-SAT ----------------------------------------------------------------------------

    def as_constraint_program(self) -> ConstraintProgram:
        """Return the program for CP-SAT.

        Raises InvalidInputError unless all variables are bounded integers and A holds integers.
        """
        ends = np.concatenate([self.low, self.high])
        if not self.integral.all() or not np.isfinite(ends).all():
            raise InvalidInputError(
                'solver: "cp_sat" needs integer variables with finite bounds; change integrality and bounds, or use '
                'solver="highs"'
            )
        if (abs(ends) > MOST_VALUE).any():
            raise InvalidInputError(
                'solver: "cp_sat" needs bounds within ±2^31; give smaller bounds, or use solver="highs"'
            )
        if (self.rows.data != np.rint(self.rows.data)).any():
            raise InvalidInputError(
                'solver: "cp_sat" needs integers in A; scale rows with fractions, and their lower and upper bounds, to '
                'integers, or use solver="highs"'
            )
        cp_model = load_cp_model()
        model = cp_model.CpModel()
        if self.is_empty:
            model.add_bool_or([])  # an empty clause makes the model infeasible
        y = [model.new_int_var(int(a), int(max(a, b)), "") for a, b in zip(self.low, self.high, strict=True)]
        rows = self.rows.tocsr()
        for i in range(rows.shape[0]):
            here = slice(rows.indptr[i], rows.indptr[i + 1])
            part, factor = rows.indices[here], rows.data[here]
            reach = np.stack([factor * self.low[part], factor * self.high[part]])
            least, most = reach.min(0).sum(), reach.max(0).sum()
            if np.isfinite([self.lower[i], self.upper[i]]).any() and max(-least, most) > MOST_EXACT:
                raise InvalidInputError(
                    f'solver: "cp_sat" needs rows of A y of at most 2^53, got a range from {least:g} to {most:g} for '
                    f'row {i}; divide the row by a constant, or use solver="highs"'
                )
            lower, upper = max(np.ceil(self.lower[i]), least), min(np.floor(self.upper[i]), most)
            if lower > upper:
                model.add_bool_or([])
            elif lower > least or upper < most:
                terms = cp_model.LinearExpr.weighted_sum([y[j] for j in part], factor.astype(np.int64).tolist())
                model.add_linear_constraint(terms, int(lower), int(upper))
        return ConstraintProgram(model, y)
