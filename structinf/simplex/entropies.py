"""Entropies H of probabilities; each generates a map to the simplex, and a loss with or without a margin."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..autograd.simplex import SimplexMap, apply_simplex_map
from ..errors import InvalidInputError
from ..kernels.arrays import upcast_half
from ..kernels.simplex.torch_backend import power
from ..kernels.simplex.tsallis import tsallis_maximum
from .forms import check_parameter, check_scores, restored, to_last
from .norm import normmax
from .power_sums import RenyiMap, SquaredNormMap
from .tsallis import entmax, softmax

__all__ = ["Entropy", "NormEntropy", "RenyiEntropy", "ShannonEntropy", "SquaredNormEntropy", "TsallisEntropy"]


class Entropy(abc.ABC):
    """A strictly concave H of probabilities, symmetric in them, and 0 where one of them is 1.

    A new one is a class of the three abstract members below: :func:`simplex_loss` takes any. Where the value of the
    maximum is known by other means, ``maximum`` may be overridden too.

    References
    ----------
    M. Blondel, A. Martins & V. Niculae, Learning with Fenchel-Young losses, JMLR 21, 2020, §4, and §5 on margins.
    """

    @abc.abstractmethod
    def __call__(self, p: Tensor, dim: int = -1) -> Tensor:
        """H of the probabilities along ``dim``, which is removed; at least 0."""

    @abc.abstractmethod
    def probabilities(self, x: Tensor, dim: int = -1) -> Tensor:
        """argmax ⟨p, x⟩ + H(p) along ``dim``, of x's shape and dtype, as of :func:`entmax`."""

    @property
    @abc.abstractmethod
    def margin(self) -> float:
        """The least m such that p is 1 where a score exceeds all others by m; infinite if there is none.

        The loss is 0 from there on, and only there.
        """

    def upcast_half(self, x: Tensor) -> Tensor:
        """Scores in the dtype in which the loss is computed."""
        return x.double()

    def maximum(self, x: Tensor, p: Tensor, origin: Tensor) -> Tensor:
        """⟨p, x − origin⟩ + H(p), (...) in float64, for the p that x (..., n), so widened, has."""
        apart = x.double() - origin.double().unsqueeze(-1)
        return torch.where(p != 0, p * apart, 0.0).sum(-1) + self(p.double())


@dataclass(frozen=True)
class ShannonEntropy(Entropy):
    """H(p) = −Σ p log p, which generates softmax and the logistic loss, torch's cross-entropy.

    Examples
    --------
    >>> ShannonEntropy()(torch.full((4,), 0.25))
    tensor(1.3863)
    """

    def __call__(self, p: Tensor, dim: int = -1) -> Tensor:
        return torch.special.entr(p).sum(dim)

    def probabilities(self, x: Tensor, dim: int = -1) -> Tensor:
        return softmax(x, dim)

    @property
    def margin(self) -> float:
        return math.inf

    def upcast_half(self, x: Tensor) -> Tensor:
        return TsallisEntropy(1.0).upcast_half(x)

    def maximum(self, x: Tensor, p: Tensor, origin: Tensor) -> Tensor:
        return TsallisEntropy(1.0).maximum(x, p, origin)


