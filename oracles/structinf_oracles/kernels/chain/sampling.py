"""Random walks through the tag sequences of a chain: exact samples if Ω is the negative entropy.

The algorithm is forward filtering, backward sampling (C. K. Carter and R. Kohn, On Gibbs sampling for state space
models, Biometrika 81, 1994, section 2).
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.scalar.exp_log import exp, log

from .log_domain import end_matrix, forward, make_workspace
from .padded_rows import padded, width_of
from .smooth_step import TAU, TOP, V

__all__ = ["sample"]


@jit
def _draw(cumulative, uniform):
    """Return the first state whose cumulative weight exceeds ``uniform`` times the total; never a state of weight 0."""
    low, high = 0, len(cumulative) - 1
    # The level stays strictly below the total, so that no state of weight 0 at the end is drawn.
    level = cumulative[high] * uniform * (1 - 2.0**-52)
    while low < high:
        middle = (low + high) // 2
        if cumulative[middle] > level:
            high = middle
        else:
            low = middle + 1
    return low


@jit
def _probability(excess, power):
    """Return q of x − τ."""
    if power == np.inf:
        return exp(excess)
    return exp(log(max(excess, 0.0) / power) * power)


@jit
def sample(start, stop, unary, transition, lengths, power, uniforms, value, tags):
    """Draw independent walks of the rows ``start:stop`` along q.

    Parameters
    ----------
    unary, transition, lengths, power
        As for :func:`.log_domain.value`.
    uniforms : (n, B, T) float64
        In [0, 1).
    value : (B,) float64
        Written: DP_Ω.
    tags : (n, B, T) int64
        Zeros on entry; written inside the lengths.
    """
    states, width = unary.shape[2], width_of(unary.shape[2])
    workspace, size = make_workspace(unary, transition, unary.shape[1], 3)
    matrix, end = padded(transition, -np.inf), end_matrix(transition, -np.inf)
    # Row j: cumulative weights of the predecessors of state j, computed when a walk first needs them.
    cumulative, ready = np.empty((states, states)), np.empty(states, np.bool_)
    for b in range(start, stop):
        length = lengths[b]
        value[b] = forward(b, unary, transition, length, power, workspace, size, matrix, end)
        if value[b] == -np.inf:
            continue
        last, end_row, total = V * size + length * width, size - width, 0.0
        for j in range(states):
            d = np.float64(workspace[last + j]) - workspace[TOP * size + end_row]
            total += _probability(d - workspace[TAU * size + end_row], power)
            cumulative[0, j] = total
        for n in range(len(tags)):
            tags[n, b, length - 1] = _draw(cumulative[0], uniforms[n, b, length - 1])
        a = min(b, len(transition) - 1)
        for t in range(length - 1, 0, -1):
            old, new, p = V * size + t * width, (t + 1) * width, min(t, transition.shape[1]) - 1
            for j in range(states):
                ready[j] = False
            for n in range(len(tags)):
                j = tags[n, b, t]
                if not ready[j]:
                    ready[j] = True
                    total = 0.0
                    for i in range(states):
                        d = np.float64(workspace[old + i]) + transition[a, p, i, j] - workspace[TOP * size + new + j]
                        total += _probability(d - workspace[TAU * size + new + j], power)
                        cumulative[j, i] = total
                tags[n, b, t - 1] = _draw(cumulative[j], uniforms[n, b, t - 1])
