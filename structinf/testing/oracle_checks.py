"""The conformance suite of oracles: every law of the protocol, in the order in which a plugin author meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..calls.resolution import get_oracle
from ..oracle import Oracle
from . import oracle_form, oracle_gibbs, oracle_input, oracle_smoothed, oracle_transport, oracle_values
from .cases import InstanceData, Subject
from .law import Law, check, results
from .report import CheckReport, CheckResult

__all__ = ["check_oracle", "list_oracle_checks", "run_oracle_checks"]

DTYPES = (torch.float64, torch.float32)


def list_oracle_checks() -> tuple[Law, ...]:
    """The laws of the oracle protocol, in order.

    Examples
    --------
    >>> [law.name for law in list_oracle_checks()[:3]]
    ['form', 'empty_batch', 'no_nan']
    """
    books = oracle_form, oracle_values, oracle_gibbs, oracle_smoothed, oracle_transport, oracle_input
    return tuple(law for book in books for law in book.LAWS)


def check_oracle(
    oracle: str | Oracle,
    event_shape: Any,
    *,
    instance_data: InstanceData | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    seed: int = 0,
    on_result: Callable[[CheckResult], None] | None = None,
) -> CheckReport:
    """Check an oracle against every law of the protocol that its abilities bring up.

    Potentials of many kinds are drawn (random, tied, zero, tiny, huge, with forbidden parts; each
    tensor of a tuple shared by the batch or not; with and without instance data). What an
    :class:`structinf.Enumerable` oracle answers is compared with sums over all its structures;
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
    seed : int
        What is drawn depends on it alone.
    on_result : callable, optional
        Called with each :class:`CheckResult` as it comes, for progress.

    Returns
    -------
    CheckReport
        Which laws held, and which do not apply, with the reason.

    Raises
    ------
    LawError
        For the first broken law: which one, what came instead, and the smallest input found. An AssertionError.

    Examples
    --------
    >>> report = check_oracle("categorical", event_shape=(3,))
    >>> "optimal" in report.held, report.broken
    (True, [])
    """
    return check(list_oracle_checks(), _subject(oracle, event_shape, instance_data, dtypes, seed), on_result)


def run_oracle_checks(
    oracle: str | Oracle,
    event_shape: Any,
    *,
    instance_data: InstanceData | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    seed: int = 0,
) -> Iterator[CheckResult]:
    """As :func:`check_oracle`, law by law and past the broken ones, whose results hold the error.

    Examples
    --------
    >>> [result.law for result in run_oracle_checks("categorical", event_shape=(3,)) if result.status == "broken"]
    []
    """
    yield from results(list_oracle_checks(), _subject(oracle, event_shape, instance_data, dtypes, seed))


def _subject(
    oracle: str | Oracle, event_shape: Any, instance_data: InstanceData | None, dtypes: Sequence[torch.dtype], seed: int
) -> Subject:
    return Subject.make(get_oracle(oracle), event_shape, instance_data, dtypes=tuple(dtypes), seed=seed)
