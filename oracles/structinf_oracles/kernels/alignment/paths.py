"""Single alignment paths of a grid: the best path, the k best paths, and exact samples.

The best path and samples are walks from the last cell back to (0, 0) along the probabilities stored by
:func:`.smoothed_passes.forward`. The k best come from the same recursion over lists. Each cell keeps the k best paths
to the cell, merged from the lists of its predecessors (N. Seshadri & C.-E. W. Sundberg, List Viterbi decoding
algorithms with applications, IEEE Transactions on Communications 42, 1994). Scores are summed in float64. Ties go to
the diagonal step, then to (i − 1, j).
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

from .smooth_max_of_three import unpack_probabilities

__all__ = ["sample_paths", "topk"]


@jit
def sample_paths(first, last, lengths, uniforms, grids, stored, value, y):
    """Sample paths of the group of rows ``first:last``; without a regularizer, these are the best paths.

    Parameters
    ----------
    lengths, grids, stored, value
        As passed to, and filled by, :func:`.smoothed_passes.forward`.
    uniforms : (N, B, n + m - 1) float64
        In [0, 1), for the steps to the cells of each anti-diagonal.
    y : (N, B, n, m)
        Zeros on entry; set to 1 at the cells of the paths.
    """
    for b in range(first, last):
        if value[b] > -np.inf:
            for sample in range(len(y)):
                _sample_path(b - first, lengths[b], uniforms[sample, b], grids, stored, y[sample, b])


@jit
def _sample_path(g, lengths, uniforms, grids, stored, y):
    """Sample one path, from the last cell back."""
    i, j = lengths[0] - 1, lengths[1] - 1
    y[i, j] = 1
    while i + j > 0:
        k = i + j + 2
        place = grids[g, k, 3] + i - grids[g, k, 0]
        q0, q1, _ = unpack_probabilities(stored[g, 0, place], stored[g, 1, place])
        # The level stays strictly below 1, so that no predecessor of probability 0 is taken.
        level = uniforms[i + j] * (1 - 2.0**-52)
        step = 0 if level < q0 else 1 if level < q0 + q1 else 2
        i -= step != 2
        j -= step != 1
        y[i, j] = 1


@jit
def topk(start, stop, theta, lengths, bands, scores, y):
    """Find the k best paths of the rows ``start:stop``, best first.

    Parameters
    ----------
    theta, lengths, bands
        As for :mod:`.smoothed_passes`.
    scores : (k, B) float64
        Written; −inf if fewer than k paths have a finite score.
    y : (k, B, n, m)
        Zeros on entry; set to 1 at the cells of the paths.
    """
    k = len(scores)
    # The scores of the k best paths to the cells of this row and the row before: column j + 1 is cell j, column 0 −inf.
    best = np.empty((2, theta.shape[2] + 1, k))
    origin = np.empty((theta.shape[1], theta.shape[2], k), np.int64)  # rank · 3 + predecessor
    for b in range(start, stop):
        n, m = lengths[b]
        best[:] = -np.inf
        for i in range(n):
            before, row = best[1 - i % 2], best[i % 2]
            row[:] = -np.inf
            for j in range(max(0, i - bands[b]), min(m, i + bands[b] + 1)):
                if i + j == 0:
                    row[1, 0] = theta[b, 0, 0]
                else:
                    _merge(before[j], before[j + 1], row[j], theta[b, i, j], row[j + 1], origin[i, j])
        for r in range(k):
            scores[r, b] = best[(n - 1) % 2, m, r]
            if scores[r, b] == -np.inf:
                continue
            i, j, rank = n - 1, m - 1, r
            y[r, b, i, j] = 1
            while i + j > 0:
                rank, step = origin[i, j, rank] // 3, origin[i, j, rank] % 3
                i -= step != 2
                j -= step != 1
                y[r, b, i, j] = 1


@jit
def _merge(x0, x1, x2, score, merged, origin):
    """Merge the best of three descending lists, plus ``score``, into ``merged``, filled with −inf on entry."""
    r0 = r1 = r2 = 0
    for r in range(len(merged)):
        top = max(max(x0[r0], x1[r1]), x2[r2])
        if top == -np.inf:
            break
        merged[r] = top + score
        if x0[r0] == top:
            origin[r] = 3 * r0
            r0 += 1
        elif x1[r1] == top:
            origin[r] = 3 * r1 + 1
            r1 += 1
        else:
            origin[r] = 3 * r2 + 2
            r2 += 1
