"""The conformance suites of oracles and of relaxations: all checks, basic checks first."""

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
    linear_checks,
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
    """Return the checks of :func:`check_oracle`, in order.

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
        *linear_checks.ORACLE_CHECKS,
        *input_checks.ORACLE_CHECKS,
    ]


def list_relaxation_checks() -> list[Check]:
    """Return the checks of :func:`check_relaxation`, in order.

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
    """Check an oracle against the whole protocol of its abilities.

    The suite draws many kinds of scores: random, tied, zero, of scale 1e-3 and 1e3, and with forbidden parts.
    Tensors of a tuple are shared by the batch or not, with and without instance data. The results of an
    :class:`structinf.Enumerable` oracle are compared with sums over all structures, and the results of other
    oracles with structures from argmax for nearby scores.

    Parameters
    ----------
    oracle : str or Oracle
        The oracle, without bound instance data except those named in ``instance_data``.
    event_shape : int, tuple of int, or tuple of both
        The event shape of each tensor of θ, without batch dimensions. Choose a shape with at most a few hundred
        structures, because the suite enumerates the structures.
    instance_data : mapping or callable, optional
        A mapping from names to sequences of values, one value per instance (``{"lengths": [1, 2, 4]}``), or a function
        of a batch size and a generator that returns a mapping from names to instance data. By default, the suite finds
        valid lengths by trial: a number for each instance, or a number for each dimension of the first tensor.
    dtypes : sequence of torch.dtype
        The dtypes of θ to test.
    seed : int
        Seed of all random inputs.
    raise_on_failure : bool
        Whether to raise the first failure. If False, all checks run, and the report holds the failures.
    on_result : callable, optional
        A function called with each :class:`CheckResult`, to show progress. By default, a line on the standard error
        shows the progress of a suite that takes longer than two seconds.

    Returns
    -------
    CheckReport
        The checks that passed, failed or do not apply, with the reasons.

    Raises
    ------
    CheckError
        If a check fails. The message names the first failed check, the result and the input. The error is also an
        AssertionError.

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
    """Check a relaxation of an oracle. The oracle must pass :func:`check_oracle`.

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
        The checks that passed, failed or do not apply, with the reasons.

    Raises
    ------
    CheckError
        If a check fails. The message names the first failed check, the result and the input. The error is also an
        AssertionError.
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
