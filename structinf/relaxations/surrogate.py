"""Base classes of surrogate gradients: the argmax of (noisy) scores, with a rule in place of its derivative."""

from __future__ import annotations

import abc
import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .. import autograd
from ..errors import UnsupportedError
from ..noise import Noise, NoNoise, get_noise
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size, map_parts, pack_like
from ..relaxation import Relaxation, noise_unsupported_reason
from ..solution import Solution
from ..solvers.argmax import best_samples, best_score, best_structure
from ..solvers.perturbation import NoisyCopies, add_to_samples, merge_samples, perturb, repeat_instances
from ..solvers.sampled_structures import SampledStructures
from ..validation import check_choice, check_in_range, check_natural, check_scale, number_of_step

__all__ = ["ArgmaxResult", "NoisySurrogate", "SampledArgmax", "Surrogate", "take_step"]


class Surrogate(Relaxation):
    """argmax ⟨θ, y⟩ in the forward pass, and a rule in place of the derivative, which is 0, in the backward pass."""

    @property
    def step(self) -> float:
        """The number of the option :attr:`step_option`, which may be a tensor."""
        return number_of_step(self.step_option, getattr(self, self.step_option))

    def _with_fixed_step(self, theta: Parts) -> Surrogate:
        """Return the surrogate for the backward pass, with its step as a number.

        Raises InvalidInputError if the dtype of θ cannot represent products with the step.
        """
        if not self.step_option:
            return self
        step = self.step
        check_in_range(self.step_option, step, as_tuple(theta)[0].dtype)
        if not isinstance(getattr(self, self.step_option), Tensor):
            return self
        # A tensor may change before the backward pass, as in a schedule.
        fixed = copy.copy(self)
        object.__setattr__(fixed, self.step_option, step)
        return fixed

    @abc.abstractmethod
    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        """Return the gradient with respect to θ, in the form of ``v`` or of θ, given ``v`` = dL/dy, (B, *event).

        ``v`` is 0 at parts of score −inf and in the padding. Instances without a finite gradient get NaN.
        """

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        found = self._best(oracle, theta)
        mean, weights = self._attach(found, oracle, theta)
        return Solution(
            mean=mean,
            value=best_score(oracle, theta, found.y),
            weights=weights,
            oracle_calls=1,
            make_support=lambda: map_parts(lambda z: z[None], found.y),
        )

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        return self._attach_to_mean(self._best(oracle, theta), oracle, theta)

    def _best(self, oracle: Oracle, theta: Parts) -> ArgmaxResult:
        surrogate, fixed = self._with_fixed_step(theta), map_parts(torch.Tensor.detach, theta)
        return ArgmaxResult(surrogate, oracle, fixed, fixed, best_structure(oracle, theta))

    def _attach(self, argmax_result: autograd.WeightedMean, oracle: Oracle, theta: Parts) -> tuple[Parts, Tensor]:
        return autograd.attach_vjp(argmax_result, theta, f"{self.label()} of {oracle.label()}", _SECOND_ORDER_HINT)

    def _attach_to_mean(self, argmax_result: autograd.WeightedMean, oracle: Oracle, theta: Parts) -> Parts:
        name = f"{self.label()} of {oracle.label()}"
        return autograd.attach_vjp_to_mean(argmax_result, theta, name, _SECOND_ORDER_HINT)


_SECOND_ORDER_HINT = "a surrogate gradient has no derivative; the marginals relaxation is twice differentiable"


