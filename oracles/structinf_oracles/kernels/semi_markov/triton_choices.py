"""The two choices of :mod:`.sums` for Triton kernels: of a duration, and of the label before.

Both choices are maxima over the rows of a table of x(k, s), read in tiles of ``K`` rows and ``SP`` labels. In the
choice of a duration, x(d, s) = g(t − d, s) + durations(d, s). In the choice of the label before,
x(r, s) = w(t, r) + A(r, s). Scores x, sums and results are float64. Exponentials are computed in the dtype of the
scores, from differences.
"""

from __future__ import annotations

import triton
import triton.language as tl

from structinf.kernels.gpu.triton_smooth_max import finite, log_of_positive

__all__ = [
    "duration_tile",
    "exp_of",
    "label_tile",
    "load_allowed",
    "load_row",
    "mean_of_durations",
    "mean_of_labels",
    "scale_of",
    "smooth_duration",
    "smooth_label",
    "smooth_row",
]

_LEAST_MASK: tl.constexpr = tl.constexpr(1e36)
"""As in :func:`structinf_oracles.common.segment_boundaries.without_masks`."""


@triton.jit
def load_row(row, S, SP: tl.constexpr, OTHER: tl.constexpr):
    """Return the S numbers of ``row`` in float64, with ``OTHER`` in the padding."""
    s = tl.arange(0, SP)
    return tl.load(row + s, mask=s < S, other=OTHER).to(tl.float64)


@triton.jit
def load_allowed(row, margin, S, SP: tl.constexpr):
    """Return the scores of a step by :func:`load_row`, −inf for those below the best score by more than ``margin``."""
    scores = load_row(row, S, SP, float("-inf"))
    return tl.where(scores < tl.max(scores, 0) - margin, float("-inf"), scores)


@triton.jit
def scale_of(table, rows, S, R: tl.constexpr, SP: tl.constexpr):
    """Return the largest absolute value among the maxima of the rows of ``table`` (rows, S); 0 beside a mask."""
    s, scale = tl.arange(0, SP)[None, :], tl.full([], 0.0, tl.float64)
    for first in range(0, rows, R):
        r = first + tl.arange(0, R)
        inside = (r < rows)[:, None] & (s < S)
        x = tl.load(table + r[:, None] * S + s, mask=inside, other=float("-inf")).to(tl.float64)
        scale = tl.maximum(scale, tl.max(tl.where(r < rows, tl.abs(tl.max(x, 1)), 0.0), 0))
    return tl.where(scale > _LEAST_MASK, 0.0, scale)


@triton.jit
def exp_of(difference, like):
    """Return the exponential of a float64 ``difference``, computed in the dtype at the pointer ``like``, in float64."""
    return tl.exp(difference.to(like.dtype.element_ty)).to(tl.float64)


@triton.jit
def smooth_row(x, like, HARD: tl.constexpr):
    """Return max_Ω, max x and t of a row. If all x are −inf, max x and t are 0, so that q is 0."""
    best = tl.max(x, 0)
    top = finite(best)
    rest = top * 0.0
    if not HARD:
        rest = finite(log_of_positive(tl.sum(exp_of(x - top, like), 0)))
    return tl.where(best == float("-inf"), best, top + rest), top, rest


@triton.jit
def _finish(top, total, HARD: tl.constexpr):
    """Return max_Ω, max x and t of columns with the maximum ``top``."""
    rest = tl.zeros_like(top)
    if not HARD:
        rest = finite(log_of_positive(total))
    return tl.where(top == float("-inf"), top, finite(top) + rest), finite(top), rest


@triton.jit
def _add_tile(x, top, total, like, HARD: tl.constexpr):
    """Return the maximum and the sum of exponentials of columns after another tile."""
    new = tl.maximum(top, tl.max(x, 0))
    if not HARD:
        safe = finite(new)
        total = total * exp_of(top - safe, like) + tl.sum(exp_of(x - safe[None, :], like), 0)
    return new, total


@triton.jit
def duration_tile(table, durations, t, first, since, ring, S, D, K: tl.constexpr, SP: tl.constexpr):
    """Return ``table``(t − d, s) + durations(d, s), −inf where d is no duration or the start is before ``since``."""
    d, s = first + tl.arange(0, K)[:, None], tl.arange(0, SP)[None, :]
    is_choice = (d < D) & (t - d >= since[None, :]) & (s < S)
    own = tl.load(table + ((t - d) & ring) * S + s, mask=is_choice, other=float("-inf"))
    return own + tl.load(durations + d * S + s, mask=is_choice, other=0.0).to(tl.float64)


@triton.jit
def label_tile(row, transition, first, S, K: tl.constexpr, SP: tl.constexpr):
    """Return ``row``(r) + A(r, s) for the labels r before from ``first`` on, −inf in the padding."""
    r, s = first + tl.arange(0, K)[:, None], tl.arange(0, SP)[None, :]
    is_choice = (r < S) & (s < S)
    own = tl.load(row + r, mask=r < S, other=float("-inf"))
    return own + tl.load(transition + r * S + s, mask=is_choice, other=float("-inf")).to(tl.float64)


@triton.jit
def smooth_duration(table, durations, t, since, ring, S, D, K: tl.constexpr, SP: tl.constexpr, HARD: tl.constexpr):
    """Return max_Ω over the durations d of the segments that end at step t, max x and t."""
    top = tl.full([SP], float("-inf"), tl.float64)
    total = tl.zeros([SP], tl.float64)
    for first in range(0, tl.minimum(t + 1, D), K):
        x = duration_tile(table, durations, t, first, since, ring, S, D, K, SP)
        top, total = _add_tile(x, top, total, durations, HARD)
    return _finish(top, total, HARD)


@triton.jit
def smooth_label(row, transition, S, K: tl.constexpr, SP: tl.constexpr, HARD: tl.constexpr):
    """Return max_Ω over the labels before each label, max x and t."""
    top = tl.full([SP], float("-inf"), tl.float64)
    total = tl.zeros([SP], tl.float64)
    for first in range(0, S, K):
        top, total = _add_tile(label_tile(row, transition, first, S, K, SP), top, total, transition, HARD)
    return _finish(top, total, HARD)


@triton.jit
def mean_of_durations(
    table, d_table, durations, d_durations, t, since, top, rest, S, D, K: tl.constexpr, SP: tl.constexpr
):
    """Return Σ q dx over the durations."""
    mean = tl.zeros([SP], tl.float64)
    for first in range(0, tl.minimum(t + 1, D), K):
        x = duration_tile(table, durations, t, first, since, -1, S, D, K, SP)
        dx = duration_tile(d_table, d_durations, t, first, since, -1, S, D, K, SP)
        q = exp_of((x - top[None, :]) - rest[None, :], durations)
        mean += tl.sum(q * tl.where(x > float("-inf"), dx, 0.0), 0)
    return mean


@triton.jit
def mean_of_labels(row, d_row, transition, d_transition, top, rest, S, K: tl.constexpr, SP: tl.constexpr):
    """Return Σ q dx over the labels before."""
    mean = tl.zeros([SP], tl.float64)
    for first in range(0, S, K):
        x, dx = label_tile(row, transition, first, S, K, SP), label_tile(d_row, d_transition, first, S, K, SP)
        q = exp_of((x - top[None, :]) - rest[None, :], transition)
        mean += tl.sum(q * tl.where(x > float("-inf"), dx, 0.0), 0)
    return mean
