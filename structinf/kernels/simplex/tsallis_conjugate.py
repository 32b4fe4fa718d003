"""The conjugate max_p ⟨p, x⟩ + H(p) of Tsallis entropies, given the maximizer p. Importing this module imports numba.

The p are rounded, so their sum S is not exactly 1. As x + ∇H(p) is the same number c wherever p > 0,

    ⟨p, x⟩ + H(p) − c (S − 1)

differs from the maximum only by the square of the rounding error. So losses far below 1 keep their digits in float32.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit import jit
from ..scalar.exp_log import log
from .support import BLOCK, SMALLEST_POSITIVE, block_maxima, select

__all__ = ["tsallis_conjugate"]


@jit
def tsallis_conjugate(start, stop, x, p, origins, size, alpha, out):
    """Write the conjugate of each row.

    Parameters
    ----------
    x, p : (B * size,) floats
        The scores, and the maximizers.
    origins : (B,) floats
        A number per row, subtracted from all scores of the row.
    size : int
        The length of a row.
    alpha : float
        At least 1.
    out : (B,) float64, written
        The conjugates; 0 if all p of the row are 0, NaN if any p is NaN.
    """
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q, a = np.empty(size), alpha - 1.0
    for row in range(start, stop):
        begin, origin = row * size, np.float64(origins[row])
        top = block_maxima(p, begin, size, maxima)
        if not top < np.inf:
            out[row] = np.nan
            continue
        count = select(p, begin, size, maxima, SMALLEST_POSITIVE, index, q)
        gain, entropy, slope, total = 0.0, 0.0, 0.0, 0.0
        for i in range(count):
            gain += q[i] * (np.float64(x[begin + index[i]]) - origin)
            total += q[i]
        # H is the sum of p (1 − p^a) / (α a), and ⟨p, ∇H⟩ is the sum of p (1 / (α a) − p^a / a).
        if alpha == 2:
            for i in range(count):
                entropy += 0.5 * q[i] * (1.0 - q[i])
                slope += q[i] * (0.5 - q[i])
        elif alpha == 1.5:
            for i in range(count):
                root = math.sqrt(q[i])
                entropy += q[i] * (1.0 - root)
                slope += q[i] * (1.0 - 1.5 * root)
            entropy, slope = entropy / 0.75, slope / 0.75
        elif alpha == 1:
            for i in range(count):
                log_q = log(q[i])
                entropy -= q[i] * log_q
                slope -= q[i] * (log_q + 1.0)
        else:
            for i in range(count):
                ratio = math.expm1(a * log(q[i])) / a  # (p^a − 1) / a
                entropy -= q[i] * ratio / alpha
                slope -= q[i] * (ratio + 1.0 / alpha)
        out[row] = gain + entropy - (gain + slope) * (total - 1.0) / total if count else 0.0