class NoisySurrogate(Surrogate):
    """argmax ⟨θ + σU, y⟩ for samples of noise U, with a surrogate gradient for each sample.

    The result is the mean of the samples, or with ``reduction="none"`` all samples, in a leading dimension.

    Attributes
    ----------
    noise : str or Noise
        The distribution of U.
    sigma : float or Tensor
        The scale σ of the noise, above 0. A tensor with one number receives the inner product of the surrogate gradient
        and the noise as its gradient.
    samples : int
        The number of samples, at least 1.
    reduction : "mean" or "none"
        Whether to average the samples or to keep them.
    """

    noise: str | Noise
    sigma: float | Tensor
    samples: int
    reduction: Literal["mean", "none"]

    def _check_sampling(self) -> None:
        """Raise InvalidInputError unless ``sigma``, ``samples`` and ``reduction`` are valid."""
        check_scale("sigma", self.sigma)
        check_natural("samples", self.samples)
        check_choice("reduction", self.reduction, ("mean", "none"))

    @property
    def is_stochastic(self) -> bool:
        return not isinstance(get_noise(self.noise), NoNoise)

    @property
    def sample_ndim(self) -> int:
        return int(self.reduction == "none")

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        why = noise_unsupported_reason(oracle, 'noise="none"') if self.is_stochastic else None
        return why or super().unsupported_reason(oracle)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        n, size, keep_samples = self.samples, batch_size(theta), self.reduction == "none"
        perturbed = self._perturb(oracle, theta)
        drawn = self._draw(oracle, theta, perturbed)
        value = best_score(perturbed.oracle, perturbed.theta, drawn.argmax_result.y).view(n, size)
        mean, weights = self._attach_samples(drawn, perturbed.noise, oracle, theta)
        return Solution(
            mean=mean,
            value=value if keep_samples else value.mean(0),
            weights=weights,
            oracle_calls=1,
            make_support=lambda: map_parts(lambda z: z[None] if keep_samples else z, drawn.structures),
        )

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        fixed = map_parts(torch.Tensor.detach, theta)
        perturbed = self._perturb(oracle, fixed)
        drawn = self._draw(oracle, theta, perturbed)
        if not isinstance(self.sigma, Tensor):
            return self._attach_to_mean(drawn, oracle, theta)
        return self._attach_samples(drawn, perturbed.noise, oracle, theta)[0]

    def _perturb(self, oracle: Oracle, theta: Parts) -> NoisyCopies:
        noise, keeps_noise = get_noise(self.noise), isinstance(self.sigma, Tensor)
        return perturb(oracle, theta, noise, self.sigma, self.samples, self.generator, keeps_noise=keeps_noise)

    def _attach_samples(
        self, drawn: SampledArgmax, noise: Parts | None, oracle: Oracle, theta: Parts
    ) -> tuple[Parts, Tensor]:
        """Attach the gradient for θ, and for a tensor σ, which needs the noise."""
        if not isinstance(self.sigma, Tensor) or noise is None:
            return self._attach(drawn, oracle, theta)
        inputs = (*as_tuple(theta), self.sigma.reshape(1))
        mean, weights = self._attach(_ScaledSamples(drawn, noise, theta), oracle, inputs)
        return pack_like(as_tuple(mean), theta), weights

    def _draw(self, oracle: Oracle, theta: Parts, perturbed: NoisyCopies) -> SampledArgmax:
        """Find the best structures for noisy copies of θ."""
        surrogate = self._with_fixed_step(theta)
        noisy, fixed = (map_parts(torch.Tensor.detach, t) for t in (perturbed.theta, theta))
        best = best_samples(perturbed.oracle, noisy, fixed, self.samples)
        found = ArgmaxResult(surrogate, perturbed.oracle, noisy, fixed, best)
        return SampledArgmax(found, self.samples, batch_size(theta), self.reduction == "none", best)

    def mean_gradient(self, drawn: SampledArgmax, v: Parts) -> Parts | None:
        """Return the mean of the gradients of all samples, or None if a subclass has no faster way.

        No part of θ has the score −inf, the oracle has no instance data, and ``v`` is 0 in the padding.

        Parameters
        ----------
        drawn : SampledArgmax
            The samples.
        v : (B, *event) Parts
            dL/dμ for the mean μ of the samples.
        """
        return None


# ----------------------------------------------------------------------------- the backward pass


