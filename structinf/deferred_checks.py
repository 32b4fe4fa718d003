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

import torch
from torch import Tensor

__all__ = [
    "DeferredChecks",
    "check_data_later",
    "check_number",
    "checks_for",
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

_Check = tuple[Callable[[float], bool], Callable[[], None]]
"""Whether a number passes, and a function that raises an error if the check fails."""


class DeferredChecks:
    """The checks of one call: numbers on a device, each with a test and a function that raises an error.

    A check may have several numbers, (n,), which all have to pass.
    """

    def __init__(self) -> None:
        self._numbers: list[Tensor] = []
        self._checks: list[_Check] = []

    def add(self, number: Tensor, passes: Callable[[float], bool], check: Callable[[], None]) -> None:
        """Add a check: :meth:`finish` calls ``check`` unless ``passes(number)``; see :func:`check_number`."""
        self._numbers.append(number.detach())
        self._checks.append((passes, check))

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
        numbers, checks = self._take()
        if report is not None:
            numbers = [*numbers, report]
        if not numbers:
            return []
        values = _read_together(numbers)
        _run(checks, values)
        return [] if report is None else values[-1]

    def copies_on_cpu(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors on the CPU, and run the checks as :meth:`finish`, after one copy of tensors and numbers.

        Parameters
        ----------
        tensors : sequence of Tensor
            Tensors of one device.
        """
        numbers, checks = self._take()
        copies = _copy_together([*tensors, *numbers])
        _run(checks, [number.reshape(-1).tolist() for number in copies[len(tensors) :]])
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
        for number, (passes, _) in zip(inner._numbers, inner._checks, strict=True):
            self.add(number, passes, check)

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


def _run(checks: Sequence[_Check], values: Sequence[Sequence[float]]) -> None:
    """Run the checks whose ``values`` do not pass. Further checks inside of them run at once."""
    token = _active.set(None)
    try:
        for own, (passes, check) in zip(values, checks, strict=False):
            if not all(map(passes, own)):
                check()
    finally:
        _active.reset(token)


def _read_together(numbers: list[Tensor]) -> list[list[float]]:
    """Return the values of each tensor, which one copy reads from the device."""
    if len(numbers) == 1:
        return [numbers[0].reshape(-1).tolist()]
    whole = torch.frombuffer(bytearray(_join(numbers).tolist()), dtype=torch.uint8)
    return [number.reshape(-1).tolist() for number in _split(whole, numbers)]


def _copy_together(tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors on the CPU, from one copy."""
    if len(tensors) == 1:
        return [tensors[0].detach().cpu()]
    return _split(_join(tensors).cpu(), tensors)


def _join(tensors: list[Tensor]) -> Tensor:
    """Return the bytes of all tensors, (n,) uint8. One launch joins them; tensors of several dtypes would take more."""
    in_bytes = [tensors[i].detach().contiguous().view(-1).view(torch.uint8) for i in _by_itemsize(tensors)]
    return torch.cat(in_bytes)


def _split(whole: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Return views of the bytes ``whole`` (n,) as tensors like ``tensors``, the inverse of :func:`_join`."""
    order = _by_itemsize(tensors)
    pieces = whole.split([tensors[i].numel() * tensors[i].element_size() for i in order])
    views = {i: piece.view(tensors[i].dtype).view(tensors[i].shape) for i, piece in zip(order, pieces, strict=True)}
    return [views[i] for i in range(len(tensors))]


def _by_itemsize(tensors: list[Tensor]) -> list[int]:
    """Return the order of the tensors in which the bytes of each begin at a multiple of its item size."""
    return sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())


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
    on_device = [t for t in tensors if not t.is_cpu]
    if not on_device:
        finish_checks()
        return [t.detach() for t in tensors]
    checks = _active.get()
    copies = iter(_copy_together(on_device) if checks is None else checks.copies_on_cpu(on_device))
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
