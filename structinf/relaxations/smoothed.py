"""smoothed: the expected structure of a recursion whose maxima are smoothed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ..oracle import Oracle
from ..parts import Parts
from ..regularizers import Regularizer, Unregularized, get_regularizer
from ..relaxation import GradientRelaxation
from ..smoothing import Smoothable

__all__ = ["Smoothed", "SmoothedValue"]


@dataclass(frozen=True)
class SmoothedValue:
    """DP_Ω of an oracle as a convex function, with its gradient and Hessian."""

    oracle: Smoothable
    regularizer: Regularizer

    def value(self, theta: Parts) -> Tensor:
        return self.oracle.smoothed_value(theta, self.regularizer)

    def gradient(self, theta: Parts) -> Parts:
        return self.oracle.smoothed_mean(theta, self.regularizer)

    def value_and_gradient(self, theta: Parts) -> tuple[Tensor, Parts]:
        return self.oracle.smoothed_value_and_mean(theta, self.regularizer)

    def vjp(self, theta: Parts, weight: Tensor) -> Parts:
        return self.oracle.smoothed_vjp(theta, weight, self.regularizer)

    def hessian_product(self, theta: Parts, v: Parts) -> Parts:
        return self.oracle.smoothed_hessian_product(theta, v, self.regularizer)


@dataclass(frozen=True)
class Smoothed(GradientRelaxation):
    """∇DP_Ω(θ): every maximum of the oracle's recursion is smoothed by a regularizer Ω of its choices.

    The mean is the expected structure of a random walk that chooses as the smoothed maxima do: with the negative
    entropy the Gibbs distribution's, with the others one of few structures. Twice differentiable, by two passes through
    the recursion.

    ==============  ===============================  ====================================
    regularizer     mean                             loss
    ==============  ===============================  ====================================
    "negentropy"    dense: that of ``marginals``     CRF; with a cost softmax-margin
    "squared_l2"    sparse                           smoothed hinge
    "tsallis"       sparse, between the two          α = 1.5 by default
    "none"          the argmax, a vertex             perceptron; with a cost hinge
    ==============  ===============================  ====================================

    Parameters
    ----------
    regularizer : str or Regularizer
        A name above, or an object, such as ``Tsallis(alpha=1.25)`` or one of your own.
    temperature : float, optional
        Above 0, multiplies Ω; smaller is closer to the argmax. The regularizer's own (1) by default.

    Notes
    -----
    Ω is 0 where a choice is certain. Mensch & Blondel's squared norm lacks the constant −½ that makes it so.

    References
    ----------
    A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018,
    Algorithms 1 and 2.

    Examples
    --------
    >>> import structinf as si
    >>> import torch
    >>> si.relax(torch.tensor([1.0, 0.8, 0.0, -3.0]), "subset", Smoothed(regularizer="squared_l2"), k=2)
    tensor([0.9280, 0.8920, 0.1800, 0.0000])
    """

    regularizer: str | Regularizer = "negentropy"
    temperature: float | None = None

    name = "smoothed"
    requires = Smoothable

    def __post_init__(self) -> None:
        found = get_regularizer(self.regularizer, self.temperature)
        object.__setattr__(self, "regularizer", found)
        object.__setattr__(self, "temperature", found.temperature)

    @property
    def piecewise_constant(self) -> bool:
        return isinstance(self.regularizer, Unregularized)

    def function(self, oracle: Oracle) -> SmoothedValue:
        """DP_Ω."""
        return SmoothedValue(cast(Smoothable, oracle), cast(Regularizer, self.regularizer))
