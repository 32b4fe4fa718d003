"""Sums over rooted trees by elimination without subtractions, compiled. Importing this module imports numba.

Every word i picks one head j, another word or the root, with weight a[j, i] = exp θ[j, i]. The trees are the choices
without cycles. The weights are the steps of a random walk from word to head. Eliminating word k from the walk
(censoring) leaves a walk over the other nodes,

    s_k = Σ_j a[j, k],      p_k[j] = a[j, k] / s_k,      a[j, i] += a[k, i] p_k[j]   (j ≠ i),

and divides the sum over trees by s_k, so that log Z = Σ_k log s_k. Steps from a word to itself are dropped, not
subtracted. All terms are thus positive, and each number is accurate to a few units in its last place (Grassmann,
Taksar & Heyman 1985, Regenerative analysis and steady state distributions for Markov chains, Operations Research
33(5); O'Cinneide 1993, Numerische Mathematik 65, bounds the error).

Single root. Give the root's arcs an infinitesimal weight t a[0, i]. Z(t) is then t times the sum over the trees with
one root arc, plus terms of higher order. Row 0 of a chain holds the root's weights of order 1, and row 1 the weights
of order t. A pivot is the sum without row 1. If this sum is zero, the pivot is row 1, and the step to the root is
certain. If several root arcs are allowed, row 1 is zero and nothing changes.

Numbers. A number is x · 2^(600 e). If scores span less than about 340 nats per word, e = 0 throughout (``e is None``)
and x is a plain float64. The status OUT_OF_RANGE means that plain float64 did not suffice. With exponents, scores of
every range are exact. Derivatives ``d`` along a direction (``d is None``: not wanted) share the exponent of their
value. numba compiles a separate version for each set of None arguments, on first use.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.scalar.exp_log import exp, log

__all__ = [
    "BASE",
    "CHAIN",
    "ESCAPE",
    "HIGH",
    "INFEASIBLE",
    "INVERSE",
    "LN_BASE",
    "LOW",
    "OUT_OF_RANGE",
    "STEP",
    "add_row",
    "eliminate",
    "load_weights",
    "log_partition",
    "log_pivots",
    "log_scale",
    "padded",
    "workspace",
]

INFEASIBLE, OUT_OF_RANGE = -1, -2

# Planes of a workspace (level, plane, row, column). Rows of a chain: the root, the root at order t, then each word.
CHAIN, STEP, ESCAPE = 0, 1, 2

# x lies in [LOW, HIGH]. A product of any two of x, 1 / x, BASE and INVERSE is a normal number, so that the compiler
# may reorder sums and products.
BASE, INVERSE = 2.0**600, 2.0**-600
HIGH, LOW = 2.0**300, 2.0**-300
_LN_HIGH, _LN_LOW = (
    600 * 6.93147180369123816490e-01,
    600 * 1.90821492927058770002e-10,
)  # log 2: the first 33 bits, and the rest
LN_BASE = _LN_HIGH + _LN_LOW
# Without exponents no weight may be below this bound, so that no product of two weights underflows.
_FLOOR = 2.0**-500


@jit(inline=True)
def workspace(kinds, levels, n):
    """Return uninitialised memory for numbers of 1 to 3 kinds (x, e, d) in chains of ``n`` words.

    A row has space for one whole vector of 8 numbers more than needed.
    """
    return np.empty((kinds, levels, 3, n + 2, padded(n) + 8))


@jit(inline=True)
def padded(width):
    """Return ``width`` rounded up to whole vectors, as scalar loops over the remainder would take longer."""
    return (width + 7) & ~7


@jit(fastmath=False)
def load_weights(theta, b, v, x, e, d, n, single_root):
    """Write the weights exp(θ[j, i] − max_j θ[j, i]) of instance b to the chain of level 0.

    The maxima go to row n of the steps.

    Returns
    -------
    int
        0; 1 if some arc is forbidden; INFEASIBLE or OUT_OF_RANGE.
    """
    for i in range(n):
        x[0, CHAIN, 0, i], x[0, CHAIN, 1, i], x[0, STEP, n, i] = -np.inf, -np.inf, -np.inf
    for h in range(n + 1):
        row = 0 if h == 0 and not single_root else 1 + h
        for i in range(n):
            x[0, CHAIN, row, i] = theta[b, h, i + 1]
        if h > 0:
            x[0, CHAIN, row, h - 1] = -np.inf
        for i in range(n):
            score, top = x[0, CHAIN, row, i], x[0, STEP, n, i]
            x[0, STEP, n, i] = score if score > top else top
    for i in range(n):
        if x[0, STEP, n, i] == -np.inf:
            return INFEASIBLE

    zeros, small = 0, 0
    for j in range(n + 2):
        for i in range(n):
            score = x[0, CHAIN, j, i] - x[0, STEP, n, i]
            forbidden = score == -np.inf
            if e is None:
                weight = exp(score)
            else:
                exponent = np.rint(score * (1 / LN_BASE))
                weight = exp((score - exponent * _LN_HIGH) - exponent * _LN_LOW)
                # Beyond 1e16 the last place of θ is worth more than a factor of e, so the weight has no correct digits.
                weight = weight if score > -1e16 else (0.0 if forbidden else 1.0)
                e[0, CHAIN, j, i] = exponent
            x[0, CHAIN, j, i] = weight
            zeros += 1 if forbidden else 0
            small += 1 if weight < _FLOOR else 0
    if d is not None:
        for i in range(n):
            d[0, CHAIN, 0, i], d[0, CHAIN, 1, i] = 0.0, 0.0
        for h in range(n + 1):
            row = 0 if h == 0 and not single_root else 1 + h
            for i in range(n):
                weight = x[0, CHAIN, row, i]
                d[0, CHAIN, row, i] = weight * v[b, h, i + 1] if weight > 0 else 0.0
    if e is None and small > zeros:
        return OUT_OF_RANGE
    return 1 if zeros > 2 * n else 0  # the diagonal and one of the root's rows are always empty


@jit(fastmath=False)
def add_row(x, e, d, u, plane, i, k, f, fe, fd, width):
    """Add f · row k to row i, with exponents. A term may be dropped if it is at most 2^-300 of the other."""
    for c in range(width):
        source = x[u, plane, k, c]
        here = e[u, plane, i, c]
        there = fe + e[u, plane, k, c]
        gap = here - there  # NaN where both numbers are 0
        keep = 1.0 if gap >= 0 else (INVERSE if gap == -1 else 0.0)
        gain = 1.0 if gap <= 0 else (INVERSE if gap == 1 else 0.0)
        total = x[u, plane, i, c] * keep + f * source * gain
        above = total > HIGH
        below = total < LOW
        rescale = INVERSE if above else (BASE if below else 1.0)
        if d is not None:
            gained = f * d[u, plane, k, c] + fd * source
            d[u, plane, i, c] = (d[u, plane, i, c] * keep + gained * gain) * rescale
        x[u, plane, i, c] = total * rescale
        e[u, plane, i, c] = (here if gap >= 0 else there) + (1.0 if above else (-1.0 if below else 0.0))


@jit
def _pivot(x, e, d, u, k, sparse):
    """Write p_k to row k of the steps, followed by the pivot s_k (at 2 + k).

    Returns the order of s_k in t (0 or 1), INFEASIBLE or OUT_OF_RANGE.
    """
    row = 2 + k
    s, se, sd = 0.0, -np.inf, 0.0
    for j in range(row):
        x[u, STEP, k, j] = x[u, CHAIN, j, k]
        if d is not None:
            d[u, STEP, k, j] = d[u, CHAIN, j, k]
        if e is not None:
            exponent = e[u, CHAIN, j, k]
            e[u, STEP, k, j] = exponent
            se = exponent if exponent > se and j != 1 else se
    for j in range(row):
        weight = 0.0 if j == 1 else 1.0
        if e is not None:
            gap = se - e[u, STEP, k, j]
            weight *= 1.0 if gap == 0 else (INVERSE if gap == 1 else 0.0)
        s += weight * x[u, STEP, k, j]
        if d is not None:
            sd += weight * d[u, STEP, k, j]

    order = 0
    if s == 0:
        order = 1
        s = x[u, STEP, k, 1]
        if s == 0:
            return INFEASIBLE
        x[u, STEP, k, 0], x[u, STEP, k, 1] = s, 0.0
        if e is not None:
            se = e[u, STEP, k, 1]
            e[u, STEP, k, 0], e[u, STEP, k, 1] = se, -np.inf
        if d is not None:
            sd = d[u, STEP, k, 1]
            d[u, STEP, k, 0], d[u, STEP, k, 1] = sd, 0.0

    inverse, least = 1.0 / s, 1.0
    for j in range(row):
        p = x[u, STEP, k, j] * inverse
        rescale = 1.0
        if e is None:
            least = p if p > 0 and p < least else least
        else:
            above, below = p > HIGH, p < LOW
            rescale = INVERSE if above else (BASE if below else 1.0)
            e[u, STEP, k, j] += (1.0 if above else (-1.0 if below else 0.0)) - se
        if d is not None:
            d[u, STEP, k, j] = (d[u, STEP, k, j] - p * sd) * inverse * rescale
        x[u, STEP, k, j] = p * rescale
    x[u, STEP, k, row] = s
    if e is not None:
        e[u, STEP, k, row] = se
    if d is not None:
        d[u, STEP, k, row] = sd
    if e is None:
        if x[u, STEP, k, 1] * _FLOOR > 1:
            return OUT_OF_RANGE
        if sparse:
            # Sums only grow. So a weight can be below the floor only if a first product replaces a zero.
            for i in range(k):
                a = x[u, CHAIN, row, i]
                if a > 0 and a * least < _FLOOR:
                    return OUT_OF_RANGE

    # The rest of the last vector of k's row must be zeros, so that adding the row does not change other numbers.
    for i in range(k, padded(k)):
        x[u, CHAIN, row, i] = 0
        if e is not None:
            e[u, CHAIN, row, i] = -np.inf
        if d is not None:
            d[u, CHAIN, row, i] = 0
    return order


@jit
def _reroute(x, e, d, u, k, width):
    """Reroute the steps into word k: add p_k[j] · row of k to every row j of the chain above the row of k."""
    row = 2 + k
    if e is None:
        if d is not None:
            for j in range(row):
                f, fd = x[u, STEP, k, j], d[u, STEP, k, j]
                for c in range(width):
                    d[u, CHAIN, j, c] += f * d[u, CHAIN, row, c] + fd * x[u, CHAIN, row, c]
        for j in range(row):
            f = x[u, STEP, k, j]
            for c in range(width):
                x[u, CHAIN, j, c] += f * x[u, CHAIN, row, c]
    else:
        for j in range(row):
            f = x[u, STEP, k, j]
            if f > 0:
                fd = 0.0 if d is None else d[u, STEP, k, j]
                add_row(x, e, d, u, np.int64(CHAIN), j, row, f, e[u, STEP, k, j], fd, width)


@jit(inline=True)
def eliminate(x, e, d, u, size, keep, sparse):
    """Eliminate the words size − 1, ..., keep from the chain of level ``u``.

    Afterwards row k of the steps holds p_k and, at 2 + k, s_k. Row 2 + k of the chain holds the weights a[k, i] of
    the steps into k from the words i before k.

    Returns
    -------
    int
        Order in t of the product of the pivots, INFEASIBLE or OUT_OF_RANGE.
    """
    order = 0
    for k in range(size - 1, keep - 1, -1):
        status = _pivot(x, e, d, u, k, sparse)
        if status < 0:
            return status
        order += status
        _reroute(x, e, d, u, k, padded(k))
    return order


@jit
def log_pivots(x, e, u, size, keep):
    """Return Σ log s_k over the words eliminated from the chain of level ``u``."""
    total = 0.0
    for k in range(keep, size):
        total += log(x[u, STEP, k, 2 + k])
        if e is not None:
            total += LN_BASE * e[u, STEP, k, 2 + k]
    return total


@jit(inline=True)
def log_scale(x, n):
    """Return the sum of the maxima subtracted by :func:`load_weights`."""
    total = 0.0
    for i in range(n):
        total += x[0, STEP, n, i]
    return total


@jit
def log_partition(start, stop, theta, lengths, single_root, with_exponents, value, status):
    """Compute log Z of the instances start : stop.

    Parameters
    ----------
    theta : (B, n + 1, n + 1) float64
        Scores of the arcs.
    lengths : (B,) int64
        Numbers of words.
    single_root : bool
        Whether exactly one word has the root as its head.
    with_exponents : None or bool
        None: without exponents.
    value : (B,) float64
        Written; −inf if there is no tree.
    status : (B,) int64
        Read and written: only instances with OUT_OF_RANGE are computed, and they keep it if the value is missing.
    """
    n = theta.shape[1] - 1
    kinds = 1 if with_exponents is None else 2
    numbers = workspace(kinds, 1, n)
    x = numbers[0]
    e = None if with_exponents is None else numbers[1]
    for b in range(start, stop):
        if status[b] != OUT_OF_RANGE:
            continue
        size = lengths[b]
        code = load_weights(theta, b, None, x, e, None, size, single_root)
        if code >= 0:
            code = eliminate(x, e, None, 0, size, 0, code > 0)
        if code == OUT_OF_RANGE:
            continue
        status[b], value[b] = 0, -np.inf
        if code == 0 or code == 1:
            value[b] = log_scale(x, size) + log_pivots(x, e, 0, size, 0)
