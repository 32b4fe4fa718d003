"""From an input that breaks a law to a small one that a reader can follow."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from ..parts import as_tuple
from .cases import Case

__all__ = ["Shrinker", "as_code"]


class Shrinker:
    """Makes a failing case smaller as long as it fails in the same way: fewer instances first, then simpler numbers.

    Parameters
    ----------
    case, failure : Case, Exception
        One that breaks the law, and what was raised.
    failure_of : callable
        What a case raises, None if nothing.
    attempts : int
        Most cases to try.
    """

    def __init__(
        self, case: Case, failure: Exception, failure_of: Callable[[Case], Exception | None], attempts: int = 400
    ) -> None:
        self.case = case
        self.failure = failure
        self._failure_of = failure_of
        self._attempts = attempts

    def run(self) -> tuple[Case, Exception]:
        """The smallest case found and what it raises."""
        self._drop_instances()
        while self._simplify_numbers() and self._attempts > 0:
            pass
        return self.case, self.failure

    def _accept(self, smaller: Case) -> bool:
        """Whether ``smaller`` fails too; if so it is the case from now on."""
        if self._attempts <= 0:
            return False
        self._attempts -= 1
        failure = self._failure_of(smaller)
        if type(failure) is not type(self.failure):
            return False
        self.case, self.failure = smaller, failure
        return True

    def _drop_instances(self) -> None:
        size = self.case.size
        if size < 2 or any(self._accept(self.case.rows([b])) for b in range(size)):
            return
        for out in reversed(range(size)):
            self._accept(self.case.rows([b for b in range(self.case.size) if b != out]))

    def _simplify_numbers(self) -> bool:
        """One pass over all numbers; whether anything changed."""
        changed = False
        for i in range(len(as_tuple(self.case.given))):
            for simpler in (torch.zeros_like, _without_holes, torch.sign, torch.round):
                changed |= self._replace(i, simpler(as_tuple(self.case.given)[i]))
            for index in product(*map(range, as_tuple(self.case.given)[i].shape)):
                changed |= self._simplify_entry(i, index)
        return changed

    def _simplify_entry(self, i: int, index: tuple[int, ...]) -> bool:
        old = as_tuple(self.case.given)[i]
        for value in (torch.zeros(()), old[index].sign(), old[index].round()):
            changed = old.clone()
            changed[index] = value
            if self._replace(i, changed):
                return True
        return False

    def _replace(self, i: int, new: Tensor) -> bool:
        tensors = list(as_tuple(self.case.given))
        if _complexity(new) >= _complexity(tensors[i]):
            return False
        tensors[i] = new
        return self._accept(self.case.with_tensors(tensors))


def as_code(case: Case) -> str:
    """Python that makes the case again."""
    tensors = [_literal(t) for t in as_tuple(case.given)]
    theta = f"({', '.join(tensors)})" if case.subject.is_tuple else tensors[0]
    bound = ", ".join(f"{name}={_literal(value)}" for name, value in case.instance_data.items())
    lines = [f"oracle = {case.subject.oracle!r}" + (f".bind({bound})" if bound else ""), f"theta = {theta}"]
    if case.subject.relaxation is not None:
        lines.insert(0, f"relaxation = {case.subject.relaxation!r}")
    if any("inf" in line for line in lines):
        lines.insert(0, "from math import inf")
    return "\n".join("    " + line for line in lines)


def _without_holes(t: Tensor) -> Tensor:
    return torch.where(t.isneginf(), torch.zeros_like(t), t)


def _complexity(t: Tensor) -> tuple[int, int, int]:
    """Entries that are −inf, no integers, and neither 0: fewer are simpler."""
    return int(t.isneginf().sum()), int((t != t.round()).sum()), int(t.count_nonzero() + (t.abs() > 1).sum())


def _literal(t: Tensor) -> str:
    if t.numel() == 0:
        return f"torch.zeros({tuple(t.shape)}, dtype={t.dtype})"
    return f"torch.tensor({t.tolist()}, dtype={t.dtype})"
