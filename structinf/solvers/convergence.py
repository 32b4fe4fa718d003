"""Checks of stopping options, and reports of instances that did not converge."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from ..errors import ConvergenceError, ConvergenceWarning, warn_user
from ..validation import check_choice, check_natural, check_nonnegative

__all__ = [
    "IterativeResult",
    "OnFailure",
    "check_differentiable",
    "check_stopping",
    "report_nonconvergence",
    "report_unconverged",
]

OnFailure = Literal["warn", "raise", "ignore"]


def check_stopping(max_iter: int, tolerance: float, on_failure: OnFailure) -> None:
    """Raise InvalidInputError unless ``max_iter``, ``tolerance`` and ``on_failure`` are valid options."""
    check_natural("max_iter", max_iter)
    check_nonnegative("tolerance", tolerance)
    check_choice("on_failure", on_failure, ("warn", "raise", "ignore"))


def report_nonconvergence(message: str, on_failure: OnFailure) -> None:
    """Warn, raise ConvergenceError or do nothing, as ``on_failure`` says.

    The warning points to the line of the user's code that called the library.
    """
    if on_failure == "raise":
        raise ConvergenceError(message)
    if on_failure == "warn":
        warn_user(message, ConvergenceWarning)


def check_differentiable(failed: Tensor, label: str, reason: str, options: str) -> None:
    """Raise ConvergenceError for the first instance whose mean has no implicit gradient.

    Parameters
    ----------
    failed : (B,) bool Tensor
        Which instances have no gradient.
    label : str
        The name of the solver and its oracle.
    reason : str
        Why they have none.
    options : str
        What the user can raise.
    """
    if bool(failed.any()):
        index = int(failed.nonzero()[0, 0])
        raise ConvergenceError(
            f"{label}: there is no gradient of the mean at batch index {index}, because {reason}; raise "
            f"{options}, or leave this instance out of the objective"
        )


class IterativeResult(Protocol):
    """The result of a solver that calls an oracle until the duality gap is within the tolerance.

    Attributes
    ----------
    gap : (B,) Tensor
        The duality gap of each instance.
    converged : (B,) bool Tensor
        Whether the gap of each instance is within the tolerance.
    oracle_calls : int
        The number of oracle calls.
    """

    @property
    def gap(self) -> Tensor: ...

    @property
    def converged(self) -> Tensor: ...

    @property
    def oracle_calls(self) -> int: ...


def report_unconverged(
    what: str, result: IterativeResult, max_iter: int, tolerance: float, on_failure: OnFailure
) -> None:
    """Report the instances of ``result`` that did not converge, by :func:`report_nonconvergence`.

    The message begins with ``what``, the name of the solver and its oracle, and quotes ``max_iter`` and
    ``tolerance``.
    """
    if on_failure == "ignore" or bool(result.converged.all()):
        return
    failed = (~result.converged).nonzero()[:, 0]
    worst = int(failed[result.gap[failed].argmax()])
    report_nonconvergence(
        f"{what}: {len(failed)} of {len(result.converged)} instances stopped after {result.oracle_calls} oracle calls "
        f"without convergence, the worst at batch index {worst} with a duality gap of {result.gap[worst].item():.2e}; "
        f"raise max_iter or tolerance: max_iter is {max_iter} and tolerance is {tolerance:g}",
        on_failure,
    )
