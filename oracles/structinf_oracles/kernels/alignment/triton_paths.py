"""The best alignment path, the k best paths, and exact samples on a GPU.

The rules, also for ties, are those of :mod:`.paths`, and the anti-diagonals, barriers and arguments those of
:mod:`.triton_smoothed_passes`. A program serves one instance.

==========  ========  ====================================================================
result      launches  memory besides arguments and results, per instance
==========  ========  ====================================================================
best path   1         3 n float64, n m int8: the place of each cell's best predecessor
k best      1         3 k n float64, k n m int32: rank · 3 + predecessor, as on the CPU
samples     2         3 n float64, 2 n m probabilities; a lane of the second launch follows
                      a sample
==========  ========  ====================================================================

A walk back from the last cell is serial: one load for each of at most n + m − 2 moves. It stops at the border of the
grid, since scores may hold NaN until the end of the call (:mod:`structinf.deferred_checks`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from structinf.kernels.gpu import launch

from .triton_smooth_max_of_three import unpack_probabilities
from .triton_smoothed_passes import TILE, block, cells_before, extent, forward, probabilities, range_of, sizes_in_use

__all__ = ["argmax", "sample", "topk"]


@triton.jit
def best_path(
    theta, value, rings, stored, y, lengths, bands, n, m, band, TILED: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Find the best path of an instance."""
    b = tl.program_id(0).to(tl.int64)
    height = n + tl.zeros([], tl.int32)
    width = m + tl.zeros([], tl.int32)
    rows, columns, limit = sizes_in_use(b, lengths, bands, height, width, band)
    cells = b * n * m
    stored += cells
    y += cells
    # The barrier at the end of the last anti-diagonal is between the stores to `stored` and the walk.
    total = forward(
        theta + cells, None, rings + b * 3 * n, stored, None, height, width, rows, columns, limit,
        float("inf"), True, False, TILED, LANES,
    )  # fmt: skip
    tl.store(value + b, total)
    i = rows - 1
    j = columns - 1
    cells_left = tl.where(total > float("-inf"), i + j + 1, 0)
    while cells_left > 0:
        tl.store(y + i.to(tl.int64) * width + j, 1.0)
        step = tl.load(stored + ((i + j) % width).to(tl.int64) * height + i)
        i -= tl.where(step != 2, 1, 0)
        j -= tl.where(step != 1, 1, 0)
        cells_left = tl.where((i < 0) | (j < 0), 0, i + j + 1)


@triton.jit
def sampled_paths(
    value, stored, uniforms, y, count, lengths, n, m, LANES: tl.constexpr,
):  # fmt: skip
    """Follow a tile of the samples of an instance."""
    b = tl.program_id(0).to(tl.int64)
    sample = tl.program_id(1).to(tl.int64) * LANES + tl.arange(0, LANES)
    batch = tl.num_programs(0)
    height = n + tl.zeros([], tl.int32)
    width = m + tl.zeros([], tl.int32)
    rows, columns, _ = sizes_in_use(b, lengths, None, height, width, 0)
    size = height.to(tl.int64) * width
    stored += 2 * b * size
    row = sample * batch + b
    i = rows - 1 + tl.zeros([LANES], tl.int32)
    j = columns - 1 + tl.zeros([LANES], tl.int32)
    live = sample < tl.where(tl.load(value + b) > float("-inf"), count, 0)
    for _ in range(rows + columns - 1):
        tl.store(y + row * size + i.to(tl.int64) * width + j, 1.0, mask=live)
        live = live & (i + j > 0)
        place = ((i + j) % width).to(tl.int64) * height + i
        a = tl.load(stored + place, mask=live, other=0.0)
        c = tl.load(stored + size + place, mask=live, other=0.0)
        q0, q1, _ = unpack_probabilities(a, c)
        # The level stays strictly below 1, so that no predecessor of probability 0 is taken.
        level = tl.load(uniforms + row * (height + width - 1) + i + j, mask=live, other=0.0) * (1 - 2.0**-52)
        first = level < q0
        second = (level >= q0) & (level < q0 + q1)
        i -= tl.where(live & (first | second), 1, 0)
        j -= tl.where(live & (first | ~second), 1, 0)
        live = live & (i >= 0) & (j >= 0)


@triton.jit
def _merge(rings, origins, theta, d, start, k, height, width, n, m, band, LANES: tl.constexpr):
    """Merge the lists of the predecessors of a tile's cells. Rank r of a list is r rows after rank 0."""
    low, high = range_of(d, n, m, band)
    i = (start + tl.arange(0, LANES)).to(tl.int64)
    inside = (i >= low) & (i <= high)
    score = tl.load(theta + i * (width - 1) + d, mask=inside, other=float("-inf")).to(tl.float64)
    two = rings + (d + 1) % 3 * k * height.to(tl.int64)
    one = rings + (d + 2) % 3 * k * height.to(tl.int64)
    r0 = tl.zeros_like(i)
    r1 = tl.zeros_like(i)
    r2 = tl.zeros_like(i)
    for r in range(k):
        x0 = cells_before(two + r0 * height, i - 1, d - 2, n, m, band, inside, float("-inf"))
        x1 = cells_before(one + r1 * height, i - 1, d - 1, n, m, band, inside, float("-inf"))
        x2 = cells_before(one + r2 * height, i, d - 1, n, m, band, inside, float("-inf"))
        top = tl.maximum(tl.maximum(x0, x1), x2)
        first = x0 == top
        second = (x1 == top) & ~first
        third = ~first & ~second
        origin = tl.where(first, 3 * r0, tl.where(second, 3 * r1 + 1, 3 * r2 + 2))
        top = tl.where(i + d + r == 0, 0.0, top)
        tl.store(rings + (d % 3 * k + r) * height.to(tl.int64) + i, top + score, mask=inside)
        tl.store(origins + (r * width.to(tl.int64) + d % width) * height + i, origin.to(tl.int32), mask=inside)
        r0 += first.to(tl.int64)
        r1 += second.to(tl.int64)
        r2 += third.to(tl.int64)


