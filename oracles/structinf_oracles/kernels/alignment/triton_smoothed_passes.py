"""Value, gradient and Hessian-vector product of smoothed alignments on a GPU, in one launch each.

The recursions are those of :mod:`.smoothed_passes`. A program serves one instance, and goes through its anti-diagonals
d = i + j in a loop. The cells of an anti-diagonal are computed side by side, from its first row i inside the band on;
an anti-diagonal of more than ``LANES`` cells is a loop over tiles.

Numbers pass from an anti-diagonal to the next ones in ``rings``: rows of n float64 numbers in global memory, which
stay in the L1 cache. A cell of row i is at place i. Cells outside the band or the grid are masked when they are read,
so nothing is initialised. One barrier ends each anti-diagonal, for two reasons: the next anti-diagonals read what
other threads have stored, and the next stores go to the row that was read last. Tables of all cells need no other
barrier: anti-diagonals that share memory there have no place in common.

Only probabilities are stored, two numbers of θ's dtype per cell, as on the CPU. In float32, these need the memory of v
in float64, and the passes backward read neither θ nor v and need no exponentials. In float64, they need twice the
memory of v, but a float64 exponential for each move would cost more. The probabilities of cell (i, j) are in column i
of row (i + j) mod m of ``stored`` (2, m, n). So the cells of an anti-diagonal are side by side, and n m places suffice.

Memory besides arguments and results, in numbers per instance:

===============  ================  ==================  ================================
result           rings, float64    stored, θ's dtype   derivatives of v, float64
===============  ================  ==================  ================================
value            3 n               none                none
gradient         7 n               2 n m               none
Hessian product  14 n              2 n m               n m
===============  ================  ==================  ================================

The functions take θ (B, n, m), ``lengths`` (B, 2) or None, and ``band``, (B,) or an integer. α is 1, 1.5 or 2. Values
(B,) are float64. If every path of an instance has a cell of −inf, the value is −inf and the parts are 0. A block
computes anti-diagonals of up to ``tile`` cells at once, a power of 2, and tiles of half as many cells beyond.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from structinf.kernels.gpu import launch

from .triton_smooth_max_of_three import curvature, smooth_max, unpack_probabilities

__all__ = [
    "TILE",
    "block",
    "cells_before",
    "extent",
    "forward",
    "hessian_product",
    "probabilities",
    "range_of",
    "sizes_in_use",
    "value",
    "value_and_mean",
]

TILE = 1024


# ----------------------------------------------------------------------------- anti-diagonals


@triton.jit
def sizes_in_use(b, lengths, bands, n, m, band):
    """Return the rows, the columns and the band of instance ``b``."""
    if lengths is not None:
        n = tl.load(lengths + 2 * b).to(tl.int32)
        m = tl.load(lengths + 2 * b + 1).to(tl.int32)
    if bands is not None:
        band = tl.minimum(tl.load(bands + b), n + m).to(tl.int32)
    return n, m, band


@triton.jit
def range_of(d, n, m, band):
    """Return the first and the last row of anti-diagonal ``d`` inside the band; there is none if last < first."""
    return tl.maximum(tl.maximum(0, d - m + 1), (d - band + 1) // 2), tl.minimum(tl.minimum(n - 1, d), (d + band) // 2)


@triton.jit
def cells_before(row, i, d, n, m, band, inside, other):
    """Load ``row`` at the rows ``i`` of anti-diagonal ``d``; ``other`` outside the band or the grid."""
    low, high = range_of(d, n, m, band)
    return tl.load(row + i, mask=inside & (i >= low) & (i <= high), other=other)


@triton.jit
def _tile(d, start, n, m, band, LANES: tl.constexpr):
    """Return the rows of the tile from row ``start`` on, in int64 for offsets, and which lie inside the band."""
    low, high = range_of(d, n, m, band)
    i = start + tl.arange(0, LANES)
    return i.to(tl.int64), (i >= low) & (i <= high)


# ----------------------------------------------------------------------------- forward


@triton.jit
def _scores(theta, d, start, width, n, m, band, LANES: tl.constexpr):
    """Load the scores of the tile from row ``start`` on."""
    i, inside = _tile(d, start, n, m, band, LANES)
    return tl.load(theta + i * (width - 1) + d, mask=inside, other=float("-inf"))


@triton.jit
def _step(
    scores, start, d, z, rings, stored, slopes, height, width, n, m, band,
    ALPHA: tl.constexpr, STORED: tl.constexpr, TANGENT: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Compute a tile of anti-diagonal ``d``."""
    i, inside = _tile(d, start, n, m, band, LANES)
    two = rings + (d + 1) % 3 * height
    one = rings + (d + 2) % 3 * height
    x0 = cells_before(two, i - 1, d - 2, n, m, band, inside, float("-inf"))
    x1 = cells_before(one, i - 1, d - 1, n, m, band, inside, float("-inf"))
    x2 = cells_before(one, i, d - 1, n, m, band, inside, float("-inf"))
    best, a, b = smooth_max(x0, x1, x2, ALPHA, scores.dtype)
    v = scores.to(tl.float64) + tl.where(i + d > 0, best, 0.0)
    tl.store(rings + d % 3 * height + i, v, mask=inside)
    place = d % width * height.to(tl.int64) + i
    if STORED:
        tl.store(stored + place, a, mask=inside)
        if float("inf") != ALPHA:
            tl.store(stored + height.to(tl.int64) * width + place, b, mask=inside)
    if TANGENT:
        q0, q1, q2 = unpack_probabilities(a, b)
        dv0, dv1, dv2 = _slopes_before(slopes, i, d, inside, height, width, n, m, band)
        along = tl.load(z + i * (width - 1) + d, mask=inside, other=0.0).to(tl.float64)
        tl.store(slopes + place, along + q0 * dv0 + q1 * dv1 + q2 * dv2, mask=inside)