@dataclass(frozen=True)
class ArgmaxResult:
    """The best structures for given scores, each of weight 1, with the gradient of a surrogate.

    Attributes
    ----------
    surrogate : Surrogate
        The rule for the gradient.
    oracle : Oracle
        The set Y of structures.
    theta : (B | 1, *event) Parts
        The scores, including any noise.
    noiseless_theta : (B' | 1, *event) Parts
        The scores without noise. B is a multiple of B'.
    best : (B, *event) Parts, or SampledStructures
        The best structures for ``theta``.
    """

    surrogate: Surrogate
    oracle: Oracle
    theta: Parts
    noiseless_theta: Parts
    best: Parts | SampledStructures

    @functools.cached_property
    def y(self) -> Parts:
        """The best structures, (B, *event)."""
        if isinstance(self.best, Tensor | tuple):
            return self.best
        return map_parts(lambda z: z.flatten(0, 1), self.best.structures)

    @property
    def mean(self) -> Parts:
        return self.y

    @property
    def weights(self) -> Tensor:
        first = as_tuple(self.y)[0]
        return first.new_ones(1, len(first))

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        if mean_cotangent is None or weights_cotangent is not None:
            raise UnsupportedError(
                f"the weights of {self.surrogate.label()} do not depend on theta and have no gradient; "
                "train through the mean, or use sparsemap, whose weights have a gradient"
            )
        gradient = self.surrogate.surrogate_gradient(self, self._mask_forbidden(mean_cotangent))
        if not self.has_forbidden_parts:
            return gradient
        return map_parts(lambda g, t: torch.where(t.isneginf(), 0.0, g), gradient, self.theta)

    @functools.cached_property
    def has_forbidden_parts(self) -> bool:
        """Whether a part has score −inf. Noise does not change −inf, so the check reads only the noiseless scores."""
        # A sum is finite only if all entries are.
        return any(
            not math.isfinite(t.sum().item()) and bool(t.isneginf().any()) for t in as_tuple(self.noiseless_theta)
        )

    def allowed_parts(self, like: Parts) -> Parts:
        """Return boolean masks (B | 1, *event) of the parts allowed in structures, for the batch size of ``like``."""
        finite = map_parts(lambda t: ~t.isneginf(), self.theta)
        masks = self.oracle.valid_parts(like)
        return finite if masks is None else map_parts(torch.logical_and, finite, masks)

    def _mask_forbidden(self, v: Parts) -> Parts:
        if not self.has_forbidden_parts and self.oracle.valid_parts(v) is None:
            return v
        return map_parts(lambda mask, z: torch.where(mask, z, 0.0), self.allowed_parts(v), v)

    def solve_where_finite(self, solve: Callable[[Parts], Parts], potentials: Parts) -> Parts:
        """Return ``solve(potentials)``, with NaN for instances with non-finite ``potentials`` where θ is finite."""
        if are_all_finite(potentials):
            return solve(potentials)
        pairs = zip(as_tuple(potentials), as_tuple(self.theta), strict=True)
        wrong = torch.stack([(~(p.isfinite() | t.isneginf())).flatten(1).any(1) for p, t in pairs]).any(0)
        if not bool(wrong.any()):
            return solve(potentials)

        def where_wrong(value: Tensor | float, parts: Tensor) -> Tensor:
            return torch.where(wrong.view(-1, *[1] * (parts.ndim - 1)), value, parts)

        found = solve(map_parts(where_wrong, self.theta, potentials))
        return map_parts(lambda y: where_wrong(torch.nan, y), found)

    def argmax_difference(self, v: Parts, step: float | Tensor, *, symmetric: bool = False) -> Parts:
        """Return y − argmax ⟨θ − step v, y⟩.

        With ``symmetric``, return (argmax ⟨θ + step v, y⟩ − argmax ⟨θ − step v, y⟩) / 2.
        """
        low = self._argmax_at_step(v, -step)
        if symmetric:
            return map_parts(lambda a, b: (a - b) / 2, self._argmax_at_step(v, step), low)
        return map_parts(torch.sub, self.y, low)

    def clamp_to_domain(self, potentials: Parts) -> Parts:
        """Return scores that the oracle accepts: at most 0 for oracles that require it."""
        return map_parts(lambda t: t.clamp(max=0), potentials) if self.oracle.requires_nonpositive_theta else potentials

    def _argmax_at_step(self, v: Parts, step: float | Tensor) -> Parts:
        potentials = self.clamp_to_domain(take_step(self.theta, v, step))
        return self.solve_where_finite(lambda t: best_structure(self.oracle, t), potentials)


