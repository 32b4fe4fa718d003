"""The best segmentation, and samples: walks back through the choices of :mod:`.sums`."""

from __future__ import annotations

import numpy as np

from structinf.kernels.jit import jit

from .choices import chosen
from .sums import forward, make_tables, read_scores

__all__ = ["walks"]


@jit
def walks(start, stop, steps, boundaries, durations, transition, lengths, uniforms, is_hard, value, tags, starts):
    """Write walks of the instances ``start:stop``.

    Parameters
    ----------
    steps, boundaries, durations, transition, lengths
        As for :mod:`.sums`.
    uniforms : (n, B, 2 T) float64
        In [0, 1): two for each segment, by its last step.
    is_hard : bool
        Whether to take the best segmentation instead of samples. Ties go to the lowest label and the shortest segment,
        from the end backwards; without transitions, to the shortest segment first.
    value : (B,) float64
        Written: log Z, or the largest score.
    tags : (n, B, T) int64
        −1 on entry. Written: the label of each step inside the lengths.
    starts : (n, B, T) bool
        False on entry. Written: whether a segment starts at the step.
    """
    labels, count = steps.shape[2], durations.shape[1]
    tables, arrivals = make_tables(steps, durations, transition, steps.shape[1]), transition.shape[1]
    for b in range(start, stop):
        scores = read_scores(b, durations, transition)
        total, top, rest = forward(b, steps, boundaries, lengths[b], scores, tables, is_hard)
        value[b] = total + top + rest
        if top == -np.inf:
            continue
        for n in range(len(tags)):
            end, before, at_top, at_t = lengths[b] - 1, 0, top, rest
            is_first = True
            while end >= 0:
                row = end * labels
                if is_first or arrivals == 0:
                    s = chosen(tables.w, row, scores.none, 0, labels, at_top, at_t, uniforms[n, b, 2 * end], is_hard)
                else:
                    s = chosen(
                        tables.w, row, scores.transition, before * labels, labels, at_top, at_t,
                        uniforms[n, b, 2 * end], is_hard,
                    )  # fmt: skip
                d = _duration(s, end, tables, scores, count, labels, uniforms[n, b, 2 * end + 1], is_hard)
                if is_hard and arrivals == 0:
                    for other in range(s + 1, labels):
                        if tables.w[row + other] == at_top:
                            shorter = _duration(other, end, tables, scores, count, labels, 0.0, True)
                            if shorter < d:
                                s, d = other, shorter
                first = end - d
                starts[n, b, first] = True
                for t in range(first, end + 1):
                    tags[n, b, t] = s
                k = s if arrivals else 0
                if first > 0:
                    at_top, at_t = (
                        tables.top_before[first * max(arrivals, 1) + k],
                        tables.t_before[first * max(arrivals, 1) + k],
                    )
                before, is_first, end = s, False, first - 1


@jit
def _duration(s, end, tables, scores, durations, labels, uniform, is_hard):
    """Return the number of steps, less 1, of the segment of label s that ends at step ``end``."""
    at = end * labels + s
    count = min(durations, end + 1 - tables.first[at])
    return chosen(
        tables.g, s * tables.span + tables.span - 1 - end, scores.durations, s * durations, count, tables.top[at],
        tables.t[at], uniform, is_hard,
    )  # fmt: skip
