"""Regularizers Ω of the probability simplex, and the smoothed maximum that each generates.

    max_Ω(x) = max ⟨x, q⟩ − Ω(q)  over probabilities q,     q(x) = ∇max_Ω(x).

Every Ω here is 0 at the simplex's vertices, so that max_Ω of a single entry is that entry, and
never positive elsewhere, so that max(x) ≤ max_Ω(x) ≤ max(x) − min Ω.

References
----------
A. Martins & R. Astudillo, From softmax to sparsemax, ICML 2016.
A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018, §2.
B. Peters, V. Niculae & A. Martins, Sparse sequence-to-sequence models, ACL 2019.
M. Blondel, A. Martins & V. Niculae, Learning with Fenchel-Young losses, JMLR 21, 2020, §4.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import Self

from .errors import InvalidInputError, UnknownNameError
from .kernels.arrays import upcast_half
from .kernels.gpu import uses_triton
from .kernels.logsumexp import logsumexp
from .kernels.simplex import dispatch as compiled
from .kernels.simplex.torch_backend import entmax_dual, entmax_vjp, max_score
from .registry import did_you_mean
from .validation import check_scale
from .validation.options import check_not_too_large_integer

__all__ = [
    "NEGENTROPY",
    "UNREGULARIZED",
    "Negentropy",
    "Regularizer",
    "SquaredL2",
    "Tsallis",
    "Unregularized",
    "check_temperature",
    "get_regularizer",
    "smooth_max_gradient",
    "smooth_max_hessian_product",
    "smooth_max_value",
]


@dataclass(frozen=True, kw_only=True)
class Regularizer(abc.ABC):
    """A strictly convex Ω, symmetric in the entries; a new one is a class of the three methods below.

    The methods are those of temperature 1, along the last dimension, of any size and with any leading dimensions;
    entries of −inf have probability 0. (Where all are −inf, the library puts the value to −inf and the probabilities to
    0, whatever these methods say.)

    Parameters
    ----------
    temperature : float
        Above 0; multiplies Ω.

    Attributes
    ----------
    alpha : float or None
        The α of Tsallis' family that Ω belongs to, which the compiled recursions know: 1 is the negative entropy,
        2 the squared norm, infinity none at all. With None, the recursions run in torch.
    """

    temperature: float = 1.0

    alpha: ClassVar[float | None] = None

    def __init_subclass__(cls) -> None:
        for base in cls.__bases__:
            if getattr(base, "alpha", None) is not None:
                raise TypeError(
                    f"{base.__name__} cannot be subclassed: compiled recursions read only its alpha, and would ignore "
                    f"the methods of {cls.__name__}; subclass Regularizer instead"
                )

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    @abc.abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """max_Ω(x), (...), of scores x (..., n).

        Parameters
        ----------
        x : (..., n) Tensor
            The scores of the choices.
        """

    @abc.abstractmethod
    def gradient(self, x: Tensor) -> Tensor:
        """q = ∇max_Ω(x), (..., n): probabilities.

        Parameters
        ----------
        x : (..., n) Tensor
            The scores of the choices.
        """

    @abc.abstractmethod
    def hessian_product(self, q: Tensor, z: Tensor) -> Tensor:
        """∇²max_Ω(x) z, (..., n), as a function of q = ∇max_Ω(x), in torch operations that autograd can follow.

        Parameters
        ----------
        q : (..., n) Tensor
            The gradient at the scores.
        z : (..., n) Tensor
            The vector to multiply.
        """

    def with_temperature(self, temperature: float) -> Self:
        """The same Ω with another temperature.

        Parameters
        ----------
        temperature : float
            The new temperature, above 0.
        """
        return replace(self, temperature=temperature)


def check_temperature(
    temperature: float | Tensor, *, allow_zero: bool = False, allow_tensor: bool = False, name: str = "temperature"
) -> None:
    """Raise InvalidInputError unless ``temperature`` is a finite positive number, or 0 if ``allow_zero``.

    With ``allow_tensor``, a tensor with one such number is accepted too. The message calls the option by its ``name``.
    """
    if allow_tensor and isinstance(temperature, Tensor):
        check_scale(name, temperature)
        return
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not is_number or not (0 < temperature < math.inf or (allow_zero and temperature == 0)):
        least = "of at least 0 (0 means no smoothing)" if allow_zero else "above 0"
        hint = (
            "; pass a Python number, or divide the scores by a learned temperature instead (marginals, smoothed, "
            "sparsemap, frank_wolfe, sinkhorn and samplers such as reinmax take a tensor with one number)"
        )
        hint = "" if is_number else hint
        received = f"a {type(temperature).__name__}" if isinstance(temperature, Tensor) else repr(temperature)
        raise InvalidInputError(f"{name} must be a finite number {least}, got {received}{hint}")
    check_not_too_large_integer(name, cast(float, temperature))


def smooth_max_value(regularizer: Regularizer, x: Tensor) -> Tensor:
    """max_Ω(x), (...); −inf where all entries of x (..., n) are, whatever a regularizer of a user's makes of that."""
    alpha = regularizer.alpha
    if alpha in (1, 1.5, 2) and _uses_triton(x):
        from .kernels.simplex import triton_maps

        return triton_maps.smooth_max(upcast_half(x), alpha).to(x.dtype)
    return regularizer.value(x).masked_fill(max_score(x).squeeze(-1).isneginf(), -torch.inf)


