"""Smoothed alignments in plain torch, for any device and any regularizer: the reference for the compiled loops.

Here θ is (B, n, m), ``lengths`` (B, 2) and ``bands`` (B,). A smoothed maximum, or its gradient, is a function of
scores (B, L, 3) along the last dimension: the scores of the predecessors (i − 1, j − 1), (i − 1, j) and (i, j − 1) of
L cells. All cells of an anti-diagonal are computed at once, in float64, so that float32 inputs remain accurate for
long series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["value", "value_and_mean"]

Smoother = Callable[[Tensor], Tensor]


def value(theta: Tensor, lengths: Tensor, bands: Tensor, smax: Smoother) -> Tensor:
    """Return DP_Ω(θ), (B,) in float64, −inf if there is no path.

    Autograd supports the derivative orders of ``smax``.
    """
    if len(theta) == 0:
        return theta.sum((1, 2)).double()
    return _last_cells(_forward(theta, bands, smax), _ends(lengths))


def value_and_mean(
    theta: Tensor, lengths: Tensor, bands: Tensor, smax: Smoother, argmax: Smoother
) -> tuple[Tensor, Tensor]:
    """Return DP_Ω(θ), (B,) in float64, and its gradient (B, n, m). The memory is one more float64 per cell."""
    theta = theta.detach()
    out = torch.zeros_like(theta, memory_format=torch.contiguous_format)
    if len(theta) == 0:
        return theta.sum((1, 2)).double(), out
    ends, ranges = _ends(lengths), _ranges(theta, bands)
    rows = list(_forward(theta, bands, smax))
    value = _last_cells(rows, ends)
    # Flow along the diagonal from two anti-diagonals later and from one later; flow up and to the left from one later.
    nothing = _Row(ranges[-1][0] + 1, value.new_zeros(len(theta), 2))
    earlier, diagonal, up, left = [nothing] * 4
    for d, (low, count) in reversed(list(enumerate(ranges))):
        e = earlier.cells(low + 1, count) + up.cells(low + 1, count) + left.cells(low, count)
        if d in ends:
            which, last = ends[d]
            e[which, last - low] += 1
        _anti_diagonal(out, d, low, count).copy_(e)
        rows.pop()
        if d > 0:
            two = rows[d - 2] if d > 1 else _outside(theta)
            flows = argmax(_predecessors(two, rows[d - 1], low, count)) * e.unsqueeze(2)
            earlier = diagonal
            diagonal, up, left = (_Row(low, pad(flow, (1, 1))) for flow in flows.unbind(2))
    return value, out


class _Row(NamedTuple):
    """The numbers (B, L + 2) of L cells of an anti-diagonal, from i = ``low`` on, with one place at either end."""

    low: int
    numbers: Tensor

    def cells(self, start: int, count: int) -> Tensor:
        """Return the numbers, (B, ``count``), of the cells from i = ``start`` on."""
        return self.numbers.narrow(1, start - self.low + 1, count)


def _outside(theta: Tensor) -> _Row:
    """Return a row for the anti-diagonals before the first."""
    return _Row(0, theta.new_full((len(theta), 2), -math.inf, dtype=torch.float64))


def _forward(theta: Tensor, bands: Tensor, smax: Smoother) -> Iterator[_Row]:
    """Yield v of each anti-diagonal, with −inf for cells outside."""
    ranges, uneven = _ranges(theta, bands), bool((bands != bands[0]).any())
    two = one = _outside(theta)
    for d, ((low, count), scores) in enumerate(zip(ranges, _scores(theta, ranges), strict=True)):
        v = scores.double()
        if d > 0:
            v = v + smax(_predecessors(two, one, low, count))
        if uneven:
            i = torch.arange(low, low + count, device=theta.device)
            v = torch.where((2 * i - d).abs() <= bands.unsqueeze(1), v, -math.inf)
        two, one = one, _Row(low, pad(v, (1, 1), value=-math.inf))
        yield one


def _predecessors(two: _Row, one: _Row, low: int, count: int) -> Tensor:
    """Return the predecessor scores, (B, ``count``, 3), from the two anti-diagonals before."""
    return torch.stack([two.cells(low - 1, count), one.cells(low - 1, count), one.cells(low, count)], 2)


def _last_cells(rows: Iterable[_Row], ends: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
    """Return v of each instance's last cell, (B,)."""
    cells, instances = [], []
    for d, row in enumerate(rows):
        if d in ends:
            which, last = ends[d]
            cells.append(row.numbers[which, last - row.low + 1])
            instances.append(which)
    return torch.cat(cells)[torch.cat(instances).argsort()]


def _ends(lengths: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Map each anti-diagonal that holds a last cell to its instances, and to the rows i of their last cells."""
    d = lengths.sum(1) - 2
    instances_of_end = [(end, (d == end).nonzero().flatten()) for end in d.unique().tolist()]
    return {end: (which, lengths[which, 0] - 1) for end, which in instances_of_end}


def _ranges(theta: Tensor, bands: Tensor) -> list[tuple[int, int]]:
    """Return for each anti-diagonal d the first row i, and the number, of the cells inside the widest band."""
    (n, m), band = theta.shape[1:], int(bands.max())
    lows = [max(0, d - m + 1, (d - band + 1) // 2) for d in range(n + m - 1)]
    return [(low, max(0, min(n - 1, d, (d + band) // 2) - low + 1)) for d, low in enumerate(lows)]


def _scores(theta: Tensor, ranges: list[tuple[int, int]]) -> Iterable[Tensor]:
    """Return the scores of the cells of each anti-diagonal."""
    m = theta.shape[2]
    if not (torch.is_grad_enabled() and theta.requires_grad):
        theta = theta.contiguous()
        return (_anti_diagonal(theta, d, low, count) for d, (low, count) in enumerate(ranges))
    # One gather for all steps: with a view at each step, autograd would build a gradient of full size each time.
    places = [d + (m - 1) * i for d, (low, count) in enumerate(ranges) for i in range(low, low + count)]
    gathered = theta.flatten(1)[:, torch.tensor(places, device=theta.device)]
    return gathered.split([count for _, count in ranges], 1)


def _anti_diagonal(grid: Tensor, d: int, low: int, count: int) -> Tensor:
    """Return a view, (B, ``count``), of the cells (i, d − i) from i = ``low`` on of a contiguous (B, n, m)."""
    _, n, m = grid.shape
    offset = grid.storage_offset() + d + (m - 1) * low if count else 0
    return grid.as_strided((len(grid), count), (n * m, m - 1), offset)
