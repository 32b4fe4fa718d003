"""perturbed: the mean structure under noise, estimated from samples."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from .. import autograd
from ..errors import InvalidInputError
from ..noise import Noise, get_noise
from ..oracle import Oracle
from ..parts import (
    Parts,
    as_tuple,
    batch_size,
    check_scale_now,
    divide_by_temperature,
    inner_product,
    map_parts,
    multiply_by_temperature,
    pack,
)
from ..relaxation import RegularizedRelaxation, noise_unsupported_reason
from ..shapes import Float
from ..solution import Solution
from ..solvers.argmax import best_samples, best_score, best_structure
from ..solvers.perturbation import multiplicative_factors, perturb, weighted_sum_of_samples
from ..solvers.sampled_structures import DenseStructures, SampledStructures
from ..validation import check_choice, check_flag, check_natural, check_scale

__all__ = ["ControlVariate", "Perturbed"]

ControlVariate = Literal["leave_one_out", "argmax", "none"]


@dataclass(frozen=True, kw_only=True)
class Perturbed(RegularizedRelaxation):
    """E[argmax ⟨θ + σU, y⟩] by Monte Carlo, the gradient of F(θ) = E[max ⟨θ + σU, y⟩]; Ω is the conjugate of F.

    One oracle call computes all samples. The Jacobian is estimated from the same samples as E[Y ∇ν(U)ᵀ] / σ, for
    noise of density exp(−ν). The estimate is unbiased and converges as ``samples`` grows. The support of the
    solution consists of the sampled structures, each with weight 1 / samples.

    Parameters
    ----------
    noise : str or Noise
        A distribution with a score ∇ν: "normal", "gumbel", "logistic", "signed_exponential", or an object of
        :mod:`structinf.noise`. With Gumbel noise, ``categorical`` gives the softmax.
    sigma : float or Tensor
        The scale σ of the noise, above 0. A smaller σ gives a mean closer to the argmax, and derivatives of larger
        variance. A tensor with one number receives a gradient. For additive noise, F(θ) is σ F₁(θ / σ) for the function
        F₁ of noise of scale 1, so that the derivative of the value is E⟨U, Y⟩, and that of the mean comes from the
        Jacobian. For multiplicative noise, the derivative of the value is E Σ θᵢ wᵢ (Uᵢ − σ) Yᵢ for the factors w, and
        that of the mean is E[Y Σ ((Uᵢ² − 1) / σ − Uᵢ)], whose variance grows with the number of parts.
    samples : int
        The number of samples, at least 1.
    control_variate : "leave_one_out", "argmax" or "none"
        A value subtracted from each sample's ⟨y, v⟩ before the product with its noise. It reduces the variance of
        the Jacobian and does not change its expectation. "leave_one_out" subtracts the mean over the other samples;
        a single sample uses "argmax" instead. "argmax" subtracts the value at argmax ⟨θ, y⟩, which takes another
        oracle call. "none" subtracts nothing; it suffices for antithetic samples.
    antithetic : bool
        Whether to draw pairs of noise U and −U. Pairs need symmetric noise and an even number of samples.
    perturbation : "additive" or "multiplicative"
        "additive" perturbs to θ + σU, and "multiplicative" to θ exp(σU − σ²/2) with normal U. The factors have mean
        1 and keep the signs of scores, for oracles that accept only scores of at most 0. With factors, ∇F is
        E[exp(σU − σ²/2) Y]. Scores of exactly 0 are not perturbed and get no gradient.

    References
    ----------
    Berthet et al. 2020, Learning with Differentiable Perturbed Optimizers, Propositions 2.2, 3.1 and §4.
    Dalle, Baty, Bouvier & Parmentier 2022, Learning with Combinatorial Optimization Layers, §4.1 (multiplicative).

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]])
    >>> relaxation = Perturbed(noise="gumbel", samples=10_000)
    >>> g = torch.Generator().manual_seed(0)
    >>> mean = si.relax(theta, "categorical", relaxation, generator=g)
    >>> (mean - theta.softmax(1)).abs().max() < 0.02
    tensor(True)
    """

    noise: str | Noise = "normal"
    sigma: float | Tensor = 1.0
    samples: int = 10
    control_variate: ControlVariate = "leave_one_out"
    antithetic: bool = False
    perturbation: Literal["additive", "multiplicative"] = "additive"

    name = "perturbed"
    search_terms = ("perturb_and_map", "perturbed_optimizers")

    def __post_init__(self) -> None:
        noise = get_noise(self.noise)
        object.__setattr__(self, "noise", noise)
        noise.score(torch.zeros((), device="cpu"))  # raises an error if the noise has no score
        check_scale("sigma", self.sigma)
        check_natural("samples", self.samples)
        check_choice("control_variate", self.control_variate, ("leave_one_out", "argmax", "none"))
        check_choice("perturbation", self.perturbation, ("additive", "multiplicative"))
        check_flag("antithetic", self.antithetic)
        if self._is_multiplicative and noise != get_noise("normal"):
            raise InvalidInputError(f'perturbation="multiplicative" needs noise="normal", got noise={noise!r}')
        if self.antithetic and not noise.symmetric:
            raise InvalidInputError(f"antithetic samples need symmetric noise, but {noise!r} is not symmetric")
        if self.antithetic and self.samples % 2:
            raise InvalidInputError(f"antithetic samples come in pairs: samples must be even, got {self.samples}")

    @property
    def is_stochastic(self) -> bool:
        return True

    @property
    def _is_multiplicative(self) -> bool:
        return self.perturbation == "multiplicative"

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        why = None if self._is_multiplicative else noise_unsupported_reason(oracle, 'perturbation="multiplicative"')
        return why or super().unsupported_reason(oracle)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        if isinstance(self.sigma, Tensor):
            if self._is_multiplicative:
                return self._at_number().solve(oracle, theta)
            found = self._at_sigma_1().solve(oracle, divide_by_temperature(theta, self.sigma, "sigma"))
            return replace(found, value=multiply_by_temperature(found.value, self.sigma))
        result = self._run(oracle, theta)
        mean, weights = self._attach(result, oracle, theta)
        return Solution(
            mean=mean,
            value=self._attach_value(result, oracle, theta, mean if self._scale is None else None),
            weights=weights,
            oracle_calls=1,
            make_support=lambda: result.structures,
        )

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        if isinstance(self.sigma, Tensor):
            if self._is_multiplicative:
                return self._at_number().mean(oracle, theta)
            return self._at_sigma_1().mean(oracle, divide_by_temperature(theta, self.sigma, "sigma"))
        result = self._run(oracle, theta, with_value=False)
        if self._scale is None:
            return self._attach_to_mean(result, oracle, theta)
        return self._attach(result, oracle, theta)[0]

    def conjugate(self, oracle: Oracle, theta: Parts) -> Float[Tensor, " batch"]:
        """Return F(θ), (B,), estimated by the mean of the samples' best scores."""
        return self.solve(oracle, theta).value

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """Return Ω(y) = sup ⟨θ, y⟩ − F(θ), (B,), at a structure y: −σ E[U] Σ y, or 0 for multiplicative noise.

        F(θ) is at least E⟨θ + σU, y⟩, and approaches this bound as θ prefers y ever more to all other structures.
        """
        total = torch.stack([t.flatten(1).sum(1) for t in as_tuple(y)]).sum(0)
        if self._is_multiplicative:
            return total * 0.0
        return multiply_by_temperature(total * -self._noise.mean, self.sigma)

    def conjugate_and_omega(self, oracle: Oracle, theta: Parts, y: Parts) -> tuple[Tensor, Tensor]:
        if isinstance(self.sigma, Tensor):
            if self._is_multiplicative:
                return self._at_number().conjugate_and_omega(oracle, theta, y)
            scaled = divide_by_temperature(theta, self.sigma, "sigma")
            value, omega = self._at_sigma_1().conjugate_and_omega(oracle, scaled, y)
            return multiply_by_temperature(value, self.sigma), multiply_by_temperature(omega, self.sigma)
        # Estimate Ω and F from the same samples: their errors cancel, so that the loss is never negative.
        result = self._run(oracle, theta)
        value = self._attach_value(result, oracle, theta)
        if self._is_multiplicative:
            sigma = self.sigma if self._scale is None else self._scale
            shift = map_parts(
                lambda t, u: torch.where(t.isinf(), 0.0, t) * (multiplicative_factors(u, sigma).mean(0) - 1),
                theta,
                result.noise,
            )
        else:
            shift = map_parts(lambda u: self.sigma * u.mean(0), result.noise)
        return value, -inner_product(shift, y)

    # -- steps ----------------------------------------------------------------------------------

    def _at_sigma_1(self) -> Perturbed:
        """Return the relaxation of scores divided by σ, with the same generator."""
        new = copy.copy(self)
        object.__setattr__(new, "sigma", 1.0)
        return new

    # The tensor σ (1,) of multiplicative noise, if it receives a gradient; ``sigma`` is then its number.
    _scale: ClassVar[Tensor | None] = None

    def _at_number(self) -> Perturbed:
        """Return the relaxation with the number of the tensor σ, and the same generator."""
        number = check_scale_now("sigma", cast(Tensor, self.sigma))
        new = copy.copy(self)
        object.__setattr__(new, "sigma", number.item())
        if number.requires_grad:
            object.__setattr__(new, "_scale", number.reshape(1))
        return new

    @property
    def _noise(self) -> Noise:
        return get_noise(self.noise)

    def _run(self, oracle: Oracle, theta: Parts, *, with_value: bool = True) -> _Samples:
        """Draw the samples and find their best structures.

        The value is the mean of the best scores, or 0 without ``with_value``, which saves a pass over the samples.
        """
        fixed = map_parts(torch.Tensor.detach, theta)
        with torch.no_grad():
            perturbed = perturb(
                oracle,
                fixed,
                self._noise,
                self.sigma,
                self.samples,
                self.generator,
                multiplicative=self._is_multiplicative,
                antithetic=self.antithetic,
            )
            found = best_samples(perturbed.oracle, perturbed.theta, fixed, self.samples)
            size = batch_size(theta)
            if with_value:
                y = map_parts(lambda t: t.flatten(0, 1), found.structures)
                value = best_score(perturbed.oracle, perturbed.theta, y).view(self.samples, size).mean(0)
            else:
                value = as_tuple(fixed)[0].new_zeros(size)
            return _Samples(self, oracle, fixed, cast(Parts, perturbed.noise), found, value)

    def _attach(self, result: _Samples, oracle: Oracle, theta: Parts) -> tuple[Parts, Tensor]:
        what = f"{self.label()} of {oracle.label()}"
        if self._scale is None:
            return autograd.attach_vjp(result, theta, what, _SECOND_ORDER_HINT)
        inputs = *as_tuple(theta), self._scale.to(as_tuple(theta)[0])
        mean, weights = autograd.attach_vjp(_SamplesAndScale(result), inputs, what, _NO_SECOND_ORDER_HINT)
        return pack(as_tuple(mean), isinstance(theta, tuple)), weights

    def _attach_to_mean(self, result: _Samples, oracle: Oracle, theta: Parts) -> Parts:
        return autograd.attach_vjp_to_mean(result, theta, f"{self.label()} of {oracle.label()}", _SECOND_ORDER_HINT)

    def _attach_value(self, result: _Samples, oracle: Oracle, theta: Parts, mean: Parts | None = None) -> Tensor:
        """Return the value with its gradients, given the ``mean`` with its Jacobian in θ."""
        if mean is None and not self._is_multiplicative and self._scale is None:
            attach = functools.partial(self._attach_to_mean, result, oracle)
            return autograd.attach_envelope_gradient(result.value, theta, result.mean, attach)
        if mean is None:
            mean = self._attach_to_mean(result, oracle, theta)
        gradient = self._value_gradient(result, mean, oracle, theta)
        if self._scale is None:
            return autograd.attach_envelope_gradient(result.value, theta, gradient)
        inputs = *as_tuple(theta), self._scale.to(as_tuple(theta)[0])
        message = f"{self.label()} offers first derivatives only for a tensor sigma; {_NO_SECOND_ORDER_HINT}"
        slopes = (
            autograd.raise_on_backward(t, inputs, message) for t in (*as_tuple(gradient), result.slope_of_value())
        )
        return autograd.attach_envelope_gradient(result.value, inputs, tuple(slopes))

    def _value_gradient(self, result: _Samples, mean: Parts, oracle: Oracle, theta: Parts) -> Parts:
        """Return ∇F: the mean, or for multiplicative noise the mean of the structures times their factors."""
        if not self._is_multiplicative:
            return mean
        weighed = map_parts(torch.mul, result.factors, result.structures)
        found = DenseStructures(weighed, map_parts(lambda t: t.mean(0), weighed))
        factor_weighted = _Samples(self, oracle, result.theta, result.noise, found, result.value)
        what = f"{self.label()} of {oracle.label()}"
        slope = autograd.attach_vjp_to_mean(factor_weighted, theta, what, _SECOND_ORDER_HINT)
        # The samples estimate derivatives of expectations of functions of x = θ exp(σU − σ²/2), here E[x Y]. ∇F is
        # E[x Y] / θ, so the result is multiplied by a factor with the value 1 and the derivative −1/θ.
        moved = map_parts(lambda t: torch.where((t == 0) | t.isinf(), 1.0, t), theta)
        return map_parts(lambda m, t: m * (t.detach() / t), slope, moved)


