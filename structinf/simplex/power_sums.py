"""The maps that Rényi's entropies and squared norms generate, in float64 and in torch, on any device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..autograd.simplex import SimplexMap
from ..kernels.simplex.torch_backend import max_score, power
from ..shapes import Float
from .norm import NormMap, norm_of

__all__ = ["RenyiMap", "SquaredNormMap"]

_MOST_STEPS = 200
_ROUNDING = 2.0**-51


@dataclass(frozen=True)
class RenyiMap(SimplexMap):
    """argmax ⟨p, x⟩ + log Σ p^β / (1 − β), for 0 < β < 1.

    The p are in proportion to (τ − x)^(−1 / (1 − β)), and τ is above all x: where Σ p (τ − x) = β / (1 − β).
    """

    beta: float

    def point(self, x: Tensor, parameter: Tensor | None) -> Tensor:
        n = x.shape[-1]
        if not n:
            return x.clone()
        top, order, target = max_score(x), 1 / (1 - self.beta), self.beta / (1 - self.beta)
        masked = x.isneginf()
        d = torch.where(masked | (x == top), 0.0, top - x)

        def at(t: Tensor) -> Tensor:
            w = torch.exp(-order * torch.log1p(d / t)).masked_fill(masked, 0.0)
            return w / w.sum(-1, keepdim=True)

        # In t = τ − top, the mean of t + d rises; it is between t and n t.
        end = torch.full_like(top, target)
        t = _around_root(lambda t: (target - t) - (at(t) * d).sum(-1, keepdim=True), end / n, end)[0]
        p = at(t).masked_fill(top.isneginf(), 0.0)
        return p.masked_fill(~(x < torch.inf).all(-1, keepdim=True), torch.nan)

    def differentiable_vjp(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        # The inverse Hessian is (Σ p^β / β) diag(p^(2 − β)) − p pᵀ.
        scale = power(p, self.beta).sum(-1, keepdim=True) / self.beta
        return _product(p, g, scale * power(p, 2 - self.beta), torch.ones_like(scale)), None


@dataclass(frozen=True)
class SquaredNormMap(SimplexMap):
    """argmax ⟨p, x⟩ − ½ ‖p‖_α², for α > 1.

    With N = ‖p‖_α it is the α-normmax of x / N, whose norm falls in N: one N is both.
    """

    alpha: float

    def point(self, x: Tensor, parameter: Tensor | None) -> Tensor:
        if not x.shape[-1]:
            return x.clone()
        top = max_score(x)
        apart = x - torch.where(top.isneginf(), 0.0, top)

        def at(norm: Tensor) -> Tensor:
            return NormMap(self.alpha).point(apart / norm, None)

        least = torch.full_like(top, x.shape[-1] ** (1 / self.alpha - 1))
        low, high = _around_root(lambda norm: norm_of(at(norm), self.alpha) - norm, least, torch.ones_like(top))
        # For α > 2 new p rise so steeply that those of neighbouring floats may be far apart: p is between them.
        p, difference, norm = at(low), at(high) - at(low), 0.5 * (low + high)
        share = _around_root(
            lambda share: norm_of(p + share * difference, self.alpha) - norm,
            torch.zeros_like(top),
            torch.ones_like(top),
        )[0]
        return p + share * difference

    def differentiable_vjp(
        self, p: Tensor, parameter: Tensor | None, g: Tensor, with_parameter_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        # The inverse Hessian is (diag((p / N)^(2 − α)) − (2 − α) p pᵀ / N²) / (α − 1).
        norm = norm_of(p, self.alpha)
        product = _product(p, g, power(p / norm, 2 - self.alpha), (2 - self.alpha) / norm**2)
        return product / (self.alpha - 1), None


def _around_root(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds, to rounding, of where a falling ``function`` is 0 between ``low`` and ``high``, or the end next to it.

    T. R. Chandrupatla, A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear function without
    using derivatives, Advances in Engineering Software 28, 1997; row by row.
    """
    x, other = low, high  # the root is between them
    f, f_other = function(x), function(other)
    is_between, end = (f > 0) & (f_other < 0), torch.where(f > 0, high, low)
    share = torch.full_like(low, 0.5)
    for _ in range(_MOST_STEPS):
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
        # Inverse quadratic interpolation where it is monotone, else the middle; no nearer to an end than rounding.
        xi, phi = (x - other) / (third - other), (f - f_other) / (f_third - f_other)
        step = f / (f_other - f) * f_third / (f_other - f_third)
        step = step + (third - x) / (other - x) * f / (f_third - f) * f_other / (f_third - f_other)
        is_smooth = (phi.square() < xi) & ((1 - phi).square() < 1 - xi)
        least = _ROUNDING * torch.maximum(x.abs(), other.abs()) / (other - x).abs()
        share = torch.where(is_smooth, torch.minimum(torch.maximum(step, least), 1 - least), 0.5)
    below, above = torch.where(f < 0, other, x), torch.where(f > 0, other, x)
    return torch.where(is_between, below, end), torch.where(is_between, above, end)


def _product(
    p: Float[Tensor, "*rows n"],
    g: Float[Tensor, "*rows n"],
    s: Float[Tensor, "*rows n"],
    b: Float[Tensor, "*rows 1"],
) -> Float[Tensor, "*rows n"]:
    """J g for the J that the inverse Hessian A = diag(s) − b p pᵀ leaves to changes of sum 0: A − A1 (A1)ᵀ / 1ᵀA1."""
    if not p.shape[-1]:
        return g.clone()
    # J 1 = 0, and of the largest s, which may exceed all others by far, only differences from there are not lost.
    v = g - g.gather(-1, s.argmax(-1, keepdim=True))
    a_v = s * v - b * p * (p * v).sum(-1, keepdim=True)
    a_1 = s - b * p * p.sum(-1, keepdim=True)
    total = a_1.sum(-1, keepdim=True)
    return a_v - a_1 * (a_v.sum(-1, keepdim=True) / torch.where(total != 0, total, 1.0))
