"""Distributions of the noise that is added to potentials, by name."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .compile.torch_private import standard_gamma
from .errors import InvalidInputError, UnsupportedError
from .kernels.threads import parallel_rows
from .validation import check_natural

__all__ = [
    "Exponential",
    "Gumbel",
    "Logistic",
    "NoNoise",
    "Noise",
    "Normal",
    "SumOfGamma",
    "get_noise",
]


class Noise(abc.ABC):
    """A distribution of independent real numbers U, one for each part.

    Attributes
    ----------
    name : str
        For messages.
    symmetric : bool
        Whether −U has the distribution of U.
    mean : float
        E[U].
    """

    name: ClassVar[str] = ""
    symmetric: ClassVar[bool] = False

    @property
    def mean(self) -> float:
        """E[U]."""
        raise UnsupportedError(f"{self!r} does not say what its mean is")

    @abc.abstractmethod
    def sample(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Independent draws, finite, of this ``shape``, from ``generator`` alone if one is given.

        Parameters
        ----------
        dtype : torch.dtype
            float32 or float64.
        """

    def log_prob(self, u: Tensor) -> Tensor:
        """log p(u), element by element."""
        raise UnsupportedError(f"the density of {self!r} has no closed form")

    def score(self, u: Tensor) -> Tensor:
        """∇ν(u) for p = exp(−ν), element by element: what a derivative in the noise's location multiplies with.

        Law: the density is continuous on all of ℝ, so that ∇ E[f(θ + U)] = E[f(θ + U) ∇ν(U)] (Berthet et al. 2020,
        Learning with Differentiable Perturbed Optimizers, Proposition 3.1).
        """
        raise UnsupportedError(
            f"noise: {self!r} has no score, the slope of its density, which perturbed needs for its derivative; take "
            '"normal", "gumbel" or "logistic", or the relaxation stochastic or imle, which need none'
        )


class _SampleSpec(NamedTuple):
    """What is to be drawn, and where from."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator | None


class _CounterNoise(Noise):
    """Noise that compiled loops draw on the CPU, by counters, and torch draws on other devices."""

    _mean: ClassVar[float] = 0.0

    @property
    def mean(self) -> float:
        return self._mean

    def sample(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        spec = _SampleSpec(tuple(shape), dtype, device, generator)
        return self._sample_cpu(spec) if device.type == "cpu" else self._sample_torch(spec)

    def _sample_cpu(self, spec: _SampleSpec) -> Tensor:
        return _fill_compiled(self.name.upper(), spec)

    @abc.abstractmethod
    def _sample_torch(self, spec: _SampleSpec) -> Tensor:
        """Draws in torch's operations."""


@dataclass(frozen=True)
class Gumbel(_CounterNoise):
    """Standard Gumbel: p(u) = exp(−u − e⁻ᵘ); argmax(θ + U) over single items is a draw of softmax(θ).

    Examples
    --------
    >>> Gumbel().log_prob(torch.tensor([0.0, 1.0])), Gumbel().score(torch.tensor([0.0, 1.0]))
    (tensor([-1.0000, -1.3679]), tensor([0.0000, 0.6321]))
    """

    name = "gumbel"
    _mean = 0.57721566490153286

    def _sample_torch(self, spec: _SampleSpec) -> Tensor:
        return -_unit_exponential(spec).log()

    def log_prob(self, u: Tensor) -> Tensor:
        return -u - (-u).exp()

    def score(self, u: Tensor) -> Tensor:
        return -(-u).expm1()


@dataclass(frozen=True)
class Normal(_CounterNoise):
    """Standard normal.

    Examples
    --------
    >>> Normal().log_prob(torch.tensor([0.0, 1.0])), Normal().score(torch.tensor([0.0, 1.0]))
    (tensor([-0.9189, -1.4189]), tensor([0., 1.]))
    """

    name = "normal"
    symmetric = True

    def _sample_torch(self, spec: _SampleSpec) -> Tensor:
        shape, dtype, device, generator = spec
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    def log_prob(self, u: Tensor) -> Tensor:
        return -0.5 * (u * u + math.log(2 * math.pi))

    def score(self, u: Tensor) -> Tensor:
        return u


@dataclass(frozen=True)
class Logistic(_CounterNoise):
    """Standard logistic, the difference of two Gumbel: log U − log(1 − U) of a uniform U.

    Examples
    --------
    >>> Logistic().log_prob(torch.tensor([0.0, 1.0])), Logistic().score(torch.tensor([0.0, 1.0]))
    (tensor([-1.3863, -1.6265]), tensor([0.0000, 0.4621]))
    """

    name = "logistic"
    symmetric = True

    def _sample_torch(self, spec: _SampleSpec) -> Tensor:
        u = _uniform(spec)
        return (u.log() - (-u).log1p()).to(spec.dtype)

    def log_prob(self, u: Tensor) -> Tensor:
        return -u - 2 * torch.nn.functional.softplus(-u)

    def score(self, u: Tensor) -> Tensor:
        return (u / 2).tanh()


@dataclass(frozen=True)
class Exponential(_CounterNoise):
    """Exponential of rate 1. Its density jumps at 0, so that it has no score.

    Examples
    --------
    >>> Exponential().log_prob(torch.tensor([-1.0, 1.0])), Exponential().mean
    (tensor([-inf, -1.]), 1.0)
    """

    name = "exponential"
    _mean = 1.0

    def _sample_torch(self, spec: _SampleSpec) -> Tensor:
        return _unit_exponential(spec)

    def log_prob(self, u: Tensor) -> Tensor:
        return torch.where(u >= 0, -u, -torch.inf)


