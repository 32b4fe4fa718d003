"""Entropies H of probabilities. Each entropy generates a map to the simplex and a loss."""

from __future__ import annotations

import abc
import copy
import math
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from ..errors import InvalidInputError, UnknownNameError, UnsupportedError
from ..kernels.arrays import upcast_half
from ..kernels.simplex import torch_backend
from ..kernels.simplex.dispatch import has_kernels, tsallis_conjugate
from ..kernels.simplex.torch_backend import power
from ..registry import did_you_mean
from ..shapes import Float
from ..validation import check_floating
from .along_dim import apply_along_dim, check_parameter, per_row, read_parameter
from .entmax_family import entmax, softmax
from .norm_maps import normmax
from .renyi_squared_norm import RenyiMap, SquaredNormMap

__all__ = [
    "Entropy",
    "NormEntropy",
    "RenyiEntropy",
    "ShannonEntropy",
    "SquaredNormEntropy",
    "TsallisEntropy",
    "get_entropy",
]


class Entropy(abc.ABC):
    """A strictly concave and symmetric function H of probabilities, with H = 0 if one probability is 1.

    A custom entropy is a subclass with the three abstract members below, for use with :func:`simplex_loss`. Override
    :meth:`conjugate` too if a more exact formula for the conjugate exists.

    References
    ----------
    M. Blondel, A. Martins & V. Niculae, Learning with Fenchel-Young losses, JMLR 21, 2020, §4, and §5 on margins.
    """

    @abc.abstractmethod
    def __call__(self, p: Tensor, dim: int = -1) -> Tensor:
        """Return H ≥ 0 of the probabilities along ``dim``; the result has no dimension ``dim``."""

    @abc.abstractmethod
    def probabilities(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return argmax_p ⟨p, x⟩ + H(p) along ``dim``, in the shape and dtype of x, like :func:`entmax`.

        Parameters
        ----------
        x : Tensor
            The scores.
        dim : int
            The dimension of the choices.
        """

    def row_parameter(self, x: Tensor, dim: int) -> Float[Tensor, "*rows 1"] | None:
        """Return the entropy's parameter for the rows of ``x`` along ``dim``; by default None, for no tensor.

        Parameters
        ----------
        x : Tensor
            The scores, of which the result has a number for each row.
        dim : int
            The dimension along which the scores form rows.
        """
        return None

    def at(self, parameter: Tensor) -> Entropy:
        """Return the entropy with ``parameter`` (..., 1), a number for each row along the last dimension.

        Parameters
        ----------
        parameter : (..., 1) Tensor
            A result of :meth:`row_parameter`, perhaps in another shape. It is not checked.
        """
        raise UnsupportedError(f"{type(self).__name__} has no parameter for each row")

    def parameter_gradient(self, p: Tensor) -> Tensor:
        """Return ∂H(p) / ∂parameter along the last dimension, (...), for p (..., n).

        Override the method, with operations that autograd can differentiate, if :meth:`row_parameter` returns a tensor.

        Parameters
        ----------
        p : (..., n) Tensor
            The probabilities.
        """
        raise UnsupportedError(f"{type(self).__name__} has no gradient in a parameter for each row")

    @property
    @abc.abstractmethod
    def margin(self) -> float | Tensor:
        """The smallest m such that a score m above all others has p = 1; infinite if no m suffices.

        The loss is 0 if and only if the score of the target is at least m above all others.
        """

    def cast_scores(self, x: Tensor) -> Tensor:
        """Return the scores in the dtype of the loss computation, by default float64.

        Parameters
        ----------
        x : Tensor
            The scores.
        """
        return x.double()

    def conjugate(self, x: Tensor, p: Tensor, origin: Tensor) -> Tensor:
        """Return the conjugate ⟨p, x − origin⟩ + H(p), (...) in float64, for scores x (..., n) and their map p.

        Parameters
        ----------
        x : (..., n) Tensor
            The scores.
        p : (..., n) Tensor
            The probabilities at the scores.
        origin : (...) Tensor
            A number subtracted from all scores of a row.
        """
        shifted = x.double() - origin.double().unsqueeze(-1)
        return torch.where(p != 0, p * shifted, 0.0).sum(-1) + self(p.double())


def _check_number(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = "; only TsallisEntropy takes a tensor" if isinstance(value, Tensor) else ""
        raise InvalidInputError(f"{name} of this entropy must be a Python number, got {value!r}{hint}")


@dataclass(frozen=True)
class ShannonEntropy(Entropy):
    """The Shannon entropy H(p) = −Σ p log p, which generates softmax and the cross-entropy loss.

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

    def cast_scores(self, x: Tensor) -> Tensor:
        return TsallisEntropy(1.0).cast_scores(x)

    def conjugate(self, x: Tensor, p: Tensor, origin: Tensor) -> Tensor:
        return TsallisEntropy(1.0).conjugate(x, p, origin)


@dataclass(frozen=True)
class TsallisEntropy(Entropy):
    """The Tsallis entropy H(p) = (1 − Σ p^α) / (α (α − 1)), which generates α-entmax.

    α = 1 gives the Shannon entropy, and α = 2 gives the Gini entropy. The margin is 1 / (α − 1).

    Parameters
    ----------
    alpha : float, Tensor, or nested list of float
        α, at least 1, default 1.5. A tensor or list is a scalar, or broadcasts to the shape of the probabilities with
        size 1 at ``dim`` (an α for each row). A tensor receives a gradient from H, :meth:`probabilities` and losses.

    Examples
    --------
    >>> (
    ...     TsallisEntropy(2)(torch.tensor([0.5, 0.5, 0.0])),
    ...     TsallisEntropy(1.5).margin,
    ... )
    (tensor(0.2500), 2.0)
    """

    alpha: float | Tensor = 1.5

    settable: ClassVar[tuple[str, ...]] = ("alpha",)  # for gradients inside torch.compile

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", read_parameter("alpha", self.alpha))
        if isinstance(self.alpha, Tensor):
            check_floating("alpha", self.alpha, "a number or a tensor")
        check_parameter("alpha", self.alpha, 1)

    def __call__(self, p: Tensor, dim: int = -1) -> Tensor:
        if isinstance(self.alpha, Tensor):
            log_p, alpha = self._logarithms(p, dim)
            return -(p * log_p * torch_backend.exprel((alpha - 1) * log_p) / alpha).sum(dim)
        if self.alpha == 1:
            return ShannonEntropy()(p, dim)
        return -_power_sum_excess(p, self.alpha, dim) / (self.alpha * (self.alpha - 1))

    def probabilities(self, x: Tensor, dim: int = -1) -> Tensor:
        return entmax(x, self.alpha, dim)

    def row_parameter(self, x: Tensor, dim: int) -> Tensor | None:
        if not isinstance(self.alpha, Tensor):
            return None
        rows = per_row("alpha", self.alpha, x, dim)
        return cast(Tensor, rows).double()

    def at(self, parameter: Tensor) -> TsallisEntropy:
        new = copy.copy(self)
        object.__setattr__(new, "alpha", parameter)
        return new

    def parameter_gradient(self, p: Tensor) -> Tensor:
        # H = −Σ p log p E((α − 1) log p) / α with E(z) = (e^z − 1) / z, and E'(z) = φ(z).
        log_p, alpha = self._logarithms(p, -1)
        return -((self(p) + (p * log_p.square() * torch_backend.phi((alpha - 1) * log_p)).sum(-1)) / alpha.squeeze(-1))

    def _logarithms(self, p: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return log p, with 0 for p = 0, and the tensor α on the device of p, of a shape that broadcasts."""
        per_row("alpha", self.alpha, p, dim)  # checks the shape
        return torch.where(p != 0, p, 1.0).log(), cast(Tensor, self.alpha).to(p.device)

    @property
    def margin(self) -> float | Tensor:
        if isinstance(self.alpha, Tensor):
            return 1 / (self.alpha - 1)
        return math.inf if self.alpha == 1 else 1 / (self.alpha - 1)

    def cast_scores(self, x: Tensor) -> Tensor:
        return upcast_half(x) if has_kernels(x) and not isinstance(self.alpha, Tensor) else x.double()

    def conjugate(self, x: Tensor, p: Tensor, origin: Tensor) -> Tensor:
        if isinstance(self.alpha, Tensor) or not has_kernels(x):
            return super().conjugate(x, p, origin)
        return tsallis_conjugate(x, p, origin, self.alpha)


@dataclass(frozen=True)
class _NormBasedEntropy(Entropy):
    """Base class of entropies that are functions of ‖p‖_α."""

    alpha: float = 2.0

    def __post_init__(self) -> None:
        _check_number("alpha", self.alpha)
        check_parameter("alpha", self.alpha, 1, is_exclusive=True)

    @property
    def margin(self) -> float:
        return 1.0


@dataclass(frozen=True)
class NormEntropy(_NormBasedEntropy):
    """The norm entropy H(p) = 1 − ‖p‖_α, which generates α-normmax. The margin is 1.

    Parameters
    ----------
    alpha : float
        α, above 1, default 2.

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
class SquaredNormEntropy(_NormBasedEntropy):
    """The squared-norm entropy H(p) = (1 − ‖p‖_α²) / 2. The margin is 1.

    For α = 2, it equals ``TsallisEntropy(2)`` and generates sparsemax.

    Parameters
    ----------
    alpha : float
        α, above 1, default 2.

    Examples
    --------
    >>> SquaredNormEntropy(3).probabilities(torch.tensor([1.0, 2.0, 1.5]))
    tensor([0.0000, 0.6748, 0.3252])
    """

    def __call__(self, p: Tensor, dim: int = -1) -> Tensor:
        return -0.5 * torch.expm1(2 / self.alpha * _log_power_sum(p, self.alpha, dim))

    def probabilities(self, x: Tensor, dim: int = -1) -> Tensor:
        if self.alpha == 2:
            return entmax(x, 2.0, dim)
        return apply_along_dim(SquaredNormMap(), x, dim, float(self.alpha), in_float64=True)


@dataclass(frozen=True)
class RenyiEntropy(Entropy):
    """The Rényi entropy H(p) = log Σ p^β / (1 − β), with heavier tails than softmax and an infinite margin.

    Parameters
    ----------
    beta : float
        β, above 0 and at most 1, default 0.5. β = 1 gives the Shannon entropy. As β tends to 0, H tends to the
        logarithm of the number of p above 0, and the probability of the highest score tends to 1.

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
                f"beta must be above 0 and at most 1, got {self.beta!r}; at 0 no maximum exists, and above 1 the "
                "entropy is not concave"
            )

    def __call__(self, p: Tensor, dim: int = -1) -> Tensor:
        if self.beta == 1:
            return ShannonEntropy()(p, dim)
        return torch.log1p(_power_sum_excess(p, self.beta, dim)) / (1 - self.beta)

    def probabilities(self, x: Tensor, dim: int = -1) -> Tensor:
        if self.beta == 1:
            return softmax(x, dim)
        return apply_along_dim(RenyiMap(), x, dim, float(self.beta), in_float64=True)

    @property
    def margin(self) -> float:
        return math.inf


_ENTROPIES: dict[str, Entropy] = {
    "softmax": ShannonEntropy(),
    "sparsemax": TsallisEntropy(2.0),
    "entmax15": TsallisEntropy(1.5),
}


def get_entropy(entropy: str | Entropy) -> Entropy:
    """Return the entropy that generates the map named ``entropy``; an Entropy object is returned unchanged.

    Parameters
    ----------
    entropy : str or Entropy
        ``"softmax"``, ``"sparsemax"``, ``"entmax15"``, or an object.

    Raises
    ------
    UnknownNameError
        If the name is unknown.
    TypeError
        If ``entropy`` is neither a name nor an Entropy.

    Examples
    --------
    >>> get_entropy("sparsemax")
    TsallisEntropy(alpha=2.0)
    """
    if isinstance(entropy, Entropy):
        return entropy
    if not isinstance(entropy, str):
        hint = f"; call it first: {entropy.__name__}(...)" if isinstance(entropy, type) else ""
        raise TypeError(f"entropy must be a name or an Entropy such as TsallisEntropy(1.5), got {entropy!r}{hint}")
    if entropy not in _ENTROPIES:
        close = did_you_mean(entropy, list(_ENTROPIES)) or "."
        raise UnknownNameError(
            f"no entropy is called {entropy!r}{close} Known: {', '.join(_ENTROPIES)}; for another entropy, pass an "
            "object such as TsallisEntropy(1.25)"
        )
    return _ENTROPIES[entropy]


def _log_power_sum(p: Tensor, alpha: float, dim: int) -> Tensor:
    """Return log Σ p^α of probabilities, from Σ p^α − 1 if it is above −0.5, otherwise with p scaled by its maximum."""
    excess = _power_sum_excess(p, alpha, dim)
    if not p.numel():
        return torch.log1p(excess)
    # The result and its derivatives do not depend on `top`.
    top = p.detach().amax(dim, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    far = alpha * top.squeeze(dim).log() + power(p / top, alpha).sum(dim).log()
    is_near = excess > -0.5
    return torch.where(is_near, torch.log1p(torch.where(is_near, excess, 0.0)), far)


def _power_sum_excess(p: Tensor, exponent: float, dim: int) -> Tensor:
    """Return Σ p^exponent − Σ p, without loss of digits if a p or the exponent is near 1."""
    positive = p != 0
    log_p = torch.where(positive, p, 1.0).log()
    ratio = torch.expm1((exponent - 1) * log_p)
    return (p * torch.where(positive, ratio, -1.0 if exponent > 1 else 0.0)).sum(dim)
