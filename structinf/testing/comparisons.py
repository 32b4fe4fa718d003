"""Comparisons of results. Their errors state the entry that differs, its value and the expected value."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..kernels.arrays import as_tensor
from ..parts import Parts, as_tuple

__all__ = [
    "CheckFailed",
    "NotApplicable",
    "attach_case_to_errors",
    "expect",
    "expect_close",
    "expect_equal",
    "expect_untouched",
    "fail",
    "named_tensors",
]


class CheckFailed(Exception):
    """The error of a check about an input that violates the requirement. The package never passes it to users."""


class NotApplicable(Exception):
    """The exception of a check that does not apply to an input or an oracle. Its message is the reason."""


@contextlib.contextmanager
def attach_case_to_errors(case: object) -> Iterator[None]:
    """Set the attribute ``case`` of exceptions raised in the context to the input, as modified by the check."""
    try:
        yield
    except Exception as failure:
        if getattr(failure, "case", None) is None:
            failure.case = case  # type: ignore[attr-defined]
        raise


def fail(message: str) -> NoReturn:
    """Raise CheckFailed with ``message``."""
    raise CheckFailed(message)


def expect(condition: object, message: str) -> None:
    """Raise CheckFailed with ``message`` unless ``condition`` holds."""
    if not condition:
        raise CheckFailed(message)


def expect_equal(actual: Parts, expected: Parts, what: str) -> None:
    """Raise CheckFailed unless two results are exactly equal. The error shows the entry with the largest difference."""
    _compare(actual, expected, None, what)


def expect_close(actual: Parts, expected: Parts, tolerance: float | Tensor, what: str) -> None:
    """Raise CheckFailed unless two results differ by at most ``tolerance`` (absolute, broadcast to the result).

    Infinities must agree. The error shows the entry that exceeds the tolerance most.
    """
    _compare(actual, expected, tolerance, what)


@contextlib.contextmanager
def expect_untouched(theta: Parts, what: str) -> Iterator[None]:
    """Raise CheckFailed if the code in the context writes to ``theta`` or changes its requires_grad.

    ``what`` names the called method in the error.
    """
    before = [(t.detach().clone(), t._version, t.requires_grad) for t in as_tuple(theta)]
    yield
    for name, t, (values, version, needs_grad) in named_tensors("theta", theta, before):
        expect_equal(t, values, f"{what} wrote into {name}: the entry")
        expect(t._version == version, f"{what} wrote into {name}")
        expect(t.requires_grad == needs_grad and t.is_leaf, f"{what} changed requires_grad of {name}")


def named_tensors(name: str, value: Parts, *others: Any) -> Iterator[Any]:
    """Yield the name and each tensor of ``value``: the name is ``name``, or ``name[i]`` for a tuple.

    Corresponding entries of ``others`` follow. Each of ``others`` is Parts, or a sequence with one entry per tensor.
    """
    columns = [x if isinstance(x, list | tuple) else (x,) for x in others]
    for i, row in enumerate(zip(as_tuple(value), *columns, strict=True)):
        yield (f"{name}[{i}]" if isinstance(value, tuple) else name, *row)


def _compare(actual: Parts, expected: Parts, tolerance: float | Tensor | None, what: str) -> None:
    if len(as_tuple(actual)) != len(as_tuple(expected)):
        fail(f"{what}: {len(as_tuple(expected))} tensors are expected, got {len(as_tuple(actual))}")
    for name, a, e in named_tensors(what, actual, expected):
        if a.shape != e.shape:
            fail(f"{name} has shape {tuple(a.shape)} where {tuple(e.shape)} is expected")
        a, e = a.detach().to("cpu", torch.float64), e.detach().to("cpu", torch.float64)
        difference = torch.where(a == e, 0.0, (a - e).abs()).nan_to_num(nan=torch.inf)
        excess = difference if tolerance is None else difference - as_tensor(tolerance)
        if excess.numel() and bool((excess > 0).any()):
            at = tuple(torch.unravel_index(excess.argmax(), excess.shape))
            where = f" at {tuple(map(int, at))}" if at else ""
            fail(f"{name}{where} is {a[at].item():.9g} where {e[at].item():.9g} is expected")
