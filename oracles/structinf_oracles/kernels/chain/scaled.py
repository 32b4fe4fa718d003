"""Sums over the tag sequences of a chain with one transition matrix for all steps: scaled matrix products.

With F = exp(A − max A) computed once, a step is s_t = a_{t−1} F, a_t ∝ s_t · exp(u_t), where each a_t is rescaled to
maximum 1. No exponential per edge is needed. Marginals are μ_t(i, j) = a_{t−1}(i) F(i, j) r_t(j), with r_t(j) =
μ_t(j) / s_t(j) and μ_{t−1}(i) = a_{t−1}(i) Σ_j F(i, j) r_t(j). Their sum over steps is F ∘ (aᵀ r).

Conditions for equality with the log domain. Numbers below the smallest normal number, ε₀, are lost. Let R be the
range of the finite scores in A, and limit = log(ε / ε₀) − log S − 4, with ε the precision (63 in float32, 665 in
float64, for S = 50).

- A has no −inf. From any two states, the sums over all continuations differ by at most the factor eᴿ. With maximum 1
  in a_{t−1}, s_t(j) ≥ e⁻ᴿ, which loses at most S ε₀ eᴿ of itself. The largest s_t(j) exp(u_t(j)) is also at least
  e⁻ᴿ. So a lost state has a_t < ε₀ eᴿ, and less than S ε₀ e²ᴿ of any later sum. For R up to limit / 2 this share is
  below ε, for all unary scores including −inf.
- A has −inf entries. A state of tiny a_t may be the only state with a continuation, and shrink further at each step.
  So every a_t(i) > 0 must stay above a floor, exp(R + U − limit), with U the largest range of the finite unary scores
  of one step. Then all following products are normal numbers, and nothing is lost.

Both conditions bound r_t ≤ 1 / s_t by exp(limit), so that weights and sums over a batch do not overflow. An instance
that violates the conditions gets log Z = nan, and is left to the log domain.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.scalar.exp_log import exp, log

__all__ = ["factors", "floor_of", "log_partition", "marginals"]


@jit
def factors(start, stop, transition, limit, factor, top, reserve):
    """Compute F and max A of each matrix of ``transition`` (R, S, S), and the constant of its floor.

    ``reserve`` is R − limit, −inf if the floor is 0, or +inf if only the log domain is accurate (F is then unset).
    """
    states = transition.shape[1]
    for r in range(start, stop):
        low, high, forbidden = np.inf, -np.inf, False
        for i in range(states):
            for j in range(states):
                x = transition[r, i, j]
                high = max(high, x)
                low = min(low, x if x > -np.inf else np.inf)
                forbidden |= x == -np.inf
        top[r] = high
        spread = high - low
        if not 0 <= spread <= (limit if forbidden else limit / 2):
            reserve[r] = np.inf
            continue
        reserve[r] = spread - limit if forbidden else -np.inf
        for i in range(states):
            for j in range(states):
                factor[r, i, j] = exp(transition[r, i, j] - transition.dtype.type(high))


@jit
def floor_of(unary, length, reserve):
    """Return the smallest positive a_t that is accurate; above 1 if none is."""
    if reserve == np.inf:
        return np.inf
    if reserve == -np.inf:
        return 0.0
    widest = 0.0
    for t in range(length):
        low, high = np.inf, -np.inf
        for x in unary[t]:
            high = max(high, x)
            low = min(low, x if x > -np.inf else np.inf)
        widest = max(widest, high - low)
    return exp(reserve + widest)


@jit
def _row_times_matrix(row, matrix, out):
    """Write ``row @ matrix`` to ``out``. Four rows of the matrix at once take a quarter of the passes over ``out``."""
    states = len(row)
    for j in range(states):
        out[j] = 0
    i = 0
    while i + 4 <= states:
        x0, x1, x2, x3 = row[i], row[i + 1], row[i + 2], row[i + 3]
        m0, m1, m2, m3 = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
        for j in range(states):
            out[j] += (x0 * m0[j] + x1 * m1[j]) + (x2 * m2[j] + x3 * m3[j])
        i += 4
    while i < states:
        x = row[i]
        for j in range(states):
            out[j] += x * matrix[i, j]
        i += 1


@jit
def _matrix_times_column(matrix, column, out):
    """Write ``matrix @ column`` to ``out``. Four rows at once take a quarter of the passes over ``column``."""
    states, zero = len(column), matrix.dtype.type(0)
    i = 0
    while i + 4 <= states:
        x0 = x1 = x2 = x3 = zero
        m0, m1, m2, m3 = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
        for j in range(states):
            x0 += m0[j] * column[j]
            x1 += m1[j] * column[j]
            x2 += m2[j] * column[j]
            x3 += m3[j] * column[j]
        out[i], out[i + 1], out[i + 2], out[i + 3] = x0, x1, x2, x3
        i += 4
    while i < states:
        total = zero
        for j in range(states):
            total += matrix[i, j] * column[j]
        out[i] = total
        i += 1


@jit
def _forward(unary, factor, top, reserve, length, a, s):
    """Fill the tables of a_t (row t) and s_t (row t − 1), (T, S), or (2, S) as rings; return log Z or nan."""
    rows, states = a.shape
    floor = floor_of(unary, length, reserve)
    if floor > 1:
        return np.nan
    total = np.float64(0)
    for t in range(length):
        new, sums, scores = a[t % rows], s[(t - 1) % rows], unary[t]
        peak = scores[0]
        for j in range(states):
            peak = max(peak, scores[j])
        if peak == -np.inf:
            return -np.inf
        if t == 0:
            for j in range(states):
                new[j] = exp(scores[j] - peak)
        else:
            _row_times_matrix(a[(t - 1) % rows], factor, sums)
            for j in range(states):
                new[j] = sums[j] * exp(scores[j] - peak)
            total += top
        high = low = a.dtype.type(0)
        for j in range(states):
            high = max(high, new[j])
        if high == 0:
            return -np.inf
        scale, low = 1 / high, a.dtype.type(1)
        for j in range(states):
            new[j] *= scale
            low = min(low, new[j] if new[j] > 0 else a.dtype.type(1))
        if low < floor:
            return np.nan
        total += peak + log(np.float64(high))
    end = np.float64(0)
    for x in a[(length - 1) % rows]:
        end += x
    return total + log(end)


@jit
def _backward(factor, length, weight, a, s, out_unary):
    """Replace s by r times ``weight``, and write the node marginals times ``weight``."""
    states = a.shape[1]
    node = np.empty(states, a.dtype)
    total = np.float64(0)
    for j in range(states):
        total += a[length - 1, j]
    for j in range(states):
        node[j] = a[length - 1, j] * (weight / total)
        out_unary[length - 1, j] = node[j]
    for t in range(length - 2, -1, -1):
        ratio, old = s[t], a[t]
        for j in range(states):
            ratio[j] = node[j] / ratio[j] if node[j] != 0 else 0
        _matrix_times_column(factor, ratio, node)
        for i in range(states):
            node[i] *= old[i]
            out_unary[t, i] = node[i]


@jit
def log_partition(start, stop, unary, factor, top, reserve, lengths, log_z):
    """Write log Z of the instances ``start:stop`` to ``log_z`` (B,) float64; nan if the log domain is needed."""
    a = np.empty((2, unary.shape[2]), unary.dtype)
    s = np.empty_like(a)
    for b in range(start, stop):
        r = min(b, factor.shape[0] - 1)
        log_z[b] = _forward(unary[min(b, unary.shape[0] - 1)], factor[r], top[r], reserve[r], lengths[b], a, s)


@jit
def marginals(start, stop, unary, factor, top, reserve, lengths, weight, log_z, a, ratio, out_unary):
    """Write node marginals (B, T, S) times ``weight``, and the tables a and r (B, T, S), r times ``weight``.

    The sum of edge marginals times ``weight`` is F ∘ (aᵀ r). Rows of the tables are 0 beyond the length, and for
    instances left to the log domain.
    """
    for b in range(start, stop):
        r, length = min(b, factor.shape[0] - 1), lengths[b]
        log_z[b] = _forward(unary[min(b, unary.shape[0] - 1)], factor[r], top[r], reserve[r], length, a[b], ratio[b])
        if log_z[b] > -np.inf:
            _backward(factor[r], length, weight[b], a[b], ratio[b], out_unary[b])
        else:
            length = 0
        for t in range(max(length - 1, 0), a.shape[1]):
            for j in range(a.shape[2]):
                ratio[b, t, j] = 0
                a[b, t, j] = 0
