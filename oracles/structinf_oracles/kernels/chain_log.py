"""Sums over the tag sequences of a chain, in the log domain: any scores, shared or per-step transitions.

One instance is described by ``unary`` (T, S), ``transition`` (P, S, S), where P = T − 1, or 1 if all steps share it,
and its length. With α the forward scores of a prefix,

    L_t(j) = log Σ_i exp(α_{t−1}(i) + A_t(i, j)),   α_t(j) = L_t(j) + u_t(j) − c_t,   c_t = max_j (L_t + u_t)(j),

log Z = Σ_t c_t + log Σ_j exp α_T(j), and q_t(i, j) = exp(α_{t−1}(i) + A_t(i, j) − L_t(j)) is the probability of
state i at t − 1 given state j at t. Every other quantity is a walk back along q. The c_t keep α near 0, so that
float32 loses nothing over long sequences; they are summed in float64.

A batch has ``unary`` (B | 1, T, S), ``transition`` (B | 1, P, S, S) and ``lengths`` (B,); a kernel serves a range of
its rows. ``out_unary`` (B, T, S) comes as zeros, and so does ``out_transition`` (B, P, S, S) if ``add`` is set: then
several results go to one place; else each of its places is written.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.elementary import exp, log
from structinf.kernels.jit import jit

__all__ = ["covariance_product", "forward", "log_partition", "marginals"]


# ----------------------------------------------------------------------------- one instance


@jit
def forward(unary, transition, length, alpha, shift):
    """Fill the tables of α and −L, (T, S), or (2, S) as a ring; return log Z, −inf if it is a sum over nothing.

    Where a state cannot be reached, ``shift`` holds −inf, so that q = exp(α + A + shift) is 0 there.
    """
    rows, states = alpha.shape
    sums, lowest = np.empty(states, alpha.dtype), np.finfo(alpha.dtype).min
    total = np.float64(0)
    for t in range(length):
        new, scores = alpha[t % rows], unary[t]
        if t == 0:
            for j in range(states):
                new[j] = scores[j]
        else:
            old, step, top = alpha[(t - 1) % rows], transition[min(t, transition.shape[0]) - 1], shift[t % rows]
            # The lowest finite number in place of −inf, whose difference from itself is not a number.
            for j in range(states):
                top[j] = lowest
                sums[j] = 0
            for i in range(states):
                a = old[i]
                for j in range(states):
                    top[j] = max(top[j], a + step[i, j])
            for i in range(states):
                a = old[i]
                for j in range(states):
                    sums[j] += exp(a + step[i, j] - top[j])
            for j in range(states):
                level = log(sums[j]) + top[j]
                top[j] = -level if sums[j] > 0 else -np.inf
                new[j] = level + scores[j]
        peak = new[0]
        for j in range(states):
            peak = max(peak, new[j])
        if peak == -np.inf:
            return -np.inf
        for j in range(states):
            new[j] -= peak
        total += peak
    last, end = alpha[(length - 1) % rows], np.float64(0)
    for j in range(states):
        end += exp(last[j])
    return total + log(end)


@jit
def _end_distribution(alpha, node):
    """Probabilities of the last state."""
    total = np.float64(0)
    for j in range(alpha.shape[0]):
        node[j] = exp(alpha[j])
        total += node[j]
    for j in range(alpha.shape[0]):
        node[j] /= total


@jit
def _walk_back(transition, length, alpha, shift, weight, out_unary, out_transition, add):
    """Marginals times ``weight``, by μ_t(i, j) = q_t(i, j) μ_t(j) and μ_{t−1}(i) = Σ_j μ_t(i, j)."""
    states = alpha.shape[1]
    node, before = np.empty(states, alpha.dtype), np.empty(states, alpha.dtype)
    _end_distribution(alpha[length - 1], node)
    for j in range(states):
        node[j] *= weight
    for t in range(length - 1, 0, -1):
        for j in range(states):
            out_unary[t, j] = node[j]
        old, step, top = alpha[t - 1], transition[min(t, transition.shape[0]) - 1], shift[t]
        out = out_transition[min(t, out_transition.shape[0]) - 1]
        for i in range(states):
            a, total = old[i], alpha.dtype.type(0)
            for j in range(states):
                part = exp(a + step[i, j] + top[j]) * node[j]
                total += part
                out[i, j] = out[i, j] + part if add else part
            before[i] = total
        node, before = before, node
    for j in range(states):
        out_unary[0, j] = node[j]


@jit
def _tangent(transition, length, alpha, shift, v_unary, v_transition, d_alpha, d_level):
    """Derivatives of α and L along v: dL_t(j) = Σ_i q_t(i, j) (dα_{t−1}(i) + v_t(i, j)), dα_t = dL_t + v_t.

    Each dα_t is shifted to 0 at the best state: only differences between states matter, and they stay small.
    """
    states = alpha.shape[1]
    for t in range(length):
        new, level = d_alpha[t], d_level[t]
        level[:] = 0
        if t > 0:
            old, d_old, top = alpha[t - 1], d_alpha[t - 1], shift[t]
            step, d_step = transition[min(t, transition.shape[0]) - 1], v_transition[min(t, v_transition.shape[0]) - 1]
            for i in range(states):
                a, d = old[i], d_old[i]
                for j in range(states):
                    level[j] += exp(a + step[i, j] + top[j]) * (d + d_step[i, j])
        v = v_unary[t]
        best = np.argmax(alpha[t])
        pivot = level[best] + v[best]
        for j in range(states):
            new[j] = level[j] + v[j] - pivot


@jit
def _walk_back_tangent(
    transition, length, alpha, shift, v_transition, d_alpha, d_level, out_unary, out_transition, add
):
    """The derivative of :func:`_walk_back`: dμ_t(i, j) = q_t(i, j) (dμ_t(j) + μ_t(j) d log q_t(i, j))."""
    states = alpha.shape[1]
    node, before = np.empty(states, alpha.dtype), np.empty(states, alpha.dtype)
    d_node, d_before = np.empty(states, alpha.dtype), np.empty(states, alpha.dtype)
    _end_distribution(alpha[length - 1], node)
    mean = alpha.dtype.type(0)
    for j in range(states):
        mean += node[j] * d_alpha[length - 1, j]
    for j in range(states):
        d_node[j] = node[j] * (d_alpha[length - 1, j] - mean)
    for t in range(length - 1, 0, -1):
        for j in range(states):
            out_unary[t, j] = d_node[j]
        old, d_old, top, level = alpha[t - 1], d_alpha[t - 1], shift[t], d_level[t]
        step, d_step = transition[min(t, transition.shape[0]) - 1], v_transition[min(t, v_transition.shape[0]) - 1]
        out = out_transition[min(t, out_transition.shape[0]) - 1]
        for i in range(states):
            a, d = old[i], d_old[i]
            total = d_total = alpha.dtype.type(0)
            for j in range(states):
                q = exp(a + step[i, j] + top[j])
                part = q * (d_node[j] + node[j] * (d + d_step[i, j] - level[j]))
                total += q * node[j]
                d_total += part
                out[i, j] = out[i, j] + part if add else part
            before[i], d_before[i] = total, d_total
        node, before, d_node, d_before = before, node, d_before, d_node
    for j in range(states):
        out_unary[0, j] = d_node[j]


@jit
def _clear(out, start):
    for t in range(start, out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                out[t, i, j] = 0


# ----------------------------------------------------------------------------- batches


@jit
def log_partition(start, stop, rows, unary, transition, lengths, log_z):
    """log Z of the instances ``rows[start:stop]``, into ``log_z`` (B,) float64."""
    alpha = np.empty((2, unary.shape[2]), unary.dtype)
    shift = np.empty_like(alpha)
    for k in range(start, stop):
        b = rows[k]
        scores, steps = unary[min(b, unary.shape[0] - 1)], transition[min(b, transition.shape[0] - 1)]
        log_z[b] = forward(scores, steps, lengths[b], alpha, shift)


@jit
def marginals(start, stop, groups, rows, unary, transition, lengths, weight, log_z, out_unary, out_transition, add):
    """Marginals times ``weight`` (B,) for the groups ``start:stop`` of the instances ``rows``.

    ``out_transition`` may also be (groups, P, S, S), with sums over each group's instances.
    """
    alpha = np.empty(unary.shape[1:], unary.dtype)
    shift = np.empty_like(alpha)
    for g in range(start, stop):
        for k in range(len(rows) * g // groups, len(rows) * (g + 1) // groups):
            b = rows[k]
            steps, length = transition[min(b, transition.shape[0] - 1)], lengths[b]
            out = out_transition[b if out_transition.shape[0] == len(lengths) else g]
            log_z[b] = forward(unary[min(b, unary.shape[0] - 1)], steps, length, alpha, shift)
            if log_z[b] > -np.inf:
                _walk_back(steps, length, alpha, shift, weight[b], out_unary[b], out, add)
            if not add:
                _clear(out, length - 1)


@jit
def covariance_product(
    start, stop, unary, transition, lengths, v_unary, v_transition, log_z, out_unary, out_transition, add
):
    """The Hessian of log Z times v, of θ's forms, for the rows ``start:stop``."""
    alpha = np.empty(unary.shape[1:], unary.dtype)
    shift, d_alpha, d_level = np.empty_like(alpha), np.empty_like(alpha), np.empty_like(alpha)
    for b in range(start, stop):
        steps, v_steps = transition[min(b, transition.shape[0] - 1)], v_transition[min(b, v_transition.shape[0] - 1)]
        v, length, out = v_unary[min(b, v_unary.shape[0] - 1)], lengths[b], out_transition[b]
        log_z[b] = forward(unary[min(b, unary.shape[0] - 1)], steps, length, alpha, shift)
        if log_z[b] > -np.inf:
            _tangent(steps, length, alpha, shift, v, v_steps, d_alpha, d_level)
            _walk_back_tangent(steps, length, alpha, shift, v_steps, d_alpha, d_level, out_unary[b], out, add)
        if not add:
            _clear(out, length - 1)
