"""Progress of a suite on the standard error, for suites that take longer than two seconds."""

from __future__ import annotations

import sys
import time

__all__ = ["Progress"]

_QUIET_SECONDS = 2.0
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_UPDATES = 0.2


class Progress:
    """One line about the running check: rewritten on a terminal, else repeated every ten seconds.

    Parameters
    ----------
    target : str
        What is checked.
    total : int
        The number of checks.
    """

    def __init__(self, target: str, total: int) -> None:
        self._target, self._total = target, total
        self._start = time.monotonic()
        self._next, self._is_open = self._start + _QUIET_SECONDS, False

    def show(self, done: int, check: str, num_inputs: int) -> None:
        """Write a line if enough time has passed.

        Parameters
        ----------
        done : int
            The number of completed checks.
        check : str
            The name of the running check.
        num_inputs : int
            The number of inputs on which the running check passed.
        """
        now = time.monotonic()
        if now < self._next or sys.stderr is None:
            return
        is_terminal = sys.stderr.isatty()
        self._next = now + (_SECONDS_BETWEEN_UPDATES if is_terminal else _SECONDS_BETWEEN_LINES)
        text = (
            f"{self._target}: {done} of {self._total} checks done after {now - self._start:.0f} s, "
            f"running {check}, {num_inputs} inputs passed"
        )
        sys.stderr.write(f"\r{text}\033[K" if is_terminal else f"{text}\n")
        sys.stderr.flush()
        self._is_open = is_terminal

    def close(self) -> None:
        """Erase the line of the terminal."""
        if self._is_open:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
