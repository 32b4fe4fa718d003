"""Hessian-vector products of log Z for chains with one transition matrix for all steps: scaled matrix products.

With F, a and s as in :mod:`.scaled`, q_t(i, j) = a_{t−1}(i) F(i, j) / s_t(j). For a direction with z(i, j) for
the transition and z_t(j) for the unary scores, no exponential per edge is needed:

    dL_t(j) = (Σ_i a(i) dα(i) F(i, j) + a(i) F(i, j) z(i, j)) / s_t(j),        dα_t = dL_t + z_t,
    r_t(j)  = μ_t(j) / s_t(j),                    c_t(j) = (dμ_t(j) − μ_t(j) dL_t(j)) / s_t(j),
    μ_{t−1}(i)  = a(i) Σ_j F(i, j) r_t(j),
    dμ_{t−1}(i) = a(i) Σ_j (F(i, j) c_t(j) + F(i, j) z(i, j) r_t(j)) + dα(i) μ_{t−1}(i),

and for transitions Σ_t dμ_t(i, j) = F ∘ Σ_t (a c_tᵀ + (a dα) r_tᵀ) + F ∘ z ∘ Σ_t a r_tᵀ. As in :mod:`.scaled`, numbers
lost by underflow in a are below the rounding error of the sums.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.simd.exp_log import exp, log
from structinf.kernels.simd.vector import LANES, largest, load, maximum, reduce_sum, spread, store, where_less

from .padded_rows import filled, load_row, store_row, width_of
from .scaled import floor_of

__all__ = ["covariance_product"]

# The rows of a step, in order, of W numbers each. Four more rows follow the rows of all steps.
A, S, D_ALPHA, D_LEVEL, A_D_ALPHA = range(5)
ROWS = 5
NODE, D_NODE, R, C = range(4)
# Matrices of S rows: F, F ∘ z, and the two sums over steps.
F, FZ, SUM, Z_SUM = range(4)


@jit
def _rescale(workspace, row, width, floor):
    """Divide a by its maximum and return the maximum: 0 if all are 0, nan if a positive number is below the floor."""
    most = 0.0
    for at in range(0, width, LANES):
        most = maximum(most, load(workspace, row + at))
    high = largest(most)
    if high == 0:
        return high
    least = -np.inf
    for at in range(0, width, LANES):
        a = load(workspace, row + at) / high
        store(workspace, row + at, a)
        least = maximum(least, where_less(0, a, 0 - a, -np.inf))
    return high if -largest(least) >= floor else workspace.dtype.type(np.nan)


@jit
def _products(workspace, matrices, old, new, states, width):
    """Compute s and dL of the step at ``new`` from a, a dα and dα at ``old``."""
    size = states * width
    for at in range(0, width, LANES):
        total = d_total = z_total = 0.0
        for i in range(states):
            a, f = spread(workspace, old + A * width + i), load(matrices, F * size + i * width + at)
            total += a * f
            d_total += spread(workspace, old + A_D_ALPHA * width + i) * f
            z_total += a * load(matrices, FZ * size + i * width + at)
        store(workspace, new + S * width + at, total)
        store(workspace, new + D_LEVEL * width + at, (d_total + z_total) / where_less(0, total, total, 1))


@jit
def _forward(b, unary, z_unary, length, top, floor, workspace, matrices, states):
    """Fill the rows of all steps; return log Z, nan if the log domain is needed."""
    width, u, z = width_of(states), min(b, len(unary) - 1), min(b, len(z_unary) - 1)
    total, new, scratch = np.float64(0), 0, len(workspace) - width  # the padding of the last row is −inf
    for t in range(length):
        new = t * ROWS * width
        if t > 0:
            _products(workspace, matrices, new - ROWS * width, new, states, width)
            total += top
        load_row(unary, u, t, workspace, scratch)
        best = -np.inf
        for at in range(0, width, LANES):
            best = maximum(best, load(workspace, scratch + at))
        peak = largest(best)
        if peak == -np.inf:
            return np.float64(peak)
        for at in range(0, width, LANES):
            weight = exp(load(workspace, scratch + at) - peak)
            store(workspace, new + A * width + at, weight * load(workspace, new + S * width + at) if t > 0 else weight)
        high = _rescale(workspace, new + A * width, width, floor)
        if not high > 0:
            return np.float64(-np.inf if high == 0 else np.nan)
        total += peak + log(np.float64(high))
        # dα relative to a state with a above 1/2: only differences matter, and the differences stay small.
        load_row(z_unary, z, t, workspace, new + D_ALPHA * width)
        best = -np.inf
        for at in range(0, width, LANES):
            d_alpha = load(workspace, new + D_ALPHA * width + at)
            d_alpha = d_alpha + load(workspace, new + D_LEVEL * width + at) if t > 0 else d_alpha
            store(workspace, new + D_ALPHA * width + at, d_alpha)
            best = maximum(best, where_less(load(workspace, new + A * width + at), 0.5, -np.inf, d_alpha))
        pivot = largest(best)
        for at in range(0, width, LANES):
            d_alpha = load(workspace, new + D_ALPHA * width + at) - pivot
            store(workspace, new + D_ALPHA * width + at, d_alpha)
            store(workspace, new + A_D_ALPHA * width + at, d_alpha * load(workspace, new + A * width + at))
    end = 0.0
    for at in range(0, width, LANES):
        end += load(workspace, new + A * width + at)
    return total + log(np.float64(reduce_sum(end)))


@jit
def _ratios(workspace, place, last, width):
    """Compute r and c of the step whose rows begin at ``place``."""
    for at in range(0, width, LANES):
        s = load(workspace, place + S * width + at)
        node, d_level = load(workspace, last + NODE * width + at), load(workspace, place + D_LEVEL * width + at)
        s = where_less(0, s, s, 1)
        store(workspace, last + R * width + at, node / s)
        store(workspace, last + C * width + at, (load(workspace, last + D_NODE * width + at) - node * d_level) / s)


@jit
def _backward(b, length, workspace, matrices, states, out_unary):
    """Write dμ of all steps to ``out_unary``, and the sums over steps for transitions to the sum matrices."""
    width = width_of(states)
    last, size = len(workspace) - 5 * width, states * width
    place = (length - 1) * ROWS * width
    total = mean = 0.0
    for at in range(0, width, LANES):
        total += load(workspace, place + A * width + at)
        mean += load(workspace, place + A_D_ALPHA * width + at)
    scale = 1 / reduce_sum(total)
    middle = reduce_sum(mean) * scale
    for at in range(0, width, LANES):
        node = load(workspace, place + A * width + at) * scale
        store(workspace, last + NODE * width + at, node)
        store(workspace, last + D_NODE * width + at, node * (load(workspace, place + D_ALPHA * width + at) - middle))
    store_row(workspace, last + D_NODE * width, out_unary, b, length - 1)
    for t in range(length - 1, 0, -1):
        place = (t - 1) * ROWS * width
        _ratios(workspace, place + ROWS * width, last, width)
        for i in range(states):
            a, a_d_alpha = spread(workspace, place + A * width + i), spread(workspace, place + A_D_ALPHA * width + i)
            node = d_node = 0.0
            for at in range(0, width, LANES):
                r, c = load(workspace, last + R * width + at), load(workspace, last + C * width + at)
                here = i * width + at
                f = load(matrices, F * size + here)
                node += f * r
                d_node += f * c + load(matrices, FZ * size + here) * r
                store(matrices, SUM * size + here, load(matrices, SUM * size + here) + a * c + a_d_alpha * r)
                store(matrices, Z_SUM * size + here, load(matrices, Z_SUM * size + here) + a * r)
            alpha = workspace[place + A * width + i]
            workspace[last + NODE * width + i] = alpha * reduce_sum(node)
            d_alpha = workspace[place + D_ALPHA * width + i]
            workspace[last + D_NODE * width + i] = (
                alpha * reduce_sum(d_node) + d_alpha * workspace[last + NODE * width + i]
            )
        store_row(workspace, last + D_NODE * width, out_unary, b, t - 1)


@jit
def _deliver(b, matrices, states, out):
    """Write F ∘ SUM + F ∘ z ∘ Z_SUM to the instance ``b`` of ``out``, (B, S, S); reset the sums to 0."""
    width = width_of(states)
    size = states * width
    for i in range(states):
        for j in range(states):
            k = i * width + j
            out[b, i, j] = matrices[k] * matrices[SUM * size + k] + matrices[FZ * size + k] * matrices[Z_SUM * size + k]
    for at in range(SUM * size, 4 * size, LANES):
        store(matrices, at, 0)


@jit
def covariance_product(
    start, stop, unary, factor, top, reserve, lengths, z_unary, z_transition, log_z, out_unary, out_transition
):
    """Write Cov[Y] z of the instances ``start:stop``, and log Z, nan if the log domain is needed.

    ``factor`` and ``z_transition`` are (B | 1, S, S); ``out_transition`` is (B, S, S).
    """
    steps, states = unary.shape[1:]
    width = width_of(states)
    workspace, matrices = (
        filled((ROWS * steps + 5) * width // LANES, 0, unary.dtype),
        filled(4 * states * width // LANES, 0, unary.dtype),
    )
    for k in range(len(workspace) - width, len(workspace)):
        workspace[k] = -np.inf
    for b in range(start, stop):
        f, z = min(b, len(factor) - 1), min(b, len(z_transition) - 1)
        if b == start or len(factor) > 1 or len(z_transition) > 1:
            for i in range(states):
                for j in range(states):
                    matrices[F * states * width + i * width + j] = factor[f, i, j]
                    matrices[FZ * states * width + i * width + j] = factor[f, i, j] * z_transition[z, i, j]
        floor = floor_of(unary[min(b, len(unary) - 1)], lengths[b], reserve[f])
        log_z[b] = np.nan
        if floor <= 1:
            log_z[b] = _forward(b, unary, z_unary, lengths[b], top[f], floor, workspace, matrices, states)
        if log_z[b] > -np.inf:
            _backward(b, lengths[b], workspace, matrices, states, out_unary)
            _deliver(b, matrices, states, out_transition)
