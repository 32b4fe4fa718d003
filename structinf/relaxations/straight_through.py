"""straight_through: a structure, with the gradient of the identity or of a relaxation."""

from __future__ import annotations

import copy
from dataclasses import InitVar, dataclass

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, differentiate, enable_autograd, map_parts, pack_like, total_inner_product
from ..relaxation import Relaxation, resolve_relaxation
from .surrogate import ArgmaxResult, Surrogate

__all__ = ["StraightThrough"]


@dataclass(frozen=True, kw_only=True)
class StraightThrough(Surrogate):
    """argmax ⟨θ, y⟩, with the gradient v = dL/dy itself, or Jᵀv with the Jacobian J of a relaxation at θ.

    The relaxation is computed only in the backward pass. Straight-through Gumbel is ``stochastic`` with this
    surrogate and ``backward="marginals"`` as its base relaxation.

    Parameters
    ----------
    backward : "identity", or str or Relaxation
        "identity" uses v itself. Otherwise the name or the object of the relaxation with the Jacobian J:
        "marginals" gives the softmax's Jacobian over ``categorical``.
    temperature : float, optional
        The temperature of the relaxation. By default the relaxation keeps its own temperature.

    References
    ----------
    Bengio, Léonard & Courville 2013, Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
    Computation, §4.
    Jang, Gu & Poole 2017, Categorical Reparameterization with Gumbel-Softmax, §2.2.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]], requires_grad=True)
    >>> relaxation = StraightThrough(backward="marginals")
    >>> y = si.relax(theta, "categorical", relaxation)
    >>> y.backward(torch.tensor([[1.0, 0.0, 0.0]]))
    >>> y.detach(), theta.grad
    (tensor([[0., 1., 0.]]), tensor([[ 0.1848, -0.1628, -0.0220]]))
    """

    backward: str | Relaxation = "identity"
    temperature: InitVar[float | Tensor | None] = None

    name = "straight_through"
    search_terms = ("ste",)

    def __post_init__(self, temperature: float | Tensor | None) -> None:
        if isinstance(self.backward, str) and self.backward == "identity":
            if temperature is not None:
                raise InvalidInputError(
                    'temperature: backward="identity" has no temperature; remove the option, or set backward to a '
                    "relaxation"
                )
            return
        object.__setattr__(self, "backward", resolve_relaxation(self.backward, temperature, "backward"))
        own_temperature = getattr(self.backward, "temperature", None)
        if isinstance(own_temperature, Tensor) and own_temperature.requires_grad:
            raise InvalidInputError(
                "temperature: straight_through has no gradient in the temperature of its backward pass; pass a number, "
                "or a tensor without requires_grad"
            )
        if self._backward_relaxation is not None and self._backward_relaxation.sample_ndim:
            raise InvalidInputError(
                f'backward: {self._backward_relaxation!r} returns separate samples; set its reduction="mean"'
            )

    @property
    def _backward_relaxation(self) -> Relaxation | None:
        return self.backward if isinstance(self.backward, Relaxation) else None

    @property
    def inner(self) -> tuple[Relaxation, ...]:
        return () if self._backward_relaxation is None else (self._backward_relaxation,)

    @property
    def is_stochastic(self) -> bool:
        return self._backward_relaxation is not None and self._backward_relaxation.is_stochastic

    @property
    def piecewise_constant(self) -> bool:
        return self._backward_relaxation is not None and self._backward_relaxation.piecewise_constant

    def with_generator(self, generator: torch.Generator | None) -> Self:
        new = super().with_generator(generator)
        if new is not self and self._backward_relaxation is not None:
            object.__setattr__(new, "backward", self._backward_relaxation.with_generator(generator))
        return new

    def exact(self) -> Self:
        if self._backward_relaxation is None:
            return self
        new = copy.copy(self)
        object.__setattr__(new, "backward", self._backward_relaxation.exact())
        return new

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        if self._backward_relaxation is None:
            return super().unsupported_reason(oracle)
        why = self._backward_relaxation.unsupported_reason(oracle)
        return why and f"its backward pass uses {self._backward_relaxation.label()}, and {why}"

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        if self._backward_relaxation is None:
            return v
        with enable_autograd():
            theta = map_parts(lambda t: t.detach().requires_grad_(), result.theta)
            mean = self._backward_relaxation.mean(result.oracle, theta)
            along = total_inner_product(as_tuple(mean), as_tuple(v))
            return pack_like(differentiate(along, as_tuple(theta)), theta)
