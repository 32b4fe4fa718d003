"""The result of a suite: a result for each check, and the error of a failed check."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import StructinfError

__all__ = ["CheckError", "CheckReport", "CheckResult"]


class CheckError(StructinfError, AssertionError):
    """An oracle or relaxation fails a check.

    The message states the check, the result and the expected result, and prints code that reproduces the input.

    Parameters
    ----------
    message : str
        The full message.
    check : str
        Name of the check.
    failure_summary : str
        The cause, or an empty string for the full message.

    Attributes
    ----------
    check : str
        Name of the check.
    failure_summary : str
        The cause, equal for all checks that fail for the same reason: the exception and the line that raised it, or the
        sentence about the wrong result.
    """

    def __init__(self, message: str, check: str, failure_summary: str = "") -> None:
        super().__init__(message)
        self.check = check
        self.failure_summary = failure_summary or message

    def __reduce__(self):
        return type(self), (self.args[0], self.check, self.failure_summary)


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes
    ----------
    check : str
        Name of the check.
    requirement : str
        The requirement tested by the check.
    num_inputs : int
        The number of inputs on which the check passed.
    reason : str or None
        Why the check does not apply; None if the check passed or failed.
    error : CheckError or None
        The failure; None if the check did not fail.
    seconds : float
        The duration of the check.
    """

    check: str
    requirement: str
    num_inputs: int = 0
    reason: str | None = None
    error: CheckError | None = None
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """``"passed"``, ``"failed"`` or ``"not applicable"``."""
        if self.error is not None:
            return "failed"
        return "not applicable" if self.reason is not None else "passed"


@dataclass(frozen=True)
class CheckReport:
    """The results of all checks of one oracle or relaxation.

    Attributes
    ----------
    target : str
        The checked oracle, or the checked relaxation with its oracle.
    results : tuple of CheckResult
        The results, in the order of the checks.
    """

    target: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> list[str]:
        """The names of the checks that passed."""
        return [r.check for r in self.results if r.status == "passed"]

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return [r.check for r in self.results if r.status == "failed"]

    @property
    def not_applicable(self) -> dict[str, str]:
        """The reason why each other check does not apply, by name of the check."""
        return {r.check: r.reason for r in self.results if r.reason is not None}

    def raise_if_failed(self) -> None:
        """Raise the error of the first check that failed."""
        for result in self.results:
            if result.error is not None:
                raise result.error

    def __str__(self) -> str:
        shown = [r for r in self.results if r.status != "not applicable"]
        width = max((len(r.check) for r in shown), default=0)
        rows = [f"{r.check:<{width}}  {r.status}" for r in shown]
        first = f"{self.target}: {len(self.passed)} of {len(self.results)} checks passed"
        return "\n".join([first, *rows, *([self.inapplicable_checks] if self.not_applicable else [])])

    @property
    def inapplicable_checks(self) -> str:
        """One line with the names of the checks that do not apply."""
        names = ", ".join(self.not_applicable)
        count = len(self.not_applicable)
        return f"{count} checks do not apply: {names}" if count != 1 else f"1 check does not apply: {names}"
