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
from .support import BLOCK, SMALLEST_POSITIVE, block_maxima, fill, select
from .torch_backend import PHI_SERIES

__all__ = ["softmax_vjp", "sparsemax_vjp", "vjp", "vjp_above_2", "vjp_with_alpha"]

_PHI_SERIES = np.array(PHI_SERIES)


@jit
def softmax_vjp(start, stop, p, g, size, out):
    """Write J g of each row for α = 1, without a selection of the support, since softmax is rarely 0."""
    for row in range(start, stop):
        begin, total, mean = row * size, 0.0, 0.0
        for i in range(begin, begin + size):
            total += np.float64(p[i])
            mean += np.float64(p[i]) * np.float64(g[i])
        if total > 0:  # the sum may differ from 1 by rounding
            mean /= total
        for i in range(begin, begin + size):
            out[i] = p[i] * (np.float64(g[i]) - mean)


@jit
def sparsemax_vjp(start, stop, p, g, size, is_capped, in_parameter, out):
    """Write J g of each row for α = 2 or for the capped simplex, and the product with the derivative in k.

    Parameters
    ----------
    is_capped : bool
        Whether p is in the capped simplex.
    in_parameter : (B,) float64, written
        The product with the derivative with respect to k. If the product is not needed, an array of size 0.

    The other parameters are those of :func:`vjp`.
    """
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q = np.empty(size)
    for row in range(start, stop):
        begin, mean = row * size, 0.0
        top = block_maxima(p, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
            mean = np.nan if size else 0.0
        else:
            count = select(p, begin, size, maxima, SMALLEST_POSITIVE, index, q)
            if is_capped:
                count = _keep_below_1(index, q, count)
            for i in range(count):
                mean += np.float64(g[begin + index[i]])
            mean = mean / count if count else 0.0
            for i in range(count):
                out[begin + index[i]] = np.float64(g[begin + index[i]]) - mean
        if in_parameter.size:
            in_parameter[row] = mean


@jit
def vjp(start, stop, p, g, size, alphas, out):
    """Write J g of each row for any α up to 2: each row may have its own. Without powers, α = 1.5 compiles faster.

    Parameters
    ----------
    p, g : (B * size,) floats
        The probabilities, and the cotangents.
    size : int
        The length of a row.
    alphas : None or (B | 1,) float64
        None for α = 1.5, or the α of each row.
    out : (B * size,) floats, initially zero, written
        J g.
    """
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q, v, s = np.empty(size), np.empty(size), np.empty(size)
    for row in range(start, stop):
        begin = row * size
        top = block_maxima(p, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
            continue
        count = select(p, begin, size, maxima, SMALLEST_POSITIVE, index, q)
        for i in range(count):
            v[i] = g[begin + index[i]]
        if alphas is None:
            _write_roots(q, s, count)
        else:
            _write_powers(q, s, count, alphas[row % alphas.size])
        _apply_jacobian(v, s, count)
        for i in range(count):
            out[begin + index[i]] = v[i]


@jit
def vjp_above_2(start, stop, p, g, size, alphas, out):
    """Write J g of each row for α > 2. The parameters are those of :func:`vjp`."""
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q, v, s = np.empty(size), np.empty(size), np.empty(size)
    for row in range(start, stop):
        begin = row * size
        top = block_maxima(p, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
            continue
        count = select(p, begin, size, maxima, SMALLEST_POSITIVE, index, q)
        if count == 0:
            continue
        for i in range(count):
            v[i] = g[begin + index[i]]
        _apply_jacobian_above_2(q, v, s, count, alphas[row % alphas.size])
        for i in range(count):
            out[begin + index[i]] = v[i]


@jit
def vjp_with_alpha(start, stop, p, g, size, alphas, in_alpha, out):
    """Write J g of each row for any α, and the product with the derivative in α.

    Parameters
    ----------
    in_alpha : (B,) float64, written
        The product with the derivative with respect to α. If the product is not needed, an array of size 0.

    The other parameters are those of :func:`vjp`.
    """
    maxima, index = np.empty((size + BLOCK - 1) // BLOCK), np.empty(size, np.int32)
    q, v, s = np.empty(size), np.empty(size), np.empty(size)
    for row in range(start, stop):
        begin, alpha = row * size, alphas[row % alphas.size]
        if alpha == 1 and not in_alpha.size:
            softmax_vjp(row, row + 1, p, g, size, out)
            continue
        top = block_maxima(p, begin, size, maxima)
        if not top < np.inf:
            fill(out, begin, size, np.nan)
            if in_alpha.size:
                in_alpha[row] = np.nan if size else 0.0
            continue
        count = select(p, begin, size, maxima, SMALLEST_POSITIVE, index, q)
        for i in range(count):
            v[i] = g[begin + index[i]]
        _apply_any_jacobian(q, v, s, count, alpha)
        for i in range(count):
            out[begin + index[i]] = v[i]
        if in_alpha.size:
            in_alpha[row] = _alpha_vjp(q, g, begin, index, v, s, count, alpha)


@jit
def _keep_below_1(index, q, count):
    """Keep the numbers below 1, and return their count."""
    kept = 0
    for i in range(count):
        index[kept], q[kept] = index[i], q[i]
        kept += q[i] < 1
    return kept


@jit
def _apply_any_jacobian(p, v, s, count, alpha):
    """Replace ``v`` by J v, and write s."""
    if count:
        if alpha > 2:
            _apply_jacobian_above_2(p, v, s, count, alpha)
        else:
            _write_powers(p, s, count, alpha)
            _apply_jacobian(v, s, count)


@jit
def _write_roots(p, s, count):
    """Write s for α = 1.5."""
    for i in range(count):
        s[i] = math.sqrt(p[i])


@jit
def _write_powers(p, s, count, alpha):
    """Write s for α up to 2."""
    if alpha == 1.5:
        _write_roots(p, s, count)
    elif alpha == 1 or alpha == 2:
        for i in range(count):
            s[i] = p[i] if alpha == 1 else 1.0
    else:
        for i in range(count):
            s[i] = exp(log(p[i]) * (2.0 - alpha))


@jit
def _apply_jacobian(v, s, count):
    """Replace ``v`` by J v, for α up to 2."""
    total, mean = 0.0, 0.0
    for i in range(count):
        total += s[i]
        mean += s[i] * v[i]
    if total > 0:
        mean /= total
    for i in range(count):
        v[i] = s[i] * (v[i] - mean)


@jit
def _apply_jacobian_above_2(p, v, s, count, alpha):
    """Replace ``v`` by J v for α > 2, computed from differences to the v of the smallest p. Write s."""
    smallest = 0
    for i in range(1, count):
        smallest = i if p[i] < p[smallest] else smallest
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
    _apply_any_jacobian(p, rates, s, count, alpha)
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
