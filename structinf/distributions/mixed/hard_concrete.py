"""A stretched and clipped binary Concrete variable, on the unit interval."""

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
from ...validation import check_positive
from .base import MixedDistribution, to_float_parameter

__all__ = ["HardConcrete"]


class HardConcrete(MixedDistribution):
    """Z = min(1, max(0, γ + (ζ − γ) sigmoid((L + log α) / β))) for a standard logistic L: a gate that can be shut.

    P(Z ≤ z) = sigmoid(β log((z − γ) / (ζ − z)) − log α) for 0 ≤ z < 1: there are point masses at 0 and 1, and a density
    in between. Entropies, and ``log_prob``, are with respect to the Lebesgue measure plus 1 for each of 0 and 1.

    Offered: ``rsample`` and ``sample`` (both take a ``generator``), ``log_prob``, ``cdf``, ``icdf``, ``mean``,
    ``variance``, ``entropy`` (by quadrature, to rounding), ``probability_nonzero`` and ``gate``; all differentiable.

    Parameters
    ----------
    log_alpha : (...) Tensor
        Half precision is computed, and comes back, in float32.
    temperature : float
        β, above 0; the published choice is 2/3.
    stretch : (float, float)
        γ, below 0, and ζ, above 1.

    Raises
    ------
    InvalidInputError
        For other options. ValueError, from torch, for other values.

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
            raise InvalidInputError(f"stretch must be a number below 0 and one above 1, both finite, got {stretch!r}")
        self.log_alpha, self.temperature = to_float_parameter("log_alpha", log_alpha), temperature
        self.stretch = float(stretch[0]), float(stretch[1])
        super().__init__(log_alpha.shape, validate_args=validate_args)

    def rsample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draws (*sample_shape, ...), differentiable in log_alpha, with gradient 0 where they are 0 or 1."""
        shape, like = self._extended_shape(torch.Size(sample_shape)), self.log_alpha
        return self._stretch_and_clip(
            Logistic().sample(shape, dtype=like.dtype, device=like.device, generator=generator)
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability at 0 and 1, of the density between, (...)."""
        if self._validate_args:
            self._validate_sample(value)
        (low, high), z = self.stretch, value.clamp(0, 1)
        u = self._logistic(z)
        scale = math.log(self.temperature * (high - low)) - (z - low).log() - (high - z).log()
        found = torch.where(z <= 0, logsigmoid(u), logsigmoid(-u) + torch.where(z >= 1, 0.0, logsigmoid(u) + scale))
        return found.masked_fill((value < 0) | (value > 1), -torch.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Z ≤ z), (...)."""
        below = torch.sigmoid(self._logistic(value.clamp(0, 1)))
        return torch.where(value < 0, 0.0, torch.where(value < 1, below, 1.0))

    def icdf(self, value: Tensor) -> Tensor:
        """The least z with P(Z ≤ z) of at least ``value``, (...)."""
        return self._stretch_and_clip(torch.logit(value))

    @property
    def probability_nonzero(self) -> Tensor:
        """P(Z ≠ 0), (...), whose sum is the L0 penalty (Eq. 12)."""
        return torch.sigmoid(-self._logistic(torch.zeros_like(self.log_alpha)))

    @property
    def gate(self) -> Tensor:
        """min(1, max(0, γ + (ζ − γ) sigmoid(log α))), (...): what replaces Z after training (Eq. 13)."""
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
        """−E[log p(Z)], (...), which may be negative, as that of a density."""
        return self._expectation(lambda z, log_probability: -log_probability)

    def _logistic(self, z: Tensor) -> Tensor:
        """The L, less log α, at which Z = z."""
        low, high = self.stretch
        return self.temperature * ((z - low).log() - (high - z).log()) - self.log_alpha

    def _stretch_and_clip(self, logistic: Tensor) -> Tensor:
        low, high = self.stretch
        return (low + (high - low) * ((logistic + self.log_alpha) / self.temperature).sigmoid()).clamp(0, 1)

    def _expectation(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """E[f(Z, log p(Z))], (...): at the two points, and by Gauss-Legendre quadrature between."""
        found = self.log_alpha.new_tensor(_quadrature(self.temperature, *self.stretch))
        z, weights = found.view(2, -1, *[1] * self.log_alpha.ndim)
        logarithm = self.log_prob(z)
        return (weights * logarithm.exp() * function(z, logarithm)).sum(0)


def _stretches(stretch: Any) -> bool:
    """Whether the unit interval lies inside these two numbers."""
    if not isinstance(stretch, tuple | list) or len(stretch) != 2:
        return False
    if not all(isinstance(end, int | float) for end in stretch):
        return False
    return -math.inf < stretch[0] < 0 and 1 < stretch[1] < math.inf


@public_call
@functools.lru_cache
def _quadrature(temperature: float, low: float, high: float) -> tuple[list[float], list[float]]:
    """Nodes from 0 to 1, both included, and their weights."""
    from numpy.polynomial.legendre import leggauss

    # In t = log((z − γ) / (ζ − z)), where the density is β sigmoid(u) sigmoid(−u) with u = β t − log α, all is analytic
    # but for poles π and π / β away from the real line: so many nodes leave no more than float64 rounds off.
    begin, end = math.log(-low / high), math.log((1 - low) / (high - 1))
    half = (end - begin) / 2
    count = math.ceil(math.log(2**52) / (2 * math.asinh(math.pi * min(1, 1 / temperature) / half)))
    nodes, weights = leggauss(count)
    t = [begin + half * (1 + x) for x in nodes.tolist()]
    z = [low + (high - low) / (1 + math.exp(-x)) for x in t]
    slopes = [(high - low) / (2 + 2 * math.cosh(x)) for x in t]  # dz / dt
    return [0.0, *z, 1.0], [1.0, *(half * w * s for w, s in zip(weights.tolist(), slopes, strict=True)), 1.0]
