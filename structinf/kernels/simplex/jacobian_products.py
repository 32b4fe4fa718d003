"""Products with the Jacobians of points of the simplex, from the points alone. Importing this module imports numba.

With s = p^(2 − α) where p > 0, and 0 elsewhere, that of α-entmax is J = diag(s) − s sᵀ / Σ s (Peters, Niculae & Martins
2019, Sparse sequence-to-sequence models, Proposition 2), which is symmetric. Since (p^a − 1) / a − x is the same number
for all i with a p, where a = α − 1, the derivative in α is

    ∂p / ∂α = −J D,    D = ∂/∂a (p^a − 1) / a = (log p)² φ(a log p),    φ(z) = (1 − e^z + z e^z) / z²,

which has no pole at α = 1, as the same formula has without φ (Correia, Niculae & Martins 2019, Adaptively sparse
transformers, Proposition 1).

For α > 2 the s of the least p_i may exceed all others by far, or overflow. In its units r = s / s_i, and for v_i = 0,

    mean = Σ r v / Σ r,    (J v)_j = s_j (v_j − mean),    (J v)_i = −Σ_{j ≠ i} s_j v_j / Σ r,

which lose nothing beside s_i, and are finite whenever the others are.

The nearest point of the capped simplex has the J of α = 2, with s = 1 where 0 < p < 1; its derivative in the budget is
s / Σ s.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp, log
from .support import BLOCK, block_maxima, select
from .torch_backend import PHI

__all__ = ["pull_back"]

_TINIEST = 2.0**-1022  # a power of less overflows

_COEFFICIENTS = np.array(PHI)


@jit
def pull_back(start, stop, p, g, size, alphas, is_capped, out, slopes):
    """J g of each row, and its product with the derivative in α, or in the budget.

    Parameters
    ----------
    p, g : (B * size,) floats
    size : int
    alphas : (B | 1,) float64
    is_capped : bool
    out : (B * size,) floats, 0 before, written
    slopes : (B,) float64, written; or (0,), if they are not asked for
    """
    tops, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q, v, s = np.empty(size), np.empty(size), np.empty(size)
    for row in range(start, stop):
        begin, alpha = row * size, alphas[row % alphas.size]
        if alpha == 1 and not slopes.size:
            _softmax(p, g, begin, size, out)
            continue
        top = block_maxima(p, begin, size, tops)
        if not top < np.inf:
            out[begin : begin + size] = np.nan
            if slopes.size:
                slopes[row] = np.nan if size else 0.0
            continue
        count = select(p, begin, size, tops, _TINIEST, index, q)
        if is_capped:
            count = _below_one(index, q, count)
        for i in range(count):
            v[i] = g[begin + index[i]]
        mean = _product(q, v, s, count, alpha)
        for i in range(count):
            out[begin + index[i]] = v[i]
        if slopes.size:
            slopes[row] = mean if is_capped else _slope(q, g, begin, index, v, s, count, alpha)


@jit
def _softmax(p, g, begin, size, out):
    """J g for α = 1, where most numbers count."""
    q, v, product = p[begin : begin + size], g[begin : begin + size], out[begin : begin + size]
    total, mean = 0.0, 0.0
    for i in range(size):
        total += np.float64(q[i])
        mean += np.float64(q[i]) * np.float64(v[i])
    if total > 0:  # which rounding may have left beside 1
        mean /= total
    for i in range(size):
        product[i] = q[i] * (np.float64(v[i]) - mean)


@jit
def _below_one(index, q, count):
    """Keep the numbers below 1; how many they are."""
    kept = 0
    for i in range(count):
        index[kept], q[kept] = index[i], q[i]
        kept += q[i] < 1
    return kept


@jit
def _product(p, v, s, count, alpha):
    """Turn ``v`` into J v; the mean of ``v`` by the weights s, which are written, if α is at most 2."""
    if count == 0:
        return 0.0
    if alpha > 2:
        _steep_product(p, v, s, count, alpha)
        return 0.0
    if alpha == 2:
        s[:count] = 1.0
    elif alpha == 1.5:
        for i in range(count):
            s[i] = math.sqrt(p[i])
    elif alpha == 1:
        s[:count] = p[:count]
    else:
        for i in range(count):
            s[i] = exp(log(p[i]) * (2.0 - alpha))
    total, mean = 0.0, 0.0
    for i in range(count):
        total += s[i]
        mean += s[i] * v[i]
    mean /= total
    for i in range(count):
        v[i] = s[i] * (v[i] - mean)
    return mean


@jit
def _steep_product(p, v, s, count, alpha):
    """The same for α > 2, from differences to v of the least p."""
    least = p[:count].argmin()
    log_p, shift = log(p[least]), v[least]
    total, mean, others = 0.0, 0.0, 0.0
    for i in range(count):
        log_s, v[i] = log(p[i]) * (2.0 - alpha), v[i] - shift
        s[i], r = exp(log_s), exp(log_s - log_p * (2.0 - alpha))
        total += r
        mean += r * v[i]
        others += 0.0 if v[i] == 0 else s[i] * v[i]
    mean /= total
    for i in range(count):
        v[i] = 0.0 if v[i] == mean else s[i] * (v[i] - mean)
    # Infinite weights of both signs, of which the mean alone says which outweigh.
    v[least] = v[least] if np.isnan(others) else -others / total


@jit
def _slope(p, g, begin, index, rates, s, count, alpha):
    """−Σ v J D; D is made in ``rates``."""
    for i in range(count):
        log_p = log(p[i])
        rates[i] = log_p * log_p * _phi((alpha - 1.0) * log_p)
    _product(p, rates, s, count, alpha)
    slope = 0.0
    for i in range(count):
        slope -= np.float64(g[begin + index[i]]) * rates[i]
    return slope


@jit
def _phi(z):
    if z < -1:
        e = exp(z)
        return (1.0 - e + z * e) / (z * z)
    total = 0.0
    for k in range(_COEFFICIENTS.size - 1, -1, -1):
        total = total * z + _COEFFICIENTS[k]
    return total
