"""marginals: the mean of the Gibbs distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torch import Tensor

from .. import autograd
from ..oracle import GibbsOracle, Oracle
from ..parts import Potentials, as_tuple
from ..relaxation import RegularizedRelaxation, check_temperature, scale
from ..solution import Solution

if TYPE_CHECKING:
    import jaxtyping

__all__ = ["LogPartition", "Marginals"]


@dataclass(frozen=True)
class LogPartition:
    """log Z of an oracle as a convex function, with its mean and covariance."""

    oracle: GibbsOracle

    def value(self, theta: Potentials) -> Tensor:
        return self.oracle.log_partition(theta)

    def gradient(self, theta: Potentials) -> Potentials:
        return self.oracle.marginals(theta)

    def vjp(self, theta: Potentials, weight: Tensor) -> Potentials:
        return self.oracle.log_partition_vjp(theta, weight)

    def hessian_product(self, theta: Potentials, v: Potentials) -> Potentials:
        return self.oracle.covariance_product(theta, v)


@dataclass(frozen=True, kw_only=True)
class Marginals(RegularizedRelaxation):
    """E[Y] under p(y) ∝ exp(⟨θ, y⟩ / temperature); Ω is the negative entropy of p.

    Twice differentiable: the Jacobian is the covariance of the parts over the temperature. As a
    loss it is the negative log-likelihood of a conditional random field, and with a cost the
    softmax-margin loss (Gimpel & Smith 2010).

    Parameters
    ----------
    temperature : float
        Above 0; smaller is closer to the argmax.

    References
    ----------
    Wainwright & Jordan 2008, Graphical Models, Exponential Families, and Variational Inference, §3.
    """

    temperature: float = 1.0

    name = "marginals"
    requires = GibbsOracle

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def solve(self, oracle: Oracle, theta: Potentials, warm_start: Potentials | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        return Solution(mean=self.mean(oracle, theta), value=self.conjugate(oracle, theta))

    def mean(self, oracle: Oracle, theta: Potentials) -> Potentials:
        return autograd.gradient(LogPartition(cast(GibbsOracle, oracle)), scale(theta, self.temperature))

    def conjugate(self, oracle: Oracle, theta: Potentials) -> jaxtyping.Float[Tensor, " batch"]:
        """temperature · log Z(θ / temperature), (B,)."""
        value = autograd.value(LogPartition(cast(GibbsOracle, oracle)), scale(theta, self.temperature))
        return value if self.temperature == 1 else value * self.temperature

    def omega(self, oracle: Oracle, y: Potentials) -> jaxtyping.Float[Tensor, " batch"]:
        """Minus the entropy of the only distribution whose mean is the structure ``y``: 0, (B,)."""
        return as_tuple(y)[0].new_zeros(as_tuple(y)[0].shape[0])
