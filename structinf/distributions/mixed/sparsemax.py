"""Distributions of the sparsemax of noisy scores, on the simplex."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from ...autograd import smooth_argmax
from ...errors import InvalidInputError, UnsupportedError
from ...kernels.arrays import upcast_half
from ...noise import Gumbel, Noise, Normal
from ...regularizers import SquaredL2
from ...validation import check_flag, check_floating, check_in_range, check_real, check_size
from .base import MixedDistribution, to_float_parameter

__all__ = ["GaussianSparsemax", "GumbelSparsemax"]


class _Scores(Constraint):
    """Constraint: scores without NaN and +inf, with at least one score above −inf."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value < torch.inf).all(-1) & (value > -torch.inf).any(-1)


class _Positive(Constraint):
    """Constraint: a positive, finite number for each coordinate."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return ((value > 0) & (value < torch.inf)).all(-1)


class _Simplex(Constraint):
    """Constraint: probabilities with a sum of 1 up to rounding of their dtype."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        rounding = value.shape[-1] * torch.finfo(value.dtype).eps
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() <= rounding)


class _NoisySparsemax(MixedDistribution):
    """Base class of the distributions of sparsemax(θ + σU) for independent noise U."""

    loc: Tensor
    scale: Tensor
    arg_constraints: ClassVar[dict[str, Constraint]] = {"loc": _Scores(), "scale": constraints.positive}
    support: ClassVar[Constraint] = _Simplex()
    _noise: ClassVar[Noise]

    def __init__(self, loc: Tensor, scale: Tensor | float = 1.0, validate_args: bool | None = None) -> None:
        self.loc = to_float_parameter("loc", loc)
        if loc.ndim == 0 or loc.shape[-1] == 0:
            raise InvalidInputError(f"loc must have shape (..., K) with K of at least 1, got shape {(*loc.shape,)}")
        check_real("scale", scale)
        if isinstance(scale, bool):
            raise InvalidInputError(f"scale must be a number or a tensor of numbers, got {scale!r}")
        if isinstance(scale, int | float) and 0 < scale < math.inf:  # else torch refuses the parameter
            check_in_range("scale", scale, self.loc.dtype, ", or pass loc in float64")
        scale = torch.as_tensor(scale, dtype=self.loc.dtype, device=loc.device)
        try:
            batch_shape = torch.broadcast_shapes(loc.shape[:-1], scale.shape)
        except RuntimeError:
            raise InvalidInputError(
                f"scale must be one number, or one number for each row of loc, got shape {(*scale.shape,)} for loc of "
                f"shape {(*loc.shape,)}"
            ) from None
        self.loc, self.scale = self.loc.expand(*batch_shape, -1), scale.expand(batch_shape)
        check_flag("validate_args", validate_args, allow_none=True)
        super().__init__(batch_shape, loc.shape[-1:], validate_args)

    def rsample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw samples, (*sample_shape, ..., K), differentiable in ``loc`` and the scales."""
        shape = self._extended_shape(check_size("sample_shape", sample_shape))
        u = self._noise.sample(shape, dtype=self.loc.dtype, device=self.loc.device, generator=generator)
        return smooth_argmax(SquaredL2(), self.loc + self._scales() * u)

    def _scales(self) -> Tensor:
        """Return σ of each coordinate, (..., K) or (..., 1)."""
        return self.scale.unsqueeze(-1)

    def entropy(self) -> Tensor:
        """Raise UnsupportedError, since the entropy has no closed form."""
        raise UnsupportedError(
            f"the entropy of {type(self).__name__} has no closed form. Estimate it without bias by the "
            "mean of -log_prob(z) over samples z = rsample((n,))"
        )

    def _standard(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (θ − z) / σ, with 0 where θ = −inf, and the masks z > 0 and θ > −inf; all (..., K)."""
        if self._validate_args:
            self._validate_sample(value)
        is_in_support = self.loc > -torch.inf
        standard = (torch.where(is_in_support, self.loc, 0.0) - value) / self.scale.unsqueeze(-1)
        value, is_in_support = value.expand_as(standard), is_in_support.expand_as(standard)
        return torch.where(is_in_support, standard, 0.0), value > 0, is_in_support


