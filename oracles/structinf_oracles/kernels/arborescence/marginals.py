"""Marginals of rooted trees, and their directional derivative, compiled. Importing this module imports numba.

By the matrix-tree theorem, P(j is the head of i) = a[j, i] (G[i, i] − G[j, i]), where G is the inverse of the
Laplacian. G[i, i] = 1 / s_i if i is eliminated last. G[j, i] is G[i, i] times the probability that the walk from j
(see :mod:`.elimination`) meets i before the root. Hence

    μ[j, i] = a[j, i] r[j, i] / s_i,      r[j, i] = P(the walk from j meets the root before i).

The formula has no subtraction, so each marginal has a small relative error. Recursive halving makes every word the
last one: a set of words is split in two, and each half is solved in the walk without the other half. For an
eliminated word k, r[k, i] = p_k[root] + Σ_j p_k[j] r[j, i], summed over the words j eliminated after k. All words
together cost O(n³), about four plain eliminations. Only the leading order in t of each r[·, i] is kept, the order of
the final pivot s_i.

Without exponents, an escape probability r below 2^-1022 is rounded to 0. As the pivots are above 2^-500, only
marginals below 1e-150 are affected.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.scalar.exp_log import log

from .elimination import (
    BASE,
    CHAIN,
    ESCAPE,
    INFEASIBLE,
    INVERSE,
    LN_BASE,
    OUT_OF_RANGE,
    STEP,
    add_row,
    eliminate,
    load_weights,
    log_pivots,
    log_scale,
    padded,
    workspace,
)

__all__ = ["value_and_mean"]


@jit
def _descend(numbers, level, size, first, keep):
    """Copy the chain of ``level`` to the next level, with the words first : first + keep in front."""
    # Unsigned indices, as loops over signed indices, which might be negative, are not vectorised.
    up, n, skip, kept = np.uint64(level), np.uint64(size), np.uint64(first), np.uint64(keep)
    down, two = up + np.uint64(1), np.uint64(2)
    first_kept = np.uint64(0) if skip > np.uint64(0) else kept
    for kind in range(numbers.shape[0]):
        for i in range(n + two):
            source = i if i < two else (i + skip if i < kept + two else i - kept + first_kept)
            for c in range(kept):
                numbers[kind, down, CHAIN, i, c] = numbers[kind, up, CHAIN, source, skip + c]
            for c in range(n - kept):
                numbers[kind, down, CHAIN, i, kept + c] = numbers[kind, up, CHAIN, source, first_kept + c]


@jit
def _ascend(numbers, level, size, first, keep):
    """Copy the escapes of the next level to columns first : first + keep of ``level``, in the old word order."""
    up, n, skip, kept = np.uint64(level), np.uint64(size), np.uint64(first), np.uint64(keep)
    down = up + np.uint64(1)
    first_kept = np.uint64(0) if skip > np.uint64(0) else kept
    for kind in range(numbers.shape[0]):
        for i in range(n):
            target = i + skip if i < kept else i - kept + first_kept
            for c in range(kept):
                numbers[kind, up, ESCAPE, target, skip + c] = numbers[kind, down, ESCAPE, i, c]


@jit
def _start_escapes(numbers, u, size, keep, orders, base):
    """Write the escapes of eliminated words in one step: p_k[root], in the order in t of each last word's pivot."""
    for kind in range(numbers.shape[0]):
        for k in range(keep, size):
            for c in range(keep):
                numbers[kind, u, ESCAPE, k, c] = numbers[kind, u, STEP, k, orders[base + c]]


