"""Normmax, the map that norms of probabilities generate."""

from __future__ import annotations

import torch
from torch import Tensor

from ..autograd.simplex_map import Parameter, SimplexMap
from ..compile.public_call import OperatorSpec, public_call
from ..kernels.simplex.torch_backend import max_score, power
from ..shapes import Float
from .along_dim import apply_along_dim, check_parameter, check_scores, per_row
from .entmax_family import EntmaxMap

__all__ = ["NormmaxMap", "normmax", "p_norm"]


class NormmaxMap(SimplexMap):
    """α-normmax. The parameter is α.

    p is proportional to the u = p / ‖p‖_α with u^(α − 1) = max(x − τ, 0) and ‖u‖_α = 1.
    """

    def forward(self, x: Tensor, parameter: Parameter) -> Tensor:
        # So q = u^α, of sum 1, is the (2 − 1 / α)-entmax of x α / (α − 1).
        alpha = parameter
        top, is_masked = max_score(x), x.isneginf()
        apart = (x - torch.where(top.isneginf(), 0.0, top)).masked_fill(is_masked, 0.0)
        scaled = (apart * (alpha / (alpha - 1))).masked_fill(is_masked, -torch.inf)
        q = EntmaxMap().forward(scaled, 2 - 1 / alpha)
        u = power(q, 1 / alpha)
        total = u.sum(-1, keepdim=True)
        return u / torch.where(total != 0, total, 1.0)

    def vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        # With w = u^(2 − α) / (α − 1), du = w (dx − dτ), and as u keeps its norm, dτ = ⟨p, dx⟩. For N = ‖p‖_α,
        # dp = N (du − p Σ du). J is symmetric and J 1 = 0, so the g of the largest p may be subtracted from all g.
        if not p.shape[-1]:
            return g.clone(), g.sum(-1, keepdim=True) if with_parameter_grad else None
        alpha, norm = parameter, p_norm(p, parameter)
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


def p_norm(p: Tensor, alpha: Parameter) -> Float[Tensor, "*rows 1"]:
    """‖p‖_α of probabilities (..., n), without underflow of their powers; 1 for a row of 0."""
    top = max_score(p.detach())  # the value and its derivatives are the same for any top
    top = torch.where(top != 0, top, 1.0)
    total = power(p / top, alpha).sum(-1, keepdim=True)
    return top * torch.where(total != 0, total, 1.0).pow(1 / alpha)


@public_call(operator=OperatorSpec())
def normmax(x: Tensor, alpha: float | Tensor = 2.0, dim: int = -1) -> Float[Tensor, "*shape"]:
    """α-normmax along ``dim``, for any α > 1: sparse, and close to uniform on its support.

        argmax ⟨p, x⟩ − ‖p‖_α  over probabilities p

    Parameters
    ----------
    x : Tensor
        Scores in floating point, of any shape. An entry of −inf has probability 0 and gradient 0. The computation is in
        float64.
    alpha : float or Tensor
        As α tends to 1, the probability of the highest score tends to 1. As α tends to infinity, the p in the support
        become equal. A tensor has no dimension, or a shape that broadcasts to that of x with size 1 at ``dim``, and
        receives a gradient.
    dim : int

    Returns
    -------
    Tensor
        Probabilities with sum 1 along ``dim``, in the shape and dtype of x, differentiable to any order. A row of −inf
        gives 0 with gradient 0. A row with NaN or +inf gives NaN.

    Raises
    ------
    InvalidInputError
        If α is not above 1 or has another shape, or if x has no dimension ``dim``. TypeError if x is not in floating
        point.

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
    check_parameter("alpha", alpha, 1, is_exclusive=True)
    return apply_along_dim(NormmaxMap(), x, dim, per_row("alpha", alpha, x, dim), in_float64=True)
