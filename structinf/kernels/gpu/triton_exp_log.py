"""log(1 + u) and eᵘ − 1 for Triton kernels. Importing this module imports triton."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["exp_minus_1", "log_1_plus"]


@triton.jit
def log_1_plus(u):
    """Return log(1 + u) for u > −1, with the relative error of the logarithm (Kahan's formula)."""
    w = 1.0 + u
    is_small = w == 1.0
    return tl.where(is_small, u, tl.log(w) * (u / tl.where(is_small, 1.0, w - 1.0)))


@triton.jit
def exp_minus_1(u):
    """Return eᵘ − 1, with the relative error of the logarithm (Kahan's formula)."""
    w = tl.exp(u)
    is_near = (u > -1) & (w != 1.0)
    near = (w - 1.0) * (u / tl.where(is_near, tl.log(tl.where(is_near, w, 1.0)), 1.0))
    return tl.where(w == 1.0, u, tl.where(is_near, near, w - 1.0))
