"""What oracles that call a solver share: scores as integers, limits, outcomes, and instances in parallel."""

from __future__ import annotations

import abc
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.errors import (
    ConvergenceWarning,
    InfeasibleError,
    InvalidInputError,
    SolverLimitError,
    UnboundedError,
    warn_user,
)
from structinf.kernels import to_numpy
from structinf.kernels.threads import run_in_thread_pool
from structinf.oracle import Oracle
from structinf.shapes import Float, Float64, Int64

__all__ = ["Maximiser", "OnLimit", "Outcome", "SolverOracle", "cost_of_changes", "integer_scores"]

OnLimit = Literal["raise", "warn"]


def integer_scores(
    scores: Float64[np.ndarray, " parts"], most: int, times: int | np.ndarray = 1
) -> Int64[np.ndarray, " parts"]:
    """``scores`` (d,), all finite, as integers in the same proportions, with Σ |result| · ``times`` ≤ ``most``.

    They are multiplied by a power of two, as large as fits, and rounded; then a common factor is taken out. With
    ``most`` = 2^60, that is exact for float32 scores whose sum is less than 2^36 times the smallest of them, and
    otherwise wrong by no more than 2^-60 of the sum.
    """
    scores = np.asarray(scores, np.float64)
    times = np.broadcast_to(times, scores.shape).astype(np.float64)
    unit = np.ldexp(scores, -np.frexp(np.abs(scores).max(initial=0.0))[1])  # between −1 and 1
    total = (np.abs(unit) * times).sum()
    if total == 0:
        return np.zeros(scores.shape, np.int64)
    largest_sum = most * (1 - 2.0**-40) - times.sum() / 2  # the sums here are rounded, and so will the integers be
    shift = np.frexp(largest_sum / total)[1] - 1
    integers = np.rint(np.ldexp(unit, shift)).astype(np.int64)
    return integers // max(int(np.gcd.reduce(integers)), 1)


def cost_of_changes(y: Float[Tensor, "batch parts"], low: np.ndarray, high: np.ndarray) -> Float[Tensor, "batch parts"]:
    """Costs of 1 a unit by which parts at their least value ``low`` (d,) rise, and those at their largest fall.

    Of variables of 0 and 1 that is the Hamming distance from ``y``. What lies between costs nothing, either way.
    """
    low_end, high_end = (torch.from_numpy(end).to(y) for end in (low, high))
    return (y <= low_end).to(y.dtype) - (y >= high_end).to(y.dtype)


