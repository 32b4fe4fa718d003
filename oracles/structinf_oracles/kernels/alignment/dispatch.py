"""CPU entry points of alignments: split the batch over threads and groups, and allocate memory for the loops.

Tensors are θ (B, n, m), ``lengths`` (B, 2) and ``bands`` (B,), both int64. A regularizer is given by its α. Values
(B,) are float64. If every path of an instance has a cell of −inf, the value is −inf and the parts are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from structinf.kernels import compiled_alpha, parallel_rows, to_numpy

from . import paths, smoothed_passes
from .anti_diagonals import LANES

__all__ = ["argmax", "hessian_product", "sample", "topk", "value", "value_and_mean"]

# Estimated operations per cell for a value. A mean takes twice as many, a Hessian-vector product four times.
_OPERATIONS = 16

# The most columns and the most table places of a group of instances. Larger groups would not fit into the cache.
_COLUMNS = 512
_PLACES = 2**16

# Results are allocated by numpy, which requests huge pages: large arrays are faster to allocate than with torch.


class _Scratch(NamedTuple):
    """The scratch memory of a thread for groups of ``len(grids)`` instances.

    :mod:`.anti_diagonals` and :mod:`.smooth_max_of_three` describe the arrays.
    """

    grids: np.ndarray
    rings: np.ndarray
    d: np.ndarray
    q: np.ndarray
    f: np.ndarray
    panel: np.ndarray
    stored: np.ndarray


Server = Callable[[int, int], Any]


# ----------------------------------------------------------------------------- smoothed maxima


def value(theta: Tensor, lengths: Tensor, bands: Tensor, alpha: float) -> Tensor:
    """Return DP_Ω(θ), using memory for three anti-diagonals."""
    batch = scores, *_ = to_numpy(theta, lengths, bands)
    value, kind = np.empty(len(scores)), compiled_alpha(alpha)

    def prepare(scratch: _Scratch) -> Server:
        return lambda first, last: smoothed_passes.forward(first, last, *batch, kind, *scratch, value)

    _serve(prepare, *batch, work=_OPERATIONS * scores.size, is_stored=False)
    return torch.from_numpy(value)


def value_and_mean(
    theta: Tensor, lengths: Tensor, bands: Tensor, alpha: float, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), and its gradient (B, n, m) times ``weight`` (B,), 1 by default."""
    batch = scores, sizes, limits = to_numpy(theta, lengths, bands)
    factors = np.ones(len(scores), scores.dtype) if weight is None else to_numpy(weight)[0]
    value, out = np.empty(len(scores)), np.zeros(scores.shape, scores.dtype)
    kind = compiled_alpha(alpha)

    def prepare(scratch: _Scratch) -> Server:
        grids, _, _, q, _, panel, stored = scratch
        inflow = _flows(scratch, scores)

        def serve(first: int, last: int) -> None:
            end = smoothed_passes.forward(first, last, *batch, kind, *scratch, value)
            smoothed_passes.backward(
                first, last, end, sizes, limits, value, factors, grids, q, panel, stored, inflow, out
            )

        return serve

    _serve(prepare, *batch, work=2 * _OPERATIONS * scores.size)
    return torch.from_numpy(value), torch.from_numpy(out)


def hessian_product(theta: Tensor, v: Tensor, lengths: Tensor, bands: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ) and ∇²DP_Ω(θ) v, (B, n, m)."""
    batch = scores, sizes, limits = to_numpy(theta, lengths, bands)
    (along,) = to_numpy(v)
    value, out, ones = np.empty(len(scores)), np.zeros(scores.shape, scores.dtype), np.ones(len(scores), scores.dtype)
    kind = compiled_alpha(alpha)

    def prepare(scratch: _Scratch) -> Server:
        grids, _, _, q, _, panel, stored = scratch
        inflow, d_inflow = _flows(scratch, scores), _flows(scratch, scores)
        d_tables, s = np.empty((len(grids), stored.shape[2])), np.zeros_like(q)

        def serve(first: int, last: int) -> None:
            end = smoothed_passes.forward(first, last, *batch, kind, *scratch, value)
            smoothed_passes.tangent(first, last, end, along, sizes, limits, grids, q, panel, stored, d_tables)
            smoothed_passes.backward_tangent(
                first, last, end, sizes, limits, value, ones, kind, grids, q, panel, stored, d_tables, s, inflow,
                d_inflow, out,
            )  # fmt: skip

        return serve

    _serve(prepare, *batch, work=4 * _OPERATIONS * scores.size)
    return torch.from_numpy(value), torch.from_numpy(out)


# ----------------------------------------------------------------------------- single paths


def argmax(theta: Tensor, lengths: Tensor, bands: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best score, and the best path (B, n, m)."""
    _, n, m = theta.shape
    value, y = sample(
        theta, lengths, bands, math.inf, torch.zeros(1, len(theta), n + m - 1, dtype=torch.float64, device="cpu")
    )
    return value, y[0]


