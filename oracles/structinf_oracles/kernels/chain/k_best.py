"""The k best tag sequences of a chain: Viterbi's recursion over lists of the k best prefixes of each state.

The algorithm is the parallel algorithm of N. Seshadri and C.-E. W. Sundberg, List Viterbi decoding algorithms with
applications (IEEE Transactions on Communications 42, 1994). Lists are merged by insertion: as lists are sorted, most
candidates fail at the first comparison. Scores are summed in float64.
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

__all__ = ["topk"]


@jit
def _insert(scores, origins, score, origin):
    """Insert a candidate into a descending list, after equal scores, in place of the last entry."""
    place = len(scores) - 1
    while place > 0 and score > scores[place - 1]:
        scores[place], origins[place] = scores[place - 1], origins[place - 1]
        place -= 1
    scores[place], origins[place] = score, origin


@jit
def topk(start, stop, unary, transition, lengths, tags, scores):
    """Find the k best tag sequences, best first; ties follow the order of the states, the last step first.

    Parameters
    ----------
    unary, transition, lengths
        As for :func:`.viterbi.argmax`.
    tags : (k, B, T) int64
        Zeros on entry; written inside the lengths.
    scores : (k, B) float64
        Written; −inf if fewer than k sequences have a finite score.
    """
    k, states = tags.shape[0], unary.shape[2]
    # The score of the r-th best prefix that ends in state j at step t, and its predecessor: state · k + rank.
    best = np.empty((unary.shape[1], states, k))
    origin = np.zeros(best.shape, np.int64)
    final, last = np.empty(k), np.zeros(k, np.int64)
    for b in range(start, stop):
        length, nodes = lengths[b], unary[min(b, unary.shape[0] - 1)]
        for t in range(length):
            for j in range(states):
                for r in range(k):
                    best[t, j, r] = -np.inf
            if t == 0:
                for j in range(states):
                    best[0, j, 0] = nodes[0, j]
                continue
            step = transition[min(b, transition.shape[0] - 1), min(t, transition.shape[1]) - 1]
            for i in range(states):
                for j in range(states):
                    for r in range(k):
                        score = best[t - 1, i, r] + step[i, j]
                        if not score > best[t, j, k - 1]:
                            break
                        _insert(best[t, j], origin[t, j], score, i * k + r)
            for j in range(states):
                for r in range(k):
                    best[t, j, r] += nodes[t, j]
        for r in range(k):
            final[r] = -np.inf
        for j in range(states):
            for r in range(k):
                if not best[length - 1, j, r] > final[k - 1]:
                    break
                _insert(final, last, best[length - 1, j, r], j * k + r)
        for r in range(k):
            scores[r, b] = final[r]
            if final[r] > -np.inf:
                place = last[r]
                for t in range(length - 1, -1, -1):
                    tags[r, b, t] = place // k
                    place = origin[t, place // k, place % k]
