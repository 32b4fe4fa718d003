"""The best tag sequence of a chain (A. Viterbi, IEEE Transactions on Information Theory 13(2), 1967).

The forward pass keeps only the scores of the best prefixes; the way back finds each predecessor by the same sums
again, at S operations a step, which saves a table of back pointers and the S² selections that fill it. Ties go to the
lowest state, from the last step backwards.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["argmax"]


@jit
def _forward(unary, transition, length, table):
    """Fill ``table`` with the best prefixes' scores, relative to the best one a step before so that they stay small.

    Returns the best score of the last step.
    """
    states = table.shape[1]
    peak = unary[0, 0]
    for j in range(states):
        table[0, j] = unary[0, j]
        peak = max(peak, unary[0, j])
    for t in range(1, length):
        p = min(t, transition.shape[0]) - 1
        if peak == -np.inf:
            return peak
        for j in range(states):
            table[t, j] = -np.inf
        for i in range(states):
            x = table[t - 1, i] - peak
            for j in range(states):
                table[t, j] = max(table[t, j], x + transition[p, i, j])
        for j in range(states):
            table[t, j] += unary[t, j]
        peak = table[t, 0]
        for j in range(states):
            peak = max(peak, table[t, j])
    return peak


@jit
def _walk_back(transition, length, table, best, sums, tags):
    """Fill ``tags``, given the ``best`` of the last step's scores."""
    tag = 0
    while table[length - 1, tag] != best:
        tag += 1
    tags[length - 1] = tag
    for t in range(length - 1, 0, -1):
        p = min(t, transition.shape[0]) - 1
        best = table[t - 1, 0] + transition[p, 0, tag]
        for i in range(len(sums)):
            sums[i] = table[t - 1, i] + transition[p, i, tag]
            best = max(best, sums[i])
        tag = 0
        while sums[tag] != best:
            tag += 1
        tags[t - 1] = tag


@jit
def argmax(start, stop, unary, transition, lengths, feasible, out_unary, out_transition):
    """Best structures of the rows ``start:stop``.

    Parameters
    ----------
    unary : (B | 1, T, S); transition : (B | 1, P, S, S), P = T − 1, or 1 if all steps share it; lengths : (B,) int64
    feasible : (B,) bool, written
    out_unary : (B, T, S), out_transition : (B, P, S, S), zeros, written where 1 or more
    """
    table = np.empty(unary.shape[1:], unary.dtype)
    tags, sums = np.empty(unary.shape[1], np.int64), np.empty(unary.shape[2], unary.dtype)
    for b in range(start, stop):
        scores, steps = unary[min(b, unary.shape[0] - 1)], transition[min(b, transition.shape[0] - 1)]
        best = _forward(scores, steps, lengths[b], table)
        feasible[b] = best > -np.inf
        if feasible[b]:
            _walk_back(steps, lengths[b], table, best, sums, tags)
            for t in range(lengths[b]):
                out_unary[b, t, tags[t]] = 1
            for t in range(1, lengths[b]):
                out_transition[b, min(t, out_transition.shape[1]) - 1, tags[t - 1], tags[t]] += 1
