"""Integer scores, and costs of changes, of the oracles that call a solver for integer variables."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from structinf.shapes import Float, Float64, Int64

__all__ = ["cost_of_changes", "integer_scores"]


def integer_scores(
    scores: Float64[np.ndarray, " parts"], most: int, times: int | np.ndarray = 1
) -> Int64[np.ndarray, " parts"]:
    """Return finite ``scores`` (d,) as integers in the same proportions, with Σ |result| · ``times`` ≤ ``most``.

    The scores are multiplied by the largest power of two that fits, rounded, and divided by their common factor. With
    ``most`` = 2^60, float32 scores are exact if their sum is less than 2^36 times the smallest score. Otherwise the
    error is at most 2^-60 of the sum.
    """
    scores = np.asarray(scores, np.float64)
    times = np.broadcast_to(times, scores.shape).astype(np.float64)
    unit = np.ldexp(scores, -np.frexp(np.abs(scores).max(initial=0.0))[1])  # between −1 and 1
    total = (np.abs(unit) * times).sum()
    if total == 0:
        return np.zeros(scores.shape, np.int64)
    largest_sum = most * (1 - 2.0**-40) - times.sum() / 2  # leaves room for the rounding of sums and integers
    shift = np.frexp(largest_sum / total)[1] - 1
    integers = np.rint(np.ldexp(unit, shift)).astype(np.int64)
    return integers // max(int(np.gcd.reduce(integers)), 1)


def cost_of_changes(y: Float[Tensor, "batch parts"], low: np.ndarray, high: np.ndarray) -> Float[Tensor, "batch parts"]:
    """Return costs of 1 per unit by which parts at their least value rise, or parts at their largest fall.

    For 0/1 variables the costs give the Hamming distance from ``y``. Parts between their bounds cost nothing.
    """
    low_end, high_end = (torch.from_numpy(end).to(y) for end in (low, high))
    return (y <= low_end).to(y.dtype) - (y >= high_end).to(y.dtype)
