"""What a law is, and how one is tried: on every input until it breaks, then on ever smaller ones."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..oracle import Oracle
from ..relaxation import Relaxation, missing_ability_reason
from .cases import Case, Subject
from .compare import Broken, NotApplicable
from .potentials import FAMILIES
from .report import CheckError, CheckReport, CheckResult
from .shrink import Shrinker, as_code

__all__ = ["Law", "LawBook", "check", "results"]


@dataclass(frozen=True)
class Law:
    """One sentence of the protocol and how to test it.

    Attributes
    ----------
    name : str
    sentence : str
        What holds, for messages.
    test : callable
        Raises Broken, with a sentence about what came instead, for an input that breaks the law.
    ability : type of Oracle
        The law speaks of oracles that have it.
    kind : type of Relaxation
        The law speaks of relaxations of this kind (laws of relaxations only).
    families : sequence of str
        The families of inputs on which it is tried.
    dtypes : sequence of torch.dtype, optional
        Those alone, whatever the caller asked for.
    """

    name: str
    sentence: str
    test: Callable[[Case], None]
    ability: type[Oracle] = Oracle
    kind: type[Relaxation] = Relaxation
    families: Sequence[str] = tuple(FAMILIES)
    dtypes: Sequence[torch.dtype] | None = None

    def missing(self, subject: Subject) -> str | None:
        """Why the law does not speak of ``subject``; None if it does."""
        if subject.relaxation is not None and not isinstance(subject.relaxation, self.kind):
            return f"{subject.relaxation.label()} is no {self.kind.__name__}"
        return missing_ability_reason(subject.oracle, self.ability)


class LawBook(list[Law]):
    """Laws in the order in which they are tried; called with a sentence, a decorator that adds a test to them."""

    def __call__(self, sentence: str, **options: object) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
        def add(test: Callable[[Case], None]) -> Callable[[Case], None]:
            self.append(Law(test.__name__, sentence, test, **options))  # type: ignore[arg-type]
            return test

        return add


def results(laws: Sequence[Law], subject: Subject) -> Iterator[CheckResult]:
    """Try the laws one by one."""
    for law in laws:
        yield _try(law, subject)


def check(laws: Sequence[Law], subject: Subject, on_result: Callable[[CheckResult], None] | None) -> CheckReport:
    """Try the laws until one is broken, which is raised."""
    held = []
    for result in results(laws, subject):
        if on_result is not None:
            on_result(result)
        if result.error is not None:
            raise result.error
        held.append(result)
    return CheckReport(repr(subject), tuple(held))


def _try(law: Law, subject: Subject) -> CheckResult:
    start = time.perf_counter()

    def result(**outcome: object) -> CheckResult:
        seconds = time.perf_counter() - start
        return CheckResult(law.name, law.sentence, seconds=seconds, **outcome)  # type: ignore[arg-type]

    reason = law.missing(subject)
    if reason is not None:
        return result(reason=reason)
    held, reason = 0, "no input of this kind could be made"
    cases = subject.cases(law.families, law.dtypes)
    while True:
        try:
            case = next(cases, None)
        except Exception as failure:
            return result(inputs=held, error=_error(law, subject, failure, None))
        if case is None:
            break
        failure = _failure(law, case)
        if isinstance(failure, NotApplicable):
            reason = str(failure)
        elif failure is None:
            held += 1
        else:
            smallest, failure = Shrinker(case, failure, lambda smaller: _failure(law, smaller)).run()
            return result(inputs=held, error=_error(law, subject, failure, smallest))
    return result(inputs=held, reason=None if held else reason)


def _failure(law: Law, case: Case) -> Exception | None:
    """What the law has to say against ``case``; whatever else is raised on the way is as bad."""
    try:
        law.test(case)
    except Exception as failure:
        return failure
    return None


def _origin(failure: Exception, subject: Subject) -> str | None:
    """The innermost line of the plugin's own package that ``failure`` came through."""
    plugins = {type(x).__module__.partition(".")[0] for x in (subject.oracle, subject.relaxation)} - {"structinf"}
    found = None
    for frame, line in traceback.walk_tb(failure.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] in plugins:
            code = frame.f_code
            found = f"{code.co_name}, line {line} of {code.co_filename}"
    return found


def _error(law: Law, subject: Subject, failure: Exception, case: Case | None) -> CheckError:
    said, origin = str(failure), None
    if not isinstance(failure, Broken):
        origin = _origin(failure, subject)
        said = f"{type(failure).__name__} was raised{f' in {origin}' if origin else ''}: {failure}"
    case = getattr(failure, "case", None) or case
    lines = [f"{subject.label} breaks the law {law.name!r}: {law.sentence}", said]
    if case is None:
        lines.append(
            f"It was raised by argmax while inputs for the law were made, for event shape {subject.event_shape}."
        )
    else:
        lines += ["The smallest input found:", as_code(case)]
    error = CheckError("\n".join(lines), law.name, f"{type(failure).__name__} in {origin}" if origin else said)
    error.__cause__ = None if isinstance(failure, Broken) else failure
    return error
