"""Marginals of rooted trees and their directional derivative, from the inverse of the Laplacian, compiled.

The computation is in float64, and its errors are small beside the rounding of float32 results. Importing this module
imports numba.

Let a[j, i] be the weights of :mod:`.elimination`, each column divided by its sum. M has the entries M[i, i] = 1 and
M[i, j] = −a[j, i] between words, and H is its inverse. By the matrix-tree theorem,

    μ[j, i] = a[j, i] (H[i, i] − H[j, i]),      μ[root, i] = a[root, i] H[i, i].

Gauss-Jordan elimination in place computes H by one pass over the matrix for each word. It stores absolute values, as
their signs are known: the walk over the words not yet eliminated, its probabilities of absorption, and the sums over
walks through the eliminated words. A pivot is a sum of weights, as in :mod:`.elimination`. So the inverse has no
subtraction, and each entry has a small relative error.

The derivative of H along v is −H Ṁ H, where Ṁ has the entries −a[j, i] v[j, i], and their sums on the diagonal.

Errors. The differences H[i, i] − H[j, i] are subtractions. Let r[j, i] be the difference divided by H[i, i], the
probability of :mod:`.marginals`. The relative error of μ[j, i] is a multiple of ε / r[j, i], and the error of the
derivative is a multiple of μ[j, i] max|v| Σ_i H[i, i] ε / r[j, i]. An instance is accurate if each r[j, i] is at least
1e-9 n², or 1e-9 n Σ_i H[i, i] for the derivative. Arcs with means that round to 0 in float32 do not count. Instances
with numbers above 2^300 are not accurate, so that no underflow changes a result.

Random scores have such r up to standard deviations of about 5. Other instances take the time of both algorithms, 1.1 to
1.7 times that of :mod:`.marginals` alone.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.simd.exp_log import exp, log
from structinf.kernels.simd.memory import address, row, rows, store_row, zero
from structinf.kernels.simd.vector import LANES, largest, maximum, minimum, reduce_sum, where_less

__all__ = ["value_and_mean32"]

_HIGH, _LOW = 2.0**300, 2.0**-300
_TINY = 2.0**-152  # rounds to 0 in float32
_BOUND = 1e-9


@jit
def _copy(scores, at, nodes, n, chunks, a):
    """Copy an instance to rows of whole vectors, padded with 0. The root's row becomes the last row."""
    for j in range(n + 1):
        first = at + (j + 1) * nodes if j < n else at
        to = j * chunks * LANES
        for i in range(n):
            a[to + i] = scores[first + i]
        for i in range(n, chunks * LANES):
            a[to + i] = 0.0


@jit
def _weigh(n, chunks, a, x, index):
    """Replace scores by weights in ``a``, one row for each head, and write the transposed weights to ``x``.

    Returns the sum of the logarithms of the columns' scales; −inf if a word has no head.
    """
    width = chunks * LANES
    for j in range(n):
        a[j * width + j] = -np.inf
    total, least = zero(a), 1 + zero(a)
    for c in range(chunks):
        top = zero(a) - 1e300
        for j in range(n + 1):
            top = maximum(top, row(a, j * chunks + c))
        mass = zero(a)
        for j in range(n + 1):
            weight = exp(row(a, j * chunks + c) - top)
            mass += weight
            store_row(a, j * chunks + c, weight)
        least = minimum(least, mass)
        total += where_less(row(index, c), n, top + log(mass), 0)
        inverse = 1 / mass
        for j in range(n + 1):
            store_row(a, j * chunks + c, row(a, j * chunks + c) * inverse)
        store_row(x, n * chunks + c, row(a, n * chunks + c))
    for i in range(n):
        for j in range(n):
            x[i * width + j] = a[j * width + i]
        for j in range(n, width):
            x[i * width + j] = 0.0
    return reduce_sum(total) if largest(0 - least) < -0.5 else -np.inf


@jit
def _invert(n, chunks, x, index, pivots):
    """Replace the weights in ``x`` by H, and the weights of the root, row n, by 0.

    Returns log det M; NaN if a pivot is too small.
    """
    width = chunks * LANES
    root = n * width
    for c in range(chunks):
        store_row(pivots, c, 1 + zero(x))
    for k in range(n - 1, -1, -1):
        last = k // LANES
        mass = zero(x)
        for c in range(last + 1):
            mass += where_less(row(index, c), k, row(x, k * chunks + c), 0)
        s = reduce_sum(mass) + x[root + k]
        if not s > _LOW:
            return np.nan
        pivots[k] = s
        inverse = 1 / s
        escape = x[root + k] * inverse
        for j in range(k):
            x[root + j] += x[j * width + k] * escape
        x[k * width + k] = 1 - s  # so that column k is multiplied by 1 + (1 − s) / s = 1 / s
        for step in range(chunks):
            c = (last + 1 + step) % chunks  # the vector with column k is the last
            v = row(x, k * chunks + c) * inverse
            for j in range(n):
                store_row(x, j * chunks + c, row(x, j * chunks + c) + v * x[j * width + k])
            store_row(x, k * chunks + c, v)
        x[k * width + k] = inverse
    total = zero(x)
    for c in range(chunks):
        store_row(x, n * chunks + c, zero(x))
        total += log(row(pivots, c))
    return reduce_sum(total)


