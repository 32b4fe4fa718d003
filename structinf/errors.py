"""One family of exceptions: each message says what came, what was expected and what to do."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from types import FrameType

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
    "warn_user",
]


class StructinfError(Exception):
    """Base class of every error that the library raises on purpose."""


class InvalidInputError(StructinfError, ValueError):
    """An argument has a wrong value or shape: NaN or +inf potentials, wrong rank, lengths out of range."""


class InstanceError(StructinfError):
    """Something is wrong with one instance of the batch, which the message names.

    Attributes
    ----------
    batch_index : int
        Index of the first such instance in the flattened batch.
    """

    def __init__(self, message: str, batch_index: int) -> None:
        super().__init__(message if "batch index" in message else f"{message} (batch index {batch_index})")
        self.batch_index = batch_index

    def add_batch_position(self, shape: Sequence[int]) -> None:
        """Say in the message where the instance is in a batch of several dimensions, of this ``shape``."""
        if len(shape) > 1 and self.batch_index < math.prod(shape):
            place, left = [], self.batch_index
            for size in reversed(shape):
                left, index = divmod(left, size)
                place.append(index)
            message = f"{self.args[0]}; of batch dimensions {tuple(shape)}, that is index {tuple(reversed(place))}"
            self.args = (message,)

    def __reduce__(self):
        return type(self), (self.args[0], self.batch_index)


class InfeasibleError(InstanceError, ValueError):
    """No structure of finite score exists for some instance of the batch."""


class UnboundedError(InstanceError, ValueError):
    """Scores grow without end over the structures of some instance: no best one exists."""


class SolverLimitError(InstanceError, RuntimeError):
    """A solver reached its limit of time before it knew a best structure of some instance."""


class UnsupportedError(StructinfError, TypeError):
    """A combination that cannot work: the message says what is missing, why, and what works instead."""


class UnknownNameError(StructinfError, LookupError):
    """No oracle or relaxation has this name: the message lists close names and all known ones."""


class PluginError(StructinfError, RuntimeError):
    """A plugin is broken or violates its protocol: the message names the plugin or its distribution."""


class ConvergenceError(StructinfError, RuntimeError):
    """A solver stopped before its tolerance and ``on_failure="raise"`` was asked for."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before its tolerance; numbers are in the message and in the solution record."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn of the line that called the library."""
    warnings.warn(message, category, stacklevel=_user_stacklevel(sys._getframe()))


def _user_stacklevel(frame: FrameType) -> int:
    """The stacklevel, for a warning given in ``frame``, of the line that called the library."""
    level = found = 1
    # The caller of our outermost frame, past torch's and whatever wraps a call in between.
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "structinf":
            found = level
        frame, level = frame.f_back, level + 1
    return found + 1
