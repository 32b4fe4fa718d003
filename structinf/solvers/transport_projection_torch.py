"""Euclidean projections onto transport polytopes in torch, on any device.

This is the algorithm of :mod:`structinf.kernels.transport.projection`, with all instances advancing together. That
module explains the weights of cells and slack.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.transport.tolerances import (
    BAND,
    EXACT_PATTERN,
    FARTHEST,
    INCREMENTAL,
    INFINITE_WEIGHT,
    MAX_FIXED,
    MAX_RESIDUAL,
    NEGLIGIBLE_CELL,
    ROUNDING,
)
from .sinkhorn_torch import laplacian

__all__ = ["Projection", "solve"]


class Projection(NamedTuple):
    """The projections μ = max(θ + f 1ᵀ + 1 gᵀ, 0) of a batch, with potentials f and g.

    Attributes
    ----------
    reduced : (B, n, m) Tensor
        θ + f 1ᵀ + 1 gᵀ.
    loose_rows, loose_columns : (B, n) and (B, m) bool Tensor
        Whether the sum of a row or column is not at its bound.
    value : (B,) Tensor
        ⟨θ, μ⟩ − ½ ‖μ‖².
    gap : (B,) Tensor
        Upper bound of the difference between the maximum and the value.
    residual : (B,) Tensor
        The largest error of a sum, relative to the largest margin.
    """

    reduced: Tensor
    loose_rows: Tensor
    loose_columns: Tensor
    value: Tensor
    gap: Tensor
    residual: Tensor


class _Rows(NamedTuple):
    """The rows after a step: changes of f, the new room below the bounds, the column sums, and the error."""

    change: Tensor
    room: Tensor
    sums: Tensor
    error: Tensor


def solve(scores: Tensor, rows: Tensor, columns: Tensor, slack: Tensor, max_iter: int) -> Projection:
    """Project scores (B, n, m) onto the polytopes of margins (B | 1, ...) and totals of rests (B, 2), in float64.

    Vectors over columns have the ground in front, and the slack column in the end.
    """
    size, n, m = scores.shape
    a, b = rows.expand(size, n), columns.expand(size, m)
    if scores.numel() == 0:
        loose, zeros = (torch.zeros_like(t, dtype=torch.bool) for t in (a, b)), scores.new_zeros(3, size)
        return Projection(scores, *loose, *zeros)
    has_bounds = slack[:, 1:] > 0
    both = has_bounds & (slack[:, :1] > 0)
    rest = torch.where(both, slack[:, :1], 0.0)
    largest = torch.maximum(a.amax(1), b.amax(1))[:, None]
    bounded = torch.nn.functional.pad((b > 0) & has_bounds, (1, 1))
    wanted = torch.cat([torch.zeros_like(rest), b, rest], 1)
    f, g = torch.where(a > 0, 0.0, -torch.inf), torch.where(wanted > 0, 0.0, -torch.inf)
    g[:, 0] = g[:, -1] = 0.0
    room = torch.where((slack[:, :1] > 0) & ~both, 0.0, torch.inf).expand(size, n)
    reduced = scores + f[:, :, None] + g[:, None, 1:-1]
    none = torch.zeros_like(g)
    found = _match_rows(reduced, a, none, both, room)
    if bool(both.any()):
        top = torch.where(a > 0, found.change, -torch.inf).amax(1, keepdim=True)
        g[:, -1:] = torch.where(both, -top, 0.0)
        room = torch.where(both, top, room)
        again = _match_rows(reduced, a, none, both, room)
        found = _Rows(
            *(torch.where(both.view(-1, *[1] * (x.ndim - 1)), x, y) for x, y in zip(again, found, strict=True))
        )
    step = none
    moving, settled, small, exact = (torch.full_like(both, flag) for flag in (True, True, False, False))
    error = torch.full_like(largest, torch.inf)
    for count in range(max_iter + 1):
        before = error
        off = wanted - found.sums
        off[:, 0] = 0.0
        off = torch.where(torch.arange(m + 2, device=off.device) == m + 1, torch.where(both, off, 0.0), off)
        off = torch.where(bounded & (g == 0) & (off > 0), 0.0, off)
        error = torch.where(moving, torch.maximum(found.error, off.abs().amax(1, keepdim=True)), error)
        f, room = torch.where(moving, f + found.change, f), torch.where(moving, found.room, room)
        increments = (reduced + step[:, None, 1:-1]) + found.change[:, :, None]
        fresh = scores + f[:, :, None] + g[:, None, 1:-1]
        settled = torch.where(moving, small | (count == 0), settled)
        small = (error < INCREMENTAL * largest) & (count > 0)
        reduced = torch.where(moving[..., None], torch.where(small[..., None], increments, fresh), reduced)
        stuck = exact & settled & (error > 0.5 * before)
        done = (settled & (error <= ROUNDING * largest)) | (stuck & (error < MAX_RESIDUAL * largest))
        moving = moving & ~done & error.isfinite()
        exact = ~stuck & (error < EXACT_PATTERN * largest)
        if count == max_iter or not bool(moving.any()):
            break
        system = reduced, a, room, wanted, g, off, both, bounded, torch.where(exact, 0.0, BAND * error)
        step = _newton_step(*system, MAX_FIXED)
        slope = (step * off).sum(1, keepdim=True)
        if bool((lost := moving & has_bounds & ~(slope > 0)).any()):
            # Without fixed columns, the step is an ascent direction.
            step = torch.where(lost, _newton_step(*system, 1), step)
            slope = (step * off).sum(1, keepdim=True)
        moving = moving & step.isfinite().all(1, keepdim=True) & ((slope > 0) | exact)
        step = torch.where(moving, step, 0.0)
        for _ in range(60):
            found = _match_rows(reduced, a, step, both, room)
            after = (step * (wanted - found.sums)).sum(1, keepdim=True)
            too_far = moving & (after < -0.1 * slope.abs())
            if not bool(too_far.any()):
                break
            factor = (slope / (slope - after)).clamp(0.1, 0.5)
            step = torch.where(too_far, step * factor, step)
            slope = torch.where(too_far, slope * factor, slope)
        g = torch.where(bounded & (g + step > -ROUNDING * g.abs()), 0.0, g + step)  # at the bound, up to rounding
    residual = torch.where(settled, error, torch.inf) / torch.where(largest > 0, largest, 1.0)
    return _certificate(scores, a, b, slack, reduced, f, g, room, residual)


def _match_rows(reduced: Tensor, a: Tensor, step: Tensor, both: Tensor, room: Tensor) -> _Rows:
    """Find the changes of f, after the step of g, with the row sums a, or with smaller sums at the bounds."""
    values = reduced + step[:, None, 1:-1]
    used = a > 0
    bound = torch.where(used, room - torch.where(both, step[:, -1:], 0.0), torch.inf)
    ordered = values.sort(2, descending=True)[0]
    totals, numbers = ordered.cumsum(2), torch.arange(1, ordered.shape[2] + 1, device=a.device)
    count = (ordered * numbers - totals + a[:, :, None] > 0).sum(2, keepdim=True).clamp(min=1)
    shift = (a - totals.gather(2, count - 1)[:, :, 0]) / count[:, :, 0]
    change = torch.where(used, torch.minimum(shift, bound), 0.0)  # a row without allowed cells has the shift ∞
    change = torch.where(change == torch.inf, -torch.inf, change)
    cells = (values + change[:, :, None]).clamp(min=0)
    cells = torch.where(values > -torch.inf, cells, 0.0)
    left, at_bound = a - cells.sum(2), used & (change == bound)
    rests = torch.where(at_bound, left, 0.0).sum(1, keepdim=True)
    sums = torch.cat([torch.zeros_like(rests), cells.sum(1), torch.where(both, rests, 0.0)], 1)
    error = torch.where(change == -torch.inf, torch.inf, torch.where(used & ~at_bound, left.abs(), 0.0))
    return _Rows(change, torch.where(used, bound - change, room), sums, error.amax(1, keepdim=True))


def _newton_step(
    reduced: Tensor, a: Tensor, room: Tensor, wanted: Tensor, g: Tensor, off: Tensor, both: Tensor, bounded: Tensor,
    band: Tensor, rounds: int,
) -> Tensor:  # fmt: skip
    """Return the step of g (B, m + 2), kept within the bounds g ≤ 0."""
    size, n, m = reduced.shape
    shifted = band[..., None] + 1e-300
    plan = torch.where(reduced > 0, 1.0, band[..., None] / (shifted - reduced))
    plan = torch.nn.functional.pad(plan, (1, 1, 0, 1))
    rests = torch.where(room == 0, INFINITE_WEIGHT, band / torch.where(room > 0, room, 1.0))
    rests = torch.where((a > 0) & (room < torch.inf), rests, 0.0)
    plan[:, :n, 0], plan[:, :n, -1] = torch.where(both, 0.0, rests), torch.where(both, rests, 0.0)
    plan[:, n, 0] = INFINITE_WEIGHT**2
    size = torch.where(band > 0, 2 * wanted - off, 0.0)
    distances = (-reduced.flatten(1), room, torch.where(bounded, -g, 0.0))
    reach = torch.cat([torch.where(t < torch.inf, t, 0.0) for t in distances], 1).amax(1, keepdim=True)
    farthest = (m + 1) * (reach + off.abs().amax(1, keepdim=True))
    soft = torch.where(bounded & (g < 0) & (off >= 0), band / torch.where(g < 0, -g, 1.0), 0.0)
    fixed = bounded & (g == 0) & (off >= 0)
    step = off
    for _ in range(rounds):
        plan[:, n, 1:] = torch.where(fixed, INFINITE_WEIGHT, soft)[:, 1:]
        right = torch.where(fixed, off - INFINITE_WEIGHT * torch.where(fixed, g, 0.0), off)
        step = laplacian(plan)(right, size)
        step = torch.where(fixed, -g, torch.maximum(torch.minimum(step, farthest), -farthest))
        step[:, 0] = 0.0
        above = torch.where(bounded, g + step, -torch.inf)
        highest, place = above.max(1, keepdim=True)
        if not bool((highest > 0).any()):
            break
        fixed = fixed | ((highest > 0) & (torch.arange(m + 2, device=g.device) == place))
    step = torch.where(reach < FARTHEST, step, torch.nan)
    over = bounded & (g + step > 0)
    cut = torch.where(over, -g, step)
    slope = (step * off).sum(1, keepdim=True)
    free = torch.where(bounded & (g == 0) & (step > 0), 0.0, step)
    ratios = torch.where(bounded & (g + free > 0), -g / torch.where(free > 0, free, 1.0), 1.0)
    return torch.where((cut * off).sum(1, keepdim=True) > 0.01 * slope, cut, free * ratios.amin(1, keepdim=True))


def _certificate(
    scores: Tensor, a: Tensor, b: Tensor, slack: Tensor, reduced: Tensor, f: Tensor, g: Tensor, room: Tensor,
    residual: Tensor,
) -> Projection:  # fmt: skip
    """Replace rounding errors in place of 0, and return the solution with its value and a bound of the duality gap."""
    least = NEGLIGIBLE_CELL * torch.minimum(a[:, :, None], b[:, None])
    reduced = torch.where((reduced > 0) & (reduced <= least), 0.0, reduced)
    plan = reduced.clamp(min=0)
    used = torch.where(plan > 0, scores, 0.0)
    value = (plan * (used - 0.5 * plan)).sum((1, 2))
    terms = (plan * (used.abs() + 0.5 * plan)).sum((1, 2))
    loose_rows, loose_columns = (a > 0) & (room == 0), (slack[:, 1:] > 0) & (g[:, 1:-1] == 0)
    left = a - plan.sum(2)
    rest = slack[:, 0] - torch.where(loose_rows, left, 0.0).sum(1)
    tight = torch.where((a > 0) & ~loose_rows, f * left, 0.0).abs().sum(1)
    columns = torch.where((b > 0) & ~loose_columns, g[:, 1:-1] * (plan.sum(1) - b), 0.0).abs().sum(1)
    gap = tight + columns + (g[:, -1] * rest).abs() + ROUNDING * terms
    return Projection(reduced, loose_rows, loose_columns, value, gap, residual[:, 0])
