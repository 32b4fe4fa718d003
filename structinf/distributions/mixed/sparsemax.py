"""Sparsemax of noisy scores, on the simplex."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from ...autograd import smooth_argmax
from ...errors import InvalidInputError, UnsupportedError
from ...noise import Gumbel, Noise, Normal
from ...regularizers import SquaredL2
from .base import MixedDistribution, to_float_parameter

__all__ = ["GaussianSparsemax", "GumbelSparsemax"]


class _Scores(Constraint):
    """Not NaN, never +inf, and not all −inf."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value < torch.inf).all(-1) & (value > -torch.inf).any(-1)


class _Simplex(Constraint):
    """Probabilities whose sum is 1 but for the rounding of their dtype."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        rounding = value.shape[-1] * torch.finfo(value.dtype).eps
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() <= rounding)


class _NoisySparsemax(MixedDistribution):
    """sparsemax(θ + σU) for independent U."""

    loc: Tensor
    scale: Tensor
    arg_constraints: ClassVar[dict[str, Constraint]] = {"loc": _Scores(), "scale": constraints.positive}
    support: ClassVar[Constraint] = _Simplex()
    _noise: ClassVar[Noise]

    def __init__(self, loc: Tensor, scale: Tensor | float = 1.0, validate_args: bool | None = None) -> None:
        self.loc = to_float_parameter("loc", loc)
        if loc.ndim == 0 or loc.shape[-1] == 0:
            raise InvalidInputError(f"loc: scores (..., K) of at least one item are needed, got shape {(*loc.shape,)}")
        scale = torch.as_tensor(scale, dtype=self.loc.dtype, device=loc.device)
        try:
            batch_shape = torch.broadcast_shapes(loc.shape[:-1], scale.shape)
        except RuntimeError:
            raise InvalidInputError(
                f"scale: one number, or one for each row of loc, is needed; got shape {(*scale.shape,)} for loc of "
                f"shape {(*loc.shape,)}"
            ) from None
        self.loc, self.scale = self.loc.expand(*batch_shape, -1), scale.expand(batch_shape)
        super().__init__(batch_shape, loc.shape[-1:], validate_args)

    def rsample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draws (*sample_shape, ..., K), differentiable in loc and scale."""
        shape = self._extended_shape(torch.Size(sample_shape))
        u = self._noise.sample(shape, dtype=self.loc.dtype, device=self.loc.device, generator=generator)
        return smooth_argmax(SquaredL2(), self.loc + self.scale.unsqueeze(-1) * u)

    def entropy(self) -> Tensor:
        """Refused: it has no closed form."""
        raise UnsupportedError(
            f"the entropy of {type(self).__name__} has no closed form; the mean of -log_prob(z) over draws "
            "z = rsample((n,)) estimates it without bias"
        )

    def _standard(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(θ − z) / σ, 0 where θ is −inf, where z is above 0, and where θ is above −inf; all (..., K)."""
        if self._validate_args:
            self._validate_sample(value)
        is_in_support = self.loc > -torch.inf
        standard = (torch.where(is_in_support, self.loc, 0.0) - value) / self.scale.unsqueeze(-1)
        value, is_in_support = value.expand_as(standard), is_in_support.expand_as(standard)
        return torch.where(is_in_support, standard, 0.0), value > 0, is_in_support


class GumbelSparsemax(_NoisySparsemax):
    """Z = sparsemax(θ + σU) for independent standard Gumbel U: sparse probabilities, one-hot ones among them.

    Its law is exact, with respect to the sum of the Lebesgue measures of all faces of the simplex, a vertex counting
    1: an s-dimensional face, of s + 1 non-zero probabilities, is measured in any s of them. With S the non-zero
    coordinates of z,

        p(z) = |S|! σ^(1 − |S|) exp(Σ_{i ∈ S} (θ_i − z_i) / σ) / (Σ_k exp((θ_k − z_k) / σ))^|S|.

    There is ``rsample``, ``sample`` (both take a ``generator``) and ``log_prob``, differentiable in all arguments; mean
    and entropy have no closed form.

    Parameters
    ----------
    loc : (..., K) Tensor
        θ. Half precision is computed, and comes back, in float32. An entry of −inf is never drawn.
    scale : Tensor or float
        σ, above 0, one for all or one for each row (...). The smaller, the closer to a vertex where θ is large.

    Raises
    ------
    InvalidInputError
        If there are no scores, or shapes do not fit. ValueError, from torch, for values.

    References
    ----------
    Farinhas, Aziz, Niculae & Martins 2022, Sparse Communication via Mixed Distributions.

    Examples
    --------
    >>> z = GumbelSparsemax(torch.tensor([1.0, 0.0, -1.0]))
    >>> z.log_prob(torch.tensor([1.0, 0.0, 0.0])).exp()
    tensor(0.4223)
    """

    _noise = Gumbel()

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(z), (...)."""
        # Z = z if n = θ + σU is z_i + τ in S and at most τ elsewhere, for some τ. As a change of variables from τ and
        # all but one z_i to n_S has the determinant |S|, and with P(U ≤ u) = exp(−e⁻ᵘ),
        #     p(z) = |S| σ^−|S| ∫ exp(−Σ_S (z_i + τ − θ_i) / σ − e^(−τ/σ) Σ_k e^((θ_k − z_k) / σ)) dτ,
        # where e^(−τ/σ) as the variable makes the integral that of Γ(|S|).
        standard, inside, is_in_support = self._standard(value)
        count = inside.sum(-1).to(standard.dtype)
        standard = standard.masked_fill(~is_in_support, -torch.inf)
        # Each difference by itself: two large sums would leave little of their own.
        chosen = torch.where(inside, standard - standard.logsumexp(-1, keepdim=True), 0.0).sum(-1)
        return (count + 1).lgamma() + (1 - count) * self.scale.log() + chosen


class GaussianSparsemax(_NoisySparsemax):
    """Z = sparsemax(θ + σU) for independent standard normal U: sparse probabilities, one-hot ones among them.

    Its density is with respect to the measure that :class:`GumbelSparsemax` describes. With S the non-zero coordinates
    of z, and φ and Φ the density and distribution function of U,

        p(z) = |S| σ^−|S| ∫ Π_{i ∈ S} φ((z_i + τ − θ_i) / σ) Π_{j ∉ S} Φ((τ − θ_j) / σ) dτ,

    an integral that is computed to rounding, in some 100 K operations (more where K is large).

    There is ``rsample``, ``sample`` (both take a ``generator``) and ``log_prob``, differentiable in all arguments; mean
    and entropy have no closed form.

    Parameters
    ----------
    loc : (..., K) Tensor
        θ. Half precision is computed, and comes back, in float32. An entry of −inf is never drawn.
    scale : Tensor or float
        σ, above 0, one for all or one for each row (...).

    Raises
    ------
    InvalidInputError
        If there are no scores, or shapes do not fit. ValueError, from torch, for values.

    References
    ----------
    Farinhas, Aziz, Niculae & Martins 2022, Sparse Communication via Mixed Distributions.

    Examples
    --------
    >>> z = GaussianSparsemax(torch.tensor([0.5, -0.5]))
    >>> z.log_prob(torch.tensor([1.0, 0.0])).exp()
    tensor(0.5000)
    """

    _noise = Normal()

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(z), (...)."""
        # With d = (θ − z) / σ, m its mean over S and t = m + u / √|S|, the first product of φ(t − d_i) is
        # (2π)^(−|S|/2) exp(−½ Σ_S (d_i − m)² − ½ u²).
        standard, inside, is_in_support = self._standard(value)
        count = inside.sum(-1).to(standard.dtype)
        centre = torch.where(inside, standard, 0.0).sum(-1, keepdim=True) / count.unsqueeze(-1)
        squared_deviation = torch.where(inside, standard - centre, 0.0).square().sum(-1)
        outside = ~inside & is_in_support
        integral = _log_integral(torch.where(outside, centre - standard, 0.0), outside, count.sqrt())
        found = (
            (1 - count) * self.scale.log()
            + 0.5 * (count.log() - count * math.log(2 * math.pi) - squared_deviation)
            + integral
        )
        return found.masked_fill((inside & ~is_in_support).any(-1), -torch.inf)


def _log_integral(offsets: Tensor, used: Tensor, root: Tensor) -> Tensor:
    """log ∫ exp(−u²/2) Π_j Φ(a_j + u / r) du, over the ``used`` ones of (..., K) offsets a, for r (...).

    By the trapezoidal rule, which converges geometrically: the integrand is analytic, and its logarithm has a second
    derivative of at most −1. Its nodes need no derivative.
    """
    with torch.no_grad():
        peak, width = _peak(offsets.double(), used, root.double())
        reach = math.sqrt(-2 * math.log(torch.finfo(offsets.dtype).eps))
        count = math.ceil(4 * reach / width.min().item()) if width.numel() else 0
        nodes = peak.unsqueeze(-1) + width.unsqueeze(-1) / 4 * torch.arange(-count, count + 1, device=width.device)
        nodes, step = nodes.to(offsets.dtype), (width / 4).to(offsets.dtype)
    factors = torch.special.log_ndtr(offsets.unsqueeze(-2) + (nodes / root.unsqueeze(-1)).unsqueeze(-1))
    logarithm = torch.where(used.unsqueeze(-2), factors, 0.0).sum(-1) - nodes.square() / 2
    return logarithm.logsumexp(-1) + step.log()


def _peak(offsets: Tensor, used: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Where the integrand is greatest, about, and the deviation of the Gaussian that touches it there."""
    u, second = torch.zeros_like(root), -torch.ones_like(root)
    for _ in range(100):
        x = offsets + (u / root).unsqueeze(-1)
        slope = math.sqrt(2 / math.pi) / torch.special.erfcx(-x / math.sqrt(2))  # of log Φ
        first = -u + torch.where(used, slope, 0.0).sum(-1) / root
        # The slope falls, by less than 1 for each 1, and ever more slowly: Newton's steps from the left stay there.
        second = -1 - torch.where(used, (slope * (slope + x)).clamp(0, 1), 0.0).sum(-1) / root.square()
        u = u - first / second
        if not bool((first.abs() > 1e-2 * second.abs().sqrt()).any()):
            break
    return u, second.abs().rsqrt()
