"""The result of solvers that compute a regularized mean without a support."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..parts import Parts

__all__ = ["DirectMean"]


@dataclass(frozen=True)
class DirectMean:
    """The means μ of a batch, computed from the inequalities of conv(Y) instead of from its vertices.

    Attributes
    ----------
    mean : Parts
        μ, (B, *event), of θ's dtype and device.
    value : (B,) Tensor
        The objective ⟨θ, μ⟩ − Ω(μ).
    gap : (B,) Tensor
        Upper bound of the difference between the maximum and the value.
    converged : (B,) bool Tensor
        Whether the gap is within the solver's tolerance.
    vjp : callable
        Maps a cotangent of the mean, (B, *event), to its product with the Jacobian of μ with respect to θ, (B, *event).
    """

    mean: Parts
    value: Tensor
    gap: Tensor
    converged: Tensor
    vjp: Callable[[Parts], Parts]
