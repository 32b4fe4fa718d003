"""Reduction of a failing input to the necessary instances, and Python code that reproduces the input."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..parts import as_tuple
from .cases import Case

__all__ = ["drop_instances", "reproduction_code"]


def drop_instances(
    case: Case | None, failure: Exception, test: Callable[[Case], None]
) -> tuple[Case | None, Exception]:
    """Return a case with fewer instances for which ``test`` raises an error of the same type, and the error.

    The case has one instance if one is enough. Otherwise instances are removed one by one while the error stays.
    """
    if case is None or case.size < 2:
        return case, failure
    for b in range(case.size):
        found = _failure(smaller := case.rows([b]), test)
        if found is not None and type(found) is type(failure):
            return smaller, found
    for b in reversed(range(case.size)):
        found = _failure(smaller := case.rows([row for row in range(case.size) if row != b]), test)
        if found is not None and type(found) is type(failure):
            case, failure = smaller, found
    return case, failure


def _failure(case: Case, test: Callable[[Case], None]) -> Exception | None:
    try:
        test(case)
    except Exception as failure:
        return failure
    return None


def reproduction_code(case: Case) -> str:
    """Return Python code that reproduces the case."""
    tensors = [_as_source(t) for t in as_tuple(case.user_theta)]
    theta = f"({', '.join(tensors)})" if case.target.is_tuple else tensors[0]
    bound = ", ".join(f"{name}={_as_source(value)}" for name, value in case.instance_data.items())
    lines = [f"oracle = {case.target.oracle!r}" + (f".bind({bound})" if bound else ""), f"theta = {theta}"]
    if case.target.relaxation is not None:
        lines.insert(0, f"relaxation = {case.target.relaxation!r}")
    if any("inf" in line for line in lines):
        lines.insert(0, "from math import inf")
    return "\n".join("    " + line for line in lines)


def _as_source(t: Tensor) -> str:
    if t.numel() == 0:
        return f"torch.zeros({tuple(t.shape)}, dtype={t.dtype})"
    return f"torch.tensor({t.tolist()}, dtype={t.dtype})"
