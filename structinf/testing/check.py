"""A conformance check, and the function that runs checks on inputs until the first failure."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..oracle import Oracle
from ..relaxation import Relaxation, missing_ability_reason
from .cases import Case, CheckTarget
from .comparisons import CheckFailed, NotApplicable
from .progress import Progress
from .report import CheckError, CheckReport, CheckResult
from .reproduction import drop_instances, reproduction_code
from .theta_families import FAMILIES

__all__ = ["Check", "add_check", "run_checks"]

Test = Callable[[Case], None]


@dataclass(frozen=True)
class Check:
    """A requirement of the protocol, and the function that tests the requirement.

    Attributes
    ----------
    name : str
        The name of the check.
    requirement : str
        The requirement in one sentence, for messages.
    test : callable
        A function of a case. If the case violates the requirement, the function raises CheckFailed with a sentence
        about the wrong result.
    ability : type of Oracle
        Oracles without this ability are not tested.
    kind : type of Relaxation
        Only relaxations of this class are tested.
    families : sequence of str
        The families of scores to test with.
    dtypes : sequence of torch.dtype, optional
        The dtypes to test with. By default, the dtypes that the caller of the suite requests.
    """

    name: str
    requirement: str
    test: Test
    ability: type[Oracle] = Oracle
    kind: type[Relaxation] = Relaxation
    families: Sequence[str] = tuple(FAMILIES)
    dtypes: Sequence[torch.dtype] | None = None

    def not_applicable_reason(self, target: CheckTarget) -> str | None:
        """Return why the check does not apply to ``target``; None if the check applies.

        Parameters
        ----------
        target : CheckTarget
            The oracle, and the relaxation if one is tested.
        """
        if target.relaxation is not None and not isinstance(target.relaxation, self.kind):
            return f"{target.relaxation.label()} is not a {self.kind.__name__}"
        return missing_ability_reason(target.oracle, self.ability)


def add_check(*lists: list[Check], **options: Any) -> Callable[[Test], Test]:
    """Return a decorator that appends a function to ``lists`` as a :class:`Check` with the fields ``options``.

    The name and the docstring of the function become the name and the requirement of the check.
    """

    def decorate(test: Test) -> Test:
        check = Check(test.__name__, " ".join((test.__doc__ or test.__name__).split()), test, **options)
        for checks in lists:
            checks.append(check)
        return test

    return decorate


def run_checks(
    checks: Iterable[Check],
    target: CheckTarget,
    raise_on_failure: bool,
    on_result: Callable[[CheckResult], None] | None,
) -> CheckReport:
    """Run ``checks`` in order, and return the report. With ``raise_on_failure``, raise the first failure.

    Without ``on_result``, a suite of more than two seconds shows its progress on the standard error.
    """
    checks, results = list(checks), []
    progress = Progress(target.display_name, len(checks)) if on_result is None else None
    try:
        for check in checks:
            results.append(_run(check, target, len(results), progress))
            if on_result is not None:
                on_result(results[-1])
            if raise_on_failure and results[-1].error is not None:
                raise results[-1].error
    finally:
        if progress is not None:
            progress.close()
    return CheckReport(repr(target), tuple(results))


def _run(check: Check, target: CheckTarget, done: int, progress: Progress | None) -> CheckResult:
    start = time.perf_counter()
    num_passed, error, reason = 0, None, check.not_applicable_reason(target)
    cases = target.cases(check.families, check.dtypes) if reason is None else iter(())
    reason = reason or "the suite could not make any input for it"
    while error is None:
        if progress is not None:
            progress.show(done, check.name, num_passed)
        case = None
        try:
            case = next(cases, None)
            if case is None:
                break
            check.test(case)
            num_passed += 1
        except NotApplicable as failure:
            reason = str(failure)
        except Exception as failure:
            error = _error(check, target, *drop_instances(case, failure, check.test))
    is_tested = num_passed > 0 or error is not None
    seconds = time.perf_counter() - start
    return CheckResult(check.name, check.requirement, num_passed, None if is_tested else reason, error, seconds)


def _error(check: Check, target: CheckTarget, case: Case | None, failure: Exception) -> CheckError:
    message = summary = str(failure)
    if not isinstance(failure, CheckFailed):
        origin = _origin(failure, target)
        message = f"{type(failure).__name__} was raised{f' in {origin}' if origin else ''}: {failure}"
        summary = f"{type(failure).__name__} in {origin}" if origin else message
    case = getattr(failure, "case", None) or case
    if case is None:
        shown = f"argmax raised the error while the suite made inputs of event shape {target.event_shape}."
    else:
        shown = f"The input on which it fails:\n{reproduction_code(case)}"
    first = f"{target.display_name} fails the check {check.name!r}: {check.requirement}"
    error = CheckError("\n".join([first, message, shown]), check.name, summary)
    error.__cause__ = None if isinstance(failure, CheckFailed) else failure
    return error


def _origin(failure: Exception, target: CheckTarget) -> str | None:
    """Return the innermost line of the plugin's package in the traceback of ``failure``; None without such a line."""
    plugins = {type(x).__module__.partition(".")[0] for x in (target.oracle, target.relaxation)} - {"structinf"}
    found = None
    for frame, line in traceback.walk_tb(failure.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] in plugins:
            found = f"{frame.f_code.co_name}, line {line} of {frame.f_code.co_filename}"
    return found