@triton.jit
def k_best_paths(
    theta, scores, rings, origins, y, k, lengths, bands, n, m, band, LANES: tl.constexpr,
):  # fmt: skip
    """Find the k best paths of an instance, best first."""
    b = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0)
    height = n + tl.zeros([], tl.int32)
    width = m + tl.zeros([], tl.int32)
    rows, columns, limit = sizes_in_use(b, lengths, bands, height, width, band)
    size = height.to(tl.int64) * width
    theta += b * size
    rings += b * 3 * k * n
    origins += b * k * size
    for d in range(rows + columns - 1):
        low, high = range_of(d, rows, columns, limit)
        for start in range(low, high + 1, LANES):
            _merge(rings, origins, theta, d, start, k, height, width, rows, columns, limit, LANES)
        tl.debug_barrier()
    last = rings + (rows + columns - 2) % 3 * k * height.to(tl.int64) + rows - 1
    for start in range(0, k, LANES):
        path = start + tl.arange(0, LANES).to(tl.int64)
        found = tl.load(last + path * height, mask=path < k, other=float("-inf"))
        tl.store(scores + path * batch + b, found, mask=path < k)
        live = found > float("-inf")
        i = rows - 1 + tl.zeros([LANES], tl.int32)
        j = columns - 1 + tl.zeros([LANES], tl.int32)
        rank = path
        for _ in range(rows + columns - 1):
            tl.store(y + (path * batch + b) * size + i.to(tl.int64) * width + j, 1.0, mask=live)
            live = live & (i + j > 0)
            origin = tl.load(origins + (rank * width + (i + j) % width) * height + i, mask=live, other=0)
            rank = (origin // 3).to(tl.int64)
            step = origin % 3
            i -= tl.where(live & (step != 2), 1, 0)
            j -= tl.where(live & (step != 1), 1, 0)
            live = live & (i >= 0) & (j >= 0)


# ----------------------------------------------------------------------------- launches


def argmax(theta: Tensor, lengths: Tensor | None, band: Tensor | int, *, tile: int = TILE) -> tuple[Tensor, Tensor]:
    """Return the best score (B,) in float64, and the best path (B, n, m)."""
    theta, (batch, n, m) = theta.contiguous(), theta.shape
    value, rings = (theta.new_empty(size, dtype=torch.float64) for size in (batch, batch * 3 * n))
    stored, y = theta.new_empty(batch, m, n, dtype=torch.int8), torch.zeros_like(theta)
    arguments = theta, value, rings, stored, y, *extent(theta, lengths, band)
    launch(best_path, (batch,), *arguments, **block(theta, band, tile))
    return value, y


def sample(
    theta: Tensor, lengths: Tensor | None, band: Tensor | int, alpha: float, uniforms: Tensor, *, tile: int = TILE
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), and paths (N, B, n, m) drawn along q with ``uniforms`` (N, B, n + m − 1) in [0, 1)."""
    if alpha == float("inf"):
        value, y = argmax(theta, lengths, band, tile=tile)
        return value, y.repeat(len(uniforms), 1, 1, 1)
    value, stored = probabilities(theta, lengths, band, alpha, tile=tile)
    count, (batch, n, m) = len(uniforms), theta.shape
    y = theta.new_zeros(count, batch, n, m)
    lanes = min(triton.next_power_of_2(count), 128, tile)
    sizes, _, *_ = extent(theta, lengths, band)
    launch(
        sampled_paths, (batch, triton.cdiv(count, lanes)), value, stored, uniforms.contiguous(), y, count, sizes, n, m,
        warps=max(lanes // 32, 1), LANES=lanes,
    )  # fmt: skip
    return value, y


def topk(
    theta: Tensor, lengths: Tensor | None, band: Tensor | int, k: int, *, tile: int = TILE // 2
) -> tuple[Tensor, Tensor]:
    """Return the scores of the k best paths, (k, B) in float64, and the paths (k, B, n, m); missing scores are −inf."""
    theta, (batch, n, m) = theta.contiguous(), theta.shape
    scores, rings = (theta.new_empty(shape, dtype=torch.float64) for shape in ((k, batch), (batch, 3, k, n)))
    origins, y = theta.new_empty(batch, k, m, n, dtype=torch.int32), theta.new_zeros(k, batch, n, m)
    arguments = theta, scores, rings, origins, y, k, *extent(theta, lengths, band)
    constants = block(theta, band, tile)
    del constants["TILED"]
    launch(k_best_paths, (batch,), *arguments, **constants)
    return scores, y
