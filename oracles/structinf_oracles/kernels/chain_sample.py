"""Exact samples of a chain's tag sequences: forward filtering, backward sampling.

C. K. Carter and R. Kohn, On Gibbs sampling for state space models (Biometrika 81, 1994), section 2.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.elementary import exp
from structinf.kernels.jit import jit

from .chain_log import forward

__all__ = ["sample"]


@jit
def _draw(cumulative, uniform):
    """The first state whose cumulative weight exceeds the fraction ``uniform`` of the total; never one of weight 0."""
    low, high = 0, len(cumulative) - 1
    # Strictly below the total, so that no state after the last one of positive weight is reached.
    level = cumulative[high] * uniform * (1 - 2.0**-52)
    while low < high:
        middle = (low + high) // 2
        if cumulative[middle] > level:
            high = middle
        else:
            low = middle + 1
    return low


@jit
def sample(start, stop, unary, transition, lengths, uniforms, log_z, tags):
    """Independent sequences of the rows ``start:stop``.

    Parameters
    ----------
    unary, transition, lengths : as for :func:`.chain_log.log_partition`
    uniforms : (n, B, T) float64, in [0, 1)
    log_z : (B,) float64, written
    tags : (n, B, T) int64, zeros, written inside the lengths
    """
    states = unary.shape[2]
    alpha = np.empty((unary.shape[1], states), unary.dtype)
    shift = np.empty_like(alpha)
    # Row j: cumulative weights of the states before state j. Made when a sample first needs them.
    cumulative, ready = np.empty((states, states)), np.empty(states, np.bool_)
    for b in range(start, stop):
        length, steps = lengths[b], transition[min(b, transition.shape[0] - 1)]
        log_z[b] = forward(unary[min(b, unary.shape[0] - 1)], steps, length, alpha, shift)
        if log_z[b] == -np.inf:
            continue
        total = 0.0
        for j in range(states):
            total += exp(alpha[length - 1, j])
            cumulative[0, j] = total
        for n in range(len(tags)):
            tags[n, b, length - 1] = _draw(cumulative[0], uniforms[n, b, length - 1])
        for t in range(length - 1, 0, -1):
            step = steps[min(t, steps.shape[0]) - 1]
            for j in range(states):
                ready[j] = False
            for n in range(len(tags)):
                j = tags[n, b, t]
                if not ready[j]:
                    ready[j] = True
                    total = 0.0
                    for i in range(states):
                        total += exp(alpha[t - 1, i] + step[i, j] + shift[t, j])
                        cumulative[j, i] = total
                tags[n, b, t - 1] = _draw(cumulative[j], uniforms[n, b, t - 1])