@jit
def _diagonal(n, chunks, x, out):
    """Write the diagonal of ``x`` to ``out``, and return its sum."""
    total = 0.0
    for c in range(chunks):
        store_row(out, c, zero(out))
    for i in range(n):
        out[i] = x[i * chunks * LANES + i]
        total += out[i]
    return total


@jit
def _multiply(n, chunks, f, stride, step, x, out):
    """Write Σ_m F[i, m] x[m] to row i of ``out``, with F[i, m] = f[i · stride + m · step], two rows at a time.

    If n is odd, row n of ``out`` is scratch.
    """
    for i in range(0, n, 2):
        for c in range(chunks):
            first, second = zero(x), zero(x)
            for m in range(n):
                at = i * stride + m * step
                other = row(x, m * chunks + c)
                first += other * f[at]
                second += other * f[at + stride]
            store_row(out, i * chunks + c, first)
            store_row(out, (i + 1) * chunks + c, second)


@jit
def _derive(n, chunks, a, x, f, y, z):
    """Replace v by Ṁ in ``f``, and write H Ṁ H to ``z``. ``a`` has the weights, ``x`` has H, and ``y`` is scratch."""
    width = chunks * LANES
    for c in range(chunks):
        total = zero(a)
        for j in range(n + 1):
            weight = row(a, j * chunks + c)
            change = where_less(0, weight, weight * row(f, j * chunks + c), 0)
            total += change
            store_row(f, j * chunks + c, 0 - change)
        store_row(y, c, total)
    for i in range(n):
        f[i * width + i] = y[i]
    _multiply(n, chunks, f, 1, width, x, y)
    _multiply(n, chunks, x, width, 1, y, z)
    for c in range(chunks):
        store_row(z, n * chunks + c, zero(z))


@jit
def _write(out, at, nodes, n, chunks, a, x, diagonal, f, z, changes, bound):
    """Write marginals, or with ``f`` their derivatives, to ``out``. Return whether they are accurate."""
    width = chunks * LANES
    least = zero(a)
    for j in range(n + 1):
        for c in range(chunks):
            weight, whole = row(a, j * chunks + c), row(diagonal, c)
            difference = whole - row(x, j * chunks + c)
            mean = weight * difference
            least = minimum(least, mean - weight * whole * bound + _TINY)
            if f is not None:
                change = row(z, j * chunks + c) - row(changes, c)
                mean = weight * change - row(f, j * chunks + c) * difference
            store_row(a, j * chunks + c, mean)
        first = at + (j + 1) * nodes if j < n else at
        for i in range(n):
            out[first + i] = a[j * width + i]
    return largest(0 - least) <= 0


@jit
def value_and_mean32(start, stop, theta, v, lengths, value, out, is_accurate):
    """Compute log Z, and marginals or their derivative, of the instances start : stop.

    Parameters
    ----------
    theta : (B, n + 1, n + 1) float32
        Scores of the arcs.
    v : None, or as theta
        Direction of the derivative; None for marginals.
    lengths : (B,) int64
        Numbers of words.
    value : (B,) float64
        Written.
    out : as theta
        Written inside each length, except for column 0.
    is_accurate : (B,) bool
        Written: whether the results are accurate. Otherwise they may be wrong.
    """
    nodes = theta.shape[1]
    most = -(-nodes // LANES)
    a, x = rows(nodes * most, np.float64), rows(nodes * most, np.float64)
    extra = 0 if v is None else nodes * most
    f, y, z = rows(extra, np.float64), rows(extra, np.float64), rows(extra, np.float64)
    index, diagonal, other = rows(most, np.float64), rows(most, np.float64), rows(most, np.float64)
    for c in range(most):
        for i in range(LANES):
            index[c, i] = c * LANES + i
    for b in range(start, stop):
        n, at = lengths[b], b * nodes * nodes + 1
        chunks = -(-n // LANES)
        _copy(address(theta), at, nodes, n, chunks, address(a))
        value[b] = _weigh(n, chunks, address(a), address(x), address(index))
        value[b] += _invert(n, chunks, address(x), address(index), address(other))
        visits = _diagonal(n, chunks, address(x), address(diagonal))
        is_accurate[b] = value[b] > -np.inf and visits < _HIGH
        if not is_accurate[b]:
            continue
        if v is None:
            is_accurate[b] = _write(
                address(out), at, nodes, n, chunks, address(a), address(x), address(diagonal), None, None, None,
                _BOUND * n * n,
            )  # fmt: skip
        else:
            _copy(address(v), at, nodes, n, chunks, address(f))
            _derive(n, chunks, address(a), address(x), address(f), address(y), address(z))
            _diagonal(n, chunks, address(z), address(other))
            is_accurate[b] = _write(
                address(out), at, nodes, n, chunks, address(a), address(x), address(diagonal), address(f), address(z),
                address(other), _BOUND * n * visits,
            )  # fmt: skip