# ----------------------------------------------------------------------------- one instance's answer


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a solver knows of one instance in the end.

    Attributes
    ----------
    status : str
        "best", "infeasible", "unbounded", or "limit" if it had to stop before.
    values : (d,) array or None
        A structure: the best one, or the best one known at the limit, None if none was.
    gap : float
        By how much the values' score may fall short, relative to it.
    why : str
        What stopped the solver.
    """

    status: Literal["best", "infeasible", "unbounded", "limit"]
    values: np.ndarray | None = None
    gap: float = 0.0
    why: str = "its limit of time"


Maximiser = Callable[[int, np.ndarray], Outcome]
"""From the index of an instance and its scores (d,), in float64, −inf for a part that must be 0, to the outcome."""


@dataclass(frozen=True)
class SolverOracle(Oracle):
    """An oracle whose argmax is a solver's answer, instance by instance.

    Parameters
    ----------
    time_limit : float, optional
        Seconds for each instance; None for as long as it takes.
    gap : float
        A structure is good enough if no other scores more by this share of its score. 0 for the best one.
    seed : int
        Of the solver's random choices.
    on_limit : {"raise", "warn"}
        What comes of an instance whose limit is reached when a structure is known, but not that it is the best:
        SolverLimitError, or that structure with a ConvergenceWarning. Both name the instance and its gap. Without
        any structure known it is SolverLimitError in any case.
    """

    time_limit: float | None = field(default=None, kw_only=True)
    gap: float = field(default=0.0, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    on_limit: OnLimit = field(default="raise", kw_only=True)

    structure_name: ClassVar[str] = "structure"

    def __post_init__(self) -> None:
        limit, gap, seed = self.time_limit, self.gap, self.seed
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Real) or not limit > 0):
            raise InvalidInputError(f"time_limit must be a number of seconds above 0, or None, got {limit!r}")
        if isinstance(gap, bool) or not isinstance(gap, Real) or not 0 <= gap < math.inf:
            raise InvalidInputError(f"gap must be a number of at least 0, got {gap!r}")
        if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= seed < 2**31:
            raise InvalidInputError(f"seed must be an integer from 0 to 2^31 - 1, got {seed!r}")
        if self.on_limit not in ("raise", "warn"):
            raise InvalidInputError(f'on_limit must be "raise" or "warn", got {self.on_limit!r}')

    @abc.abstractmethod
    def maximiser(self, theta: Tensor) -> Maximiser:
        """What solves each instance of θ (B, *event); it is called in several threads at once."""

    def argmax(self, theta: Tensor) -> Tensor:
        (scores,) = to_numpy(theta.detach().double().flatten(1))
        y = np.empty(scores.shape)
        outcomes = _solve_all(self.maximiser(theta), scores)
        for index, outcome in enumerate(outcomes):
            y[index] = self.values_or_error(outcome, index)
        self._warn(outcomes)
        return torch.from_numpy(y).to(theta).reshape(theta.shape)

    def values_or_error(self, outcome: Outcome, index: int) -> np.ndarray:
        """The outcome's structure, or the error that it stands for."""
        who, values = f"batch index {index}", outcome.values
        if outcome.status == "infeasible":
            raise InfeasibleError(
                f"no {self.structure_name} of finite score exists for {who}: the constraints exclude each other, or "
                "parts of −inf are needed; loosen the constraints, allow more parts or drop the instance",
                index,
            )
        if outcome.status == "unbounded":
            raise UnboundedError(
                f"scores of {self.label()} grow without end for {who}; give the variables finite bounds", index
            )
        if values is None:
            raise SolverLimitError(
                f"the solver stopped at {outcome.why} before it knew any {self.structure_name} for {who}; "
                "give it more, or a smaller problem",
                index,
            )
        if outcome.status == "limit" and self.on_limit == "raise":
            raise SolverLimitError(
                f"the solver stopped at {outcome.why} for {who} with a {self.structure_name} whose score may fall "
                f"short of the best by {outcome.gap:.3g} of it; give it more time, a gap to be content with, or "
                'on_limit="warn" to take what it has',
                index,
            )
        return values

    def _warn(self, outcomes: Sequence[Outcome]) -> None:
        short = [f"{i} (by {o.gap:.3g})" for i, o in enumerate(outcomes) if o.status == "limit"]
        if short:
            shown = ", ".join(short if len(short) <= 10 else [*short[:10], f"and {len(short) - 10} more"])
            warn_user(
                f"{self.label()}: the solver stopped at its limit of time; scores may fall short of the best, by a "
                f"share of them, at batch index {shown}",
                ConvergenceWarning,
            )


def _solve_all(solve: Maximiser, scores: np.ndarray) -> list[Outcome]:
    """The outcomes of all instances, from at most as many threads as torch has."""
    outcomes: list[Any] = [None] * len(scores)
    waiting = deque(range(len(scores)))

    def serve() -> None:
        # From one queue, as some instances take much longer than others.
        while waiting:
            try:
                index = waiting.popleft()
            except IndexError:
                return
            try:
                outcomes[index] = solve(index, scores[index])
            except BaseException as error:
                waiting.clear()
                outcomes[index] = error

    # Not in torch's OpenMP team, inside which numpy's linear algebra may hang.
    run_in_thread_pool(serve, max(min(len(scores), torch.get_num_threads()), 1))
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes
