"""The conformance suites of oracles and of relaxations: all checks, in the order in which an author meets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..calls.resolution import get_oracle, resolve
from ..errors import UnsupportedError
from ..oracle import Oracle
from ..relaxation import Relaxation
from . import (
    derivative_checks,
    input_checks,
    method_checks,
    relaxation_checks,
    sampling_checks,
    structure_checks,
    transport_checks,
)
from .cases import CheckTarget, InstanceData
from .check import Check, run_checks
from .report import CheckReport, CheckResult

__all__ = ["check_oracle", "check_relaxation", "list_oracle_checks", "list_relaxation_checks"]


def list_oracle_checks() -> list[Check]:
    """The checks that :func:`check_oracle` runs, in order.

    Examples
    --------
    >>> [check.name for check in list_oracle_checks()[:3]]
    ['form', 'empty_batch', 'no_nan']
    """
    return [
        *method_checks.ORACLE_CHECKS,
        *structure_checks.ORACLE_CHECKS,
        *derivative_checks.ORACLE_CHECKS,
        *sampling_checks.ORACLE_CHECKS,
        *transport_checks.ORACLE_CHECKS,
        *input_checks.ORACLE_CHECKS,
    ]


def list_relaxation_checks() -> list[Check]:
    """The checks that :func:`check_relaxation` runs, in order.

    Examples
    --------
    >>> [check.name for check in list_relaxation_checks()[:3]]
    ['form', 'empty_batch', 'input_untouched']
    """
    return [*method_checks.RELAXATION_CHECKS, *input_checks.RELAXATION_CHECKS, *relaxation_checks.RELAXATION_CHECKS]


def check_oracle(
    oracle: str | Oracle,
    event_shape: Any,
    *,
    instance_data: InstanceData | None = None,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
    seed: int = 0,
    raise_on_failure: bool = True,
    on_result: Callable[[CheckResult], None] | None = None,
) -> CheckReport:
    """Check an oracle against the whole protocol, as far as its abilities go.

    Potentials of many kinds are drawn (random, tied, zero, tiny, huge, with forbidden parts; each
    tensor of a tuple shared by the batch or not; with and without instance data). Answers of an
    :class:`structinf.Enumerable` oracle are compared with sums over all its structures;
    without that ability, with what argmax finds nearby.

    Parameters
    ----------
    oracle : str or Oracle
        Without instance data bound.
    event_shape : int, tuple of int, or tuple of such
        Of each tensor of θ, without batch dimensions. Choose a small one: some hundred structures.
    instance_data : mapping or callable, optional
        Instance data: for each name a sequence of values to draw from, a row for an instance
        (``{"lengths": [1, 2, 4]}``), or a function of a batch size and a generator that draws such a
        mapping. Lengths are found without it, among the numbers and the sizes that there are: a number each, or one
        for each dimension of the first tensor.
    dtypes : sequence of torch.dtype
        The dtypes of θ to test.
    seed : int
        What is drawn depends on it alone.
    raise_on_failure : bool
        Raise the first failure. If False, all checks run and the report holds the failures.
    on_result : callable, optional
        Called with each :class:`CheckResult` as it comes, for progress.

    Returns
    -------
    CheckReport
        Which checks passed or failed, and which do not apply, with the reason.

    Raises
    ------
    CheckError
        For the first check that fails: which one, what came instead, and the input. An AssertionError.

    Examples
    --------
    >>> report = check_oracle("categorical", event_shape=(3,))
    >>> "optimal" in report.passed, report.failed
    (True, [])
    """
    target = CheckTarget.make(get_oracle(oracle), event_shape, instance_data, dtypes=tuple(dtypes), seed=seed)
    return run_checks(list_oracle_checks(), target, raise_on_failure, on_result)


def check_relaxation(
    relaxation: str | Relaxation,
    oracle: str | Oracle,
    event_shape: Any,
    *,
    instance_data: InstanceData | None = None,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
    seed: int = 0,
    raise_on_failure: bool = True,
    on_result: Callable[[CheckResult], None] | None = None,
) -> CheckReport:
    """Check a relaxation of an oracle that itself passes :func:`check_oracle`.

    Parameters
    ----------
    relaxation : str or Relaxation
        The relaxation to check: a name, or an object. The checks compare with exact values, and therefore call
        ``relaxation.exact()``.
    oracle, event_shape, instance_data, dtypes, seed, raise_on_failure, on_result
        As for :func:`check_oracle`.

    Returns
    -------
    CheckReport
        Which checks passed or failed, and which do not apply, with the reason.

    Raises
    ------
    CheckError
        For the first check that fails: which one, what came instead, and the input. An AssertionError.
    UnsupportedError
        If the relaxation does not work for the oracle, or returns separate samples.

    Examples
    --------
    >>> report = check_relaxation("sparsemap", "categorical", event_shape=(3,))
    >>> "hull" in report.passed, report.failed
    (True, [])
    """
    found, relaxed = resolve(oracle, relaxation, {})
    if relaxed.sample_ndim:
        raise UnsupportedError(
            f'{relaxed!r} returns separate samples, which no check supports; check the relaxation with reduction="mean"'
        )
    options = {"dtypes": tuple(dtypes), "seed": seed, "relaxation": relaxed.exact()}
    target = CheckTarget.make(found, event_shape, instance_data, **options)
    return run_checks(list_relaxation_checks(), target, raise_on_failure, on_result)
