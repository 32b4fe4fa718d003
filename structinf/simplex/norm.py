"""Normmax, which norms of probabilities generate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..autograd.simplex import simplex_point
from ..compiling import one_step
from ..kernels.simplex_torch import largest_score
from .forms import AlongDim, check_parameter, check_scores, restored, row_parameter, to_last
from .tsallis import TsallisMap

if TYPE_CHECKING:
    import jaxtyping

__all__ = ["Normmax", "normmax"]


@one_step()
def normmax(x: Tensor, alpha: float | Tensor = 2.0, dim: int = -1) -> jaxtyping.Float[Tensor, "*shape"]:
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
    # p is in proportion to u with u^(α − 1) = max(x − τ, 0) and ‖u‖_α = 1. So q = u^α, of sum 1, is the entmax of
    # x α / (α − 1) for 2 − 1 / α.
    scores = to_last(x, dim).double()
    top = largest_score(scores.detach())
    apart = scores - torch.where(top.isneginf(), 0.0, top)
    is_masked = scores.isneginf()
    scaled = (apart.masked_fill(is_masked, 0.0) * (alpha / (alpha - 1))).masked_fill(is_masked, -torch.inf)
    dual = 2 - 1 / alpha
    function, parameter = (TsallisMap(), dual) if isinstance(dual, Tensor) else (TsallisMap(dual), None)
    q = simplex_point(function, scaled, parameter)
    positive = q != 0
    u = torch.where(positive, torch.where(positive, q, 1.0).pow(1 / alpha), 0.0)
    total = u.sum(-1, keepdim=True)
    return restored(u / torch.where(total != 0, total, 1.0), x, dim)


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
