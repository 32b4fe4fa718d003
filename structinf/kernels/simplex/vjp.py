"""Vector-Jacobian products of α-entmax and of the capped simplex, from p alone. Importing this module imports numba.

With s = p^(2 − α) where p > 0, and 0 elsewhere, the Jacobian of α-entmax is J = diag(s) − s sᵀ / Σ s (Peters, Niculae &
Martins 2019, Sparse sequence-to-sequence models, Proposition 2), which is symmetric. With a = α − 1, the number
(p^a − 1) / a − x is the same for all p > 0, so the derivative in α is

    ∂p / ∂α = −J D,    D = ∂/∂a (p^a − 1) / a = (log p)² φ(a log p),    φ(z) = (1 − e^z + z e^z) / z²,

which has no pole at α = 1. Correia, Niculae & Martins 2019 (Adaptively sparse transformers, Proposition 1) give the
same formula without φ.

For α > 2, the s_i of the smallest p_i may exceed the others by orders of magnitude, or overflow. With r = s / s_i and
v_i = 0,

    mean = Σ r v / Σ r,    (J v)_j = s_j (v_j − mean),    (J v)_i = −Σ_{j ≠ i} s_j v_j / Σ r

do not cancel against s_i, and are finite whenever the other s are.

The projection onto the capped simplex has the J of α = 2, with s = 1 where 0 < p < 1. Its derivative in k is s / Σ s.
"""

from __future__ import annotations

import math

import numpy as np

from ..jit import jit
from ..scalar.exp_log import exp, log
from .support import BLOCK, SMALLEST_POSITIVE, block_maxima, select
from .torch_backend import PHI_SERIES

__all__ = ["vjp"]

_PHI_SERIES = np.array(PHI_SERIES)


@jit
def vjp(start, stop, p, g, size, alphas, is_capped, in_parameter, out):
    """J g of each row, and the product of g with the derivative in α, or in k.

    Parameters
    ----------
    p, g : (B * size,) floats
    size : int
    alphas : (B | 1,) float64
    is_capped : bool
        Whether p is in the capped simplex; ``alphas`` is then 2.
    in_parameter : (B,) float64, written
        The products with the derivatives in α, or in k; or an array of size 0 if they are not needed.
    out : (B * size,) floats, 0 before, written
    """
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q, v, s = np.empty(size), np.empty(size), np.empty(size)
    for row in range(start, stop):
        begin, alpha = row * size, alphas[row % alphas.size]
        if alpha == 1 and not in_parameter.size:
            _softmax_vjp(p, g, begin, size, out)
            continue
        top = block_maxima(p, begin, size, maxima)
        if not top < np.inf:
            out[begin : begin + size] = np.nan
            if in_parameter.size:
                in_parameter[row] = np.nan if size else 0.0
            continue
        count = select(p, begin, size, maxima, SMALLEST_POSITIVE, index, q)
        if is_capped:
            count = _keep_below_1(index, q, count)
        for i in range(count):
            v[i] = g[begin + index[i]]
        mean = _apply_jacobian(q, v, s, count, alpha)
        for i in range(count):
            out[begin + index[i]] = v[i]
        if in_parameter.size:
            in_parameter[row] = mean if is_capped else _alpha_vjp(q, g, begin, index, v, s, count, alpha)


@jit
def _softmax_vjp(p, g, begin, size, out):
    """J g for α = 1, whose p are rarely 0."""
    q, v, product = p[begin : begin + size], g[begin : begin + size], out[begin : begin + size]
    total, mean = 0.0, 0.0
    for i in range(size):
        total += np.float64(q[i])
        mean += np.float64(q[i]) * np.float64(v[i])
    if total > 0:  # rounding may have left the sum beside 1
        mean /= total
    for i in range(size):
        product[i] = q[i] * (np.float64(v[i]) - mean)


@jit
def _keep_below_1(index, q, count):
    """Keep the numbers below 1, and return how many they are."""
    kept = 0
    for i in range(count):
        index[kept], q[kept] = index[i], q[i]
        kept += q[i] < 1
    return kept


@jit
def _apply_jacobian(p, v, s, count, alpha):
    """Replace ``v`` by J v, and write s. Return the mean of ``v`` with weights s if α is at most 2, and 0 otherwise."""
    if count == 0:
        return 0.0
    if alpha > 2:
        _apply_jacobian_above_2(p, v, s, count, alpha)
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
def _apply_jacobian_above_2(p, v, s, count, alpha):
    """The same for α > 2, from the differences to the v of the smallest p."""
    smallest = p[:count].argmin()
    log_p, shift = log(p[smallest]), v[smallest]
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
    # Infinite terms of both signs: keep the sign that the mean gives.
    v[smallest] = v[smallest] if np.isnan(others) else -others / total


@jit
def _alpha_vjp(p, g, begin, index, rates, s, count, alpha):
    """−⟨g, J D⟩. D is written to ``rates``."""
    for i in range(count):
        log_p = log(p[i])
        rates[i] = log_p * log_p * _phi((alpha - 1.0) * log_p)
    _apply_jacobian(p, rates, s, count, alpha)
    total = 0.0
    for i in range(count):
        total -= np.float64(g[begin + index[i]]) * rates[i]
    return total


@jit
def _phi(z):
    if z < -1:
        e = exp(z)
        return (1.0 - e + z * e) / (z * z)
    total = 0.0
    for k in range(_PHI_SERIES.size - 1, -1, -1):
        total = total * z + _PHI_SERIES[k]
    return total
