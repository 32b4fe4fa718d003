"""Smoothed maxima of three scores, for many cells at once: the nodes of an alignment grid.

A regularizer is given by its α (`structinf.regularizers.Regularizer.alpha`): 1 is the negative entropy, 1 < α ≤ 2 a
Tsallis entropy, infinity no regularizer. Functions take None in place of 1, so that numba compiles no other map.
With d = x − max x for scores x, a = α − 1 and p = 1 / a,

    α = 1   q = exp d / Σ exp d,       max_Ω(x) − max x = log Σ exp d;
    α > 1   q = max(a d − t, 0)^p,     max_Ω(x) − max x = (1 − 1/α) ⟨q, d⟩ + (t + 1) / (α a),

where t in [−1, 0) makes Σ q = 1. Sorting finds t for α = 2 (A. F. T. Martins & R. F. Astudillo, From softmax to
sparsemax, ICML 2016, algorithm 1) and α = 1.5 (B. Peters, V. Niculae & A. F. T. Martins, Sparse sequence-to-sequence
models, ACL 2019, §3). Newton's method finds t for other α.

The numbers lie in the rows of three arrays. Each of the first ``width`` columns is a node:

    d (4, L) float64    rows 0-2: differences d of the three scores, all −inf if the scores are; row 3: max x
    q (5, L) float64    rows 0-2: probabilities q, 0 if all scores are −inf; row 3: t, and later the gain max_Ω − max;
                        row 4: for the caller
    f (3, L)            packed probabilities, and scratch memory, in θ's dtype; exp and log use this dtype, and are
                        twice as fast in float32

The columns are independent. The normalisation Σ q = 1 is computed in float64, so that rounding errors of exp do not
add up along a path.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.scalar.exp_log import exp, log
from structinf.kernels.scalar.min_max import maximum, minimum
from structinf.kernels.scalar.sign_bit import clear_sign_bit, has_sign_bit, mark

__all__ = ["curvature", "smooth_max", "unpack_probabilities"]

_MAX_STEPS = 64
_TOLERANCE = 4e-16


# This function is inlined, so that the caller chooses the loop. A compiled function with branches would count
# references to its arrays, atomically, at every call.


@jit(inline=True)
def smooth_max(alpha, width, d, q, f, is_stored):
    """Write the gain of the maximum to ``q[3]`` and, if ``is_stored``, the packed probabilities to ``f``.

    Unless α is 1, the probabilities are also in ``q``.
    """
    if alpha is None:
        _softmax(width, d, q, f)
    elif alpha == np.inf:
        if is_stored:
            _argmax(width, d, q)
            _pack_probabilities(width, d, q, f)
        _no_gain(width, q)
    else:
        if alpha == 2:
            _sparsemax(width, d, q)
        elif alpha == 1.5:
            _entmax_three_halves(width, d, q)
        else:
            _entmax(alpha, width, d, q)
        if is_stored:
            _pack_probabilities(width, d, q, f)
        _gain(alpha, width, d, q)


# ----------------------------------------------------------------------------- maxima


@jit
def _no_gain(width, q):
    for c in range(width):
        q[3, c] = 0.0


@jit
def _gain(alpha, width, d, q):
    weight, height = 1.0 - 1.0 / alpha, 1.0 / (alpha * (alpha - 1.0))
    for c in range(width):
        mean = q[0, c] * d[0, c] if q[0, c] > 0 else 0.0
        mean += q[1, c] * d[1, c] if q[1, c] > 0 else 0.0
        mean += q[2, c] * d[2, c] if q[2, c] > 0 else 0.0
        q[3, c] = weight * mean + height * (q[3, c] + 1.0)


# ----------------------------------------------------------------------------- probabilities


@jit
def _argmax(width, d, q):
    for c in range(width):
        q[0, c] = 1.0 if d[0, c] == 0 else 0.0
        q[1, c] = 1.0 - q[0, c] if d[1, c] == 0 else 0.0
        q[2, c] = 1.0 - q[0, c] - q[1, c] if d[2, c] == 0 else 0.0


@jit
def _softmax(width, d, q, f):
    """Write packed probabilities, and the gain log Σ exp d. Two exponentials suffice, since the largest is 1."""
    kind = f.dtype.type
    for c in range(width):
        f[0, c], f[1, c], f[2, c] = d[0, c], d[1, c], d[2, c]
    for c in range(width):
        x, y, z = f[0, c], f[1, c], f[2, c]
        second, third = (x != 0) & (y == 0), (x != 0) & (y != 0)
        a, b = exp(x if x != 0 else y), exp(y if third else z)
        total = kind(1) + a + b
        scale = kind(1) / total
        f[0, c], f[1, c], f[2, c] = mark(scale * a, second), mark(scale * b, third), total
    for c in range(width):
        f[2, c] = log(f[2, c])
    for c in range(width):
        q[3, c] = f[2, c]


@jit
def _sparsemax(width, d, q):
    """Set t to the largest of the three candidates, for one, two or three scores of positive probability."""
    for c in range(width):
        large, small = maximum(d[0, c], d[1, c]), minimum(d[0, c], d[1, c])
        middle, low = maximum(small, minimum(large, d[2, c])), minimum(small, d[2, c])
        t = maximum(maximum(-1.0, 0.5 * (middle - 1.0)), (middle + low - 1.0) / 3.0)
        q[0, c], q[1, c], q[2, c] = maximum(d[0, c] - t, 0.0), maximum(d[1, c] - t, 0.0), maximum(d[2, c] - t, 0.0)
        q[3, c] = t


@jit
def _entmax_three_halves(width, d, q):
    """Set t to the smaller root of a quadratic in the scores of positive probability.

    These scores lie above −1 and above t.
    """
    for c in range(width):
        large, small = maximum(d[0, c], d[1, c]), minimum(d[0, c], d[1, c])
        middle = maximum(0.5 * maximum(small, minimum(large, d[2, c])), -1.0)
        low = maximum(0.5 * minimum(small, d[2, c]), -1.0)
        mean = (middle + low) / 3.0
        spread = (middle * middle + low * low) / 3.0 - mean * mean
        of_three = mean - np.sqrt(maximum(1.0 / 3.0 - spread, 0.0))
        of_two = 0.5 * (middle - np.sqrt(2.0 - middle * middle))
        t = of_three if of_three <= low else of_two
        r0, r1 = maximum(0.5 * d[0, c] - t, 0.0), maximum(0.5 * d[1, c] - t, 0.0)
        r2 = maximum(0.5 * d[2, c] - t, 0.0)
        q[0, c], q[1, c], q[2, c], q[3, c] = r0 * r0, r1 * r1, r2 * r2, t


@jit
def _entmax(alpha, width, d, q):
    """Solve N(t) = (Σ q)^a = 1 by Newton's method from t = −1.

    As N is convex and decreasing, no step passes the root.
    """
    a = alpha - 1.0
    power = 1.0 / a
    for c in range(width):
        q[3, c] = -1.0
    for _ in range(_MAX_STEPS):
        longest = 0.0
        for c in range(width):
            t = q[3, c]
            r0, r1, r2 = maximum(a * d[0, c] - t, 0.0), maximum(a * d[1, c] - t, 0.0), maximum(a * d[2, c] - t, 0.0)
            s0, s1, s2 = exp((power - 1.0) * log(r0)), exp((power - 1.0) * log(r1)), exp((power - 1.0) * log(r2))
            q[0, c], q[1, c], q[2, c] = s0 * r0, s1 * r1, s2 * r2
            # (N − 1) / |N′| with N′ = −Σ s (Σ q)^(a − 1). Σ q is below 1 only by rounding, or if no score is finite.
            total = maximum(s0 * r0 + s1 * r1 + s2 * r2, 1.0)
            step = (total - exp((1.0 - a) * log(total))) / maximum(s0 + s1 + s2, 1e-300)
            # A column that has converged stays fixed while other columns iterate.
            q[3, c] = t + step if step > _TOLERANCE else t
            longest = maximum(longest, step)
        if longest <= _TOLERANCE:
            break


# ----------------------------------------------------------------------------- packed probabilities
#
# Two of the three probabilities are stored, the smaller two, in order. The largest is 1 minus their sum, and the sign
# bits of the two tell its place. So rounding errors do not add up along a path, and probabilities of 0 stay 0.


@jit
def _pack_probabilities(width, d, q, f):
    kind = f.dtype.type
    for c in range(width):
        x, y, p0, p1, p2 = d[0, c], d[1, c], q[0, c], q[1, c], q[2, c]
        second, third = (x != 0) & (y == 0), (x != 0) & (y != 0)
        f[0, c], f[1, c] = mark(kind(p0 if x != 0 else p1), second), mark(kind(p1 if third else p2), third)


@jit(inline=True)
def unpack_probabilities(a, b):
    """Return the three probabilities; the last is 1 if no score is finite."""
    second, third = has_sign_bit(a), has_sign_bit(b)
    p, r = np.float64(clear_sign_bit(a)), np.float64(clear_sign_bit(b))
    largest = 1.0 - p - r
    return p if second | third else largest, largest if second else r if third else p, largest if third else r


# ----------------------------------------------------------------------------- curvatures


@jit
def curvature(alpha, width, q, s):
    """Write s = q^(2 − α), 0 where q is 0 or α is infinity. The Hessian of max_Ω is diag(s) − s sᵀ / Σ s."""
    for k in range(3):
        if alpha is None:
            for c in range(width):
                s[k, c] = q[k, c]
        elif alpha == 1.5:
            for c in range(width):
                s[k, c] = np.sqrt(q[k, c])
        elif alpha == 2 or alpha == np.inf:
            one = 1.0 if alpha == 2 else 0.0
            for c in range(width):
                s[k, c] = one if q[k, c] > 0 else 0.0
        else:
            for c in range(width):
                s[k, c] = exp((2.0 - alpha) * log(q[k, c]))
