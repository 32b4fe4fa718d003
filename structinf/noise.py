"""Distributions of the noise added to scores by stochastic relaxations, by name."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .compile.torch_private import standard_gamma
from .errors import InvalidInputError, UnsupportedError
from .kernels.gpu import uses_triton
from .kernels.noise.draws import SampleSpec, draw_compiled, draw_sum_of_gamma, uniform, unit_exponential
from .kernels.noise.keys import draw_key
from .validation import check_natural

__all__ = [
    "Exponential",
    "Gumbel",
    "Logistic",
    "NoNoise",
    "Noise",
    "Normal",
    "SignedExponential",
    "SumOfGamma",
    "get_noise",
]


class Noise(abc.ABC):
    """A distribution of independent real numbers U, one for each part.

    Attributes
    ----------
    name : str
        The name of the distribution in messages.
    symmetric : bool
        Whether −U has the same distribution as U.
    mean : float
        The expectation E[U].
    """

    name: ClassVar[str] = ""
    symmetric: ClassVar[bool] = False

    @property
    def mean(self) -> float:
        """The expectation E[U]."""
        raise UnsupportedError(f"{self!r} does not define its mean; override the property mean")

    @abc.abstractmethod
    def sample(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return a tensor of independent, finite draws.

        Parameters
        ----------
        shape : sequence of int
            The shape of the result.
        dtype : torch.dtype
            The dtype of the result, float32 or float64.
        device : torch.device
            The device of the result.
        generator : torch.Generator, optional
            The only source of randomness. If None, draws come from torch's default generator.
        """

    def log_prob(self, u: Tensor) -> Tensor:
        """Return the log-density log p(u) of each element of ``u``, any shape.

        Parameters
        ----------
        u : Tensor
            Noise.
        """
        raise UnsupportedError(f"the density of {self!r} has no closed form")

    def score(self, u: Tensor) -> Tensor:
        """Return ∇ν(u) of each element of ``u``, any shape, for the density p = exp(−ν).

        Law: the density is continuous on ℝ, so that ∇ E[f(θ + U)] = E[f(θ + U) ∇ν(U)] (Berthet et al. 2020,
        Learning with Differentiable Perturbed Optimizers, Proposition 3.1). The relaxation ``perturbed`` estimates
        its derivative by this formula.

        Parameters
        ----------
        u : Tensor
            Noise.
        """
        raise UnsupportedError(
            f"noise: {self!r} has no score (the gradient of −log p), which perturbed needs for its derivative; use "
            'noise="normal", "gumbel" or "logistic", or the relaxation stochastic or imle'
        )


class _CounterNoise(Noise):
    """Noise drawn by counter-based kernels: compiled loops on the CPU, and Triton kernels on CUDA devices.

    The random generator gives a key, and the kernels compute the draws from the key. A CPU generator, or None for
    torch's default generator of the CPU, gives the same key on both devices, so the draws are equal up to rounding. A
    generator of a CUDA device gives other keys, which stay on the device. On devices without kernels, torch draws from
    a generator of the device or from the device's default generator, and draws from a CPU generator are copied. While a
    CUDA graph is recorded, None stands for the default generator of the CUDA device, whose state advances in replays.
    """

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
        spec = SampleSpec(tuple(shape), dtype, device, generator)
        if uses_triton(torch.empty(0, device=device)):
            out = torch.empty(spec.shape, dtype=dtype, device=device)
            self._fill_by_triton(out, draw_key(generator, device))
            return out
        if device.type == "cpu" or (generator is not None and generator.device.type == "cpu"):
            return self._sample_cpu(spec).to(device)
        return self._sample_torch(spec)

    def _fill_by_triton(self, out: Tensor, key: int | Tensor) -> None:
        from .kernels.noise.triton_noise import fill

        fill(self.name, out, key)

    def _sample_cpu(self, spec: SampleSpec) -> Tensor:
        return draw_compiled(self.name.upper(), spec)

    @abc.abstractmethod
    def _sample_torch(self, spec: SampleSpec) -> Tensor:
        """Draw with torch operations."""


