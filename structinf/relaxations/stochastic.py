"""stochastic: a relaxation of noisy scores."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import InvalidInputError
from ..noise import Noise, NoNoise, get_noise
from ..oracle import Oracle
from ..parts import Parts, batch_size, map_parts
from ..relaxation import Relaxation, noise_unsupported_reason, resolve_relaxation
from ..solution import Solution
from ..solvers.perturbation import NoisyCopies, perturb
from ..validation import check_choice, check_natural, check_scale

__all__ = ["Stochastic"]


@dataclass(frozen=True, kw_only=True)
class Stochastic(Relaxation):
    """μ(θ + σU): a relaxation μ of noisy scores, differentiated through μ.

    ===============  =================================  ==========================
    structure        base_relaxation                    known as
    ===============  =================================  ==========================
    any              "map"                              perturb-and-MAP
    categorical      "marginals"                        Gumbel-softmax, Concrete
    categorical      "straight_through" by "marginals"  straight-through Gumbel
    assignment       "sinkhorn"                         Gumbel-Sinkhorn
    spanning_tree    "marginals"                        a stochastic softmax trick
    ===============  =================================  ==========================

    Parameters
    ----------
    base_relaxation : str or Relaxation
        The relaxation μ.
    noise : str or Noise
        The distribution of the noise U, drawn for each part of each instance: a name or an object of
        :mod:`structinf.noise`.
    sigma : float or Tensor
        The scale σ of the noise, above 0. A tensor with one number receives a gradient, through the noisy scores.
    samples : int
        The number of samples, at least 1, computed in one call of μ.
    reduction : "mean" or "none"
        "mean" returns the mean of the samples. "none" returns all samples in a leading dimension, (samples, ...,
        *event).
    temperature : float, optional
        The temperature of μ. By default μ keeps its own temperature.

    References
    ----------
    Paulus et al. 2020, Gradient Estimation with Stochastic Softmax Tricks.
    Papandreou & Yuille 2011, Perturb-and-MAP Random Fields.
    Jang, Gu & Poole 2017, Categorical Reparameterization with Gumbel-Softmax; Maddison, Mnih & Teh 2017, The Concrete
    Distribution. Mena et al. 2018, Learning Latent Permutations with Gumbel-Sinkhorn Networks.

    Examples
    --------
    >>> import structinf as si
    >>> relaxation = Stochastic(
    ...     base_relaxation="marginals", samples=5, reduction="none"
    ... )
    >>> layer = si.Layer("categorical", relaxation)
    >>> layer(torch.zeros(2, 3)).shape
    torch.Size([5, 2, 3])
    """

    base_relaxation: str | Relaxation = "sparsemap"
    noise: str | Noise = "gumbel"
    sigma: float | Tensor = 1.0
    samples: int = 1
    reduction: Literal["mean", "none"] = "mean"
    temperature: float | Tensor | None = None

    name = "stochastic"
    search_terms = ("gumbel_softmax", "gumbel_sinkhorn", "concrete")

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "base_relaxation", resolve_relaxation(self.base_relaxation, self.temperature, "base_relaxation")
        )
        object.__setattr__(self, "temperature", None)
        object.__setattr__(self, "noise", get_noise(self.noise))
        check_scale("sigma", self.sigma)
        check_natural("samples", self.samples)
        check_choice("reduction", self.reduction, ("mean", "none"))
        if self._base.sample_ndim:
            raise InvalidInputError(
                f'base_relaxation: {self.base_relaxation!r} returns separate samples; set its reduction="mean"'
            )

    @property
    def _base(self) -> Relaxation:
        return cast(Relaxation, self.base_relaxation)

    @property
    def _noise(self) -> Noise:
        return cast(Noise, self.noise)

    @property
    def inner(self) -> tuple[Relaxation, ...]:
        return (self._base,)

    @property
    def is_stochastic(self) -> bool:
        return self._base.is_stochastic or not isinstance(self.noise, NoNoise)

    @property
    def sample_ndim(self) -> int:
        return int(self.reduction == "none")

    @property
    def piecewise_constant(self) -> bool:
        return self._base.piecewise_constant

    def with_generator(self, generator: torch.Generator | None) -> Self:
        new = super().with_generator(generator)
        if new is not self:
            object.__setattr__(new, "base_relaxation", self._base.with_generator(generator))
        return new

    def exact(self) -> Self:
        new = copy.copy(self)
        object.__setattr__(new, "base_relaxation", self._base.exact())
        return new

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        why = None if isinstance(self.noise, NoNoise) else noise_unsupported_reason(oracle)
        return why or self._base.unsupported_reason(oracle)

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        perturbed = self._perturb(oracle, theta)
        found = self._base.solve(perturbed.oracle, perturbed.theta)
        make, keep_samples = found.make_support, self.reduction == "none"
        n, size = self.samples, batch_size(theta)

        def rows(t: Tensor | None, reduce: Callable[[Tensor, int], Any]) -> Tensor | None:
            """Reshape (n B,) to (n, B), or reduce the samples by ``reduce`` to (B,)."""
            return None if t is None else (t.reshape(n, size) if keep_samples else reduce(t.reshape(n, size), 0))

        def weights(t: Tensor) -> Tensor:
            return t.reshape(len(t), n, size) if keep_samples else t.reshape(len(t) * n, size) / n

        def support(y: Tensor) -> Tensor:
            return y.reshape(*((len(y), n) if keep_samples else (len(y) * n,)), size, *y.shape[2:])

        return Solution(
            mean=self._reduce_samples(found.mean),
            value=cast(Tensor, rows(found.value, torch.mean)),
            weights=None if found.weights is None else weights(found.weights),
            gap=rows(found.gap, torch.mean),
            residual=rows(found.residual, torch.amax),
            converged=rows(found.converged, torch.all),
            oracle_calls=found.oracle_calls,
            make_support=None if make is None else (lambda: map_parts(support, make())),
        )

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        perturbed = self._perturb(oracle, theta)
        return self._reduce_samples(self._base.mean(perturbed.oracle, perturbed.theta))

    def _perturb(self, oracle: Oracle, theta: Parts) -> NoisyCopies:
        return perturb(oracle, theta, self._noise, self.sigma, self.samples, self.generator, keeps_noise=False)

    def _reduce_samples(self, mean: Parts) -> Parts:
        keep_samples = map_parts(lambda t: t.reshape(self.samples, len(t) // self.samples, *t.shape[1:]), mean)
        return keep_samples if self.reduction == "none" else map_parts(lambda t: t.mean(0), keep_samples)