_NO_SECOND_ORDER_HINT = "for second derivatives, pass sigma as a number"
_SECOND_ORDER_HINT = "a Fenchel-Young loss of this relaxation estimates second derivatives"


@dataclass(frozen=True)
class _Samples:
    """Structures (n, B, *event) for noise (n, B, *event): a weighted mean with a Jacobian from the samples."""

    options: Perturbed
    oracle: Oracle
    theta: Parts
    noise: Parts
    found: SampledStructures
    value: Tensor

    @property
    def structures(self) -> Parts:
        return self.found.structures

    @property
    def mean(self) -> Parts:
        return self.found.mean

    @property
    def weights(self) -> Tensor:
        return torch.full_like(self.value, 1 / self.options.samples).expand(self.options.samples, -1)

    @property
    def factors(self) -> Parts:
        """The factors exp(σU − σ²/2)."""
        return map_parts(lambda u: multiplicative_factors(u, cast(float, self.options.sigma)), self.noise)

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        """Return E[s ∇ν(U)] / σ, where s = ⟨Y, v⟩ + c for cotangents v of the mean and c of the weights."""
        weights = self.weigh(mean_cotangent, weights_cotangent)
        return map_parts(lambda t, u: self._score_weighted_sum(weights, t, u), self.theta, self.noise)

    def weigh(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Tensor:
        """Return s / (n σ) less its control variate, (n, B)."""
        n, control_variate = self.options.samples, self.options.control_variate
        if n == 1 and control_variate == "leave_one_out":
            control_variate = "argmax"
        s = None
        if mean_cotangent is not None:
            s = self.found.inner_products(mean_cotangent)
            if control_variate == "argmax":
                s = s - inner_product(mean_cotangent, best_structure(self.oracle, self.theta))
        if weights_cotangent is not None:
            s = weights_cotangent if s is None else s + weights_cotangent
        assert s is not None
        scale = n * self.options.sigma
        # Antithetic pairs need no leave-one-out mean: a constant cancels, because their noise scores are opposite.
        if control_variate == "leave_one_out" and not self.options.antithetic:
            s, scale = s - s.mean(0), scale * (n - 1) / n  # n / (n - 1) times s minus the mean of the other samples
        return s / scale

    def slope_of_value(self) -> Tensor:
        """Return the derivative of the value in σ for multiplicative noise, E Σ θ w (U − σ) Y, (B,)."""
        sigma = cast(float, self.options.sigma)
        moved = map_parts(
            lambda t, w, u: torch.where(t.isinf(), 0.0, t * w * (u - sigma)), self.theta, self.factors, self.noise
        )
        pairs = zip(as_tuple(moved), as_tuple(self.structures), strict=True)
        return torch.stack([(m * y).flatten(2).sum(2) for m, y in pairs]).sum(0).mean(0)

    def _score_weighted_sum(self, weights: Tensor, theta: Tensor, noise: Tensor) -> Tensor:
        """Return Σ w ∇ν(U) over the samples for ``weights`` w (n, B), per unit of θ, (B, *event).

        The sum is 0 at parts of score −inf, and with multiplicative noise at parts of score 0.
        """
        total = weighted_sum_of_samples(get_noise(self.options.noise).score(noise), weights, theta)
        if self.options.perturbation == "multiplicative":
            return torch.where(theta == 0, 0.0, total / theta)
        return total


@dataclass(frozen=True)
class _SamplesAndScale:
    """The samples of multiplicative noise, with the gradient in σ beside the gradient in θ."""

    samples: _Samples

    @property
    def mean(self) -> Parts:
        return as_tuple(self.samples.mean)

    @property
    def weights(self) -> Tensor:
        return self.samples.weights

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        """Return E[s ∇ν(U)] / (σ θ), and E[s Σ ((U² − 1) / σ − U)], the score of the factors in σ."""
        own = self.samples
        v = None if mean_cotangent is None else pack(as_tuple(mean_cotangent), isinstance(own.theta, tuple))
        weights, sigma = own.weigh(v, weights_cotangent), cast(float, own.options.sigma)
        scores = []
        for t, u in zip(as_tuple(own.theta), as_tuple(own.noise), strict=True):
            # Parts without noise, in the padding, have draws of 0.
            is_fixed = (t == 0) | t.isinf() | (u == 0)
            scores.append(torch.where(is_fixed, 0.0, u.square() - 1 - sigma * u).flatten(2).sum(2))
        return *as_tuple(own.vjp(v, weights_cotangent)), (weights * torch.stack(scores).sum(0)).sum(0)
