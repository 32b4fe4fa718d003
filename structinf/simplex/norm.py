"""Normmax, which norms of probabilities generate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..autograd.simplex import SimplexMap, apply_simplex_map, fixed_or_given
from ..compile.public_call import OperatorSpec, public_call
from ..kernels.simplex.torch_backend import max_score, power
from ..shapes import Float
from .forms import AlongDim, check_parameter, check_scores, restored, row_parameter, to_last
from .tsallis import TsallisMap

__all__ = ["NormMap", "Normmax", "norm_of", "normmax"]


@dataclass(frozen=True)
class NormMap(SimplexMap):
    """α-normmax, whose parameter is α where ``alpha`` is None.

    p is in proportion to u with u^(α − 1) = max(x − τ, 0) and ‖u‖_α = 1, which makes it p / ‖p‖_α.
    """

    alpha: float | None = None

    def point(self, x: Tensor, parameter: Tensor | None) -> Tensor:
        # So q = u^α, of sum 1, is the entmax of x α / (α − 1) for 2 − 1 / α.
        alpha = fixed_or_given(self.alpha, parameter)
        top, is_masked = max_score(x), x.isneginf()
        apart = (x - torch.where(top.isneginf(), 0.0, top)).masked_fill(is_masked, 0.0)
        scaled, dual = (apart * (alpha / (alpha - 1))).masked_fill(is_masked, -torch.inf), 2 - 1 / alpha
        q = TsallisMap().point(scaled, dual) if isinstance(dual, Tensor) else TsallisMap(dual).point(scaled, None)
        u = power(q, 1 / alpha)
        total = u.sum(-1, keepdim=True)
        return u / torch.where(total != 0, total, 1.0)

    def differentiable_vjp(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        # With w = u^(2 − α) / (α − 1), du = w (dx − dτ), and as u keeps its norm, dτ = ⟨p, dx⟩. For N = ‖p‖_α,
        # dp = N (du − p Σ du). J is symmetric, and J 1 = 0: differences to the highest p's are exact.
        if not p.shape[-1]:
            return g.clone(), g.sum(-1, keepdim=True) if with_parameter_grad else None
        alpha = fixed_or_given(self.alpha, parameter)
        norm = norm_of(p, alpha)
        u = p / norm
        w = power(u, 2 - alpha) / (alpha - 1)
        v = torch.where(p != 0, g - g.gather(-1, p.argmax(-1, keepdim=True)), 0.0)
        v = v - (p * v).sum(-1, keepdim=True)
        change = norm * w * v
        product = change - p * change.sum(-1, keepdim=True)
        if not with_parameter_grad:
            return product, None
        # In α, du = −u log u / (α − 1) − w dτ, and dτ = −N / α Σ u^α log u.
        log_u = torch.where(p != 0, u, 1.0).log()
        rise = norm / alpha * (power(u, alpha) * log_u).sum(-1, keepdim=True)
        return product, (norm * v * (w * rise - u * log_u / (alpha - 1))).sum(-1, keepdim=True)


def norm_of(p: Tensor, alpha: float | Tensor) -> Float[Tensor, "*rows 1"]:
    """‖p‖_α of probabilities (..., n), however small their powers are; 1 where all are 0."""
    top = max_score(p.detach())  # of which neither the value nor a derivative is
    top = torch.where(top != 0, top, 1.0)
    total = power(p / top, alpha).sum(-1, keepdim=True)
    return top * torch.where(total != 0, total, 1.0).pow(1 / alpha)


@public_call(operator=OperatorSpec())
def normmax(x: Tensor, alpha: float | Tensor = 2.0, dim: int = -1) -> Float[Tensor, "*shape"]:
    """α-normmax along ``dim``, for any α above 1: sparse, and near to uniform among what is left.

        argmax ⟨p, x⟩ − ‖p‖_α  over probabilities p

    Parameters
    ----------
    x : Tensor
        Scores in floating point, of any shape. An entry of −inf has probability 0 and gradient 0. All is computed in
        float64.
    alpha : float or Tensor
        Towards 1 the probability of the highest score tends to 1, towards infinity all p above 0 to the same. A tensor
        of no dimension, or of a shape that broadcasts to that of x with 1 at ``dim``, has a gradient of its own.
    dim : int

    Returns
    -------
    Tensor
        Of the shape and dtype of x: probabilities of sum 1 along ``dim``, differentiable to any order. Where all
        scores are −inf, 0 with gradient 0; where one is NaN or +inf, NaN.

    Raises
    ------
    InvalidInputError
        For an α that is not above 1, or of another shape; an unknown ``dim``. TypeError if x is not in floating point.

    References
    ----------
    M. Blondel, A. Martins & V. Niculae, Learning with Fenchel-Young losses, JMLR 21, 2020, §4.3 and appendix C.

    Examples
    --------
    >>> import torch
    >>> normmax(torch.tensor([1.0, 2.0, 1.5]))
    tensor([0.0000, 0.6890, 0.3110])
    """
    check_scores(x, dim)
    check_parameter("alpha", alpha, 1, is_open=True)
    if isinstance(alpha, Tensor):
        alpha = row_parameter("alpha", alpha, x, dim).double()
        return restored(apply_simplex_map(NormMap(), to_last(x, dim).double(), alpha), x, dim)
    return restored(apply_simplex_map(NormMap(float(alpha)), to_last(x, dim).double()), x, dim)


class Normmax(AlongDim):
    """:func:`normmax` as a module, in the place of torch.nn.Softmax.

    Parameters
    ----------
    alpha : float
    dim : int

    Examples
    --------
    >>> import torch
    >>> Normmax(alpha=2.0)(torch.tensor([1.0, 2.0, 1.5]))
    tensor([0.0000, 0.6890, 0.3110])
    """

    map = staticmethod(normmax)

    def __init__(self, alpha: float = 2.0, dim: int = -1) -> None:
        check_parameter("alpha", alpha, 1, is_open=True)
        super().__init__(dim, alpha=alpha)
