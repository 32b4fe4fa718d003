"""blackbox: the gradient of a linear interpolation of the loss."""

from __future__ import annotations

from dataclasses import dataclass

from ..parts import Parts, map_parts
from ..validation import check_positive
from .surrogate import ArgmaxResult, Surrogate

__all__ = ["Blackbox"]


@dataclass(frozen=True, kw_only=True)
class Blackbox(Surrogate):
    """argmax ⟨θ, y⟩, with the gradient (y − argmax ⟨θ − λv, y⟩) / λ for v = dL/dy.

    It is the gradient of a piecewise affine interpolation of the loss, linearised at y: the larger λ is, the smoother
    and the farther from it. One call of the oracle forward and one backward. Where the oracle takes costs alone,
    θ − λv is cut at 0, as the authors do.

    Parameters
    ----------
    lambda_ : float
        λ, above 0, on the scale of θ over that of v.

    References
    ----------
    Vlastelica, Paulus, Musil, Martius & Rolínek 2020, Differentiation of Blackbox Combinatorial Solvers, Algorithm 1:
    there y is an argmin of costs ω = −θ, whose gradient (argmin ⟨ω + λv, y⟩ − y) / λ is minus this one.

    Examples
    --------
    >>> import torch, structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]], requires_grad=True)
    >>> y = si.relax(theta, "categorical", "blackbox", lambda_=3.0)
    >>> y.backward(torch.tensor([[0.0, 1.0, -1.0]]))
    >>> theta.grad
    tensor([[ 0.0000,  0.3333, -0.3333]])
    """

    lambda_: float = 10.0

    name = "blackbox"
    search_terms = ("dbb", "vlastelica")

    def __post_init__(self) -> None:
        check_positive("lambda_", self.lambda_)

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        return map_parts(lambda d: d / self.lambda_, result.argmax_difference(v, self.lambda_))
