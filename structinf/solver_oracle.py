"""Base class of the oracles that call a solver for each instance: limits, outcomes and errors."""

from __future__ import annotations

import abc
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from .errors import (
    ConvergenceWarning,
    InfeasibleError,
    InvalidInputError,
    SolverLimitError,
    UnboundedError,
    warn_user,
)
from .kernels.arrays import to_numpy
from .kernels.interrupts import run_while_waiting
from .oracle import Oracle

__all__ = ["Maximiser", "OnLimit", "Outcome", "SolverOracle"]

OnLimit = Literal["raise", "warn"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a solver for one instance.

    Attributes
    ----------
    status : str
        "best", "infeasible", "unbounded", or "limit" if the solver stopped early.
    values : (d,) array or None
        The best structure. With the status "limit", the best known structure, or None.
    gap : float
        Bound on the relative shortfall of the score from the optimum.
    why : str
        The reason why the solver stopped early, for messages.
    """

    status: Literal["best", "infeasible", "unbounded", "limit"]
    values: np.ndarray | None = None
    gap: float = 0.0
    why: str = "its time limit"


Maximiser = Callable[[int, np.ndarray], Outcome]
"""Returns the outcome, given the index of an instance and its float64 scores (d,), −inf for parts that must be 0."""


@dataclass(frozen=True)
class SolverOracle(Oracle):
    """An oracle whose ``argmax`` calls a solver for each instance.

    Parameters
    ----------
    time_limit : float, optional
        Seconds allowed for each instance. Default: no limit.
    gap : float, default 0.0
        Relative gap at which the solver may stop: no other structure scores higher by more than this share of the
        score. 0 asks for the best structure.
    seed : int, default 0
        Seed of the solver's random choices, from 0 to 2^31 − 1.
    on_limit : {"raise", "warn"}, default "raise"
        What happens if the solver stops with a structure not proved optimal. "raise" raises SolverLimitError. "warn"
        returns the structure with a ConvergenceWarning. Both messages name the instance and its gap. If no structure
        is known, the oracle raises SolverLimitError in either case.
    """

    time_limit: float | None = field(default=None, kw_only=True)
    gap: float = field(default=0.0, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    on_limit: OnLimit = field(default="raise", kw_only=True)

    structure_name: ClassVar[str] = "structure"
    takes_threads: ClassVar[bool] = True
    """Whether several threads may call the maximiser at once."""

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
        """Return the function that solves one instance of θ (B, *event).

        Several threads call the function at once, unless ``takes_threads`` is False.
        """

    def argmax(self, theta: Tensor) -> Tensor:
        outcomes = self._outcomes(theta, self.maximiser(theta))
        return self._structures(theta, outcomes, range(len(outcomes)))

    def best_of_feasible(self, theta: Tensor, maximiser: Maximiser | None = None) -> tuple[Tensor, Tensor]:
        """Return the argmax, (B, *event), and which instances have a structure, (B,) bool; zeros for the others.

        Parameters
        ----------
        theta : (B, *event) Tensor
            Scores.
        maximiser : Maximiser, optional
            The function that solves one instance. Default: :meth:`maximiser`.
        """
        outcomes = self._outcomes(theta, maximiser or self.maximiser(theta))
        found = np.array([outcome.status != "infeasible" for outcome in outcomes], np.bool_)
        y = self._structures(theta, outcomes, np.flatnonzero(found).tolist())
        return y, torch.from_numpy(found).to(theta.device)

    def _outcomes(self, theta: Tensor, maximiser: Maximiser) -> list[Outcome]:
        (scores,) = to_numpy(theta.detach().double().flatten(1))
        return _solve_all(maximiser, scores, torch.get_num_threads() if self.takes_threads else 1)

    def _structures(self, theta: Tensor, outcomes: Sequence[Outcome], rows: Iterable[int]) -> Tensor:
        """Return the structures of the instances ``rows``, and zeros for the others, in the form of θ."""
        y = np.zeros((len(outcomes), math.prod(theta.shape[1:])))
        for index in rows:
            y[index] = self.values_or_error(outcomes[index], index)
        self._warn(outcomes)
        return torch.from_numpy(y).to(theta).reshape(theta.shape)

    def values_or_error(self, outcome: Outcome, index: int) -> np.ndarray:
        """Return the structure of the outcome, or raise its error.

        Parameters
        ----------
        outcome : Outcome
            The result of the solver for one instance.
        index : int
            The index of the instance in the batch, for messages.
        """
        who, values = f"batch index {index}", outcome.values
        if outcome.status == "infeasible":
            raise InfeasibleError(
                f"no {self.structure_name} of finite score exists for {who}: the constraints contradict each other, or "
                "require parts of score −inf; relax the constraints, allow more parts or drop the instance",
                index,
            )
        if outcome.status == "unbounded":
            raise UnboundedError(
                f"scores of {self.label()} are unbounded for {who}; give the variables finite bounds", index
            )
        if values is None:
            raise SolverLimitError(
                f"the solver stopped at {outcome.why} without any {self.structure_name} for {who}; "
                "raise time_limit or reduce the problem",
                index,
            )
        if outcome.status == "limit" and self.on_limit == "raise":
            raise SolverLimitError(
                f"the solver stopped at {outcome.why} for {who} with a {self.structure_name} whose score may be below "
                f"the best by {outcome.gap:.3g} of the score; raise time_limit or gap, or pass "
                'on_limit="warn" to accept the structure',
                index,
            )
        return values

    def _warn(self, outcomes: Sequence[Outcome]) -> None:
        stopped = [(i, o) for i, o in enumerate(outcomes) if o.status == "limit"]
        if stopped:
            short = [f"batch index {i} (by {o.gap:.3g})" for i, o in stopped]
            shown = ", ".join(short if len(short) <= 10 else [*short[:10], f"and {len(short) - 10} more"])
            why = " or ".join(dict.fromkeys(o.why for _, o in stopped))
            warn_user(
                f"{self.label()}: the solver stopped at {why}; scores may be below the best, by a relative "
                f"gap, at {shown}; raise time_limit or gap",
                ConvergenceWarning,
            )


def _solve_all(solve: Maximiser, scores: np.ndarray, most_threads: int) -> list[Outcome]:
    """Return the outcomes of all instances, solved in at most so many threads."""
    outcomes: list[Any] = [None] * len(scores)
    waiting = deque(range(len(scores)))

    def serve() -> None:
        # All threads take instances from one queue, as solving times differ between instances.
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

    # Not in the OpenMP team of torch, where numpy's linear algebra may hang.
    run_while_waiting(serve, max(min(len(scores), most_threads), 1), waiting.clear)
    if errors := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
        outcomes.clear()
        raise errors.pop(0)
    return outcomes
