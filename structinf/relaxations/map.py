"""map: the structure itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracle import Oracle, Potentials, as_tuple, inner, map_parts
from ..relaxation import RegularizedRelaxation
from ..solution import Solution

__all__ = ["Map"]


@dataclass(frozen=True, kw_only=True)
class Map(RegularizedRelaxation):
    """argmax ⟨θ, y⟩ over y ∈ Y, a vertex.

    It is piecewise constant: its gradient is zero, so it trains nothing by itself. As a loss
    (Ω = 0) it is the structured perceptron, and with a cost the structured SVM.
    """

    name = "map"

    def solve(self, oracle: Oracle, theta: Potentials, warm_start: Potentials | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        y = _argmax(oracle, theta)
        value = oracle.score(map_parts(torch.Tensor.detach, theta), y)
        return Solution(
            mean=map_parts(lambda t, z: _with_zero_gradient(z, t), theta, y),
            value=value,
            weights=torch.ones_like(value)[None],
            make_support=lambda: map_parts(lambda z: z[None], y),
            gap=torch.zeros_like(value),
            converged=torch.ones_like(value, dtype=torch.bool),
            oracle_calls=1,
        )

    def conjugate(self, oracle: Oracle, theta: Potentials) -> Tensor:
        """max ⟨θ, y⟩, (B,), with gradient the maximising structure."""
        return oracle.score(theta, _argmax(oracle, theta))

    def omega(self, oracle: Oracle, y: Potentials) -> Tensor:
        """0 at every structure, (B,)."""
        return as_tuple(y)[0].new_zeros(as_tuple(y)[0].shape[0])


def _argmax(oracle: Oracle, theta: Potentials) -> Potentials:
    with torch.no_grad():
        return oracle.argmax(map_parts(torch.Tensor.detach, theta))


def _with_zero_gradient(y: Tensor, theta: Tensor) -> Tensor:
    """``y`` as a function of θ with gradient 0, so that a loss on it can be differentiated.

    The sum over no elements adds a graph edge and no arithmetic (0 · −inf would be NaN).
    """
    return y + theta[:0].sum() if theta.requires_grad and torch.is_grad_enabled() else y
