"""The maps that Rényi entropies and squared norms generate, in torch, on any device. The scores are in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..autograd.simplex_map import Parameter, SimplexMap
from ..kernels.simplex.torch_backend import max_score, nan_in_invalid_rows, power
from ..shapes import Float
from .norm_maps import NormmaxMap, p_norm

__all__ = ["RenyiMap", "SquaredNormMap"]

_MAX_STEPS = 200
_ROUNDING = 2.0**-51


class RenyiMap(SimplexMap):
    """argmax ⟨p, x⟩ + log Σ p^β / (1 − β), for 0 < β < 1. The parameter is β, a number.

    The p are proportional to (τ − x)^(−1 / (1 − β)) for the τ above all x with Σ p (τ − x) = β / (1 − β).
    """

    def forward(self, x: Tensor, parameter: Parameter) -> Tensor:
        assert isinstance(parameter, float)
        beta = parameter
        n = x.shape[-1]
        if not n:
            return x.clone()
        top, order, target = max_score(x), 1 / (1 - beta), beta / (1 - beta)
        masked = x.isneginf()
        d = torch.where(masked | (x == top), 0.0, top - x)

        def p_of(t: Tensor) -> Tensor:
            w = torch.exp(-order * torch.log1p(d / t)).masked_fill(masked, 0.0)
            return w / w.sum(-1, keepdim=True)

        # With t = τ − top, the mean of t + d increases in t, and is between t and n t.
        end = torch.full_like(top, target)
        t = _bracket_root(lambda t: (target - t) - (p_of(t) * d).sum(-1, keepdim=True), end / n, end)[0]
        return nan_in_invalid_rows(x, p_of(t).masked_fill(top.isneginf(), 0.0))

    def vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        # The inverse Hessian is (Σ p^β / β) diag(p^(2 − β)) − p pᵀ.
        scale = power(p, parameter).sum(-1, keepdim=True) / parameter
        return _vjp_of_inverse_hessian(p, g, scale * power(p, 2 - parameter), torch.ones_like(scale)), None


class SquaredNormMap(SimplexMap):
    """argmax ⟨p, x⟩ − ½ ‖p‖_α², for α > 1. The parameter is α, a number.

    p is the α-normmax of x / N for the N that is also its norm ‖p‖_α. That norm decreases in N, so N is unique.
    """

    def forward(self, x: Tensor, parameter: Parameter) -> Tensor:
        assert isinstance(parameter, float)
        alpha = parameter
        if not x.shape[-1]:
            return x.clone()
        top = max_score(x)
        apart = x - torch.where(top.isneginf(), 0.0, top)

        def p_of(norm: Tensor) -> Tensor:
            return NormmaxMap().forward(apart / norm, alpha)

        least = torch.full_like(top, x.shape[-1] ** (1 / alpha - 1))
        low, high = _bracket_root(lambda norm: p_norm(p_of(norm), alpha) - norm, least, torch.ones_like(top))
        # For α > 2, p may change so steeply that neighbouring floats have distant p. The solution is between these two.
        p, difference, norm = p_of(low), p_of(high) - p_of(low), 0.5 * (low + high)
        share = _bracket_root(
            lambda share: p_norm(p + share * difference, alpha) - norm,
            torch.zeros_like(top),
            torch.ones_like(top),
        )[0]
        return p + share * difference

    def vjp(
        self, p: Tensor, parameter: Parameter, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        # The inverse Hessian is (diag((p / N)^(2 − α)) − (2 − α) p pᵀ / N²) / (α − 1).
        alpha, norm = parameter, p_norm(p, parameter)
        in_x = _vjp_of_inverse_hessian(p, g, power(p / norm, 2 - alpha), (2 - alpha) / norm**2)
        return in_x / (alpha - 1), None


def _bracket_root(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds, to rounding, of the root of a decreasing ``function`` in [``low``, ``high``], or the end next to it.

    T. R. Chandrupatla, A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear function without
    using derivatives, Advances in Engineering Software 28, 1997. Each row has its own root.
    """
    x, other = low, high  # the root is between these two
    f, f_other = function(x), function(other)
    is_between, end = (f > 0) & (f_other < 0), torch.where(f > 0, high, low)
    share = torch.full_like(low, 0.5)
    for _ in range(_MAX_STEPS):
        width = (other - x).abs()
        moving = is_between & (f != 0) & (width > _ROUNDING * torch.maximum(x.abs(), other.abs()))
        if not bool(moving.any()):
            break
        ahead = torch.where(moving, x + share * (other - x), x)
        value = torch.where(moving, function(ahead), f)
        is_same = (value > 0) == (f > 0)
        third, f_third = torch.where(is_same, x, other), torch.where(is_same, f, f_other)
        other, f_other = torch.where(is_same | ~moving, other, x), torch.where(is_same | ~moving, f_other, f)
        x, f = ahead, value
        # Inverse quadratic interpolation if it is monotone, else bisection; at least a rounding away from both ends.
        xi, phi = (x - other) / (third - other), (f - f_other) / (f_third - f_other)
        step = f / (f_other - f) * f_third / (f_other - f_third)
        step = step + (third - x) / (other - x) * f / (f_third - f) * f_other / (f_third - f_other)
        is_smooth = (phi.square() < xi) & ((1 - phi).square() < 1 - xi)
        least = _ROUNDING * torch.maximum(x.abs(), other.abs()) / (other - x).abs()
        share = torch.where(is_smooth, torch.minimum(torch.maximum(step, least), 1 - least), 0.5)
    below, above = torch.where(f < 0, other, x), torch.where(f > 0, other, x)
    return torch.where(is_between, below, end), torch.where(is_between, above, end)


def _vjp_of_inverse_hessian(
    p: Float[Tensor, "*rows n"],
    g: Float[Tensor, "*rows n"],
    s: Float[Tensor, "*rows n"],
    b: Float[Tensor, "*rows 1"],
) -> Float[Tensor, "*rows n"]:
    """J g with J = A − A1 (A1)ᵀ / 1ᵀA1, the inverse Hessian A = diag(s) − b p pᵀ restricted to changes of sum 0."""
    if not p.shape[-1]:
        return g.clone()
    # J 1 = 0, so the g of the largest s, which may exceed the others by orders of magnitude, is subtracted from all g.
    v = g - g.gather(-1, s.argmax(-1, keepdim=True))
    a_v = s * v - b * p * (p * v).sum(-1, keepdim=True)
    a_1 = s - b * p * p.sum(-1, keepdim=True)
    total = a_1.sum(-1, keepdim=True)
    return a_v - a_1 * (a_v.sum(-1, keepdim=True) / torch.where(total != 0, total, 1.0))
