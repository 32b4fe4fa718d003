"""blackbox: the gradient of a piecewise affine interpolation of the loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..parts import Parts, map_parts
from ..validation import check_step
from .surrogate import ArgmaxResult, Surrogate

__all__ = ["Blackbox"]


@dataclass(frozen=True, kw_only=True)
class Blackbox(Surrogate):
    """argmax ⟨θ, y⟩, with the surrogate gradient (y − argmax ⟨θ − λv, y⟩) / λ for v = dL/dy.

    The surrogate is the gradient of a piecewise affine interpolation of the loss, linearised at y. A larger λ makes
    the interpolation smoother and less accurate. The forward pass and the backward pass take one oracle call each.
    For oracles that accept only scores of at most 0, θ − λv is clamped at 0, as in the paper.

    Parameters
    ----------
    lambda_ : float or Tensor
        The step λ, above 0, in units of θ over units of v. A tensor with one number receives no gradient.

    References
    ----------
    Vlastelica, Paulus, Musil, Martius & Rolínek 2020, Differentiation of Blackbox Combinatorial Solvers, Algorithm 1.
    The paper minimises costs ω = −θ, so the sign of its gradient (argmin ⟨ω + λv, y⟩ − y) / λ is opposite.

    Examples
    --------
    >>> import torch, structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]], requires_grad=True)
    >>> y = si.relax(theta, "categorical", "blackbox", lambda_=3.0)
    >>> y.backward(torch.tensor([[0.0, 1.0, -1.0]]))
    >>> theta.grad
    tensor([[ 0.0000,  0.3333, -0.3333]])
    """

    lambda_: float | Tensor = 10.0

    name = "blackbox"
    step_option = "lambda_"
    search_terms = ("dbb", "vlastelica")

    def __post_init__(self) -> None:
        check_step("lambda_", self.lambda_, "blackbox")

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        step = self.step
        return map_parts(lambda d: d / step, result.argmax_difference(v, step))
