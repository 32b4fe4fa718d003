"""Device functions of smoothed maxima, for Triton kernels. Importing this module imports triton.

The numbers q, s and t are defined in `structinf.kernels.smooth_max`. ``ALPHA`` is 1, 1.5 or 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["curved", "finite", "log_of_positive", "start_of_t"]


@triton.jit
def finite(top):
    """Return ``top`` with 0 in place of −inf, so that x − ``top`` is never −inf − (−inf)."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def log_of_positive(total):
    """Return log ``total`` where ``total`` is above 0, and −inf elsewhere."""
    return tl.where(total > 0, tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))


@triton.jit
def start_of_t(ALPHA: tl.constexpr):
    """Return t of a node with one hyperedge, where Newton's method starts: 0 for α = 1, −1 / (α − 1) otherwise."""
    t = 0.0
    if ALPHA > 1:
        t = -1.0 / (ALPHA - 1.0)
    return t


@triton.jit
def curved(difference, ALPHA: tl.constexpr):
    """Return q and s of scores with the ``difference`` x − max x − t."""
    if ALPHA == 1:
        q = tl.exp(difference)
        s = q
    elif ALPHA == 2:
        q = tl.maximum(difference, 0.0)
        s = tl.where(difference > 0, 1.0, 0.0).to(difference.dtype)
    else:
        s = tl.maximum(difference * 0.5, 0.0)
        q = s * s
    return q, s