@jit
def _add_escapes(x, e, d, u, k, width):
    """Add the escapes of word k in more steps: its row += Σ_j p_k[j] · row j over the words j before k."""
    if e is None:
        if d is not None:
            for j in range(k):
                f, fd = x[u, STEP, k, 2 + j], d[u, STEP, k, 2 + j]
                for c in range(width):
                    d[u, ESCAPE, k, c] += f * d[u, ESCAPE, j, c] + fd * x[u, ESCAPE, j, c]
        # Four rows at a time, as each pass waits for the stores of the pass before.
        for quarter in range(k // 4):
            j = 4 * quarter
            f0, f1 = x[u, STEP, k, 2 + j], x[u, STEP, k, 3 + j]
            f2, f3 = x[u, STEP, k, 4 + j], x[u, STEP, k, 5 + j]
            for c in range(width):
                x[u, ESCAPE, k, c] += (f0 * x[u, ESCAPE, j, c] + f1 * x[u, ESCAPE, j + 1, c]) + (
                    f2 * x[u, ESCAPE, j + 2, c] + f3 * x[u, ESCAPE, j + 3, c]
                )
        for j in range(k - k % 4, k):
            f = x[u, STEP, k, 2 + j]
            for c in range(width):
                x[u, ESCAPE, k, c] += f * x[u, ESCAPE, j, c]
    else:
        for j in range(k):
            f = x[u, STEP, k, 2 + j]
            if f > 0:
                fd = 0.0 if d is None else d[u, STEP, k, 2 + j]
                add_row(x, e, d, u, np.int64(ESCAPE), k, j, f, e[u, STEP, k, 2 + j], fd, width)


@jit
def _finish_last_word(x, e, d, level, base):
    """Store the pivot of the single remaining word, and an escape of 0 from the word itself.

    Returns the pivot's order in t, or INFEASIBLE.
    """
    order = 1 if x[level, CHAIN, 0, 0] == 0 else 0
    if x[level, CHAIN, order, 0] == 0:
        return INFEASIBLE
    x[0, STEP, 0, base], x[level, ESCAPE, 0, 0] = x[level, CHAIN, order, 0], 0.0
    if e is not None:
        e[0, STEP, 0, base], e[level, ESCAPE, 0, 0] = e[level, CHAIN, order, 0], -np.inf
    if d is not None:
        d[0, STEP, 0, base], d[level, ESCAPE, 0, 0] = d[level, CHAIN, order, 0], 0.0
    return order


@jit(inline=True)
def _solve_each_last(numbers, x, e, d, n, sparse, stack):
    """Compute escapes r (level 0) and final pivots s (level 0, row 0 of the steps) for each word as the last.

    Parameters
    ----------
    stack : (5, n + levels) int64
        Written: row 0 holds the order in t of each word's final pivot. Rows 1 to 4 hold, for the set at each level,
        its first word, its size, the visits, and the order in t of the pivots so far.

    Returns
    -------
    status : int
        0, INFEASIBLE or OUT_OF_RANGE.
    value : float
        Σ log of the pivots of one elimination, without the pivot of the last word, word 0.
    """
    orders, bases, sizes, visits, spent = stack[0], stack[1], stack[2], stack[3], stack[4]
    bases[0], sizes[0], visits[0], spent[0] = 0, n, 0, 0
    status, value = 0, 0.0
    level = np.int64(0)  # a literal 0 would make numba compile the functions below once more
    while level >= 0 and status >= 0:
        size, base, visit = sizes[level], bases[level], visits[level]
        half = size // 2
        if size == 1:
            status = _finish_last_word(x, e, d, level, base)
            orders[base] = status
            if spent[level] + status > 1:
                status = INFEASIBLE
            level -= 1
            continue
        if visit > 0:  # return from the half kept in the last visit
            first = 0 if visit == 1 else half
            keep = half if visit == 1 else size - half
            _start_escapes(numbers, level + 1, size, keep, orders, base + first)
            for k in range(keep, size):
                _add_escapes(x, e, d, level + 1, k, padded(keep))
            _ascend(numbers, level, size, first, keep)
        if visit == 2:
            level -= 1
            continue
        first = 0 if visit == 0 else half
        keep = half if visit == 0 else size - half
        visits[level] += 1
        _descend(numbers, level, size, first, keep)
        status = eliminate(x, e, d, level + 1, size, keep, sparse)
        if base + first == 0 and status >= 0:
            value += log_pivots(x, e, level + 1, size, keep)
        bases[level + 1], sizes[level + 1], visits[level + 1] = base + first, keep, 0
        spent[level + 1] = spent[level] + status
        level += 1
    return status, value


@jit(fastmath=False)
def _write_marginals(x, e, d, v, b, n, single_root, orders, means, product):
    """Write μ[j, i] = a[j, i] r[j, i] / s_i to ``means``, and its derivative along v to ``product``."""
    # The escape from the root is certain. But an arc of order t is negligible beside a pivot of order 1.
    for i in range(n):
        x[0, ESCAPE, n, i] = 0.0 if single_root and orders[i] == 0 else 1.0
        if e is not None:
            e[0, ESCAPE, n, i] = 0
        if d is not None:
            d[0, ESCAPE, n, i] = 0
            d[0, STEP, 0, i] /= x[0, STEP, 0, i]
        x[0, STEP, 0, i] = 1 / x[0, STEP, 0, i]
    for h in range(n + 1):
        row = 0 if h == 0 and not single_root else 1 + h
        head = h - 1 if h > 0 else n
        for i in range(n):
            escape = x[0, ESCAPE, head, i]
            mean = x[0, CHAIN, row, i] * x[0, STEP, 0, i]
            if e is not None:
                # In this order no product overflows. A mean is at most 1, and means below 2^-600 may become 0.
                rescale = INVERSE if mean > 1 else 1.0
                exponent = e[0, CHAIN, row, i] - e[0, STEP, 0, i] + e[0, ESCAPE, head, i] + (1.0 if mean > 1 else 0.0)
                mean *= rescale
                mean *= 1.0 if exponent == 0 else (INVERSE if exponent == -1 else (BASE if exponent == 1 else 0.0))
            mean *= escape
            if means is not None:
                means[b, h, i + 1] = mean
            if d is not None:
                slope = v[b, h, i + 1] - d[0, STEP, 0, i] + d[0, ESCAPE, head, i] / escape
                product[b, h, i + 1] = mean * slope if mean > 0 else 0.0


@jit
def value_and_mean(start, stop, theta, v, lengths, single_root, with_exponents, value, means, product, status):
    """Compute log Z, marginals and their derivative along ``v`` of the instances start : stop.

    Parameters
    ----------
    theta : (B, n + 1, n + 1) float64
        Scores of the arcs.
    v : None, or as theta
        Direction of the derivative.
    lengths : (B,) int64
        Numbers of words.
    single_root : bool
        Whether exactly one word has the root as its head.
    with_exponents : None or bool
        None: without exponents.
    value : (B,) float64
        Written; −inf if there is no tree.
    means : None, or as theta
        Marginals, written inside each length, except for column 0.
    product : None, or as theta
        Derivative of the marginals, written in the same places; None without ``v``.
    status : (B,) int64
        Read and written: only instances with OUT_OF_RANGE are computed, and they keep it if results are missing.
    """
    n = theta.shape[1] - 1
    levels = 2
    while (1 << (levels - 2)) < n:
        levels += 1
    kinds = (1 if with_exponents is None else 2) + (0 if v is None else 1)
    numbers = workspace(kinds, levels, n)
    x = numbers[0]
    e = None if with_exponents is None else numbers[1]
    d = None if v is None else numbers[kinds - 1]
    stack = np.empty((5, n + levels), np.int64)
    for b in range(start, stop):
        if status[b] != OUT_OF_RANGE:
            continue
        size = lengths[b]
        status[b], value[b] = 0, -np.inf
        code, total = load_weights(theta, b, v, x, e, d, size, single_root), 0.0
        if code >= 0:
            code, total = _solve_each_last(numbers, x, e, d, size, code > 0, stack)
        if code == OUT_OF_RANGE:
            status[b] = OUT_OF_RANGE
        if code >= 0:
            value[b] = total + log_scale(x, size) + log(x[0, STEP, 0, 0])
            if with_exponents is not None:
                value[b] += LN_BASE * numbers[1, 0, STEP, 0, 0]
            _write_marginals(x, e, d, v, b, size, single_root, stack[0], means, product)