@dataclass(frozen=True)
class Gumbel(_CounterNoise):
    """The standard Gumbel distribution, p(u) = exp(−u − e⁻ᵘ).

    The argmax of θ + U over the entries of a vector θ is a sample of softmax(θ).

    Examples
    --------
    >>> (
    ...     Gumbel().log_prob(torch.tensor([0.0, 1.0])),
    ...     Gumbel().score(torch.tensor([0.0, 1.0])),
    ... )
    (tensor([-1.0000, -1.3679]), tensor([0.0000, 0.6321]))
    """

    name = "gumbel"
    _mean = 0.57721566490153286

    def _sample_torch(self, spec: SampleSpec) -> Tensor:
        return -unit_exponential(spec).log()

    def log_prob(self, u: Tensor) -> Tensor:
        return -u - (-u).exp()

    def score(self, u: Tensor) -> Tensor:
        return -(-u).expm1()


@dataclass(frozen=True)
class Normal(_CounterNoise):
    """The standard normal distribution.

    Examples
    --------
    >>> (
    ...     Normal().log_prob(torch.tensor([0.0, 1.0])),
    ...     Normal().score(torch.tensor([0.0, 1.0])),
    ... )
    (tensor([-0.9189, -1.4189]), tensor([0., 1.]))
    """

    name = "normal"
    symmetric = True

    def _sample_torch(self, spec: SampleSpec) -> Tensor:
        shape, dtype, device, generator = spec
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    def log_prob(self, u: Tensor) -> Tensor:
        return -0.5 * (u * u + math.log(2 * math.pi))

    def score(self, u: Tensor) -> Tensor:
        return u


@dataclass(frozen=True)
class Logistic(_CounterNoise):
    """The standard logistic distribution, of the difference of two independent Gumbel variables.

    A draw is log V − log(1 − V) for V uniform on (0, 1).

    Examples
    --------
    >>> (
    ...     Logistic().log_prob(torch.tensor([0.0, 1.0])),
    ...     Logistic().score(torch.tensor([0.0, 1.0])),
    ... )
    (tensor([-1.3863, -1.6265]), tensor([0.0000, 0.4621]))
    """

    name = "logistic"
    symmetric = True

    def _sample_torch(self, spec: SampleSpec) -> Tensor:
        u = uniform(spec)
        return (u.log() - (-u).log1p()).to(spec.dtype)

    def log_prob(self, u: Tensor) -> Tensor:
        return -u - 2 * torch.nn.functional.softplus(-u)

    def score(self, u: Tensor) -> Tensor:
        return (u / 2).tanh()


@dataclass(frozen=True)
class Exponential(_CounterNoise):
    """The exponential distribution of rate 1.

    The density jumps at 0, so the method ``score`` raises UnsupportedError.

    Examples
    --------
    >>> Exponential().log_prob(torch.tensor([-1.0, 1.0])), Exponential().mean
    (tensor([-inf, -1.]), 1.0)
    """

    name = "exponential"
    _mean = 1.0

    def _sample_torch(self, spec: SampleSpec) -> Tensor:
        return unit_exponential(spec)

    def log_prob(self, u: Tensor) -> Tensor:
        return torch.where(u >= 0, -u, -torch.inf)


