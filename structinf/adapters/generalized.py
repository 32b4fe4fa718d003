"""Objectives ⟨θ, g(y)⟩ + h(y) over objects y that a function of the user maximises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from ..errors import InvalidInputError, PluginError
from ..parts import AnyParts, Parts, batch_size
from ..validation import check_feasible, check_natural
from .constant_term import WithConstantTerm

__all__ = ["Generalized"]


class Generalized(WithConstantTerm):
    """The objective ⟨θ, g(y)⟩ + h(y) over objects y that a function of the user maximises.

    The structures of this oracle are z = g(y), so that y may be any Python object: a schedule, a set of routes. Every
    relaxation that needs only the argmax works.

    - Scores θ: without ``h``, one tensor (..., *event). With ``h``, a tuple: these scores, and the weight w > 0 of h,
      (..., 1), or (1,) for the whole batch. :meth:`scores` adds the weight 1.
    - Structure z, in the form of θ: g(y), and with ``h`` also h(y), (..., 1).

    Noise of relaxations leaves the weight w unchanged. ``sparsemap`` penalises g(y) only.

    Parameters
    ----------
    maximiser : callable
        Maps scores (B, *event), with one batch dimension, to y = argmax ⟨θ, g(y)⟩ + h(y) of each instance, as one
        object for the batch. It gets θ / w.
    g : callable
        Maps the result of ``maximiser`` to g(y), (B, *event).
    h : callable, optional
        Maps the result of ``maximiser`` to h(y), (B,).
    event_ndim : int
        The number of dimensions of g(y).

    Raises
    ------
    PluginError
        In a call, if a function returns a wrong shape or NaN.
    InvalidInputError
        In a call, if a weight is not above 0.

    References
    ----------
    Dalle, Baty, Bouvier & Parmentier 2022, Learning with Combinatorial Optimization Layers: a Probabilistic Approach,
    Section 2.1.

    Examples
    --------
    A number y of 0, 1, 2 or 3 machines, with g(y) = y and the cost h(y) = −y²:

    >>> import structinf as si, torch
    >>> machines = torch.arange(4.0)
    >>> def maximiser(theta):
    ...     return machines[(theta * machines - machines**2).argmax(1)]
    >>> oracle = Generalized(
    ...     maximiser, g=lambda y: y[:, None], h=lambda y: -(y**2)
    ... )
    >>> theta = torch.tensor([[0.5], [3.5]])
    >>> si.relax(oracle.scores(theta), oracle, "map")
    (tensor([[0.],
            [2.]]), tensor([[-0.],
            [-4.]]))
    """

    name: ClassVar[str] = "generalized"

    def __init__(
        self,
        maximiser: Callable[[Tensor], Any],
        g: Callable[[Any], Tensor],
        h: Callable[[Any], Tensor] | None = None,
        *,
        event_ndim: int = 1,
    ) -> None:
        for name, function in (("maximiser", maximiser), ("g", g), ("h", h)):
            if not (callable(function) or (name == "h" and function is None)):
                raise TypeError(f"{name} must be a function, got {type(function).__name__}")
        check_natural("event_ndim", event_ndim, 0)
        self.maximiser, self.g, self.h = maximiser, g, h
        self.has_term = h is not None
        self._ndims = (event_ndim, 1) if self.has_term else event_ndim

    def argmax(self, theta: AnyParts) -> Parts:
        if self.h is None:
            return self._checked("g", self.g(self.maximiser(theta.clone())), theta)
        scores, weight = theta
        if bool((weight <= 0).any()):
            raise InvalidInputError(
                f"theta: the weight of h must be above 0, got {weight.min().item()}; add the weight 1 by oracle.scores"
            )
        size = batch_size(theta)
        scores = scores.expand(size, *scores.shape[1:])
        weight = weight[:, 0].expand(size)
        found = self.maximiser(scores / weight.view(-1, *[1] * (scores.ndim - 1)))
        return self._checked("g", self.g(found), scores), self._checked("h", self.h(found), weight)[:, None]

    def __repr__(self) -> str:
        return f"Generalized(maximiser=..., g=...{', h=...' if self.has_term else ''}, event_ndim={self._ndims})"

    @staticmethod
    def _checked(name: str, value: Any, like: Tensor) -> Tensor:
        if not isinstance(value, Tensor) or value.shape != like.shape or not bool(value.isfinite().all()):
            received = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise PluginError(
                f"{name}(y) must return a finite tensor of shape {tuple(like.shape)} for this batch, got {received}"
                + (" with NaN or infinity" if isinstance(value, Tensor) and value.shape == like.shape else "")
            )
        used = (like.isneginf() & (value != 0)).unsqueeze(-1).flatten(1).any(1)
        check_feasible(~used, "structure of maximiser")
        return value.detach().to(like).clone()
