"""Single alignment paths of a grid: the best, the k best, and exact samples.

The best path and samples are walks from the last cell back to (0, 0) over the tables of :mod:`.dtw_passes`. The k best
come from the same recursion over lists: each cell keeps the k best paths to it, merged from those of its predecessors
(N. Seshadri & C.-E. W. Sundberg, List Viterbi decoding algorithms with applications, IEEE Transactions on
Communications 42, 1994). Scores are summed in float64; ties go to the diagonal step, then to (i − 1, j).
"""

from __future__ import annotations

import numpy as np

from structinf.kernels.elementary import exp
from structinf.kernels.jit import jit

__all__ = ["topk", "walks"]


@jit
def _step(x0, x1, x2, alpha, uniform):
    """The predecessor to go to, 0, 1 or 2: the first best if α is infinity, else as softmax of the scores has it."""
    if alpha == np.inf:
        return 0 if x0 >= max(x1, x2) else 1 if x1 >= x2 else 2
    top = max(max(x0, x1), x2)
    e0, e1, e2 = exp(x0 - top), exp(x1 - top), exp(x2 - top)
    # Strictly below the total, so that no predecessor of probability 0 is taken.
    level = (e0 + e1 + e2) * uniform * (1 - 2.0**-52)
    return 0 if level < e0 else 1 if level < e0 + e1 else 2


@jit
def walks(first, last, lengths, alpha, uniforms, grids, tables, value, y):
    """Paths of the group of rows ``first:last``: drawn if α is 1, the best ones if it is infinity.

    Parameters
    ----------
    lengths, alpha, grids, tables, value
        As :func:`.dtw_passes.forward` took and left them.
    uniforms : (N, B, n + m - 1) float64
        In [0, 1), for the steps to the cells of each anti-diagonal.
    y : (N, B, n, m)
        Zeros, of which the paths' cells are set to 1.
    """
    for b in range(first, last):
        if value[b] > -np.inf:
            for sample in range(len(y)):
                _walk(grids[b - first], tables[b - first], lengths[b], alpha, uniforms[sample, b], y[sample, b])


@jit
def _walk(grid, table, lengths, alpha, uniforms, y):
    """One path, from the last cell back."""
    i, j = lengths[0] - 1, lengths[1] - 1
    y[i, j] = 1
    while i + j > 0:
        # The row of the cell's own anti-diagonal is i + j + 2.
        two, one = grid[i + j, 2] - grid[i + j, 0] + i, grid[i + j + 1, 2] - grid[i + j + 1, 0] + i
        step = _step(table[two - 1], table[one - 1], table[one], alpha, uniforms[i + j])
        i -= step != 2
        j -= step != 1
        y[i, j] = 1


@jit
def topk(start, stop, theta, lengths, bands, scores, y):
    """The k best paths of the rows ``start:stop``, best first.

    Parameters
    ----------
    theta, lengths, bands : as for :mod:`.dtw_passes`
    scores : (k, B) float64, written; −inf where there are fewer than k paths of finite score
    y : (k, B, n, m) zeros, of which the paths' cells are set to 1
    """
    k = len(scores)
    # The paths to each cell of this row and the one before, best first; column j + 1 is j's, and column 0 stays empty.
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
    """The best of three descending lists, plus ``score``; ``merged`` comes filled with −inf."""
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