def sample(theta: Tensor, lengths: Tensor, bands: Tensor, alpha: float, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), and paths (N, B, n, m) drawn along q with ``uniforms`` (N, B, n + m − 1) in [0, 1)."""
    batch = scores, sizes, _ = to_numpy(theta, lengths, bands)
    (draws,) = to_numpy(uniforms)
    value, y = np.empty(len(scores)), np.zeros((len(draws), *scores.shape), scores.dtype)
    kind = compiled_alpha(alpha)

    def prepare(scratch: _Scratch) -> Server:
        def serve(first: int, last: int) -> None:
            smoothed_passes.forward(first, last, *batch, kind, *scratch, value)
            paths.sample_paths(first, last, sizes, draws, scratch.grids, scratch.stored, value, y)

        return serve

    _serve(prepare, *batch, work=_OPERATIONS * scores.size)
    return torch.from_numpy(value), torch.from_numpy(y)


def topk(theta: Tensor, lengths: Tensor, bands: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the scores of the k best paths, (k, B) in float64, and the paths (k, B, n, m); missing scores are −inf."""
    batch = scores, *_ = to_numpy(theta, lengths, bands)
    best_scores, y = np.empty((k, len(scores))), np.zeros((k, *scores.shape), scores.dtype)
    parallel_rows(paths.topk, len(scores), *batch, best_scores, y, work=_OPERATIONS * y.size)
    return torch.from_numpy(best_scores), torch.from_numpy(y)


# ----------------------------------------------------------------------------- threads and groups


def _serve(
    prepare: Callable[[_Scratch], Server],
    scores: np.ndarray,
    sizes: np.ndarray,
    bands: np.ndarray,
    *,
    work: float,
    is_stored: bool = True,
) -> None:
    """Run the batch, one group after the other in each thread. Without ``is_stored`` no memory for q is allocated."""

    def serve_range(start: int, stop: int) -> None:
        scratch = _scratch(scores, sizes[start:stop], bands[start:stop], is_stored)
        serve = prepare(scratch)
        for first in range(start, stop, len(scratch.grids)):
            serve(first, min(stop, first + len(scratch.grids)))

    parallel_rows(serve_range, len(scores), work=work)


def _scratch(scores: np.ndarray, sizes: np.ndarray, bands: np.ndarray, is_stored: bool) -> _Scratch:
    """Return scratch memory for instances of the given ``sizes`` and ``bands``."""
    _, n, m = scores.shape
    longest = min(n, m)
    cells = (sizes.min(1) * np.minimum(sizes.max(1), 2 * np.minimum(bands, n + m) + 1)).max()
    places = int(cells) + 2 * (n + m + 1) if is_stored else 0
    group = max(1, min(len(sizes), _COLUMNS // longest, _PLACES // (places + 1)))
    columns = group * longest + LANES
    return _Scratch(
        np.empty((group, n + m + 1, 4), np.int64),
        np.empty((group, 3 * (longest + LANES + 2) + LANES)),
        np.zeros((4, columns)),
        np.zeros((5, columns)),
        np.zeros((3, columns), scores.dtype),
        np.empty((group, longest + LANES, LANES), scores.dtype),
        np.empty((group, 2, places), scores.dtype),
    )


def _flows(scratch: _Scratch, scores: np.ndarray) -> np.ndarray:
    """Return the array ``inflow`` for :func:`.anti_diagonals.store_outflow`."""
    return np.empty((len(scratch.grids), 4, scores.shape[1] + 3))
