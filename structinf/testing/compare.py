"""Comparisons that say what differs, where and by how much."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import torch
from torch import Tensor

from ..parts import Parts, as_tuple

__all__ = [
    "Broken",
    "NotApplicable",
    "expect",
    "expect_close",
    "expect_equal",
    "fail",
    "named_tensors",
    "rounding",
    "trying",
]


class Broken(Exception):
    """What a law raises, with a sentence, about an input that breaks it; never leaves the package.

    ``case`` is what the input had become when it broke the law, if the law had changed it.
    """

    def __init__(self, message: str, case: object = None) -> None:
        super().__init__(message)
        self.case = case


class NotApplicable(Exception):
    """What a law raises, with a reason, about an input or oracle that it says nothing about."""


@contextlib.contextmanager
def trying(case: object) -> Iterator[None]:
    """Whatever is raised inside has ``case`` as its ``case``: what the input had become."""
    try:
        yield
    except Exception as failure:
        if getattr(failure, "case", None) is None:
            failure.case = case  # type: ignore[attr-defined]
        raise


def fail(message: str, case: object = None) -> NoReturn:
    """Raise Broken."""
    raise Broken(message, case)


def expect(condition: object, message: str) -> None:
    """Raise Broken with ``message`` unless ``condition`` holds."""
    if not condition:
        raise Broken(message)


def expect_equal(actual: Parts, expected: Parts, what: str) -> None:
    """Raise Broken at the first entry in which two results differ at all."""
    _compare(actual, expected, None, what)


def expect_close(actual: Parts, expected: Parts, tolerance: float | Tensor, what: str) -> None:
    """Raise Broken at the entry that differs most beyond ``tolerance`` (absolute, broadcast); infinities must agree."""
    _compare(actual, expected, tolerance, what)


def rounding(dtype: torch.dtype, magnitude: Tensor | float, factor: float = 32) -> Tensor:
    """Room for rounding errors in sums of terms of this total ``magnitude``."""
    return torch.as_tensor(magnitude, dtype=torch.float64) * (factor * torch.finfo(dtype).eps)


def named_tensors(name: str, value: Parts) -> list[tuple[str, Tensor]]:
    """The tensors of ``value`` with names: ``name``, or ``name[0]``, ``name[1]``, ... for a tuple."""
    if not isinstance(value, tuple):
        return [(name, value)]
    return [(f"{name}[{i}]", t) for i, t in enumerate(value)]


def _compare(actual: Parts, expected: Parts, tolerance: float | Tensor | None, what: str) -> None:
    if len(as_tuple(actual)) != len(as_tuple(expected)):
        fail(f"{what}: {len(as_tuple(expected))} tensors are expected, got {len(as_tuple(actual))}")
    for (name, a), e in zip(named_tensors(what, actual), as_tuple(expected), strict=True):
        if a.shape != e.shape:
            fail(f"{name} has shape {tuple(a.shape)} where {tuple(e.shape)} is expected")
        a, e = a.detach().to("cpu", torch.float64), e.detach().to("cpu", torch.float64)
        difference = torch.where(a == e, 0.0, (a - e).abs()).nan_to_num(nan=torch.inf)
        excess = difference if tolerance is None else difference - torch.as_tensor(tolerance)
        if excess.numel() and bool((excess > 0).any()):
            at = tuple(torch.unravel_index(excess.argmax(), excess.shape))
            where = f" at {tuple(map(int, at))}" if at else ""
            fail(f"{name}{where} is {a[at].item():.9g} where {e[at].item():.9g} is expected")
