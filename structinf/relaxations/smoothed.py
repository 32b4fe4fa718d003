"""smoothed: the expected structure of a recursion whose maxima are smoothed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torch import Tensor

from .. import autograd
from ..oracle import Oracle
from ..parts import Potentials, as_tuple
from ..regularizers import Regularizer, get_regularizer
from ..relaxation import RegularizedRelaxation, scale
from ..smoothing import Smoothable
from ..solution import Solution

if TYPE_CHECKING:
    import jaxtyping

__all__ = ["Smoothed", "SmoothedValue"]


@dataclass(frozen=True)
class SmoothedValue:
    """DP_Ω of an oracle as a convex function, with its gradient and Hessian."""

    oracle: Smoothable
    regularizer: Regularizer

    def value(self, theta: Potentials) -> Tensor:
        return self.oracle.smoothed_value(theta, self.regularizer)

    def gradient(self, theta: Potentials) -> Potentials:
        return self.oracle.smoothed_mean(theta, self.regularizer)

    def vjp(self, theta: Potentials, weight: Tensor) -> Potentials:
        return self.oracle.smoothed_vjp(theta, weight, self.regularizer)

    def hessian_product(self, theta: Potentials, v: Potentials) -> Potentials:
        return self.oracle.smoothed_hessian_product(theta, v, self.regularizer)


@dataclass(frozen=True)
class Smoothed(RegularizedRelaxation):
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
    """

    regularizer: str | Regularizer = "negentropy"
    temperature: float | None = None

    name = "smoothed"
    requires = Smoothable

    def __post_init__(self) -> None:
        found = get_regularizer(self.regularizer, self.temperature)
        object.__setattr__(self, "regularizer", found)
        object.__setattr__(self, "temperature", found.temperature)

    def solve(self, oracle: Oracle, theta: Potentials, warm_start: Potentials | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        return Solution(mean=self.mean(oracle, theta), value=self.conjugate(oracle, theta))

    def mean(self, oracle: Oracle, theta: Potentials) -> Potentials:
        return autograd.gradient(self._function(oracle), scale(theta, self._scale))

    def conjugate(self, oracle: Oracle, theta: Potentials) -> jaxtyping.Float[Tensor, " batch"]:
        """temperature · DP_Ω(θ / temperature), (B,)."""
        value = autograd.value(self._function(oracle), scale(theta, self._scale))
        return value if self._scale == 1 else value * self._scale

    def omega(self, oracle: Oracle, y: Potentials) -> jaxtyping.Float[Tensor, " batch"]:
        """Ω of the choices that make the structure ``y``, each of them certain: 0, (B,)."""
        return as_tuple(y)[0].new_zeros(as_tuple(y)[0].shape[0])

    @property
    def _scale(self) -> float:
        """The temperature; any is the same where nothing is regularized."""
        return cast(float, self.temperature)

    def _function(self, oracle: Oracle) -> SmoothedValue:
        return SmoothedValue(cast(Smoothable, oracle), cast(Regularizer, self.regularizer))
