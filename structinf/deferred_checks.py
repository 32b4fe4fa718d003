"""Checks of numbers on a GPU, which one copy reads at the end of a public call.

To read a number from a GPU, Python waits until the GPU has finished all queued work. A public call therefore queues its
work first, collects one number for each check, and reads the numbers together. If a number does not pass, a function
reads what the error message needs, and raises the error. Checks of numbers on the CPU run at once. So do the checks of
direct calls of an oracle's methods.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from typing import Any, TypeVar

from torch import Tensor

from .joined_copies import copy_to_cpu, read_together

__all__ = [
    "DeferredChecks",
    "check_data_later",
    "check_number",
    "checks_for",
    "copies_of_data",
    "copies_on_cpu",
    "data_checks_wait",
    "data_may_be_checked_later",
    "finish_checks",
    "skips_checks",
    "unchecked",
    "with_second_attempt",
    "without_checks",
]


T = TypeVar("T")

_Check = tuple[Callable[[float], bool] | None, Callable[..., None]]
"""Whether a number passes, and a function that raises an error if the check fails.

With None, a function of the tensor's copy on the CPU, which is called in any case.
"""


class DeferredChecks:
    """The checks of one call: numbers on a device, each with a test and a function that raises an error.

    A check may have several numbers, (n,), which all have to pass.
    """

    def __init__(self) -> None:
        self._numbers: list[Tensor] = []
        self._checks: list[_Check] = []
        self._known: list[tuple[_Check, Tensor]] = []  # checks with their numbers, read before the end

    def add(self, number: Tensor, passes: Callable[[float], bool], check: Callable[[], None]) -> None:
        """Add a check: :meth:`finish` calls ``check`` unless ``passes(number)``; see :func:`check_number`."""
        self._numbers.append(number.detach())
        self._checks.append((passes, check))

    def add_copies(self, tensors: Sequence[Tensor], check: Callable[[list[Tensor]], None]) -> None:
        """Add a check on the CPU: :meth:`finish` calls ``check`` with copies of the tensors, read with the numbers."""
        copies: list[Tensor] = []

        def collect(copy: Tensor) -> None:
            copies.append(copy)
            if len(copies) == len(tensors):
                check(copies)

        self._numbers += [t.detach() for t in tensors]
        self._checks += [(None, collect)] * len(tensors)

    def finish(self, report: Tensor | None = None) -> list[float]:
        """Read all numbers, and run the checks of the numbers that do not pass, in the order of addition.

        Parameters
        ----------
        report : (n,) Tensor, optional
            Other numbers to read in the same copy.

        Returns
        -------
        list of float
            The numbers of ``report``; empty by default.
        """
        known, self._known = self._known, []
        numbers, checks = self._take()
        _run(*zip(*known, strict=True) if known else ((), ()))
        if report is not None:
            numbers = [*numbers, report]
        if not numbers:
            return []
        needs_tensors = any(passes is None for passes, _ in checks)
        values = copy_to_cpu(numbers) if needs_tensors else read_together(numbers)
        _run(checks, values)
        return [] if report is None else _listed(values[-1])

    def copies_on_cpu(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors on the CPU, and run the checks as :meth:`finish`, after one copy of tensors and numbers.

        Parameters
        ----------
        tensors : sequence of Tensor
            Tensors of one device.
        """
        copies = self.copies_before_checks(tensors)
        self.finish()
        return copies

    def copies_before_checks(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors on the CPU, after one copy of tensors and numbers; :meth:`finish` runs the checks.

        Parameters
        ----------
        tensors : sequence of Tensor
            Tensors of one device.
        """
        numbers, checks = self._take()
        copies = copy_to_cpu([*tensors, *numbers])
        self._known += zip(checks, copies[len(tensors) :], strict=True)
        return copies[: len(tensors)]

    def _take(self) -> tuple[list[Tensor], list[_Check]]:
        """Return the numbers and the checks, and forget them."""
        numbers, checks = self._numbers, self._checks
        self._numbers, self._checks = [], []
        return numbers, checks

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the checks inside the context, for a later call of :meth:`finish`."""
        token = _active.set(self)
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        finally:
            _active.reset(token)
        if error is not None:
            self.finish()  # wrong numbers may have caused the error
            raise error

    @contextlib.contextmanager
    def replacing(self, check: Callable[[], None]) -> Iterator[None]:
        """Collect the checks inside the context, with ``check`` in place of their own functions."""
        inner = _InnerChecks(self)
        token = _active.set(inner)
        try:
            yield
        finally:
            _active.reset(token)
        for number, (passes, own) in zip(inner._numbers, inner._checks, strict=True):
            self._numbers.append(number)
            self._checks.append((passes, own if passes is None else check))

    def start(self, *, defers: bool) -> Token[DeferredChecks | None]:
        """Collect the checks until :meth:`stop`; without ``defers``, finish earlier checks and run later ones at once.

        Parameters
        ----------
        defers : bool
            Whether checks wait for :meth:`stop`.
        """
        if not defers:
            self.finish()
        return _active.set(self if defers else None)

    def stop(self, token: Token[DeferredChecks | None], error: BaseException | None) -> None:
        """Finish all checks, also after an ``error`` that wrong numbers may have caused."""
        _active.reset(token)
        if error is None or isinstance(error, Exception):
            self.finish()


def _run(checks: Sequence[_Check], values: Sequence[Tensor | list[float]]) -> None:
    """Run the checks whose ``values`` do not pass. Further checks inside of them run at once."""
    token = _active.set(None)
    try:
        for own, (passes, check) in zip(values, checks, strict=False):
            if passes is None:
                check(own)
            elif not all(map(passes, _listed(own))):
                check()
    finally:
        _active.reset(token)


def _listed(values: Tensor | list[float]) -> list[float]:
    return values.reshape(-1).tolist() if isinstance(values, Tensor) else values


class _InnerChecks(DeferredChecks):
    """The checks of a part of a call, inside :meth:`DeferredChecks.replacing`; earlier checks finish first."""

    def __init__(self, outer: DeferredChecks) -> None:
        super().__init__()
        self._outer = outer

    def finish(self, report: Tensor | None = None) -> list[float]:
        self._outer.finish()
        return super().finish(report)

    def copies_on_cpu(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        self._outer.finish()
        return super().copies_on_cpu(tensors)


class _NoChecks(DeferredChecks):
    """Checks that are never run."""

    def add(self, number: Tensor, passes: Callable[[float], bool], check: Callable[[], None]) -> None:
        pass

    def add_copies(self, tensors: Sequence[Tensor], check: Callable[[list[Tensor]], None]) -> None:
        pass

    def start(self, *, defers: bool) -> Token[DeferredChecks | None]:
        return _active.set(self)


class ReadDataFirst(Exception):
    """Raised by a deferred check of instance data on a device: the call has to read the data before its work."""


_NO_CHECKS = _NoChecks()
_active: ContextVar[DeferredChecks | None] = ContextVar("structinf_checks", default=None)
"""The checks of the running call; None if checks run at once."""


_data_may_wait: ContextVar[bool | None] = ContextVar("structinf_data_may_wait", default=None)
"""Whether the running call may check instance data at its end; None outside of calls that can start again."""
_data_checks: ContextVar[DeferredChecks | None] = ContextVar("structinf_data_checks", default=None)
"""Where checks of instance data wait; None if they read the data at once."""


def with_second_attempt(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Return ``function(*args, **kwargs)``, of a public call whose checks of instance data on a device may wait.

    Work on a device begins before such data are checked, with lengths moved into their range. If a check finds lengths
    outside of the range, or instances of length 0, the function runs again, and reads the data first.
    """
    if _data_may_wait.get() is False:  # inside the second attempt of an outer call
        return function(*args, **kwargs)
    token = _data_may_wait.set(True)
    try:
        try:
            return function(*args, **kwargs)
        except ReadDataFirst:
            _data_may_wait.set(False)
        return function(*args, **kwargs)
    finally:
        _data_may_wait.reset(token)


@contextlib.contextmanager
def data_checks_wait(checks: DeferredChecks) -> Iterator[None]:
    """Let checks of instance data inside the context wait for ``checks``, if the running call can start again."""
    token = _data_checks.set(checks if _data_may_wait.get() else None)
    try:
        yield
    finally:
        _data_checks.reset(token)


def data_may_be_checked_later(data: Tensor) -> bool:
    """Return whether a check of instance data may wait for the end of the call, by :func:`check_data_later`."""
    return _data_checks.get() is not None and not data.is_cpu


def check_data_later(number: Tensor, passes: Callable[[float], bool]) -> bool:
    """Add a check of instance data to the end of the call; return False if the check cannot wait.

    The caller then moves the data into a range that is safe for kernels. If ``passes(number)`` is False at the end,
    the call starts again, and reads the data at once.
    """
    checks = _data_checks.get()
    if checks is None or number.is_cpu:
        return False
    checks.add(number, passes, _read_data_first)
    return True


def _read_data_first() -> None:
    raise ReadDataFirst


def checks_for(t: Tensor) -> DeferredChecks | None:
    """Return new checks for a call with scores ``t``, or None if the checks of the call run at once."""
    if t.is_cpu:
        return None
    return _NO_CHECKS if _active.get() is _NO_CHECKS else DeferredChecks()


def check_number(number: Tensor, passes: Callable[[float], bool], check: Callable[[], None]) -> None:
    """Call ``check`` unless ``passes(number)``: at the end of the call if ``number`` is on a device, or else now.

    Parameters
    ----------
    number : () Tensor
        A number that decides whether an error may be present.
    passes : callable
        A function of the number as a float. It may return False without an error, for a rare number.
    check : callable
        A function that runs the whole check, and raises an error if the check fails.
    """
    checks = None if number.is_cpu else _active.get()
    if checks is not None:
        checks.add(number, passes, check)
    elif not passes(number.item()):
        check()


def finish_checks() -> None:
    """Run the checks of the running call that wait. Code calls this function before it depends on their results."""
    checks = _active.get()
    if checks is not None:
        checks.finish()


def copies_on_cpu(*tensors: Tensor) -> list[Tensor]:
    """Return detached tensors on the CPU: copies of tensors on a device, and the other tensors themselves.

    One copy reads all tensors of a device, and the checks of the running call that wait, which it then runs.
    """
    checks = _active.get()
    if checks is not None and all(t.is_cpu for t in tensors):
        checks.finish()
    return _copies(tensors, copy_to_cpu if checks is None else checks.copies_on_cpu)


def copies_of_data(*tensors: Tensor) -> list[Tensor]:
    """Return instance data on the CPU, as :func:`copies_on_cpu`.

    If the running call validates the data, the same copy reads the numbers of its checks, which wait for its end.
    """
    checks = _data_checks.get()
    return copies_on_cpu(*tensors) if checks is None else _copies(tensors, checks.copies_before_checks)


def _copies(tensors: Sequence[Tensor], copy: Callable[[list[Tensor]], list[Tensor]]) -> list[Tensor]:
    """Return detached tensors on the CPU, those of a device by ``copy``."""
    on_device = [t for t in tensors if not t.is_cpu]
    copies = iter(copy(on_device) if on_device else [])
    return [t.detach() if t.is_cpu else next(copies) for t in tensors]


def skips_checks(t: Tensor) -> bool:
    """Return whether checks of the values of ``t`` are left out: on a device, inside :func:`unchecked`."""
    return not t.is_cpu and _active.get() is _NO_CHECKS


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Leave out all checks of values on a GPU inside the context, so that calls do not wait for the GPU.

    The context is for loops that must not wait, and for CUDA graphs, which cannot record a wait. Calls then have these
    requirements, and return wrong results without an error if a requirement is not met:

    - Scores hold neither NaN nor +inf, and every instance has a structure of finite score. The option ``on_infeasible``
      has no effect.
    - Instance data such as ``lengths`` are valid tensors on the device of the scores. An invalid length can make a
      kernel access memory outside of its arrays.
    - Gold structures and labels are structures of the oracle, without a part of score −inf. No label is −1 for
      unknown, and no length is 0.

    Types, shapes and options are checked as usual, and so are all calls with tensors on the CPU. Solvers that iterate
    until they converge still wait for the GPU.

    Examples
    --------
    >>> import structinf as si, torch
    >>> loss = si.FenchelYoungLoss("chain", "marginals")
    >>> theta = torch.zeros(2, 3, 4), torch.zeros(4, 4)
    >>> with unchecked():
    ...     loss(theta, torch.tensor([[0, 1, 2], [3, 2, 1]]))
    tensor(4.1589)
    """
    token = _active.set(_NO_CHECKS)
    try:
        yield
    finally:
        _active.reset(token)


def without_checks(t: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Return :func:`unchecked` for a backward pass on a device, since the forward pass has checked the scores."""
    return _PLAIN if t.is_cpu else unchecked()


_PLAIN = contextlib.nullcontext()
