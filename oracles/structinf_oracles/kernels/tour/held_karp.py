"""The best tours of few nodes (M. Held & R. Karp, Journal of the SIAM 10(1), 1962).

The recursion runs over the sets R of nodes without node 0: v(R, k) is the best score of a path from node 0 through R
that ends in node k, so that v(R ∪ {j}, j) = max over k in R of v(R, k) + θ(k, j). A row of the table holds the ends of
a set, padded to ``WIDTH``, and the loop over the next nodes j fills vector registers. Scores are integers, so that
equal tours tie exactly. Ties go to the lowest node, decided from the last node backwards.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["FORBIDDEN", "LEAST", "WIDTH", "best_tours"]

WIDTH = 16
"""The largest number of nodes. The table of 16 nodes takes 4 MiB."""

FORBIDDEN, LEAST = -(2**62), -(2**61)
"""The score of a forbidden arc, and the least score of a tour. A sum with a forbidden arc is below the least score."""


@jit
def best_tours(start, stop, theta, lengths, value, out):
    """Write the scores of the best tours to ``value`` (B,), below LEAST without a tour, and the tours to ``out``.

    ``theta`` (B, n, n) int64 has magnitudes below 2^57, or FORBIDDEN, and ``out`` (B, n, n) is initially zero.
    Instances have ``lengths`` (B,) from 2 to WIDTH.
    """
    most = 2
    for b in range(start, stop):
        most = max(most, lengths[b])
    table = np.empty((1 << (most - 1), WIDTH), np.int64)
    score, after = np.empty((WIDTH, WIDTH), np.int64), np.empty(WIDTH, np.int64)
    for b in range(start, stop):
        m = lengths[b] - 1
        score[:] = FORBIDDEN
        for k in range(m):
            for j in range(m):
                score[k, j] = theta[b, k + 1, j + 1]
        table[: 1 << m] = FORBIDDEN
        for j in range(m):
            table[1 << j, j] = theta[b, 0, j + 1]
        for nodes in range(1, (1 << m) - 1):
            after[:] = FORBIDDEN
            for k in range(m):
                if nodes >> k & 1:
                    so_far = table[nodes, k]
                    for j in range(WIDTH):
                        after[j] = max(after[j], so_far + score[k, j])
            for j in range(m):
                if not nodes >> j & 1:
                    table[nodes | 1 << j, j] = after[j]
        nodes, head = (1 << m) - 1, 0
        for k in range(m):  # back from node 0 to node 0
            best, tail = FORBIDDEN, 0
            for i in range(m):
                if nodes >> i & 1 and table[nodes, i] + theta[b, i + 1, head] > best:
                    best, tail = table[nodes, i] + theta[b, i + 1, head], i
            if k == 0:
                value[b] = best
                if best < LEAST:
                    break
            out[b, tail + 1, head] = 1.0
            nodes, head = nodes & ~(1 << tail), tail + 1
        if value[b] >= LEAST:
            out[b, 0, head] = 1.0