@dataclass(frozen=True)
class SampledArgmax:
    """Structures (n, B, *event) chosen in one batch: their mean, or with ``keep_samples`` each sample."""

    argmax_result: ArgmaxResult
    samples: int
    size: int
    keep_samples: bool
    found: SampledStructures

    @property
    def sample_mean(self) -> Parts:
        return self.found.mean

    @property
    def structures(self) -> Parts:
        return self._unflatten_samples(self.argmax_result.y)

    @property
    def mean(self) -> Parts:
        return self.structures if self.keep_samples else self.sample_mean

    @property
    def weights(self) -> Tensor:
        weights = self.argmax_result.weights.view(self.samples, self.size)
        return weights[None] if self.keep_samples else weights / self.samples

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        v, surrogate = mean_cotangent, self.argmax_result.surrogate
        oracle = self.argmax_result.oracle  # without instance data, an oracle of any number of instances
        is_plain = not (self.keep_samples or oracle.bound or self.argmax_result.has_forbidden_parts)
        if v is not None and weights_cotangent is None and is_plain:
            masks = oracle.valid_parts(v)
            allowed = v if masks is None else map_parts(lambda z, mask: torch.where(mask, z, 0.0), v, masks)
            gradient = surrogate.mean_gradient(self, allowed) if isinstance(surrogate, NoisySurrogate) else None
            if gradient is not None:
                return gradient
        return self.reduce(self.gradients_of_samples(v, weights_cotangent))

    def gradients_of_samples(self, v: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        """Return the surrogate gradient of each sample, (n, B, *event), for the cotangent ``v`` of the mean."""
        if v is not None:
            v = merge_samples(v) if self.keep_samples else repeat_instances(v, self.samples)
        return self._unflatten_samples(self.argmax_result.vjp(v, weights_cotangent))

    def reduce(self, gradients: Parts) -> Parts:
        """Return the sum of the gradients (n, B, *event) of separate samples, or the mean, (B, *event)."""
        return map_parts(lambda g: g.sum(0) if self.keep_samples else g.mean(0), gradients)

    def mean_argmax_at_step(self, v: Parts, step: float) -> Parts:
        """Return the mean over the samples of argmax ⟨θ + step v, y⟩, (B, *event), for v (B, *event)."""
        found = self.argmax_result
        pairs = zip(as_tuple(self._unflatten_samples(found.theta)), as_tuple(v), strict=True)
        stepped, are_finite = zip(*[add_to_samples(t, z, step) for t, z in pairs], strict=True)
        potentials = found.clamp_to_domain(pack_like([t.flatten(0, 1) for t in stepped], v))
        if all(are_finite):
            return best_samples(found.oracle, potentials, found.noiseless_theta, self.samples).mean
        y = found.solve_where_finite(lambda t: best_structure(found.oracle, t), potentials)
        return map_parts(lambda z: z.mean(0), self._unflatten_samples(y))

    def _unflatten_samples(self, parts: Parts) -> Parts:
        return map_parts(lambda t: t.view(self.samples, self.size, *t.shape[1:]), parts)


@dataclass(frozen=True)
class _ScaledSamples:
    """Samples whose scale σ of the noise receives a gradient: that of the noisy scores θ + σU, times U."""

    drawn: SampledArgmax
    noise: Parts
    theta: Parts

    @property
    def mean(self) -> Parts:
        return self.drawn.mean

    @property
    def weights(self) -> Tensor:
        return self.drawn.weights

    def vjp(self, mean_cotangent: Parts | None, weights_cotangent: Tensor | None) -> Parts:
        v = None if mean_cotangent is None else pack_like(as_tuple(mean_cotangent), self.theta)
        each = self.drawn.gradients_of_samples(v, weights_cotangent)
        products = [(g * u).flatten(2).sum(2) for g, u in zip(as_tuple(each), as_tuple(self.noise), strict=True)]
        return *as_tuple(self.drawn.reduce(each)), *as_tuple(self.drawn.reduce(torch.stack(products).sum(0)))


def take_step(theta: Parts, v: Parts, step: float | Tensor) -> Parts:
    """Return θ + step v, (B, *event)."""
    return map_parts(lambda t, z: t + step * z, theta, v)


def are_all_finite(potentials: Parts) -> bool:
    """Return whether no score is infinite or NaN, in a single pass."""
    ends = [end for p in as_tuple(potentials) if p.numel() for end in torch.aminmax(p)]
    return all(math.isfinite(end) for end in ends)
