"""One step of a chain's smoothed recursion: max_Ω over i of x(i, j) = v(i) + A(i, j) for each state j.

Ω is given by p = 1 / (α − 1): infinity for the negative entropy, 1 for the squared norm, 2 for the Tsallis entropy of
α = 1.5, and 0 for no regularizer. With d = x − max x and r = max(d − τ, 0) / p,

    q = exp(d − τ),  s = q             if p is infinite, where max_Ω x = max x + τ,
    q = r^p,         s = r^(p − 1)     otherwise,

where τ makes q sum to 1 over i. q(i, j) is the probability of state i before state j, and s(i, j) the curvature: the
Hessian of max_Ω x(·, j) is diag(s) − s sᵀ / Σ s. Only v = max_Ω, max x and τ of each state are stored. max x and τ
are separate, since τ would lose its digits in the sum if max x is large. q and s are recomputed on demand.

All numbers of one instance are in one flat array, ``workspace``, since numba counts references to array slices, which
takes as long as a step. The array holds tables of ``size`` numbers: v, max x, τ, and the probability of each state.
For derivatives along a direction z, further tables hold the derivative of the probability, and

    dv(j) = Σ_i q(i, j) y(i, j) + z(j),   m(j) = Σ_i s y / Σ_i s,   with y(i, j) = dv(i) + dA(i, j).

A row of a table holds the states at one step. A row is named by the place of its first number in the first table. In
the padding of a row to whole vectors, v is −inf and all else is 0.

A matrix has ``states`` rows i, ``stride`` numbers apart, from ``start`` on in a contiguous array. If the matrix has
no padding, the last vector of a row overlaps the vector before. The first row of ``workspace`` is then 0 for numbers
that occur twice, and 1 for all others. The maximum over the last states is a step to a row of one vector, of which
only the first lane counts.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.simd.exp_log import exp, log
from structinf.kernels.simd.vector import LANES, largest, load, maximum, reduce_sum, spread, store, where_less

__all__ = ["advance", "advance_tangent", "backward", "backward_tangent"]

# Tables, in their order.
V, TOP, TAU, NODE, D_NODE, D_V, CURVED_MEAN = range(7)

_MAX_STEPS = 100


@jit(inline=True)
def _choices(excess, power):
    """Return q and s of d − τ."""
    if power == np.inf:
        q = exp(excess)
        return q, q
    r = maximum(excess, 0) * (1 / power)
    if power == 1:
        s = where_less(0, r, 1, 0)
    elif power == 2:
        s = r
    else:
        s = exp(log(r) * (power - 1))
    return s * r, s


@jit(inline=True)
def _excess(workspace, size, new, x):
    """Return d − τ for scores x of the states at ``new``."""
    return (x - load(workspace, TOP * size + new)) - load(workspace, TAU * size + new)


@jit
def advance(workspace, size, old, new, states, stride, matrix, start, power):
    """Compute v, max x and τ of the row ``new`` from v of the row ``old``."""
    lowest = np.finfo(workspace.dtype).min
    for k in range(0, stride, LANES):
        at = min(k, stride - LANES)
        best = -np.inf
        for i in range(states):
            best = maximum(best, spread(workspace, old + i) + load(matrix, start + i * stride + at))
        # The lowest finite number replaces −inf, as −inf − (−inf) is nan.
        top = maximum(best, lowest)
        smooth, tau = best, best - best
        if power == np.inf:
            total = 0.0
            for i in range(states):
                total += exp(spread(workspace, old + i) + load(matrix, start + i * stride + at) - top)
            tau = log(total)
            smooth = top + tau
            tau = maximum(tau, lowest)
        elif power > 0:
            tau, energy = _solve(workspace, old, states, stride, matrix, start + at, power, top)
            # max_Ω = max x + τ + (p + Σ q r) / α.
            smooth = where_less(best, lowest, best, top + (tau + (energy + power) * (power / (power + 1))))
        store(workspace, new + at, smooth)
        store(workspace, TOP * size + new + at, top)
        store(workspace, TAU * size + new + at, tau)


@jit(inline=True)
def _solve(workspace, old, states, stride, matrix, start, power, top):
    """Return τ, and Σ q r, by Newton's method for Σ q = 1 from the left, where Σ q is convex and decreasing."""
    eps = np.finfo(workspace.dtype).eps
    tau, energy = (top - top) - power, top
    for _ in range(_MAX_STEPS):
        total = slope = energy = 0.0
        for i in range(states):
            excess = (spread(workspace, old + i) + load(matrix, start + i * stride) - top) - tau
            q, s = _choices(excess, power)
            total += q
            slope += s
            energy += q * maximum(excess, 0)
        # No r is above 1, so that Σ s ≥ Σ q ≥ 1. If no score is finite, all sums are 0.
        rise = maximum((total - 1) / maximum(slope, 1), 0)
        tau += rise
        # The relative error of q = r^p is p rounding errors.
        if largest(rise - maximum(tau, 0 - tau) * (2 * eps)) <= 2 * eps * power:
            break
    return tau, energy * (1 / power)