@triton.jit
def _slopes_before(slopes, i, d, inside, height, width, n, m, band):
    """Load the derivatives of v of the three predecessors of the cells of anti-diagonal ``d``."""
    two = slopes + (d + width - 2) % width * height.to(tl.int64)
    one = slopes + (d + width - 1) % width * height.to(tl.int64)
    dv0 = cells_before(two, i - 1, d - 2, n, m, band, inside, 0.0)
    dv1 = cells_before(one, i - 1, d - 1, n, m, band, inside, 0.0)
    return dv0, dv1, cells_before(one, i, d - 1, n, m, band, inside, 0.0)


@triton.jit
def forward(
    theta, z, rings, stored, slopes, height, width, n, m, band,
    ALPHA: tl.constexpr, STORED: tl.constexpr, TANGENT: tl.constexpr, TILED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Return v of the last cell of an instance, behind a barrier.

    Fill ``stored`` and ``slopes``. For α = infinity, ``stored`` (m, n) receives the place of the best predecessor.
    """
    scores = _scores(theta, 0, 0, width, n, m, band, LANES)
    for d in range(n + m - 1):
        low, high = range_of(d, n, m, band)
        if TILED:
            for start in range(low, high + 1, LANES):
                scores = _scores(theta, d, start, width, n, m, band, LANES)
                _step(
                    scores, start, d, z, rings, stored, slopes, height, width, n, m, band, ALPHA, STORED, TANGENT, LANES
                )
        else:
            # The scores of the next anti-diagonal arrive while this one is computed.
            next_low, _ = range_of(d + 1, n, m, band)
            ahead = _scores(theta, d + 1, next_low, width, n, m, band, LANES)
            _step(scores, low, d, z, rings, stored, slopes, height, width, n, m, band, ALPHA, STORED, TANGENT, LANES)
            scores = ahead
        tl.debug_barrier()
    return tl.load(rings + (n + m - 2) % 3 * height + n - 1)


# ----------------------------------------------------------------------------- backward


@triton.jit
def _inflow(rings, i, d, inside, height, n, m, band):
    """Return the flow into the cells of anti-diagonal ``d``.

    Rows 0 to 2 of ``rings`` hold the diagonal flow, rows 3 and 4 the flow up, and rows 5 and 6 the flow to the left,
    each at the place of the cell it leaves.
    """
    one = (d + 1) % 2 * height
    flow = cells_before(rings + (d + 2) % 3 * height, i + 1, d + 2, n, m, band, inside, 0.0)
    flow += cells_before(rings + 3 * height + one, i + 1, d + 1, n, m, band, inside, 0.0)
    return flow + cells_before(rings + 5 * height + one, i, d + 1, n, m, band, inside, 0.0)


@triton.jit
def _store_outflow(rings, i, d, inside, height, f0, f1, f2):
    tl.store(rings + d % 3 * height + i, f0, mask=inside)
    tl.store(rings + (3 + d % 2) * height + i, f1, mask=inside)
    tl.store(rings + (5 + d % 2) * height + i, f2, mask=inside)


@triton.jit
def _probabilities(stored, start, d, height, width, n, m, band, LANES: tl.constexpr):
    """Load the packed probabilities of the tile from row ``start`` on."""
    i, inside = _tile(d, start, n, m, band, LANES)
    place = d % width * height.to(tl.int64) + i
    a = tl.load(stored + place, mask=inside, other=0.0)
    return a, tl.load(stored + height.to(tl.int64) * width + place, mask=inside, other=0.0)


@triton.jit
def _step_back(
    a, b, start, d, weight, rings, slopes, out, height, width, n, m, band,
    ALPHA: tl.constexpr, TANGENT: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Compute the flow E through a tile of anti-diagonal ``d``, or its derivative, and write the result to ``out``."""
    i, inside = _tile(d, start, n, m, band, LANES)
    q0, q1, q2 = unpack_probabilities(a, b)
    e = _inflow(rings, i, d, inside, height, n, m, band)
    e = tl.where(i + d == 2 * n + m - 3, weight, e)  # the last cell
    found = e
    if TANGENT:
        s0 = curvature(q0, ALPHA)
        s1 = curvature(q1, ALPHA)
        s2 = curvature(q2, ALPHA)
        dv0, dv1, dv2 = _slopes_before(slopes, i, d, inside, height, width, n, m, band)
        mean = s0 * dv0 + s1 * dv1 + s2 * dv2
        if ALPHA > 1:  # for α = 1, s is q, whose sum is 1
            mean = mean / (s0 + s1 + s2)
        change = rings + 7 * height
        found = _inflow(change, i, d, inside, height, n, m, band)
        f0 = s0 * (dv0 - mean) * e + q0 * found
        f1 = s1 * (dv1 - mean) * e + q1 * found
        f2 = s2 * (dv2 - mean) * e + q2 * found
        _store_outflow(change, i, d, inside, height, f0, f1, f2)
    _store_outflow(rings, i, d, inside, height, q0 * e, q1 * e, q2 * e)
    tl.store(out + i * (width - 1) + d, found.to(a.dtype), mask=inside)


@triton.jit
def _backward(
    weight, rings, stored, slopes, out, height, width, n, m, band,
    ALPHA: tl.constexpr, TANGENT: tl.constexpr, TILED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write E, or its derivative, to ``out``. The rows of ``rings`` may have been in use before a barrier."""
    last = n + m - 2
    a, b = _probabilities(stored, n - 1, last, height, width, n, m, band, LANES)
    for back in range(n + m - 1):
        d = last - back
        low, high = range_of(d, n, m, band)
        if TILED:
            for start in range(low, high + 1, LANES):
                a, b = _probabilities(stored, start, d, height, width, n, m, band, LANES)
                _step_back(a, b, start, d, weight, rings, slopes, out, height, width, n, m, band, ALPHA, TANGENT, LANES)
        else:
            next_low, _ = range_of(d - 1, n, m, band)
            next_a, next_b = _probabilities(stored, next_low, d - 1, height, width, n, m, band, LANES)
            _step_back(a, b, low, d, weight, rings, slopes, out, height, width, n, m, band, ALPHA, TANGENT, LANES)
            a = next_a
            b = next_b
        tl.debug_barrier()


# ----------------------------------------------------------------------------- kernel


@triton.jit
def smoothed_passes(
    theta, z, weight, value, rings, stored, slopes, out, lengths, bands, n, m, band,
    ALPHA: tl.constexpr, RINGS: tl.constexpr, STORED: tl.constexpr, MEAN: tl.constexpr, TANGENT: tl.constexpr,
    TILED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The passes of one instance: forward, and backward for MEAN or TANGENT."""
    b = tl.program_id(0).to(tl.int64)
    cells = b * n * m
    height = n + tl.zeros([], tl.int32)
    width = m + tl.zeros([], tl.int32)
    rows, columns, limit = sizes_in_use(b, lengths, bands, height, width, band)
    theta += cells
    rings += b * RINGS * n
    if STORED:
        stored += 2 * cells
    if TANGENT:
        z += cells
        slopes += cells
    total = forward(
        theta, z, rings, stored, slopes, height, width, rows, columns, limit, ALPHA, STORED, TANGENT, TILED, LANES
    )
    tl.store(value + b, total)
    if MEAN or TANGENT:
        start = tl.full([], 1.0, tl.float64)
        if weight is not None:
            start = tl.load(weight + b).to(tl.float64)
        start = tl.where(total > float("-inf"), start, 0.0)
        # The passes share the rows of rings: the value has been read from them above, by all threads.
        tl.debug_barrier()
        _backward(
            start, rings, stored, slopes, out + cells, height, width, rows, columns, limit, ALPHA, TANGENT, TILED, LANES
        )


# ----------------------------------------------------------------------------- launches


def value(theta: Tensor, lengths: Tensor | None, band: Tensor | int, alpha: float, *, tile: int = TILE) -> Tensor:
    """Return DP_Ω(θ)."""
    return _launch(theta, lengths, band, alpha, tile, rings=3)[0]


def probabilities(
    theta: Tensor, lengths: Tensor | None, band: Tensor | int, alpha: float, *, tile: int = TILE
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), and the packed probabilities (B, 2, m, n)."""
    return _launch(theta, lengths, band, alpha, tile, rings=3, STORED=True)[:2]


def value_and_mean(
    theta: Tensor, lengths: Tensor | None, band: Tensor | int, alpha: float, weight: Tensor | None, *, tile: int = TILE
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), and its gradient (B, n, m) times ``weight`` (B,), 1 by default."""
    value, _, out = _launch(theta, lengths, band, alpha, tile, rings=7, weight=weight, STORED=True, MEAN=True)
    return value, out


def hessian_product(
    theta: Tensor, v: Tensor, lengths: Tensor | None, band: Tensor | int, alpha: float, *, tile: int = TILE
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ) and ∇²DP_Ω(θ) v, (B, n, m)."""
    value, _, out = _launch(theta, lengths, band, alpha, tile, rings=14, z=v, STORED=True, TANGENT=True)
    return value, out


def extent(theta: Tensor, lengths: Tensor | None, band: Tensor | int) -> tuple[Any, ...]:
    """Return the arguments ``lengths``, ``bands``, ``n``, ``m`` and ``band`` of a kernel."""
    _, n, m = theta.shape
    lengths = None if lengths is None else lengths.contiguous()
    bands, most = (band.contiguous(), n + m) if isinstance(band, Tensor) else (None, min(band, n + m))
    return lengths, bands, n, m, most


def block(theta: Tensor, band: Tensor | int, tile: int) -> dict[str, Any]:
    """Return the number of lanes and of warps, and whether the longest anti-diagonal needs several tiles.

    A thread has at most two lanes, and one of a tile, since the loop over tiles needs more registers.
    """
    longest = min(theta.shape[1:]) if isinstance(band, Tensor) else min(*theta.shape[1:], band + 1)
    if longest > tile:
        return {"LANES": tile // 2, "TILED": True, "warps": max(tile // 64, 1)}
    lanes = max(triton.next_power_of_2(longest), 32)
    return {"LANES": lanes, "TILED": False, "warps": max(lanes // 64, 1)}


def _launch(
    theta: Tensor,
    lengths: Tensor | None,
    band: Tensor | int,
    alpha: float,
    tile: int,
    *,
    rings: int,
    z: Tensor | None = None,
    weight: Tensor | None = None,
    STORED: bool = False,
    MEAN: bool = False,
    TANGENT: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    theta, (batch, n, m) = theta.contiguous(), theta.shape
    value, scratch = (theta.new_empty(size, dtype=torch.float64) for size in (batch, batch * rings * n))
    stored = theta.new_empty(batch, 2, m, n) if STORED else None
    slopes = theta.new_empty(batch, m, n, dtype=torch.float64) if TANGENT else None
    out = torch.zeros_like(theta) if MEAN or TANGENT else None
    launch(
        smoothed_passes, (batch,), theta, None if z is None else z.to(theta).contiguous(), weight,
        value, scratch, stored, slopes, out, *extent(theta, lengths, band),
        ALPHA=alpha, RINGS=rings, STORED=STORED, MEAN=MEAN, TANGENT=TANGENT, **block(theta, band, tile),
    )  # fmt: skip
    return value, stored, out
