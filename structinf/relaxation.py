"""What a relaxation is: a named map from potentials to a mean, with its gradient."""

from __future__ import annotations

import abc
import math
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from . import autograd
from .errors import InvalidInputError, UnsupportedError
from .oracle import GibbsOracle, KBest, Oracle, Projectable, Samplable
from .parts import Potentials, as_tuple, map_parts
from .smoothing import Smoothable
from .solution import Solution

__all__ = ["GradientRelaxation", "RegularizedRelaxation", "Relaxation", "check_temperature", "missing_ability", "scale"]

if TYPE_CHECKING:
    import jaxtyping

_WHAT: dict[type[Oracle], str] = {
    GibbsOracle: "log_partition(theta)",
    Samplable: "sample(theta, n, generator)",
    KBest: "topk(theta, k)",
    Projectable: "project(theta)",
    Smoothable: "smoothed_value(theta, regularizer)",
}


def missing_ability(oracle: Oracle, ability: type[Oracle]) -> str | None:
    """Why ``oracle`` lacks ``ability``, in a clause; None if it has it."""
    if isinstance(oracle, ability):
        return None
    reason = oracle.unsupported.get(ability.__name__)
    method = f", the method {_WHAT[ability]}" if ability in _WHAT else ""
    return f"{oracle.label()} lacks the ability {ability.__name__}{method}" + (f": {reason}" if reason else "")


def check_temperature(temperature: float) -> None:
    """Raise InvalidInputError unless ``temperature`` is a finite positive number."""
    if not (isinstance(temperature, int | float) and math.isfinite(temperature) and temperature > 0):
        raise InvalidInputError(f"temperature must be a finite number above 0, got {temperature!r}")


def scale(theta: Potentials, temperature: float) -> Potentials:
    """θ / temperature; θ itself at 1. InvalidInputError if that overflows."""
    if temperature == 1:
        return theta
    scaled = map_parts(lambda t: t / temperature, theta)
    if temperature < 1:
        for t, s in zip(as_tuple(theta), as_tuple(scaled), strict=True):
            if bool((s.isinf() & ~t.isinf()).any()):
                raise InvalidInputError(
                    f"temperature {temperature!r} is too small: theta / temperature overflows {t.dtype}"
                )
    return scaled


class Relaxation(abc.ABC):
    """A map θ ↦ μ over any oracle that has the ability it requires.

    Subclasses are frozen dataclasses whose fields are options, a file each under ``relaxations/``.

    Attributes
    ----------
    requires : type
        The ability that the oracle must have.
    name : str
        The name under which the relaxation was registered, for messages.
    """

    requires: ClassVar[type[Oracle]] = Oracle
    name: ClassVar[str] = ""

    @abc.abstractmethod
    def solve(self, oracle: Oracle, theta: Potentials, warm_start: Potentials | None = None) -> Solution:
        """The solution record for flat potentials (one batch dimension, full precision, validated).

        ``warm_start`` holds structures (K, B, *event) to start from, for iterative relaxations.

        Laws: the mean lies in conv(Y), carries the gradient that the relaxation documents, and an
        instance's result does not depend on its batch.
        """

    def mean(self, oracle: Oracle, theta: Potentials) -> Potentials:
        """μ alone; override it where the rest of the record costs extra."""
        return self.solve(oracle, theta).mean

    def missing(self, oracle: Oracle) -> str | None:
        """Why this relaxation cannot work over ``oracle``, in a clause; None if it can."""
        return missing_ability(oracle, self.requires)

    def label(self) -> str:
        """How messages call this relaxation."""
        return self.name or type(self).__name__

    def refuse_warm_start(self, warm_start: Potentials | None) -> None:
        """Raise UnsupportedError if a warm start is given to a relaxation that has no use for one."""
        if warm_start is not None:
            raise UnsupportedError(f"{self.label()} is not iterative and takes no warm_start")


class RegularizedRelaxation(Relaxation):
    """A relaxation that solves max ⟨θ, μ⟩ − Ω(μ) and therefore generates a Fenchel-Young loss."""

    @abc.abstractmethod
    def conjugate(self, oracle: Oracle, theta: Potentials) -> Tensor:
        """Ω*(θ) = max ⟨θ, μ⟩ − Ω(μ), (B,), with gradient μ and Hessian dμ/dθ."""

    @abc.abstractmethod
    def omega(self, oracle: Oracle, y: Potentials) -> Tensor:
        """Ω(y) at a structure y ∈ Y, (B,)."""


class GradientRelaxation(RegularizedRelaxation):
    """∇f(θ / temperature) of a convex function f of the oracle's, whose conjugate Ω is 0 at every structure."""

    temperature: Any  # a float, once the relaxation is made

    @abc.abstractmethod
    def function(self, oracle: Oracle) -> autograd.ConvexFunction:
        """f, an object that knows its derivatives."""

    def solve(self, oracle: Oracle, theta: Potentials, warm_start: Potentials | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        value, mean = autograd.value_and_gradient(self.function(oracle), self._scaled(theta))
        return Solution(mean=mean, value=self._unscaled(value))

    def mean(self, oracle: Oracle, theta: Potentials) -> Potentials:
        return autograd.gradient(self.function(oracle), self._scaled(theta))

    def conjugate(self, oracle: Oracle, theta: Potentials) -> jaxtyping.Float[Tensor, " batch"]:
        """temperature · f(θ / temperature), (B,)."""
        return self._unscaled(autograd.value(self.function(oracle), self._scaled(theta)))

    def omega(self, oracle: Oracle, y: Potentials) -> jaxtyping.Float[Tensor, " batch"]:
        """0, (B,): nothing is random, and no choice open, where the mean is a structure."""
        return as_tuple(y)[0].new_zeros(as_tuple(y)[0].shape[0])

    def _scaled(self, theta: Potentials) -> Potentials:
        return scale(theta, self.temperature)

    def _unscaled(self, value: Tensor) -> Tensor:
        return value if self.temperature == 1 else value * self.temperature
