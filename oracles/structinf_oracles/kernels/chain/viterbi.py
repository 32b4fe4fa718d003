"""The best tag sequence of a chain (A. Viterbi, IEEE Transactions on Information Theory 13(2), 1967).

The forward pass stores only the scores of the best prefixes. The backward pass finds each predecessor by computing
the same sums again, with S operations per step. This saves a table of back pointers, and the S² selections to fill
it. Ties go to the lowest state, decided from the last step backwards.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit
from structinf.kernels.scalar.min_max import maximum

__all__ = ["argmax", "argmax_indices"]


LANES = 16
"""Rows of a matrix shared by all steps are padded with −inf to multiples of this length, for whole vectors."""


@jit
def _forward(unary, transition, length, table):
    """Fill ``table`` with the scores of the best prefixes, relative to the best of the step before.

    ``table`` and the rows of ``transition`` may be wider than S, with −inf there. Returns the last step's best score.
    """
    states, width = unary.shape[1], table.shape[1]
    peak = unary[0, 0]
    for j in range(states):
        table[0, j] = unary[0, j]
        peak = maximum(peak, unary[0, j])
    for t in range(1, length):
        p = min(t, transition.shape[0]) - 1
        if peak == -np.inf:
            return peak
        old, new, score = table[t - 1], table[t], transition[p]
        # Four rows at a time, since each pass over ``new`` waits for the pass before.
        head = states % 4 or 4
        for j in range(width):
            new[j] = old[0] - peak + score[0, j]
        for i in range(1, head):
            x = old[i] - peak
            for j in range(width):
                new[j] = maximum(new[j], x + score[i, j])
        for i in range(head, states, 4):
            x0, x1, x2, x3 = old[i] - peak, old[i + 1] - peak, old[i + 2] - peak, old[i + 3] - peak
            for j in range(width):
                low = maximum(x0 + score[i, j], x1 + score[i + 1, j])
                high = maximum(x2 + score[i + 2, j], x3 + score[i + 3, j])
                new[j] = maximum(new[j], maximum(low, high))
        for j in range(states):
            table[t, j] += unary[t, j]
        peak = table[t, 0]
        for j in range(width):
            peak = maximum(peak, table[t, j])
    return peak


@jit
def _backward(transition, length, table, best, sums, tags):
    """Fill ``tags``, given the ``best`` score of the last step."""
    tag = 0
    while table[length - 1, tag] != best:
        tag += 1
    tags[length - 1] = tag
    for t in range(length - 1, 0, -1):
        p = min(t, transition.shape[0]) - 1
        best = table[t - 1, 0] + transition[p, 0, tag]
        for i in range(len(sums)):
            sums[i] = table[t - 1, i] + transition[p, i, tag]
            best = maximum(best, sums[i])
        tag = 0
        while sums[tag] != best:
            tag += 1
        tags[t - 1] = tag


@jit
def _new_memory(unary, transition):
    """Return memory for :func:`_find_tags`: a table, padded rows of the transition, tags and sums."""
    length, states = unary.shape[1:]
    width = -(-states // LANES) * LANES if transition.shape[1] == 1 else states
    table = np.full((length, width), -np.inf, unary.dtype)
    padded = np.full((1, states, width), -np.inf, unary.dtype)
    return table, padded, np.empty(length, np.int64), np.empty(states, unary.dtype)


@jit
def _find_tags(b, is_first, unary, transition, length, memory):
    """Write the best tags of row ``b`` to ``memory``; return whether a sequence is allowed.

    Rows that share a transition share its padded copy, which the first row writes.
    """
    table, padded, tags, sums = memory
    scores, steps = unary[min(b, unary.shape[0] - 1)], transition[min(b, transition.shape[0] - 1)]
    if transition.shape[1] == 1:
        if is_first or transition.shape[0] > 1:
            for i in range(steps.shape[1]):
                for j in range(steps.shape[1]):
                    padded[0, i, j] = steps[0, i, j]
        steps = padded
    best = _forward(scores, steps, length, table)
    if best > -np.inf:
        _backward(steps, length, table, best, sums, tags)
    return best > -np.inf


@jit
def argmax(start, stop, unary, transition, lengths, feasible, out_unary, out_transition):
    """Find best structures of the rows ``start:stop``.

    Parameters
    ----------
    unary : (B | 1, T, S)
        Scores of the tags.
    transition : (B | 1, P, S, S)
        Scores of the transitions; P = T − 1, or 1 for a transition shared by all steps.
    lengths : (B,) int64
        Numbers of tokens.
    feasible : (B,) bool
        Written: whether a sequence is allowed.
    out_unary : (B, T, S)
        Zeros on entry; indicators of the tags are written.
    out_transition : (B, P, S, S)
        Zeros on entry; indicators or counts of the transitions are written.
    """
    memory = _new_memory(unary, transition)
    tags = memory[2]
    for b in range(start, stop):
        feasible[b] = _find_tags(b, b == start, unary, transition, lengths[b], memory)
        if feasible[b]:
            for t in range(lengths[b]):
                out_unary[b, t, tags[t]] = 1
            for t in range(1, lengths[b]):
                out_transition[b, min(t, out_transition.shape[1]) - 1, tags[t - 1], tags[t]] += 1


@jit
def argmax_indices(start, stop, unary, transition, lengths, feasible, parts):
    """Find the structures of :func:`argmax` as lists of parts.

    ``parts`` (B, 2 T − 1), or (B, T − 1) without the tags, is written: the index of the tag of each token, then of
    each transition, −1 in the padding. Transitions follow the T S tags.
    """
    length, states = unary.shape[1:]
    edges = max(length - 1, 0)
    nodes = parts.shape[1] - edges
    memory = _new_memory(unary, transition)
    tags = memory[2]
    for b in range(start, stop):
        feasible[b] = _find_tags(b, b == start, unary, transition, lengths[b], memory)
        for i in range(parts.shape[1]):
            parts[b, i] = -1
        if feasible[b]:
            for t in range(min(nodes, lengths[b])):
                parts[b, t] = t * states + tags[t]
            for t in range(1, lengths[b]):
                step = nodes * states + (min(t, transition.shape[1]) - 1) * states * states
                parts[b, nodes + t - 1] = step + tags[t - 1] * states + tags[t]