def smooth_max_gradient(regularizer: Regularizer, x: Tensor) -> Tensor:
    """∇max_Ω(x), (..., n); 0 where all entries are −inf."""
    alpha = regularizer.alpha
    if alpha is not None and alpha <= 2 and _uses_triton(x):
        return compiled.entmax(upcast_half(x), alpha).to(x.dtype)
    return regularizer.gradient(x).masked_fill(max_score(x).isneginf(), 0.0)


def smooth_max_hessian_product(regularizer: Regularizer, q: Tensor, z: Tensor) -> Tensor:
    """∇²max_Ω(x) z, (..., n), as a function of q = ∇max_Ω(x); in torch operations where autograd records."""
    alpha = regularizer.alpha
    if alpha is not None and alpha <= 2 and uses_triton(q) and not torch.is_grad_enabled():
        return compiled.vjp(upcast_half(q), upcast_half(z), alpha)[0].to(z.dtype)
    return regularizer.hessian_product(q, z)


def _uses_triton(x: Tensor) -> bool:
    """Whether Triton kernels, which autograd does not follow, serve for x."""
    return uses_triton(x) and not (torch.is_grad_enabled() and x.requires_grad)


@dataclass(frozen=True, kw_only=True)
class Negentropy(Regularizer):
    """Ω(q) = Σ q log q: max_Ω is log-sum-exp and its gradient softmax, never sparse.

    Examples
    --------
    >>> Negentropy().gradient(torch.tensor([1.0, 2.0, float("-inf")]))
    tensor([0.2689, 0.7311, 0.0000])
    """

    alpha: ClassVar[float] = 1.0

    def value(self, x: Tensor) -> Tensor:
        return logsumexp(upcast_half(x), -1).to(x.dtype)

    def gradient(self, x: Tensor) -> Tensor:
        return torch.softmax(upcast_half(x), -1).masked_fill(max_score(x).isneginf(), 0.0).to(x.dtype)

    def hessian_product(self, q: Tensor, z: Tensor) -> Tensor:
        return entmax_vjp(q, z, self.alpha)


class _Entmax(Regularizer):
    """Tsallis' family for 1 < α ≤ 2."""

    alpha: ClassVar[float]

    def value(self, x: Tensor) -> Tensor:
        a = self.alpha - 1
        top, log_sum, q = entmax_dual(upcast_half(x), a)
        # The dual objective max x + (1 + t) / a + Σ (q^α − q) / α, stationary at the optimal t.
        value = top - torch.expm1(-a * log_sum) / a + (q.pow(self.alpha).sum(-1, keepdim=True) - 1) / self.alpha
        return value.squeeze(-1).to(x.dtype)

    def gradient(self, x: Tensor) -> Tensor:
        if _uses_compiled_kernel(x):
            return compiled.entmax(upcast_half(x), self.alpha).to(x.dtype)
        top, _, q = entmax_dual(upcast_half(x), self.alpha - 1)
        return q.masked_fill(top.isneginf(), 0.0).to(x.dtype)

    def hessian_product(self, q: Tensor, z: Tensor) -> Tensor:
        return entmax_vjp(q, z, self.alpha)


def _uses_compiled_kernel(x: Tensor) -> bool:
    """Whether compiled loops, which autograd does not follow, serve for scores x: not for many rows of few."""
    needs_grad = torch.is_grad_enabled() and x.requires_grad
    return x.is_cpu and not needs_grad and (x.shape[-1] > 16 or x.numel() <= 1024)