class GumbelSparsemax(_NoisySparsemax):
    """Z = sparsemax(θ + σU) for independent standard Gumbel U: sparse probabilities, including one-hot vectors.

    The density is exact. Its base measure is the sum of the Lebesgue measures on all faces of the simplex. A vertex
    has measure 1, and a face with s + 1 non-zero probabilities is measured in any s of these coordinates. With S the
    non-zero coordinates of z,

        p(z) = |S|! σ^(1 − |S|) exp(Σ_{i ∈ S} (θ_i − z_i) / σ) / N^|S|
        N = Σ_k exp((θ_k − z_k) / σ).

    ``rsample`` and ``sample`` take a ``generator``. ``rsample`` is differentiable in ``loc`` and ``scale``, and
    ``log_prob`` is differentiable in all arguments. The mean and the entropy have no closed form.

    Parameters
    ----------
    loc : (..., K) Tensor
        θ. Half-precision input is converted to float32, also in the results. An entry with θ = −inf always has
        probability 0.
    scale : Tensor or float
        σ, above 0: one number, or one number for each row (...). As σ goes to 0, samples approach the vertex of the
        largest θ. Default 1.
    validate_args : bool, optional
        Whether to check parameters and values. The default is torch's, normally True.

    Raises
    ------
    InvalidInputError
        If ``loc`` has no scores, or the shapes of ``loc`` and ``scale`` do not broadcast.
    ValueError
        If ``loc`` or ``scale`` has a value out of range (checked by torch).

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
        """Return log p(z), (...).

        Parameters
        ----------
        value : (..., K) Tensor
            Points z of the simplex.
        """
        # Let n = θ + σU. Z = z if and only if, for a threshold τ, n_i = z_i + τ for i in S and n_j ≤ τ for j outside S.
        # The change of variables from τ and all but one z_i to n_S has determinant |S|. With P(U ≤ u) = exp(−e⁻ᵘ),
        #     p(z) = |S| σ^−|S| ∫ exp(−Σ_S (z_i + τ − θ_i) / σ − e^(−τ/σ) Σ_k e^((θ_k − z_k) / σ)) dτ.
        # Substituting e^(−τ/σ) turns the integral into the one of Γ(|S|).
        standard, inside, is_in_support = self._standard(value)
        count = inside.sum(-1).to(standard.dtype)
        standard = standard.masked_fill(~is_in_support, -torch.inf)
        # Subtract before summing: the difference of two large sums would lose digits.
        chosen = torch.where(inside, standard - standard.logsumexp(-1, keepdim=True), 0.0).sum(-1)
        return (count + 1).lgamma() + (1 - count) * self.scale.log() + chosen


class GaussianSparsemax(_NoisySparsemax):
    """Z = sparsemax(θ + σU) for independent standard normal U: sparse probabilities, including one-hot vectors.

    The density has the base measure of :class:`GumbelSparsemax`. With S the non-zero coordinates of z, and φ and Φ the
    density and distribution function of U,

        p(z) = |S| ∫ Π_{i ∈ S} φ((z_i + τ − θ_i) / σ_i) / σ_i
                     Π_{j ∉ S} Φ((τ − θ_j) / σ_j) dτ.

    The trapezoidal rule computes the integral to rounding. It takes 47 nodes in float32 and 69 in float64 for |S| = K,
    and at most √K times as many for smaller S and equal σ_i. If the σ_i of a row differ, their largest ratio is another
    factor. Each node costs K evaluations of log Φ.

    ``rsample`` and ``sample`` take a ``generator``. ``rsample`` is differentiable in ``loc`` and the scales, and
    ``log_prob`` is differentiable in all arguments. The mean and the entropy have no closed form.

    Parameters
    ----------
    loc : (..., K) Tensor
        θ. Half-precision input is converted to float32, also in the results. An entry with θ = −inf always has
        probability 0.
    scale : Tensor or float
        σ, above 0: one number, or one number for each row (...). Default 1.
    validate_args : bool, optional
        Whether to check parameters and values. The default is torch's, normally True.
    coordinate_scale : (..., K) Tensor, optional
        Factors s_i above 0 of σ, so that coordinate i has σ_i = σ s_i (a diagonal covariance). Default 1.

    Raises
    ------
    InvalidInputError
        If ``loc`` has no scores, or the shapes of ``loc``, ``scale`` and ``coordinate_scale`` do not broadcast.
    ValueError
        If ``loc`` or a scale has a value out of range (checked by torch).

    References
    ----------
    Farinhas, Aziz, Niculae & Martins 2022, Sparse Communication via Mixed Distributions.

    Examples
    --------
    >>> z = GaussianSparsemax(torch.tensor([0.5, -0.5]))
    >>> z.log_prob(torch.tensor([1.0, 0.0])).exp()
    tensor(0.5000)
    >>> sigma = torch.tensor([0.1, 2.0])
    >>> z = GaussianSparsemax(
    ...     torch.tensor([0.5, -0.5]), coordinate_scale=sigma
    ... )
    >>> z.log_prob(torch.tensor([1.0, 0.0])).exp()
    tensor(0.5000)
    """

    coordinate_scale: Tensor
    arg_constraints: ClassVar[dict[str, Constraint]] = {
        **_NoisySparsemax.arg_constraints,
        "coordinate_scale": _Positive(),
    }
    _noise = Normal()

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float = 1.0,
        validate_args: bool | None = None,
        *,
        coordinate_scale: Tensor | None = None,
    ) -> None:
        factors = None if coordinate_scale is None else to_float_parameter("coordinate_scale", coordinate_scale)
        check_floating("loc", loc)
        self.coordinate_scale = torch.ones((), dtype=upcast_half(loc).dtype, device=loc.device)
        if factors is not None:
            if factors.ndim == 0 or loc.ndim == 0 or factors.shape[-1] != loc.shape[-1]:
                raise InvalidInputError(
                    "coordinate_scale must have one number for each coordinate, shape (..., K) with the K of loc, got "
                    f"shape {(*factors.shape,)} for loc of shape {(*loc.shape,)}; pass a number for each row as scale"
                )
            try:
                loc = loc.expand(*torch.broadcast_shapes(loc.shape, factors.shape))
            except RuntimeError:
                raise InvalidInputError(
                    f"coordinate_scale of shape {(*factors.shape,)} does not broadcast with loc of {(*loc.shape,)}"
                ) from None
            self.coordinate_scale = factors.to(self.coordinate_scale)
        self.coordinate_scale = self.coordinate_scale.expand(loc.shape)
        super().__init__(loc, scale, validate_args)
        self.coordinate_scale = self.coordinate_scale.expand(self.loc.shape)

    def _scales(self) -> Tensor:
        return self.scale.unsqueeze(-1) * self.coordinate_scale

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log p(z), (...).

        Parameters
        ----------
        value : (..., K) Tensor
            Points z of the simplex.
        """
        # Let d = (θ − z) / σ, W = Σ_S s_i⁻², let m be the mean of d over S with weights s_i⁻², and let t = m + u / √W.
        # The product of the factors φ((t − d_i) / s_i) equals (2π)^(−|S|/2) exp(−½ Σ_S ((d_i − m) / s_i)² − ½ u²).
        standard, inside, is_in_support = self._standard(value)
        factors = self.coordinate_scale.expand_as(standard)
        count = inside.sum(-1).to(standard.dtype)
        # Relative to the smallest factor of S, so that the weights neither overflow nor vanish.
        least = torch.where(inside, factors, torch.inf).amin(-1, keepdim=True).detach()
        relative = factors / least
        weight = torch.where(inside, relative.square().reciprocal(), 0.0)
        total = weight.sum(-1, keepdim=True)
        centre = (weight * standard).sum(-1, keepdim=True) / total
        deviation = torch.where(inside, (standard - centre) / factors, 0.0)
        outside = ~inside & is_in_support
        offsets = torch.where(outside, (centre - standard) / factors, 0.0)
        rates = torch.where(outside, (relative * total.sqrt()).reciprocal(), 0.0)
        found = (
            (1 - count) * (self.scale.log() + least.squeeze(-1).log())
            + count.log()
            - torch.where(inside, relative.log(), 0.0).sum(-1)
            - 0.5 * (total.squeeze(-1).log() + count * math.log(2 * math.pi) + deviation.square().sum(-1))
            + _log_integral(offsets, outside, rates)
        )
        return found.masked_fill((inside & ~is_in_support).any(-1), -torch.inf)


