"""smoothed: the expected structure of a recursion whose maxima are smoothed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..autograd import ConvexFunction
from ..oracle import Oracle
from ..regularizers import Regularizer, Unregularized, get_regularizer
from ..relaxation import GradientRelaxation
from ..smoothing import Smoothable, smoothed_function

__all__ = ["Smoothed"]


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

    def convex_function(self, oracle: Oracle) -> ConvexFunction:
        """DP_Ω."""
        return smoothed_function(cast(Smoothable, oracle), cast(Regularizer, self.regularizer))
