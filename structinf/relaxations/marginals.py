"""marginals: the mean of the Gibbs distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ..autograd import ConvexFunction
from ..oracle import GibbsOracle, Oracle
from ..regularizers import check_temperature
from ..relaxation import GradientRelaxation
from ..smoothing import log_partition_function

__all__ = ["Marginals"]


@dataclass(frozen=True, kw_only=True)
class Marginals(GradientRelaxation):
    """E[Y] under p(y) ∝ exp(⟨θ, y⟩ / temperature); Ω is the negative entropy of p.

    The relaxation is twice differentiable: its Jacobian is the covariance of the parts divided by the temperature.
    Its Fenchel-Young loss is the negative log-likelihood of a conditional random field, and with a cost the
    softmax-margin loss (Gimpel & Smith 2010).

    Parameters
    ----------
    temperature : float or Tensor
        Positive factor of Ω. A lower temperature gives a mean closer to the argmax. A tensor with one number receives
        a gradient.

    References
    ----------
    Wainwright & Jordan 2008, Graphical Models, Exponential Families, and Variational Inference, §3.

    Examples
    --------
    >>> import structinf as si
    >>> import torch
    >>> theta = torch.tensor([0.0, 1.0, 2.0])
    >>> si.relax(theta, "categorical", Marginals(temperature=0.5))
    tensor([0.0159, 0.1173, 0.8668])
    """

    temperature: float | Tensor = 1.0

    name = "marginals"
    search_terms = (
        "crf",
        "forward_backward",
        "inside_outside",
        "softmax",
        "gibbs",
        "matrix_tree",
        "log_z",
    )
    requires = GibbsOracle

    def __post_init__(self) -> None:
        check_temperature(self.temperature, allow_tensor=True)

    def convex_function(self, oracle: Oracle) -> ConvexFunction:
        """Return the log-partition function log Z."""
        return log_partition_function(cast(GibbsOracle, oracle))
