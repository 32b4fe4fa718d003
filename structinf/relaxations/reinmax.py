"""reinmax: a sample of the Gibbs distribution, with a gradient that is unbiased for quadratic functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..errors import InvalidInputError
from ..parts import Parts, inner_product, map_parts, scale_per_instance
from .gibbs_sample import GibbsSample
from .surrogate import ArgmaxResult

__all__ = ["ReinMax"]


@dataclass(frozen=True, kw_only=True)
class ReinMax(GibbsSample):
    """A sample y of p(y) ∝ exp(⟨θ, y⟩ / temperature), with a surrogate gradient of first or second order.

    With v = dL/dy, the marginals μ and the covariance Cov of the Gibbs distribution, the gradient is

    - of order 1: Cov v, the straight-through gradient. It is unbiased if L is linear in y.
    - of order 2: ½ (Cov v + (y − μ) ⟨y − μ, v⟩). It is unbiased if L is quadratic in y, as the trapezoidal rule is
      exact for quadratic functions.

    Both are divided by the temperature. For ``categorical``, order 2 is the ReinMax of Liu et al. Its second term has
    the variance of a score function estimator without a baseline.

    Parameters
    ----------
    order : 1 or 2
        The order of the approximation.
    temperature : float, or Tensor with one number
        The divisor of the scores, above 0. The gradient with respect to a tensor is that of θ / temperature.
    samples : int
        The number of samples, at least 1.
    reduction : "mean" or "none"
        "mean" returns the mean of the samples. "none" returns all samples in a leading dimension, (samples, ...,
        *event).

    References
    ----------
    Liu, Dong, Liu, Yu & Gao 2023, Bridging Discrete and Backpropagation: Straight-Through and Beyond, §3 and
    Theorem 3.1.

    Examples
    --------
    >>> import torch
    >>> import structinf as si
    >>> theta = torch.tensor([[0.3, -0.2, 0.1]], requires_grad=True)
    >>> rng = torch.Generator().manual_seed(0)
    >>> layer = si.Layer("categorical", ReinMax())
    >>> y = layer(theta, generator=rng)
    >>> y.backward(torch.tensor([[1.0, 0.0, 0.0]]))
    >>> y.detach().sum(), theta.grad.shape
    (tensor(1.), torch.Size([1, 3]))
    """

    order: Literal[1, 2] = 2

    name = "reinmax"
    search_terms: ClassVar[tuple[str, ...]] = ("heun", "second_order_straight_through")

    def __post_init__(self) -> None:
        self._check_sampling()
        if isinstance(self.order, bool) or not isinstance(self.order, int) or self.order not in (1, 2):
            raise InvalidInputError(f"order must be 1 or 2, got {self.order!r}")

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        oracle: Any = result.oracle
        product = oracle.covariance_product(result.theta, v)
        if self.order == 2:
            apart = map_parts(lambda y, mean: y - mean, result.y, oracle.marginals(result.theta))
            outer = scale_per_instance(apart, inner_product(apart, v))
            product = map_parts(lambda c, o: (c + o) / 2, product, outer)
        return product
