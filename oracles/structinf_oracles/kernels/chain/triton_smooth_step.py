"""Device functions of a chain's step, for Triton kernels. Importing this module imports triton.

A *tile* is a block of a matrix (S, S): all rows i, padded to ``SP``, and ``BJ`` columns j from ``first`` on. The
padding of scores is −inf. As a tile has all rows, one smoothed maximum of its columns needs no other tile. ``ALPHA``
is 1, 1.5, 2, or infinity for the plain maximum. q, s, max x and τ are defined in :mod:`.smooth_step`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from structinf.kernels.gpu.triton_smooth_max import curved, finite, log_of_positive, start_of_t

__all__ = [
    "balance",
    "flows",
    "load_row",
    "load_tile",
    "place_of_matrix",
    "relative",
    "relative_tangent",
    "smooth_max",
    "tangent",
]


@triton.jit
def load_tile(matrix, first, S, SP: tl.constexpr, BJ: tl.constexpr, OTHER: tl.constexpr):
    """Return the tile of ``matrix`` (S, S) from the column ``first`` on, with ``OTHER`` in the padding."""
    i, j = tl.arange(0, SP)[:, None], first + tl.arange(0, BJ)[None, :]
    return tl.load(matrix + i * S + j, mask=(i < S) & (j < S), other=OTHER)


@triton.jit
def place_of_matrix(t, S, SHARED: tl.constexpr):
    """Return the place of the matrix of the step t among the matrices of an instance, 0 if all steps share it."""
    step = t - 1
    if SHARED:
        step = t - t
    return step * S * S


@triton.jit
def load_row(row, first, S, SIZE: tl.constexpr, OTHER: tl.constexpr):
    """Return ``SIZE`` numbers of ``row`` (S,) from ``first`` on, with ``OTHER`` in the padding."""
    j = first + tl.arange(0, SIZE)
    return tl.load(row + j, mask=j < S, other=OTHER)


@triton.jit
def relative(v):
    """Return v minus its largest number, and the number, 0 in place of −inf."""
    peak = finite(tl.max(v, 0))
    return v - peak, peak


@triton.jit
def relative_tangent(v, dv):
    """Return dv minus the dv of a best state, given v relative to the best state; only differences matter."""
    return dv - finite(tl.max(tl.where(v == 0, dv, float("-inf")), 0))


@triton.jit
def balance(node, mass):
    """Return the factor that scales probabilities to the sum ``mass``; 0 if no sequence is allowed.

    The rounding errors of Σ q − 1 can have a common sign. Without the scaling they would add up over long sequences.
    """
    total = tl.sum(node, 0)
    return tl.where(total != 0, mass / tl.where(total != 0, total, 1.0), 0.0)


@triton.jit
def smooth_max(x, ALPHA: tl.constexpr):
    """Return max_Ω, max x and τ of each column of a tile. In a column of −inf, max x and τ are 0, so that q is 0."""
    best = tl.max(x, 0)
    top = finite(best)
    if float("inf") == ALPHA:
        smooth, tau = best, top
    elif ALPHA == 1:
        gain = log_of_positive(tl.sum(tl.exp(x - top[None, :]), 0))
        smooth, tau = top + gain, finite(gain)
    else:
        tau, energy = _solve(x - top[None, :], ALPHA)
        # max_Ω = max x + τ + (p + Σ q r) / α with p = 1 / (α − 1); its derivative by τ is 0.
        smooth = top + (tau + (energy + 1.0 / (ALPHA - 1.0)) / ALPHA)
        smooth, tau = tl.where(best == float("-inf"), best, smooth), tl.where(best == float("-inf"), 0.0, tau)
    return smooth, top, tau


@triton.jit
def _solve(d, ALPHA: tl.constexpr):
    """Return τ and Σ q r of the columns of d = x − max x, by Newton's method for Σ q = 1.

    The start makes q of the best row 1. As Σ q is convex and decreasing in τ, only rounding makes a step negative.
    """
    eps: tl.constexpr = 2.0**-52 if d.dtype == tl.float64 else 2.0**-23
    power: tl.constexpr = 1.0 / (ALPHA - 1.0)
    energy = tl.sum(tl.zeros_like(d), 0)
    tau = energy + start_of_t(ALPHA)
    left = 100
    while left > 0:
        excess = d - tau[None, :]
        q, s = curved(excess, ALPHA)
        total = tl.sum(q, 0)
        energy = tl.sum(q * tl.maximum(excess, 0.0), 0) * (ALPHA - 1.0)
        # No r is above 1, so that Σ s ≥ Σ q ≥ 1, unless all scores are −inf.
        rise = tl.where(total > 0, (total - 1.0) / tl.maximum(tl.sum(s, 0), 1.0), 0.0)
        tau += rise
        # The relative error of q = r^p is p rounding errors.
        moves = tl.max(rise - tl.abs(tau) * (2 * eps) - 2 * eps * power, 0) > 0
        left = tl.where(moves, left - 1, 0)
    return tau, energy


@triton.jit
def tangent(x, y, top, tau, ALPHA: tl.constexpr):
    """Return Σ q y and m = Σ s y / Σ s of the columns of a tile x, for its derivative y."""
    q, s = curved((x - top[None, :]) - tau[None, :], ALPHA)
    total = tl.sum(s, 0)
    return tl.sum(q * y, 0), tl.sum(s * y, 0) / tl.where(total > 0, total, 1.0)


@triton.jit
def flows(x, y, top, tau, mean, node, d_node, ALPHA: tl.constexpr, TANGENT: tl.constexpr):
    """Return the probabilities q node of the transitions in a tile x, given the rows of its columns.

    With ``TANGENT``, return the derivative s (y − m) node + q dnode too; otherwise, the probabilities again.
    """
    q, s = curved((x - top[None, :]) - tau[None, :], ALPHA)
    flow = q * node[None, :]
    edge = flow
    if TANGENT:
        edge = s * (y - mean[None, :]) * node[None, :] + q * d_node[None, :]
    return flow, edge
