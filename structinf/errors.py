"""One family of exceptions: each message says what came, what was expected and what to do."""

from __future__ import annotations

__all__ = [
    "ConvergenceError",
    "ConvergenceWarning",
    "InfeasibleError",
    "InvalidInputError",
    "PluginError",
    "StructinfError",
    "UnknownNameError",
    "UnsupportedError",
]


class StructinfError(Exception):
    """Base class of every error that the library raises on purpose."""


class InvalidInputError(StructinfError, ValueError):
    """An argument has a wrong value or shape: NaN or +inf potentials, wrong rank, lengths out of range."""


class InfeasibleError(StructinfError, ValueError):
    """No structure of finite score exists for some instance of the batch.

    Attributes
    ----------
    batch_index : int
        Index of the first such instance in the flattened batch.
    """

    def __init__(self, message: str, batch_index: int) -> None:
        super().__init__(message if "batch index" in message else f"{message} (batch index {batch_index})")
        self.batch_index = batch_index

    def __reduce__(self):
        return type(self), (self.args[0], self.batch_index)


class UnsupportedError(StructinfError, TypeError):
    """A combination that cannot work: the message says what is missing, why, and what works instead."""


class UnknownNameError(StructinfError, LookupError):
    """No oracle or relaxation has this name: the message lists close names and all known ones."""


class PluginError(StructinfError, RuntimeError):
    """A plugin is broken or breaks a law of its protocol: the message names the plugin or its distribution."""


class ConvergenceError(StructinfError, RuntimeError):
    """A solver stopped before its tolerance and ``on_failure="raise"`` was asked for."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before its tolerance; numbers are in the message and in the solution record."""