def _log_integral(offsets: Tensor, used: Tensor, rates: Tensor) -> Tensor:
    """Return log ∫ exp(−u²/2) Π_j Φ(a_j + r_j u) du for offsets a and rates r (..., K); j runs over ``used`` entries.

    The trapezoidal rule converges geometrically, because the integrand is analytic and its logarithm has a second
    derivative of at most −1. The nodes need no gradient.
    """
    with torch.no_grad():
        peak, width = _peak(offsets.double(), used, rates.double())
        width = torch.minimum(width, rates.double().amax(-1).reciprocal())  # of the steepest factor
        reach = math.sqrt(-2 * math.log(torch.finfo(offsets.dtype).eps))
        count = math.ceil(4 * reach / width.min().item()) if width.numel() else 0
        nodes = peak.unsqueeze(-1) + width.unsqueeze(-1) / 4 * torch.arange(-count, count + 1, device=width.device)
        nodes, step = nodes.to(offsets.dtype), (width / 4).to(offsets.dtype)
    factors = torch.special.log_ndtr(offsets.unsqueeze(-2) + nodes.unsqueeze(-1) * rates.unsqueeze(-2))
    logarithm = torch.where(used.unsqueeze(-2), factors, 0.0).sum(-1) - nodes.square() / 2
    return logarithm.logsumexp(-1) + step.log()


def _peak(offsets: Tensor, used: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the approximate peak of the integrand and the standard deviation of its Gaussian fit at the peak."""
    u, second = offsets.new_zeros(offsets.shape[:-1]), offsets.new_full(offsets.shape[:-1], -1.0)
    for _ in range(100):
        x = offsets + u.unsqueeze(-1) * rates
        slope = math.sqrt(2 / math.pi) / torch.special.erfcx(-x / math.sqrt(2))  # of log Φ
        first = -u + torch.where(used, slope * rates, 0.0).sum(-1)
        # The derivative of the slope of log Φ increases from −1 to 0, so `first` is convex and decreasing. Newton's
        # steps that start left of the root therefore stay left of the root.
        second = -1 - torch.where(used, (slope * (slope + x)).clamp(0, 1) * rates.square(), 0.0).sum(-1)
        u = u - first / second
        if not bool((first.abs() > 1e-2 * second.abs().sqrt()).any()):
            break
    return u, second.abs().rsqrt()
