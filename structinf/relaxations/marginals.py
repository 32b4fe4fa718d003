"""marginals: the mean of the Gibbs distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ..oracle import GibbsOracle, Oracle
from ..parts import Parts
from ..regularizers import check_temperature
from ..relaxation import GradientRelaxation

__all__ = ["LogPartition", "Marginals"]


@dataclass(frozen=True)
class LogPartition:
    """log Z of an oracle as a convex function, with its mean and covariance."""

    oracle: GibbsOracle

    def value(self, theta: Parts) -> Tensor:
        return self.oracle.log_partition(theta)

    def gradient(self, theta: Parts) -> Parts:
        return self.oracle.marginals(theta)

    def value_and_gradient(self, theta: Parts) -> tuple[Tensor, Parts]:
        return self.oracle.log_partition_and_marginals(theta)

    def vjp(self, theta: Parts, weight: Tensor) -> Parts:
        return self.oracle.log_partition_vjp(theta, weight)

    def hessian_product(self, theta: Parts, v: Parts) -> Parts:
        return self.oracle.covariance_product(theta, v)


@dataclass(frozen=True, kw_only=True)
class Marginals(GradientRelaxation):
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

    Examples
    --------
    >>> import structinf as si
    >>> import torch
    >>> si.relax(torch.tensor([0.0, 1.0, 2.0]), "categorical", Marginals(temperature=0.5))
    tensor([0.0159, 0.1173, 0.8668])
    """

    temperature: float = 1.0

    name = "marginals"
    requires = GibbsOracle

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def function(self, oracle: Oracle) -> LogPartition:
        """log Z."""
        return LogPartition(cast(GibbsOracle, oracle))
