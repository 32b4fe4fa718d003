"""The conformance suite of relaxations, over any oracle that they work for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..calls.resolution import resolve
from ..errors import UnsupportedError
from ..oracle import Oracle
from ..relaxation import Relaxation
from . import relaxation_form, relaxation_values
from .cases import InstanceData, Subject
from .law import Law, check, results
from .oracle_checks import DTYPES
from .report import CheckReport, CheckResult

__all__ = ["check_relaxation", "list_relaxation_checks", "run_relaxation_checks"]


def list_relaxation_checks() -> tuple[Law, ...]:
    """The laws of relaxations, in order.

    Examples
    --------
    >>> [law.name for law in list_relaxation_checks()[:3]]
    ['form', 'empty_batch', 'input_untouched']
    """
    return (*relaxation_form.LAWS, *relaxation_values.LAWS)


def check_relaxation(
    relaxation: str | Relaxation,
    oracle: str | Oracle,
    event_shape: Any,
    *,
    instance_data: InstanceData | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    seed: int = 0,
    on_result: Callable[[CheckResult], None] | None = None,
) -> CheckReport:
    """Check a relaxation of an oracle that itself keeps the laws of :func:`check_oracle`.

    Parameters
    ----------
    relaxation : str or Relaxation
    oracle, event_shape, structure, dtypes, seed, on_result
        As for :func:`check_oracle`.

    Returns
    -------
    CheckReport
        Which laws held, and which do not apply, with the reason.

    Raises
    ------
    LawError
        For the first broken law: which one, what came instead, and the smallest input found. An AssertionError.
    UnsupportedError
        If the oracle cannot have the relaxation, or that keeps samples apart.

    Examples
    --------
    >>> report = check_relaxation("sparsemap", "categorical", event_shape=(3,))
    >>> "hull" in report.held, report.broken
    (True, [])
    """
    return check(
        list_relaxation_checks(), _subject(relaxation, oracle, event_shape, instance_data, dtypes, seed), on_result
    )


def run_relaxation_checks(
    relaxation: str | Relaxation,
    oracle: str | Oracle,
    event_shape: Any,
    *,
    instance_data: InstanceData | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    seed: int = 0,
) -> Iterator[CheckResult]:
    """As :func:`check_relaxation`, law by law and past the broken ones, whose results hold the error.

    Examples
    --------
    >>> results = run_relaxation_checks("map", "categorical", event_shape=(3,))
    >>> [result.law for result in results if result.status == "broken"]
    []
    """
    yield from results(list_relaxation_checks(), _subject(relaxation, oracle, event_shape, instance_data, dtypes, seed))


def _subject(
    relaxation: str | Relaxation,
    oracle: str | Oracle,
    event_shape: Any,
    instance_data: InstanceData | None,
    dtypes: Sequence[torch.dtype],
    seed: int,
) -> Subject:
    found, relaxed = resolve(oracle, relaxation, {})
    if relaxed.sample_ndim:
        raise UnsupportedError(f"{relaxed!r} keeps its samples apart, of which the laws know nothing; check its mean")
    return Subject.make(found, event_shape, instance_data, dtypes=tuple(dtypes), seed=seed, relaxation=relaxed)
