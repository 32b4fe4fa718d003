"""What the checks hand back: a result for each law, and the error that a broken law raises."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import StructinfError

__all__ = ["CheckError", "CheckReport", "CheckResult"]


class CheckError(StructinfError, AssertionError):
    """A law of the protocol is broken.

    The message says which law, what came and what was expected, and prints the smallest input found.

    Attributes
    ----------
    law : str
        Name of the law.
    fault : str
        What is wrong, in the same words wherever one fault breaks several laws: what was raised and on which line, or
        what the message says.
    """

    def __init__(self, message: str, law: str, fault: str = "") -> None:
        super().__init__(message)
        self.law = law
        self.fault = fault or message

    def __reduce__(self):
        return type(self), (self.args[0], self.law, self.fault)


@dataclass(frozen=True)
class CheckResult:
    """How one law fared.

    Attributes
    ----------
    law : str
        Its name.
    sentence : str
        What it says.
    inputs : int
        On how many inputs it held.
    reason : str or None
        Why it does not apply, if it held on none and was not broken.
    error : LawError or None
        How it is broken.
    seconds : float
    """

    law: str
    sentence: str
    inputs: int = 0
    reason: str | None = None
    error: CheckError | None = None
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """``"holds"``, ``"broken"`` or ``"does not apply"``."""
        if self.error is not None:
            return "broken"
        return "does not apply" if self.reason is not None else "holds"


@dataclass(frozen=True)
class CheckReport:
    """The results of all laws for one subject.

    Attributes
    ----------
    subject : str
        The oracle, or the relaxation of an oracle, that was checked.
    results : tuple of CheckResult
    """

    subject: str
    results: tuple[CheckResult, ...]

    @property
    def held(self) -> list[str]:
        """Names of the laws that hold."""
        return [r.law for r in self.results if r.status == "holds"]

    @property
    def broken(self) -> list[str]:
        """Names of the laws that are broken."""
        return [r.law for r in self.results if r.status == "broken"]

    @property
    def not_applicable(self) -> dict[str, str]:
        """Names of the laws that do not apply, with the reason."""
        return {r.law: r.reason for r in self.results if r.reason is not None and r.error is None}

    def raise_if_failed(self) -> None:
        """Raise the error of the first broken law."""
        for result in self.results:
            if result.error is not None:
                raise result.error

    def __str__(self) -> str:
        width = max((len(r.law) for r in self.results), default=0)
        rows = [f"{r.law:<{width}}  {r.status}" + (f": {r.reason}" if r.reason else "") for r in self.results]
        return "\n".join([f"{self.subject}: {len(self.held)} of {len(self.results)} laws checked and held", *rows])
