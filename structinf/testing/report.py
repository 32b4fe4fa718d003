"""What the suites return: a result for each check, and the error that a failed check raises."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import StructinfError

__all__ = ["CheckError", "CheckReport", "CheckResult"]


class CheckError(StructinfError, AssertionError):
    """An oracle or relaxation fails a check.

    The message says which check, what came and what was expected, and prints code that makes the input again.

    Attributes
    ----------
    check : str
        Name of the check.
    failure_summary : str
        What is wrong, in the same words for every check that fails for this reason: the exception and the line that
        raised it, or what the message says.
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
        The property that it tests.
    num_inputs : int
        The number of inputs on which it passed.
    reason : str or None
        Why the check does not apply; None if it passed or failed.
    error : CheckError or None
        The failure.
    seconds : float
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
        The oracle, or the relaxation of an oracle, that was checked.
    results : tuple of CheckResult
    """

    target: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> list[str]:
        """Names of the checks that passed."""
        return [r.check for r in self.results if r.status == "passed"]

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [r.check for r in self.results if r.status == "failed"]

    @property
    def not_applicable(self) -> dict[str, str]:
        """Names of the checks that do not apply, with the reason."""
        return {r.check: r.reason for r in self.results if r.reason is not None}

    def raise_if_failed(self) -> None:
        """Raise the error of the first check that failed."""
        for result in self.results:
            if result.error is not None:
                raise result.error

    def __str__(self) -> str:
        width = max((len(r.check) for r in self.results), default=0)
        rows = [f"{r.check:<{width}}  {r.status}" + (f": {r.reason}" if r.reason else "") for r in self.results]
        return "\n".join([f"{self.target}: {len(self.passed)} of {len(self.results)} checks passed", *rows])