@jit
def advance_tangent(workspace, size, old, new, states, stride, matrix, start, d_matrix, d_start, power):
    """Compute dv, without z(j), and m of the row ``new`` from v and dv of the row ``old``, max x and τ."""
    for k in range(0, stride, LANES):
        at = min(k, stride - LANES)
        first = second = total = 0.0
        for i in range(states):
            place = i * stride + at
            x = spread(workspace, old + i) + load(matrix, start + place)
            q, s = _choices(_excess(workspace, size, new + at, x), power)
            y = spread(workspace, D_V * size + old + i) + load(d_matrix, d_start + place)
            first += q * y
            second += s * y
            total += s
        store(workspace, D_V * size + new + at, first)
        store(workspace, CURVED_MEAN * size + new + at, second / where_less(0, total, total, 1))


@jit
def backward(workspace, size, old, new, states, stride, matrix, start, power, out, first, add):
    """Compute probabilities of the row ``old`` from the row ``new``: sums over j of f(i, j) = q(i, j) node(j).

    f is written or added to the matrix at ``first`` of ``out``.
    """
    for i in range(states):
        total = 0.0
        for k in range(0, stride, LANES):
            at, once = min(k, stride - LANES), load(workspace, k)
            place = i * stride + at
            x = spread(workspace, old + i) + load(matrix, start + place)
            q, _ = _choices(_excess(workspace, size, new + at, x), power)
            flow = q * load(workspace, NODE * size + new + at)
            total += flow * once
            store(out, first + place, flow * once + load(out, first + place) if add else flow)
        workspace[NODE * size + old + i] = reduce_sum(total)


@jit
def backward_tangent(
    workspace, size, old, new, states, stride, matrix, start, d_matrix, d_start, power, out, first, add
):
    """Compute :func:`backward` and its derivative: sums over j of df = s (y − m) node + q dnode. df goes to ``out``."""
    for i in range(states):
        total = d_total = 0.0
        for k in range(0, stride, LANES):
            at, once = min(k, stride - LANES), load(workspace, k)
            place = i * stride + at
            curved_mean = load(workspace, CURVED_MEAN * size + new + at)
            node, d_node = load(workspace, NODE * size + new + at), load(workspace, D_NODE * size + new + at)
            x = spread(workspace, old + i) + load(matrix, start + place)
            q, s = _choices(_excess(workspace, size, new + at, x), power)
            y = spread(workspace, D_V * size + old + i) + load(d_matrix, d_start + place)
            flow = s * (y - curved_mean) * node + q * d_node
            total += q * node * once
            d_total += flow * once
            store(out, first + place, flow * once + load(out, first + place) if add else flow)
        workspace[NODE * size + old + i] = reduce_sum(total)
        workspace[D_NODE * size + old + i] = reduce_sum(d_total)
