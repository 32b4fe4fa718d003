"""smoothed: the expected structure of a recursion with smoothed maxima."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ..autograd import ConvexFunction
from ..oracle import Oracle
from ..regularizers import Regularizer, Unregularized, check_temperature, get_regularizer
from ..relaxation import GradientRelaxation
from ..smoothing import Smoothable, smoothed_function

__all__ = ["Smoothed"]


@dataclass(frozen=True)
class Smoothed(GradientRelaxation):
    """∇DP_Ω(θ), where DP_Ω is the oracle's recursion with every maximum smoothed by a regularizer Ω.

    The mean is the expected structure of a random walk. The walk makes each choice with the probabilities of the
    smoothed maximum. The relaxation is twice differentiable, by two passes through the recursion.

    ==============  =======================================  ====================================
    regularizer     mean                                     loss
    ==============  =======================================  ====================================
    "negentropy"    dense: the mean of ``marginals``         CRF; with a cost softmax-margin
    "squared_l2"    sparse                                   smoothed hinge
    "tsallis"       sparse, between the two rows above       α = 1.5 by default
    "none"          the argmax, a structure                  perceptron; with a cost hinge
    ==============  =======================================  ====================================

    Parameters
    ----------
    regularizer : str or Regularizer
        A name from the table, or an object such as ``Tsallis(alpha=1.25)`` or your own Regularizer.
    temperature : float or Tensor, optional
        Positive factor of Ω. A lower temperature gives a mean closer to the argmax. By default the temperature of
        the regularizer, which is 1 for a name. A tensor with one number receives a gradient.

    Notes
    -----
    Ω is 0 at a certain choice. The squared norm of Mensch & Blondel lacks the constant −½ required for this
    property.

    References
    ----------
    A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018,
    Algorithms 1 and 2.

    Examples
    --------
    >>> import structinf as si
    >>> import torch
    >>> theta = torch.tensor([1.0, 0.8, 0.0, -3.0])
    >>> si.relax(theta, "subset", Smoothed(regularizer="squared_l2"), k=2)
    tensor([0.9280, 0.8920, 0.1800, 0.0000])
    """

    regularizer: str | Regularizer = "negentropy"
    temperature: float | Tensor | None = None

    name = "smoothed"
    search_terms = ("differentiable_dp", "dp_omega", "smoothed_dp")
    requires = Smoothable

    def __post_init__(self) -> None:
        if isinstance(self.temperature, Tensor):
            check_temperature(self.temperature, allow_tensor=True)
            found = get_regularizer(self.regularizer, 1.0)  # the convex function does not read its temperature
        else:
            found = get_regularizer(self.regularizer, self.temperature)
            object.__setattr__(self, "temperature", found.temperature)
        object.__setattr__(self, "regularizer", found)

    @property
    def piecewise_constant(self) -> bool:
        return isinstance(self.regularizer, Unregularized)

    def convex_function(self, oracle: Oracle) -> ConvexFunction:
        """Return DP_Ω."""
        return smoothed_function(cast(Smoothable, oracle), cast(Regularizer, self.regularizer))