@dataclass(frozen=True)
class TsallisEntropy(Entropy):
    """H(p) = (1 − Σ p^α) / (α (α − 1)), which generates α-entmax; Shannon's for α = 1, Gini's for α = 2.

    Its margin is 1 / (α − 1).

    Parameters
    ----------
    alpha : float
        At least 1.

    Examples
    --------
    >>> TsallisEntropy(2)(torch.tensor([0.5, 0.5, 0.0])), TsallisEntropy(1.5).margin
    (tensor(0.2500), 2.0)
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        _check_number("alpha", self.alpha)
        check_parameter("alpha", self.alpha, 1)

    def __call__(self, p: Tensor, dim: int = -1) -> Tensor:
        if self.alpha == 1:
            return ShannonEntropy()(p, dim)
        return -_power_excess(p, self.alpha, dim) / (self.alpha * (self.alpha - 1))

    def probabilities(self, x: Tensor, dim: int = -1) -> Tensor:
        return entmax(x, self.alpha, dim)

    @property
    def margin(self) -> float:
        return math.inf if self.alpha == 1 else 1 / (self.alpha - 1)

    def upcast_half(self, x: Tensor) -> Tensor:
        return upcast_half(x) if x.is_cpu else x.double()

    def maximum(self, x: Tensor, p: Tensor, origin: Tensor) -> Tensor:
        return tsallis_maximum(x, p, origin, self.alpha) if x.is_cpu else super().maximum(x, p, origin)


@dataclass(frozen=True)
class _OfNorm(Entropy):
    """A function of ‖p‖_α."""

    alpha: float = 2.0

    def __post_init__(self) -> None:
        _check_number("alpha", self.alpha)
        check_parameter("alpha", self.alpha, 1, is_open=True)

    @property
    def margin(self) -> float:
        return 1.0


@dataclass(frozen=True)
class NormEntropy(_OfNorm):
    """H(p) = 1 − ‖p‖_α, which generates α-normmax. Its margin is 1.

    Parameters
    ----------
    alpha : float
        Above 1.

    Examples
    --------
    >>> NormEntropy(2)(torch.tensor([0.6, 0.4, 0.0]))
    tensor(0.2789)
    """

    def __call__(self, p: Tensor, dim: int = -1) -> Tensor:
        return -torch.expm1(_log_power_sum(p, self.alpha, dim) / self.alpha)

    def probabilities(self, x: Tensor, dim: int = -1) -> Tensor:
        return normmax(x, self.alpha, dim)


@dataclass(frozen=True)
class SquaredNormEntropy(_OfNorm):
    """H(p) = (1 − ‖p‖_α²) / 2; for α = 2 that is Tsallis', and generates sparsemax. Its margin is 1.

    Parameters
    ----------
    alpha : float
        Above 1.

    Examples
    --------
    >>> SquaredNormEntropy(3).probabilities(torch.tensor([1.0, 2.0, 1.5]))
    tensor([0.0000, 0.6748, 0.3252])
    """

    def __call__(self, p: Tensor, dim: int = -1) -> Tensor:
        return -0.5 * torch.expm1(2 / self.alpha * _log_power_sum(p, self.alpha, dim))

    def probabilities(self, x: Tensor, dim: int = -1) -> Tensor:
        return entmax(x, 2.0, dim) if self.alpha == 2 else _in_double(SquaredNormMap(self.alpha), x, dim)


@dataclass(frozen=True)
class RenyiEntropy(Entropy):
    """H(p) = log Σ p^β / (1 − β), of heavier tails than Shannon's, which it is for β = 1. It has no margin.

    Parameters
    ----------
    beta : float
        Above 0, at most 1. As β falls to 0, H tends to the logarithm of the number of p above 0 and p to the highest
        score alone; at 0 itself no p is best.

    Examples
    --------
    >>> RenyiEntropy(0.5).probabilities(torch.tensor([1.0, 2.0, 0.0]))
    tensor([0.1442, 0.7977, 0.0581])
    """

    beta: float = 0.5

    def __post_init__(self) -> None:
        _check_number("beta", self.beta)
        if not 0 < self.beta <= 1:
            raise InvalidInputError(
                "beta must be above 0, where no probabilities are best, and at most 1, beyond which the entropy is "
                f"not concave, got {self.beta!r}"
            )

    def __call__(self, p: Tensor, dim: int = -1) -> Tensor:
        if self.beta == 1:
            return ShannonEntropy()(p, dim)
        return torch.log1p(_power_excess(p, self.beta, dim)) / (1 - self.beta)

    def probabilities(self, x: Tensor, dim: int = -1) -> Tensor:
        return softmax(x, dim) if self.beta == 1 else _in_double(RenyiMap(self.beta), x, dim)

    @property
    def margin(self) -> float:
        return math.inf


def _check_number(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInputError(f"{name}, of an entropy, must be a Python number, got {value!r}")


def _in_double(function: SimplexMap, x: Tensor, dim: int) -> Tensor:
    check_scores(x, dim)
    return restored(apply_simplex_map(function, to_last(x, dim).double()), x, dim)


def _log_power_sum(p: Tensor, alpha: float, dim: int) -> Tensor:
    """log Σ p^α of distributions p: by how far Σ p^α is from 1 where that is near, by the largest p where it is not."""
    excess = _power_excess(p, alpha, dim)
    if not p.numel():
        return torch.log1p(excess)
    # The value is the same for any top, so that none of its derivatives is of it.
    top = p.detach().amax(dim, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    far = alpha * top.squeeze(dim).log() + power(p / top, alpha).sum(dim).log()
    is_near = excess > -0.5
    return torch.where(is_near, torch.log1p(torch.where(is_near, excess, 0.0)), far)


def _power_excess(p: Tensor, exponent: float, dim: int) -> Tensor:
    """Σ p^exponent − Σ p, exact where one p is almost 1, and for exponents near 1."""
    positive = p != 0
    log_p = torch.where(positive, p, 1.0).log()
    ratio = torch.expm1((exponent - 1) * log_p)
    return (p * torch.where(positive, ratio, -1.0 if exponent > 1 else 0.0)).sum(dim)
