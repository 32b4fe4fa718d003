"""Exceptions and warnings of the library. Every exception is a :class:`StructinfError`."""

from __future__ import annotations

import contextlib
import math
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

__all__ = [
    "ConvergenceError",
    "ConvergenceWarning",
    "InfeasibleError",
    "InstanceError",
    "InvalidInputError",
    "PluginError",
    "SolverLimitError",
    "StructinfError",
    "UnboundedError",
    "UnknownNameError",
    "UnsupportedError",
    "WorkerError",
    "renumber_instances",
    "warn_user",
]


MOST_LISTED = 10
"""The largest number of instances listed in a message."""


class StructinfError(Exception):
    """The base class of the library's exceptions."""

    def renumber_instances(self, rows: Sequence[int]) -> None:
        """Replace batch indices of a selection of instances by batch indices of the whole batch, in the message.

        Parameters
        ----------
        rows : sequence of int
            The batch index in the whole batch of each instance of the selection.
        """
        if self.args and isinstance(self.args[0], str):
            self.args = (_renumber(self.args[0], rows), *self.args[1:])


def _select(rows: Sequence[int], index: int) -> int:
    """Return ``rows[index]``, or ``index`` itself if a plugin has reported an index out of range."""
    return rows[index] if index < len(rows) else index


_BATCH_INDICES = r"batch index \d+(?:(?:,| and) \d+\b(?! more))*"
"""Batch indices in messages: "batch index 3", or "batch index 3, 5 and 2 more", where 2 is no index."""


def _renumber(message: str, rows: Sequence[int]) -> str:
    def renumber(found: re.Match[str]) -> str:
        return re.sub(r"\d+", lambda number: str(_select(rows, int(number[0]))), found[0])

    return re.sub(_BATCH_INDICES, renumber, message)


class _Selections(threading.local):
    """The instances of the open contexts of :func:`renumber_instances` in this thread, the outermost first."""

    def __init__(self) -> None:
        self.rows: list[Iterable[Any]] = []


_selections = _Selections()


def renumber_instances(rows: Iterable[Any]) -> contextlib.AbstractContextManager[None]:
    """Renumber the instances in errors and warnings of the context, which runs on the instances ``rows`` of a batch.

    The context changes the warnings of :func:`warn_user`.

    Parameters
    ----------
    rows : iterable of int
        The batch index in the whole batch of each instance, for example a tensor of indices.
    """
    return _Renumbering(rows)


class _Renumbering:
    """The context of :func:`renumber_instances`; a class, because generators take several times longer."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self.rows = rows

    def __enter__(self) -> None:
        _selections.rows.append(self.rows)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        _selections.rows.pop()
        if isinstance(error, StructinfError):
            error.renumber_instances([int(row) for row in self.rows])


class InvalidInputError(StructinfError, ValueError):
    """An argument has a wrong value or shape: for example NaN or +inf scores, or lengths out of range."""


class InstanceError(StructinfError):
    """The problem of one instance in the batch cannot be solved. The message names the instance.

    Parameters
    ----------
    message : str
        What is wrong, and what to do. The constructor appends the batch index.
    batch_index : int
        Index of the first affected instance in the flattened batch.
    batch_indices : sequence of int, optional
        Indices of all affected instances that are known; by default the first alone.

    Attributes
    ----------
    batch_index : int
        Index of the first affected instance in the flattened batch.
    batch_indices : tuple of int
        Indices of the affected instances that are known.
    """

    def __init__(self, message: str, batch_index: int, batch_indices: Sequence[int] = ()) -> None:
        super().__init__(message if re.search(_BATCH_INDICES, message) else f"{message} (batch index {batch_index})")
        self.batch_index = batch_index
        self.batch_indices = tuple(batch_indices) or (batch_index,)

    def renumber_instances(self, rows: Sequence[int]) -> None:
        super().renumber_instances(rows)
        self.batch_index, *_ = self.batch_indices = tuple(_select(rows, index) for index in self.batch_indices)

    def add_batch_position(self, shape: Sequence[int]) -> None:
        """Add the indices in a batch of ``shape`` to the message, if the batch has several dimensions.

        Parameters
        ----------
        shape : sequence of int
            The batch dimensions.
        """
        if len(shape) > 1 and max(self.batch_indices) < math.prod(shape):
            places = [_unravel(index, shape) for index in self.batch_indices[:MOST_LISTED]]
            what = "its index is" if len(self.batch_indices) == 1 else "their indices are"
            more = len(self.batch_indices) - len(places)
            listed = ", ".join(map(str, places)) + (f" and {more} more" if more else "")
            self.args = (f"{self.args[0]}; in the batch of shape {tuple(shape)} {what} {listed}",)

    def __reduce__(self):
        return type(self), (self.args[0], self.batch_index, self.batch_indices)


def _unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the position in a batch of ``shape`` of the instance ``index`` of the flattened batch."""
    place = []
    for size in reversed(shape):
        index, position = divmod(index, size)
        place.append(position)
    return tuple(reversed(place))


class InfeasibleError(InstanceError, ValueError):
    """An instance of the batch has no structure of finite score."""


class UnboundedError(InstanceError, ValueError):
    """The scores of an instance's structures have no upper bound, so no best structure exists."""


class SolverLimitError(InstanceError, RuntimeError):
    """A solver reached its limit, for example ``time_limit``, before it proved a structure to be the best."""


class WorkerError(InstanceError, RuntimeError):
    """A process of :func:`structinf.parallel` died twice while it solved an instance."""


class UnsupportedError(StructinfError, TypeError):
    """A combination of arguments is not supported. The message gives the reason and supported alternatives."""


class UnknownNameError(StructinfError, LookupError):
    """A name is not registered. The message lists similar names and all known names."""


class PluginError(StructinfError, RuntimeError):
    """A plugin cannot be loaded or violates its protocol. The message names the plugin or its distribution."""


class ConvergenceError(StructinfError, RuntimeError):
    """A solver stopped before it reached its tolerance, and the option ``on_failure`` is ``"raise"``."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before it reached its tolerance. The message reports the remaining error of the result."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Issue a warning at the line of user code that called the library.

    Parameters
    ----------
    message : str
        The text of the warning.
    category : type of Warning
        The class of the warning.
    """
    for rows in reversed(_selections.rows):
        message = _renumber(message, [int(row) for row in rows])
    warnings.warn(message, category, stacklevel=_user_stacklevel(sys._getframe()))


def _user_stacklevel(frame: FrameType) -> int:
    """Return the stacklevel, counted from ``frame``, of the line of user code that called the library."""
    level = found = 1
    # Search all frames: frames of torch, or of wrappers, can lie between two frames of the library.
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "structinf":
            found = level
        frame, level = frame.f_back, level + 1
    return found + 1
