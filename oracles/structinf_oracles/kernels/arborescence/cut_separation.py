"""Sets of words that too few arcs enter, found by maximum flows, compiled. Importing this module imports numba.

A point x with x ≥ 0 and Σ_h x[h, m] = 1 for each word m is a mean of trees if and only if at least one unit of x
enters each set of words (J. Edmonds, Optimum branchings, 1967). Let x be the capacities of a network. By the max-flow
min-cut theorem, the smallest amount that enters a set with word v is the maximum flow from the root to v. After the
check of v, no other set with v is of interest, and v joins the root. Later flows are therefore easier (M. Padberg & G.
Rinaldi, An efficient algorithm for the minimum capacity cut problem, Mathematical Programming 47, 1990).

Of the sets with word v that the smallest amount enters, the largest is taken. With the smallest, the projection of 100
words at normal scores times 3 takes three times as long.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["add_violated_cuts"]


@jit
def _max_flow(residual, supply, size, sink, enough, smallest, following, queue):
    """Return the maximum flow into node ``sink``, or a part of the flow that is ``enough``.

    ``residual[v, u]`` is the capacity from u to v, and ``supply[u]`` the capacity from the source to u. The flow is
    subtracted from both. Capacities of at most ``smallest`` are ignored.
    """
    flow = supply[sink]
    supply[sink] = 0.0
    for u in range(size):
        if u != sink:
            amount = min(supply[u], residual[sink, u])
            supply[u] -= amount
            residual[sink, u] -= amount
            flow += amount
    while flow < enough:
        for u in range(size):
            following[u] = -1
        following[sink] = sink
        queue[0] = sink
        done, found, start = 0, 1, -1
        while done < found and start < 0:
            v = queue[done]
            done += 1
            for u in range(size):
                if following[u] < 0 and residual[v, u] > smallest:
                    following[u] = v
                    queue[found] = u
                    found += 1
                    if supply[u] > smallest:
                        start = u
                        break
        if start < 0:
            break
        amount = supply[start]
        u = start
        while u != sink:
            amount = min(amount, residual[following[u], u])
            u = following[u]
        supply[start] -= amount
        u = start
        while u != sink:
            v = following[u]
            residual[v, u] -= amount
            residual[u, v] += amount
            u = v
        flow += amount
    return flow


@jit
def _mark_source_side(residual, supply, size, smallest, is_reached, queue):
    """Set ``is_reached`` to 1 for nodes that the source reaches in the residual network, and to 0 for all others."""
    found = 0
    for u in range(size):
        is_reached[u] = supply[u] > smallest
        if supply[u] > smallest:
            queue[found] = u
            found += 1
    done = 0
    while done < found:
        u = queue[done]
        done += 1
        for v in range(size):
            if is_reached[v] == 0 and residual[v, u] > smallest:
                is_reached[v] = 1
                queue[found] = v
                found += 1


@jit
def add_violated_cuts(mean, n, slack, members, multipliers, cuts, flows, indices):
    """Append sets of words that less than 1 − ``slack`` enters to ``members``, and return the new number of sets.

    Parameters
    ----------
    mean : (n, n + 1) float64
        x by word and head.
    members : (capacity, n + 1) float64
        1 for the words of each set; column 0, the root, is 0. At most n sets are appended.
    multipliers : (capacity,) float64
        Set to 0 for the new sets.
    flows : (n + 2, n) float64
    indices : (3, n) int64
        Memory for intermediate results.
    """
    entering, supply, residual = flows[0], flows[1], flows[2:]
    words, marks, queue = indices[0], indices[1], indices[2]
    smallest = slack / (4 * n * n)
    for i in range(n):
        words[i], entering[i] = i, mean[i, 0]
    size = n
    while size > 0:
        sink = np.int64(0)  # numba would compile _max_flow for a literal 0, too
        for p in range(size):
            if entering[words[p]] > entering[words[sink]]:
                sink = p
        word = words[sink]
        if entering[word] < 1 - slack:
            for p in range(size):
                supply[p] = entering[words[p]]
                for q in range(size):
                    residual[p, q] = mean[words[p], words[q] + 1]
            if _max_flow(residual, supply, size, sink, 1 - slack, smallest, marks, queue) < 1 - slack:
                _mark_source_side(residual, supply, size, smallest, marks, queue)
                multipliers[cuts] = 0.0
                for h in range(n + 1):
                    members[cuts, h] = 0.0
                for p in range(size):
                    if marks[p] == 0:
                        members[cuts, words[p] + 1] = 1.0
                cuts += 1
        size -= 1
        words[sink] = words[size]
        for p in range(size):
            entering[words[p]] += mean[words[p], word + 1]
    return cuts
