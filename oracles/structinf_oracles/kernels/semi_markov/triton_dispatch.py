"""Entry points of the Triton kernels of segmentations scored by steps, boundaries and durations.

The functions are those of :mod:`.dispatch`, for at most 256 labels. No function synchronises.

=====================  ============  ============================================================================
function               launches      scratch memory, in float64 numbers
=====================  ============  ============================================================================
value                  1             2 B R S, where R is the power of 2 from D on
value_and_mean         1             7 B T S
hessian_product        1             12 B T S
walk                   2             7 B T S
=====================  ============  ============================================================================

Beside these launches, results in float32 take one conversion for durations and one for transitions. Scores may hold
masks such as the smallest float, as in :func:`structinf_oracles.common.segment_boundaries.without_masks`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structinf.kernels.gpu import launch

from .triton_sums import segment_sums
from .triton_walks import segment_walks

__all__ = ["MOST_LABELS", "hessian_product", "value", "value_and_mean", "walk"]

MOST_LABELS = 256
"""With more labels, a tile of 1,024 numbers would have fewer than 4 rows."""


def value(theta: tuple[Tensor, ...], lengths: Tensor) -> Tensor:
    """Return log Z, (B,)."""
    return _sums(theta, lengths, is_kept=False)[0]


def value_and_mean(theta: tuple[Tensor, ...], lengths: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return log Z, (B,), and the marginals, (B, *event) in the form of θ."""
    results = _results(theta, lengths)
    return _sums(theta, lengths, results)[0], _like(results, theta)


def hessian_product(
    theta: tuple[Tensor, ...], lengths: Tensor, v: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return log Z, (B,), and its Hessian times v, (B, *event) in the form of θ."""
    results = _results(theta, lengths)
    return _sums(theta, lengths, results, v)[0], _like(results, theta)


def walk(
    theta: tuple[Tensor, ...], lengths: Tensor, uniforms: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the best score, (B,), and the best structure, or with ``uniforms`` (n, B, 2 T) log Z and n samples.

    The structures have the form of θ, (n, B, *event). The best structure has n = 1.
    """
    is_hard, batch = uniforms is None, len(lengths)
    values, tables = _sums(theta, lengths, is_hard=is_hard)
    count = 1 if uniforms is None else len(uniforms)
    y = [theta[0].new_empty(count, batch, *t.shape[1:]) for t in theta]
    (d, d_stride), (a, a_stride) = _rows(theta[2]), _rows(theta[3]) if len(theta) == 4 else (None, 0)
    steps, labels = theta[0].shape[1:]
    drawn = None if uniforms is None else uniforms.contiguous()
    outputs = *y, *[None] * (4 - len(y))
    sizes = d_stride, a_stride, tables.shape[1], steps, batch, steps, labels, d.shape[1]
    options = _tiles(theta)
    del options["L"], options["R"]
    arrays = d, a, lengths.contiguous(), tables, drawn, *outputs, *sizes
    launch(segment_walks, (batch, count), *arrays, W=128, HARD=is_hard, **options)
    return values, tuple(y)


def _sums(
    theta: tuple[Tensor, ...],
    lengths: Tensor,
    results: list[Tensor] | None = None,
    v: tuple[Tensor, ...] | None = None,
    *,
    is_kept: bool = True,
    is_hard: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log Z, or with ``is_hard`` the largest score, and the tables; write ``results``, along ``v`` if given."""
    tensors = [_rows(t) for t in theta] + [(None, 0)] * (4 - len(theta))
    directions = [(None, 0)] * 4 if v is None else [_rows(t) for t in v] + [(None, 0)] * (4 - len(v))
    batch, (steps, labels), durations = len(lengths), theta[0].shape[1:], theta[2].shape[1]
    rows = steps if is_kept else 1 << (durations - 1).bit_length()
    count = 12 if v is not None else 7 if is_kept else 2
    size = count * rows * labels + 4 * labels
    values = theta[0].new_empty(batch, dtype=torch.float64)
    tables = values.new_empty(batch, size)
    outputs = [None] * 4 if results is None else [*results, *[None] * (4 - len(results))]
    strides = [stride for _, stride in (*tensors, *directions)]
    arrays = (
        *(t for t, _ in tensors), lengths.contiguous(), values, tables, *outputs, *(t for t, _ in directions), *strides,
        size, rows, -1 if is_kept else rows - 1, steps, labels, durations,
    )  # fmt: skip
    options = {"HARD": is_hard, "KEEP": is_kept, "TANGENT": v is not None}
    launch(segment_sums, (batch,), *arrays, **options, **_tiles(theta, v is not None))
    return values, tables


def _results(theta: tuple[Tensor, ...], lengths: Tensor) -> list[Tensor]:
    """Return uninitialised memory for results, in float64 for sums over all steps."""
    dtypes = theta[0].dtype, theta[0].dtype, torch.float64, torch.float64
    return [t.new_empty(len(lengths), *t.shape[1:], dtype=dtype) for t, dtype in zip(theta, dtypes, strict=False)]


def _like(results: list[Tensor], theta: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(r.to(t.dtype) for r, t in zip(results, theta, strict=True))


def _rows(x: Tensor) -> tuple[Tensor, int]:
    """Return ``x`` (B | 1, ...) in contiguous memory, and the distance between instances, 0 if the batch shares one."""
    if len(x) > 1 and x.stride(0) == 0:
        x = x[:1]
    x = x.contiguous()
    return x, x.stride(0) if len(x) > 1 else 0


def _tiles(theta: tuple[Tensor, ...], is_tangent: bool = False) -> dict[str, Any]:
    """Return the sizes of tiles of durations and of labels, and the number of warps.

    A thread has at most 255 registers. It therefore holds 8 float64 numbers of a tile, or 4 for Hessian products.
    """
    labels, durations = theta[0].shape[2], theta[2].shape[1]
    padded = max(2, 1 << (labels - 1).bit_length())
    most = (512 if is_tangent else 1024) // padded
    is_wide = padded * min(most, durations) > 256
    return {
        "SP": padded,
        "K": min(most, max(2, 1 << (durations - 1).bit_length())),
        "L": min(most, padded),
        "R": most if is_wide else max(2, 256 // padded),
        "warps": 4 if is_wide else 1,
    }