@dataclass(frozen=True)
class SignedExponential(Noise):
    """An exponential variable of rate 1 with a random sign: the Laplace distribution, p(u) = exp(−|u|) / 2.

    A draw is the difference of two independent exponential variables. The density is continuous, so that ``perturbed``
    has a derivative, and its tails are heavier than those of normal noise.

    References
    ----------
    S. Kotz, T. Kozubowski & K. Podgórski, The Laplace Distribution and Generalizations, 2001, Proposition 2.2.1.

    Examples
    --------
    >>> (
    ...     SignedExponential().log_prob(torch.tensor([0.0, -1.0])),
    ...     SignedExponential().score(torch.tensor([0.5, -1.0])),
    ... )
    (tensor([-0.6931, -1.6931]), tensor([ 1., -1.]))
    """

    name = "signed_exponential"
    symmetric = True

    @property
    def mean(self) -> float:
        return 0.0

    def sample(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        one, other = Exponential().sample((2, *shape), dtype=dtype, device=device, generator=generator)
        return one - other

    def log_prob(self, u: Tensor) -> Tensor:
        return -u.abs() - math.log(2)

    def score(self, u: Tensor) -> Tensor:
        return u.sign()


@dataclass(frozen=True)
class SumOfGamma(_CounterNoise):
    """The distribution of (Σᵢ Gamma(1/k, scale k/i) − log s) / k over i = 1, ..., s.

    The sum of k independent draws converges to a Gumbel variable as s grows.

    Parameters
    ----------
    k : int
        The number of parts in a structure, κ in the paper.
    iterations : int
        The number s of terms of the series.

    References
    ----------
    Niepert, Minervini & Franceschi 2021, Implicit MLE: Backpropagating Through Discrete Exponential Family
    Distributions, Lemma 1 and Theorem 1.

    Examples
    --------
    >>> noise, cpu = SumOfGamma(k=5), torch.device("cpu")
    >>> u = noise.sample(
    ...     (100_000,),
    ...     dtype=torch.float64,
    ...     device=cpu,
    ...     generator=torch.Generator().manual_seed(0),
    ... )
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

    def _fill_by_triton(self, out: Tensor, key: int | Tensor) -> None:
        from .kernels.noise.triton_noise import fill_sum_of_gamma

        fill_sum_of_gamma(self.k, self.iterations, out, key)

    def _sample_cpu(self, spec: SampleSpec) -> Tensor:
        return draw_sum_of_gamma(self.k, self.iterations, spec)

    def _sample_torch(self, spec: SampleSpec) -> Tensor:
        shape, dtype, device, generator = spec
        concentration = torch.full((self.iterations, *shape), 1 / self.k, dtype=dtype, device=device)
        terms = standard_gamma(concentration, generator)
        rates = torch.arange(1, self.iterations + 1, dtype=dtype, device=device) / self.k
        total = (terms / rates.view(-1, *[1] * len(shape))).sum(0)
        return (total - math.log(self.iterations)) / self.k


@dataclass(frozen=True)
class NoNoise(_CounterNoise):
    """The constant 0.

    Examples
    --------
    >>> NoNoise().sample((2,), dtype=torch.float32, device=torch.device("cpu"))
    tensor([0., 0.])
    """

    name = "none"
    symmetric = True

    def _sample_torch(self, spec: SampleSpec) -> Tensor:
        return torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device)

    _sample_cpu = _sample_torch

    def _fill_by_triton(self, out: Tensor, key: int | Tensor) -> None:
        out.zero_()


_NOISES: dict[str, type[Noise]] = {
    kind.name: kind for kind in (Gumbel, Normal, Logistic, SignedExponential, SumOfGamma, Exponential, NoNoise)
}


def get_noise(noise: str | Noise) -> Noise:
    """Return the noise distribution of a name, with default options. An object is returned unchanged.

    Parameters
    ----------
    noise : str or Noise
        An object, or a name: ``"gumbel"``, ``"normal"``, ``"logistic"``, ``"signed_exponential"``,
        ``"sum_of_gamma"``, ``"exponential"`` or ``"none"``.

    Returns
    -------
    Noise
        The distribution.

    Raises
    ------
    InvalidInputError
        If ``noise`` is neither a known name nor a Noise.

    Examples
    --------
    >>> get_noise("sum_of_gamma")
    SumOfGamma(k=1, iterations=10)
    """
    if isinstance(noise, Noise):
        return noise
    if not (isinstance(noise, str) and noise in _NOISES):
        known = ", ".join(f'"{name}"' for name in _NOISES)
        hint = f"; pass an object: {noise.__name__}()" if isinstance(noise, type) and issubclass(noise, Noise) else ""
        raise InvalidInputError(f"noise must be {known} or a Noise, got {noise!r}{hint}")
    return _NOISES[noise]()