@dataclass(frozen=True)
class SumOfGamma(_CounterNoise):
    """(Σᵢ Gamma(1/k, scale k/i) − log s) / k for i = 1, ..., s: the sum of k of them is close to a Gumbel.

    Parameters
    ----------
    k : int
        κ, how many parts a structure has.
    iterations : int
        s, terms of the series.

    References
    ----------
    Niepert, Minervini & Franceschi 2021, Implicit MLE: Backpropagating Through Discrete Exponential Family
    Distributions, Lemma 1 and Theorem 1.

    Examples
    --------
    >>> noise, cpu = SumOfGamma(k=5), torch.device("cpu")
    >>> u = noise.sample((100_000,), dtype=torch.float64, device=cpu, generator=torch.Generator().manual_seed(0))
    >>> u.shape, bool(abs(u.mean() - noise.mean) < 0.01)
    (torch.Size([100000]), True)
    """

    k: int = 1
    iterations: int = 10

    name = "sum_of_gamma"

    def __post_init__(self) -> None:
        check_natural("k", self.k)
        check_natural("iterations", self.iterations)

    @property
    def mean(self) -> float:
        return (sum(1 / i for i in range(1, self.iterations + 1)) - math.log(self.iterations)) / self.k

    def _sample_cpu(self, spec: _SampleSpec) -> Tensor:
        return _fill_sum_of_gamma(self, spec)

    def _sample_torch(self, spec: _SampleSpec) -> Tensor:
        shape, dtype, device, generator = spec
        concentration = torch.full((self.iterations, *shape), 1 / self.k, dtype=dtype, device=device)
        terms = standard_gamma(concentration, generator)
        rates = torch.arange(1, self.iterations + 1, dtype=dtype, device=device) / self.k
        total = (terms / rates.view(-1, *[1] * len(shape))).sum(0)
        return (total - math.log(self.iterations)) / self.k


@dataclass(frozen=True)
class NoNoise(_CounterNoise):
    """0.

    Examples
    --------
    >>> NoNoise().sample((2,), dtype=torch.float32, device=torch.device("cpu"))
    tensor([0., 0.])
    """

    name = "none"
    symmetric = True

    def _sample_torch(self, spec: _SampleSpec) -> Tensor:
        return torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device)

    _sample_cpu = _sample_torch


_NOISES: dict[str, type[Noise]] = {
    kind.name: kind for kind in (Gumbel, Normal, Logistic, SumOfGamma, Exponential, NoNoise)
}


def get_noise(noise: str | Noise) -> Noise:
    """The noise called ``noise``, with default options; an object is returned as it is.

    Parameters
    ----------
    noise : str or Noise
        ``"gumbel"``, ``"normal"``, ``"logistic"``, ``"sum_of_gamma"``, ``"exponential"``, ``"none"``, or an object.

    Raises
    ------
    InvalidInputError
        For anything else.

    Examples
    --------
    >>> get_noise("sum_of_gamma")
    SumOfGamma(k=1, iterations=10)
    """
    if isinstance(noise, Noise):
        return noise
    if not (isinstance(noise, str) and noise in _NOISES):
        known = ", ".join(f'"{name}"' for name in _NOISES)
        hint = f"; make one: {noise.__name__}()" if isinstance(noise, type) and issubclass(noise, Noise) else ""
        raise InvalidInputError(f"noise must be {known} or a Noise, got {noise!r}{hint}")
    return _NOISES[noise]()


# ----------------------------------------------------------------------------- draws on the CPU


def _fill_compiled(distribution: str, spec: _SampleSpec) -> Tensor:
    from .kernels.noise import counter_rng as kernels

    if spec.dtype is torch.float64:
        return _fill_chunks(kernels.fill64, kernels.CHUNK, 6, spec, getattr(kernels, distribution))
    return _fill_chunks(kernels.fill32, 2 * kernels.CHUNK, 6, spec, getattr(kernels, distribution))


def _fill_sum_of_gamma(noise: SumOfGamma, spec: _SampleSpec) -> Tensor:
    from .kernels.noise import gamma as kernels
    from .kernels.noise.counter_rng import CHUNK

    k, terms = noise.k, noise.iterations
    # In units of k / s, the scale of the last term.
    options = terms / k, *kernels.negative_binomial_mixture(1 / k, terms), 1 / terms, -math.log(terms) / k
    return _fill_chunks(kernels.fill, CHUNK, 100, spec, *options)


def _fill_chunks(fill: Any, chunk: int, work: int, spec: _SampleSpec, *options: Any) -> Tensor:
    """What ``fill`` makes, ``chunk`` numbers at a time, of a key from the generator, at ``work`` for each number."""
    key = int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=spec.generator))
    count = math.prod(spec.shape)
    chunks = -(-count // chunk)
    out = np.empty(chunks * chunk, np.float64 if spec.dtype is torch.float64 else np.float32)
    parallel_rows(fill, chunks, np.uint64(key), *options, out, work=work * count)
    return torch.from_numpy(out[:count].reshape(spec.shape))


# ----------------------------------------------------------------------------- draws by torch


def _uniform(spec: _SampleSpec) -> Tensor:
    """In (0, 1), neither end included, in float64: midpoints of 2⁵² equal intervals."""
    drawn = torch.randint(2**52, spec.shape, device=spec.device, generator=spec.generator)
    return (drawn.double() + 0.5) * 2.0**-52


def _unit_exponential(spec: _SampleSpec) -> Tensor:
    """Above 0, and finite."""
    return -_uniform(spec).log().to(spec.dtype)
