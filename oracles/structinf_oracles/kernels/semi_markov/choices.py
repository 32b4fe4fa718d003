"""One choice of a recursion: max_Ω of x(k) = a(k) + b(k) over ``count`` neighbours in memory, 16 at a time.

Ω is the negative entropy, or with ``is_hard`` no regularizer. With top = max x, the probabilities and their derivatives
along dx = da + db are

    q = exp((x − top) − t),   max_Ω x = top + t,   dmax = m = Σ q dx,   dq = q (dx − m).

top and t are separate, since t would lose its digits in the sum if top is large. If all x are −inf, top and t are 0 in
memory, so that q is 0. Vectors may read, and write unchanged, up to 15 numbers behind the last one, so each array has
LANES numbers more than its contents. All numbers are float64. ``lanes`` is the array 0, 1, ..., 15.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.simd.exp_log import exp, log
from structinf.kernels.simd.vector import LANES, largest, load, maximum, reduce_sum, store, where_less

__all__ = ["chosen", "mean_change", "smooth_max", "spread_flow", "spread_flow_tangent"]


@jit(inline=True)
def _scores(a, i, b, j, k, count, lanes):
    """Return x of the vector from k on, −inf beyond ``count``."""
    return where_less(load(lanes, 0) + k, count, load(a, i + k) + load(b, j + k), -np.inf)


@jit
def smooth_max(a, i, b, j, count, lanes, is_hard):
    """Return top and t for ``a`` from i on and ``b`` from j on; −inf and 0 if all x are −inf."""
    best = -np.inf
    for k in range(0, count, LANES):
        best = maximum(best, _scores(a, i, b, j, k, count, lanes))
    top = largest(best + (load(lanes, 0) - load(lanes, 0)))
    if is_hard or top == -np.inf:
        return top, 0.0
    total = load(lanes, 0) - load(lanes, 0)
    for k in range(0, count, LANES):
        total += exp(_scores(a, i, b, j, k, count, lanes) - top)
    return top, log(reduce_sum(total))


@jit
def spread_flow(a, i, b, j, count, lanes, top, t, flow, out_a, out_b):
    """Add the probabilities q · ``flow`` to ``out_a`` from i on and to ``out_b`` from j on."""
    for k in range(0, count, LANES):
        f = exp((_scores(a, i, b, j, k, count, lanes) - top) - t) * flow
        store(out_a, i + k, load(out_a, i + k) + f)
        store(out_b, j + k, load(out_b, j + k) + f)


@jit
def mean_change(a, i, b, j, count, lanes, top, t, da, db):
    """Return m."""
    total = load(lanes, 0) - load(lanes, 0)
    for k in range(0, count, LANES):
        q = exp((_scores(a, i, b, j, k, count, lanes) - top) - t)
        total += q * (load(da, i + k) + load(db, j + k))
    return reduce_sum(total)


@jit
def spread_flow_tangent(a, i, b, j, count, lanes, top, t, da, db, m, flow, d_flow, out_a, out_da, out_db):
    """Add q · ``flow`` to ``out_a``, and its derivative to ``out_da`` and ``out_db``."""
    for k in range(0, count, LANES):
        q = exp((_scores(a, i, b, j, k, count, lanes) - top) - t)
        change = q * ((load(da, i + k) + load(db, j + k) - m) * flow + d_flow)
        store(out_a, i + k, load(out_a, i + k) + q * flow)
        store(out_da, i + k, load(out_da, i + k) + change)
        store(out_db, j + k, load(out_db, j + k) + change)


@jit
def chosen(a, i, b, j, count, top, t, uniform, is_hard):
    """Return the first best index, or without ``is_hard`` the index that ``uniform`` in [0, 1) draws with q."""
    last, total = 0, 0.0
    for k in range(count):
        x = a[i + k] + b[j + k]
        if is_hard:
            if x == top:
                return k
        elif x > -np.inf:
            total += np.exp((x - top) - t)
            last = k
            if total > uniform:
                break
    return last
