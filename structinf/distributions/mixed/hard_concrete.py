"""The hard concrete distribution: a stretched and clipped binary Concrete variable on the unit interval."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint
from torch.nn.functional import logsigmoid

from ...compile.public_call import public_call
from ...errors import InvalidInputError
from ...noise import Logistic
from ...validation import check_flag, check_in_range, check_positive, check_size
from .base import MixedDistribution, to_float_parameter

__all__ = ["HardConcrete"]


class HardConcrete(MixedDistribution):
    """Z = min(1, max(0, γ + (ζ − γ) sigmoid((L + log α) / β))) for a standard logistic L: a gate between 0 and 1.

    Z has point masses at 0 and 1, and a density in between. Its distribution function is
    P(Z ≤ z) = sigmoid(β log((z − γ) / (ζ − z)) − log α) for 0 ≤ z < 1. The base measure of ``log_prob`` and ``entropy``
    is the Lebesgue measure plus a point measure of 1 at each of 0 and 1.

    ``rsample`` and ``sample`` take a ``generator``. ``mean``, ``variance`` and ``entropy`` use quadrature, exact to
    rounding. All quantities except ``sample`` are differentiable in ``log_alpha``.

    Parameters
    ----------
    log_alpha : (...) Tensor
        log α, the location. Half-precision input is converted to float32, also in the results.
    temperature : float
        β, above 0. The default, 2/3, is the choice of Louizos et al.
    stretch : (float, float)
        The interval (γ, ζ) before clipping, with γ < 0 and ζ > 1. Default (−0.1, 1.1).
    validate_args : bool, optional
        Whether to check parameters and values. The default is torch's, normally True.

    Raises
    ------
    InvalidInputError
        If ``temperature`` or ``stretch`` is out of range.
    ValueError
        If ``log_alpha`` has NaN (checked by torch).

    References
    ----------
    Louizos, Welling & Kingma 2018, Learning Sparse Neural Networks through L0 Regularization, §2.2, Eqs. 10-13.
    Farinhas, Aziz, Niculae & Martins 2022, Sparse Communication via Mixed Distributions, for the measure.

    Examples
    --------
    >>> gates = HardConcrete(torch.tensor([-4.0, 0.0, 4.0]))
    >>> gates.probability_nonzero.sum()  # the L0 penalty
    tensor(1.9112)
    >>> gates.gate
    tensor([0.0000, 0.5000, 1.0000])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"log_alpha": constraints.real}
    support: ClassVar[Constraint] = constraints.unit_interval

    def __init__(
        self,
        log_alpha: Tensor,
        temperature: float = 2 / 3,
        stretch: tuple[float, float] = (-0.1, 1.1),
        validate_args: bool | None = None,
    ) -> None:
        check_positive("temperature", temperature)
        if not _stretches(stretch):
            raise InvalidInputError(f"stretch must be two finite numbers, below 0 and above 1, got {stretch!r}")
        self.log_alpha, self.temperature = to_float_parameter("log_alpha", log_alpha), temperature
        check_in_range("temperature", temperature, self.log_alpha.dtype, ", or pass log_alpha in float64")
        self.stretch = float(stretch[0]), float(stretch[1])
        check_flag("validate_args", validate_args, allow_none=True)
        super().__init__(log_alpha.shape, validate_args=validate_args)

    def rsample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw samples, (*sample_shape, ...), differentiable in ``log_alpha``; samples of 0 or 1 have gradient 0."""
        shape, like = self._extended_shape(check_size("sample_shape", sample_shape)), self.log_alpha
        return self._stretch_and_clip(
            Logistic().sample(shape, dtype=like.dtype, device=like.device, generator=generator)
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of 0 and 1, and the log-density of values between 0 and 1, (...).

        Parameters
        ----------
        value : (...) Tensor
            Numbers in [0, 1].
        """
        if self._validate_args:
            self._validate_sample(value)
        (low, high), z = self.stretch, value.clamp(0, 1)
        u = self._logistic(z)
        scale = math.log(self.temperature * (high - low)) - (z - low).log() - (high - z).log()
        found = torch.where(z <= 0, logsigmoid(u), logsigmoid(-u) + torch.where(z >= 1, 0.0, logsigmoid(u) + scale))
        return found.masked_fill((value < 0) | (value > 1), -torch.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Return P(Z ≤ z), (...).

        Parameters
        ----------
        value : (...) Tensor
            The numbers z.
        """
        below = torch.sigmoid(self._logistic(value.clamp(0, 1)))
        return torch.where(value < 0, 0.0, torch.where(value < 1, below, 1.0))

    def icdf(self, value: Tensor) -> Tensor:
        """Return the smallest z with P(Z ≤ z) of at least ``value``, (...).

        Parameters
        ----------
        value : (...) Tensor
            Probabilities in [0, 1].
        """
        return self._stretch_and_clip(torch.logit(value))

    @property
    def probability_nonzero(self) -> Tensor:
        """P(Z ≠ 0), (...). The sum of these probabilities is the L0 penalty (Eq. 12)."""
        return torch.sigmoid(-self._logistic(torch.zeros_like(self.log_alpha)))

    @property
    def gate(self) -> Tensor:
        """min(1, max(0, γ + (ζ − γ) sigmoid(log α))), (...), the deterministic value of Z for inference (Eq. 13)."""
        low, high = self.stretch
        return (low + (high - low) * self.log_alpha.sigmoid()).clamp(0, 1)

    @property
    def mean(self) -> Tensor:
        return self._expectation(lambda z, log_density: z)

    @property
    def variance(self) -> Tensor:
        mean = self.mean
        return self._expectation(lambda z, log_density: (z - mean).square())

    def entropy(self) -> Tensor:
        """Return −E[log p(Z)], (...); the entropy may be negative, like the entropy of a density."""
        return self._expectation(lambda z, log_probability: -log_probability)

    def _logistic(self, z: Tensor) -> Tensor:
        """Return L = β log((z − γ) / (ζ − z)) − log α, the logistic noise with Z = z, (...)."""
        low, high = self.stretch
        return self.temperature * ((z - low).log() - (high - z).log()) - self.log_alpha

    def _stretch_and_clip(self, logistic: Tensor) -> Tensor:
        low, high = self.stretch
        return (low + (high - low) * ((logistic + self.log_alpha) / self.temperature).sigmoid()).clamp(0, 1)

    def _expectation(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return E[f(Z, log p(Z))], (...): the point masses at 0 and 1, plus Gauss-Legendre quadrature in between."""
        found = self.log_alpha.new_tensor(_quadrature(self.temperature, *self.stretch))
        z, weights = found.view(2, -1, *[1] * self.log_alpha.ndim)
        logarithm = self.log_prob(z)
        return (weights * logarithm.exp() * function(z, logarithm)).sum(0)


def _stretches(stretch: Any) -> bool:
    """Return whether ``stretch`` holds two finite numbers, below 0 and above 1."""
    if not isinstance(stretch, tuple | list) or len(stretch) != 2:
        return False
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in stretch):
        return False
    return -math.inf < stretch[0] < 0 and 1 < stretch[1] < math.inf


@public_call
@functools.lru_cache
def _quadrature(temperature: float, low: float, high: float) -> tuple[list[float], list[float]]:
    """Return quadrature nodes from 0 to 1, both included, and the weight of each node."""
    from numpy.polynomial.legendre import leggauss

    # In t = log((z − γ) / (ζ − z)), the density is β sigmoid(u) sigmoid(−u) with u = β t − log α. The integrand is
    # analytic in t except for poles at distances π and π / β from the real line. This number of nodes makes the
    # quadrature error smaller than the rounding of float64.
    begin, end = math.log(-low / high), math.log((1 - low) / (high - 1))
    half = (end - begin) / 2
    count = math.ceil(math.log(2**52) / (2 * math.asinh(math.pi * min(1, 1 / temperature) / half)))
    nodes, weights = leggauss(count)
    t = [begin + half * (1 + x) for x in nodes.tolist()]
    z = [low + (high - low) / (1 + math.exp(-x)) for x in t]
    slopes = [(high - low) / (2 + 2 * math.cosh(x)) for x in t]  # dz / dt
    return [0.0, *z, 1.0], [1.0, *(half * w * s for w, s in zip(weights.tolist(), slopes, strict=True)), 1.0]
