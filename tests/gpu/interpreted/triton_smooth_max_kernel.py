"""A kernel that calls the device functions of smoothed maxima for each number of a vector."""

from __future__ import annotations

import triton
import triton.language as tl

from structinf.kernels.gpu.triton_smooth_max import curved, finite, log_of_positive, start_of_t


@triton.jit
def evaluate(x, out, n, SIZE: tl.constexpr, ALPHA: tl.constexpr):
    """Write q, s, finite(x), log_of_positive(x) and t of a single score to the rows of ``out`` (5, n)."""
    i = tl.arange(0, SIZE)
    inside = i < n
    d = tl.load(x + i, mask=inside, other=0.0)
    q, s = curved(d, ALPHA)
    tl.store(out + i, q, mask=inside)
    tl.store(out + n + i, s, mask=inside)
    tl.store(out + 2 * n + i, finite(d), mask=inside)
    tl.store(out + 3 * n + i, log_of_positive(d), mask=inside)
    tl.store(out + 4 * n + i, tl.zeros_like(d) + start_of_t(ALPHA), mask=inside)