@dataclass(frozen=True, kw_only=True)
class SquaredL2(_Entmax):
    """Ω(q) = (‖q‖² − 1) / 2: the gradient is sparsemax, the projection of x onto the simplex.

    Mensch & Blondel 2018 leave out the −1/2: their max_Ω is less by 1/2.

    Examples
    --------
    >>> SquaredL2().gradient(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.2500, 0.7500])
    """

    alpha: ClassVar[float] = 2.0


@dataclass(frozen=True, kw_only=True)
class Tsallis(_Entmax):
    """Ω(q) = (Σ q^α − 1) / (α (α − 1)), 1 < α ≤ 2: the gradient is α-entmax, sparser the larger α is.

    As α → 1 it tends to Negentropy; at 2 it is SquaredL2.

    Parameters
    ----------
    alpha : float
        Above 1 and at most 2.

    Examples
    --------
    >>> Tsallis().gradient(torch.tensor([1.0, 2.0, 0.0]))
    tensor([0.1693, 0.8307, 0.0000])
    """

    alpha: float = 1.5  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.alpha, int | float) and not isinstance(self.alpha, bool) and 1 < self.alpha <= 2):
            raise InvalidInputError(
                f"alpha must be a number above 1 and at most 2, got {self.alpha!r}; 1 is Negentropy"
            )


@dataclass(frozen=True, kw_only=True)
class Unregularized(Regularizer):
    """Ω = 0: the maximum itself; its gradient marks the first maximal entry, its Hessian is 0.

    Examples
    --------
    >>> Unregularized().gradient(torch.tensor([1.0, 2.0, 2.0]))
    tensor([0., 1., 0.])
    """

    alpha: ClassVar[float] = math.inf

    def value(self, x: Tensor) -> Tensor:
        return max_score(x).squeeze(-1)

    def gradient(self, x: Tensor) -> Tensor:
        top = max_score(x)
        maximal = (x == top) & ~top.isneginf()
        return (maximal & (maximal.cumsum(-1) == 1)).to(x.dtype)

    def hessian_product(self, q: Tensor, z: Tensor) -> Tensor:
        return 0.0 * (q * z)  # rather than new zeros, so that autograd finds its way to higher derivatives


NEGENTROPY, UNREGULARIZED = Negentropy(), Unregularized()

_REGULARIZERS: dict[str, type[Regularizer]] = {
    "negentropy": Negentropy,
    "none": Unregularized,
    "squared_l2": SquaredL2,
    "tsallis": Tsallis,
}


def get_regularizer(regularizer: str | Regularizer, temperature: float | None = None, **options: Any) -> Regularizer:
    """The regularizer called so, made with ``options``; an object is returned as it is, but for the temperature.

    Parameters
    ----------
    regularizer : str or Regularizer
        ``"negentropy"``, ``"squared_l2"``, ``"tsallis"`` (option ``alpha``), ``"none"``, or an object.
    temperature : float, optional
        An object's own, or else 1, if not given.

    Raises
    ------
    UnknownNameError
        For another name.
    TypeError
        For an option that the regularizer does not have, or options beside an object.

    Examples
    --------
    >>> get_regularizer("tsallis", temperature=0.5, alpha=1.25)
    Tsallis(temperature=0.5, alpha=1.25)
    """
    if isinstance(regularizer, str):
        resolved = _make_regularizer(regularizer, options)
    elif not isinstance(regularizer, Regularizer):
        hint = f"; call it first: {regularizer.__name__}(...)" if isinstance(regularizer, type) else ""
        raise TypeError(f"regularizer must be a name or Regularizer object, got {regularizer!r}{hint}")
    elif options:
        raise TypeError(
            f"options {sorted(options)} are accepted only with a name; set the options of the object {regularizer!r} "
            "in its constructor"
        )
    else:
        resolved = regularizer
    return resolved if temperature is None else resolved.with_temperature(temperature)


def _make_regularizer(name: str, options: dict[str, Any]) -> Regularizer:
    if name not in _REGULARIZERS:
        close = did_you_mean(name, list(_REGULARIZERS)) or "."
        raise UnknownNameError(f"no regularizer is called {name!r}{close} Known: {', '.join(_REGULARIZERS)}")
    known = [field.name for field in fields(_REGULARIZERS[name])]
    for option in options:
        if option not in known:
            has, close = ", ".join(known), did_you_mean(option, known)
            raise TypeError(f"regularizer {name!r} has no option {option!r} (it has: {has}){close}")
    return _REGULARIZERS[name](**options)
