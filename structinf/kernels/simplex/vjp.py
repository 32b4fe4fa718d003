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

do not cancel against s_i, and are finite whenever the other s are finite.

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
    """Write J g of each row, and the product of g with the derivative with respect to α or k.

    Parameters
    ----------
    p, g : (B * size,) floats
        The probabilities, and the cotangents.
    size : int
        The length of a row.
    alphas : (B | 1,) float64
        The α of each row.
    is_capped : bool
        Whether p is in the capped simplex. Then ``alphas`` is 2.
    in_parameter : (B,) float64, written
        The product with the derivative with respect to α or k. If the product is not needed, an array of size 0.
    out : (B * size,) floats, initially zero, written
        J g.
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
    """Write J g for α = 1, without a selection of the support, since softmax is rarely 0."""
    q, v, product = p[begin : begin + size], g[begin : begin + size], out[begin : begin + size]
    total, mean = 0.0, 0.0
    for i in range(size):
        total += np.float64(q[i])
        mean += np.float64(q[i]) * np.float64(v[i])
    if total > 0:  # the sum may differ from 1 by rounding
        mean /= total
    for i in range(size):
        product[i] = q[i] * (np.float64(v[i]) - mean)


@jit
def _keep_below_1(index, q, count):
    """Keep the numbers below 1, and return their count."""
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
    """Replace ``v`` by J v for α > 2, computed from differences to the v of the smallest p. Write s."""
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
    # If the sum has infinite terms of both signs, keep the value computed from the mean.
    v[smallest] = v[smallest] if np.isnan(others) else -others / total


@jit
def _alpha_vjp(p, g, begin, index, rates, s, count, alpha):
    """Return −⟨g, J D⟩. ``rates`` and ``s`` are scratch."""
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
