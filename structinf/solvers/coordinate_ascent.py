"""The base class of coordinate ascent on a bound of log Z, from several starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .convergence import check_differentiable
from .fixed_point import FixedPoint
from .stationary_value import StationaryValue

__all__ = ["CoordinateAscent"]


@dataclass(kw_only=True)
class CoordinateAscent(StationaryValue):
    """A bound whose distributions change one after the other.

    Attributes
    ----------
    label : str
        The name of the relaxation and the model in messages.
    tolerance : float
        The largest change of a probability in a sweep.
    max_iter : int
        The number of sweeps.
    starts : int
        The number of starts, of which the highest bound counts.
    report : callable
        Receives the status of the solution once.
    """

    label: str
    tolerance: float
    max_iter: int
    starts: int
    report: Callable[[FixedPoint], None]

    def refuse(self, failed: Tensor, reason: str) -> None:
        """Raise ConvergenceError for the first instance that ``failed``, (B,) bool, for the ``reason``."""
        options = f"max_iter (now {self.max_iter}), starts (now {self.starts}) or the temperature"
        check_differentiable(failed, self.label, reason, options)
