"""Entropic optimal transport in torch: on any device, and recorded by autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.logsumexp import logsumexp
from ..kernels.transport.tolerances import (
    CANCELLATION,
    COARSE_TOLERANCE,
    EXACT,
    MAX_COARSE_STEPS,
    MAX_STEP,
    NEGLIGIBLE,
    ROUNDING,
    SMALLEST,
    TEMPERATURE_RATIO,
)
from ..shapes import Float

__all__ = [
    "SinkhornResult",
    "SinkhornState",
    "finite_range",
    "laplacian",
    "plan_from_column_potentials",
    "solve",
    "tangent",
    "unrolled_plan",
]


class SinkhornResult(NamedTuple):
    """The plans P = exp((S + f 1ᵀ + 1 gᵀ) / T) of a batch.

    Attributes
    ----------
    plan : (B, n, m) Tensor
        P.
    rows : (B, n) Tensor
        The dual potentials f; −inf where the margin is 0.
    columns : (B, m) Tensor
        The dual potentials g; −inf where the margin is 0.
    residual : (B,) Tensor
        The largest difference between a sum and its margin, relative to the largest margin.
    target_residual : (B,) Tensor
        The residual at which the solver stops: the tolerance, or the rounding error if it is larger.
    iterations : (B,) int64 Tensor
        The number of sweeps and Newton steps.
    """

    plan: Tensor
    rows: Tensor
    columns: Tensor
    residual: Tensor
    target_residual: Tensor
    iterations: Tensor

    def gradient(self, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the plan and the prices of rows and columns, −f − T and −g.

        Dual potentials of −inf count as 0.
        """
        f, g = (torch.where(torch.isneginf(t), 0.0, t) for t in (self.rows, self.columns))
        return self.plan, -f - temperature, -g


def _rounding(
    scores: Tensor, plan: Tensor, g: Tensor, temperature: Tensor | float, largest: Tensor, spread: Tensor
) -> Float[Tensor, " batch"]:
    """Return the residual to expect from rounding of scores and dual potentials, counting only cells with transport."""
    size = torch.where(plan > NEGLIGIBLE * largest[:, None, None], scores.abs() + g.abs()[:, None], 0.0).amax((1, 2))
    return ROUNDING * (1 + torch.minimum(size, spread) / temperature)


def finite_range(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest finite score of each instance, (B,); 0 if no score is finite."""
    flat = scores.flatten(1)
    if flat.shape[1] == 0:
        return flat.new_zeros(len(flat)), flat.new_zeros(len(flat))
    low, high = flat.aminmax(dim=1)
    if bool(low.isneginf().any()):
        low = torch.where(flat.isneginf(), torch.inf, flat).amin(1)
        low, high = (torch.where(t.isinf(), 0.0, t) for t in (low, high))
    return low, high


def plan_from_column_potentials(scores: Tensor, rows: Tensor, g: Tensor, temperature: Tensor | float) -> Tensor:
    """Return the plan (B, n, m) with the given ``rows`` sums for the dual potentials g (B, m) of the columns."""
    x = (scores + g[:, None]) / temperature
    lse = logsumexp(x, 2, keepdim=True)
    return rows[:, :, None] * (x - torch.where(torch.isneginf(lse), 0.0, lse)).exp()


def unrolled_plan(
    scores: Tensor,
    rows: Tensor,
    columns: Tensor,
    temperature: float,
    first_temperature: float,
    tolerance: float,
    max_iter: int,
) -> SinkhornResult:
    """Run Sinkhorn sweeps in the log domain, recorded by autograd, until each instance is within the tolerance.

    If ``first_temperature`` is higher than ``temperature``, the sweeps begin there, and each sweep halves the
    temperature.
    """
    size, n, m = scores.shape
    log_rows, log_columns = _log(rows), _log(columns)
    if n == 0 or m == 0:
        return solve(scores, rows, columns, temperature, first_temperature, tolerance, max_iter)
    largest = torch.maximum(rows.detach().amax(1), columns.detach().amax(1)).clamp(min=torch.finfo(scores.dtype).tiny)
    low, high = finite_range(scores.detach())
    spread = high - low
    g = torch.where(columns > 0, 0.0, -torch.inf).expand(size, m).to(scores)
    iterations = torch.zeros(size, dtype=torch.int64, device=scores.device)
    count, t = 0, max(first_temperature, temperature)
    while True:
        f = t * log_rows - _shifted(t * logsumexp((scores + g[:, None]) / t, 2), rows)
        plan = ((scores + f[:, :, None] + g[:, None]) / t).exp()
        residual = (plan.detach().sum(1) - columns.detach()).abs().amax(1) / largest
        target_residual = _rounding(scores.detach(), plan.detach(), g.detach(), temperature, largest, spread)
        target_residual = target_residual.clamp(min=tolerance)
        moving = ~(residual <= target_residual) if t == temperature else torch.ones_like(residual, dtype=torch.bool)
        if t == temperature and (count >= max_iter or not bool(moving.any())):
            # Without rounding, the row sums would equal the margins.
            residual = torch.maximum(residual, (plan.detach().sum(2) - rows.detach()).abs().amax(1) / largest)
            return SinkhornResult(plan, f, g, residual, target_residual, iterations)
        t, count = (temperature if count >= max_iter else max(temperature, t / 2)), count + 1
        iterations = iterations + moving
        ahead = t * log_columns - _shifted(t * logsumexp((scores + f[:, :, None]) / t, 1), columns)
        g = torch.where(moving[:, None], ahead, g)


def _log(margins: Tensor) -> Tensor:
    """Return log(margins), with value −inf and gradient 0 where a margin is 0."""
    positive = margins > 0
    return torch.where(positive, torch.where(positive, margins, 1.0).log(), -torch.inf)


def _shifted(lse: Tensor, margins: Tensor) -> Tensor:
    """Return ``lse``, with 0 for margins of 0, whose dual potential is −inf for any sum."""
    return torch.where(margins > 0, lse, 0.0)


# ----------------------------------------------------------------------------- Newton's method


def laplacian(plan: Tensor, farthest: float = math.inf) -> Callable[[Tensor, Tensor], Float[Tensor, "batch columns"]]:
    """Return a solver x, size ↦ y of (diag(Pᵀ 1) − Pᵀ diag(P 1)⁻¹ P) y = x, unique up to a constant.

    The solver eliminates without subtractions, like :func:`structinf.kernels.transport.laplacian.eliminate`. It
    treats x as 0 where x is below the rounding error of a sum of terms of magnitude ``size``. Each entry of y
    differs from the weighted mean of its neighbours by at most ``farthest``.
    """
    sums = plan.sum(2, keepdim=True)
    share = torch.where(sums > SMALLEST, plan / torch.where(sums > SMALLEST, sums, 1.0), 0.0)
    weights = plan.mT @ share
    steps = []
    for j in range(plan.shape[2] - 1, 0, -1):
        row = weights[:, j, :j]
        total = row.sum(1, keepdim=True)
        inverse = torch.where(total > SMALLEST, 1 / torch.where(total > SMALLEST, total, 1.0), 0.0)
        steps.append((inverse, row * inverse))
        weights = weights[:, :j, :j] + row[:, :, None] * (row * inverse)[:, None]

    def solve(x: Tensor, size: Tensor) -> Tensor:
        scaled = []
        for inverse, share in steps:
            last, last_size = x[:, -1:], size[:, -1:]
            own = torch.where(last.abs() < CANCELLATION * last_size, 0.0, last * inverse)
            scaled.append(own.clamp(-farthest, farthest))
            x, size = x[:, :-1] + last * share, size[:, :-1] + last_size * share
        y = torch.zeros_like(x)
        for own, (_, share) in zip(reversed(scaled), reversed(steps), strict=True):
            y = torch.cat([y, own + (share * y).sum(1, keepdim=True)], 1)
        return y

    return solve


def tangent(
    plan: Tensor,
    direction: Tensor,
    rows: Tensor,
    columns: Tensor,
    temperature: float,
    solve_laplacian: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the changes of the plan, of f / T and of g / T along changes of the scores and margins.

    The computation is the one in :func:`structinf.kernels.transport.laplacian.tangent`. ``solve_laplacian`` is a
    function of the plan and of the arguments of the solver that :func:`laplacian` returns, which it replaces.
    """
    change = plan * direction / temperature
    sums = plan.sum(2)
    inverse = torch.where(sums > SMALLEST, 1 / torch.where(sums > SMALLEST, sums, 1.0), 0.0)
    x = (rows - change.sum(2)) * inverse
    right = columns - change.sum(1) - (plan * x[:, :, None]).sum(1)
    row_size = (rows.abs() + change.abs().sum(2)) * inverse
    size = columns.abs() + change.abs().sum(1) + (plan * row_size[:, :, None]).sum(1)
    y = laplacian(plan)(right, size) if solve_laplacian is None else solve_laplacian(plan, right, size)
    x = x - (plan * y[:, None]).sum(2) * inverse
    return change + plan * (x[:, :, None] + y[:, None]), x, y


def solve(
    scores: Tensor,
    rows: Tensor,
    columns: Tensor,
    temperature: float,
    first_temperature: float,
    tolerance: float,
    max_iter: int,
    make_state: Callable[..., SinkhornState] | None = None,
) -> SinkhornResult:
    """Solve by Sinkhorn sweeps; where sweeps converge slowly, by Newton's method from a higher temperature downwards.

    This is the algorithm of :func:`structinf.kernels.transport.plans.solve`, with all instances advancing together.
    ``make_state`` makes the :class:`SinkhornState` that computes the sums; by default in torch.
    """
    make_state = make_state or SinkhornState
    size, n, m = scores.shape
    rows, columns = rows.expand(size, n), columns.expand(size, m)
    iterations = torch.zeros(size, dtype=torch.int64, device=scores.device)
    if n == 0 or m == 0:
        residual = torch.maximum(rows.sum(1), columns.sum(1))
        return SinkhornResult(
            scores, rows.log(), columns.log(), residual, torch.full_like(residual, tolerance), iterations
        )
    largest = torch.maximum(rows.amax(1), columns.amax(1)).clamp(min=torch.finfo(scores.dtype).tiny)
    g = start = torch.where(columns > 0, 0.0, -torch.inf).to(scores)
    low, high = finite_range(scores)
    spread = high - low
    exact = tolerance <= EXACT
    state = make_state(scores, rows, columns, largest, spread)
    end = torch.full_like(largest, temperature)
    error, rounding = state.update(g, end)
    if first_temperature <= temperature:
        aim = 0.01 * tolerance if exact else tolerance
        for _ in range(min(32, max_iter)):
            moving = error > (0.01 * rounding).clamp(min=aim)
            if not bool(moving.any()):
                break
            iterations += moving
            g = torch.where(moving[:, None], state.swept(), g)
            error, rounding = state.update(g, end)
    slow = error > rounding.clamp(min=tolerance)
    high = torch.where(slow, torch.clamp(spread / 8, min=max(temperature, first_temperature)), end)
    levels = (torch.log(high / temperature) / math.log(TEMPERATURE_RATIO)).ceil().clamp(min=0)
    g = torch.where((high > temperature)[:, None], start, g)

    def advance(g: Tensor, t: Tensor, moving: Tensor) -> Tensor:
        """Take one Newton step from the state of g in the instances ``moving``."""
        step = state.direction()
        step = step * (100 / step.abs().amax(1, keepdim=True)).clamp(max=1)
        slope = (step * (columns - state.sums)).sum(1)
        part = t
        for _ in range(40):
            ahead = (step * (columns - state.sums_of(g + part[:, None] * step, t))).sum(1)
            too_far = moving & (ahead < -0.5 * slope.abs())
            if not bool(too_far.any()):
                break
            part = torch.where(too_far, part / 2, part)
        return torch.where(moving[:, None], g + part[:, None] * step, g)

    for level in range(int(levels.max()) if size else 0, -1, -1):
        begun = slow & (level <= levels)
        t = temperature * (high / temperature) ** (level / levels.clamp(min=1)).clamp(max=1)
        within = tolerance if level == 0 else COARSE_TOLERANCE
        error, rounding = state.update(g, t)
        steps = 0
        while bool((moving := begun & (error > rounding.clamp(min=within)) & (iterations < max_iter)).any()):
            iterations += moving
            g = advance(g, t, moving)
            error, rounding = state.update(g, t)
            steps += 1
            if level and steps == MAX_COARSE_STEPS:
                break
    if exact and bool((moving := (error > 0.01 * rounding.clamp(min=tolerance)) & (iterations < max_iter)).any()):
        iterations += moving
        g = advance(g, end, moving)
    error, rounding = state.update(g, end)
    target_residual = rounding.clamp(min=tolerance)
    return SinkhornResult(state.plan(), state.row_potentials(), g, error, target_residual, iterations)


class SinkhornState:
    """The plan of the potentials g of the columns, with rows that have their margins, in torch.

    Parameters
    ----------
    scores : (B, n, m) Tensor
        S.
    rows, columns : (B, n) and (B, m) Tensor
        The margins.
    largest, spread : (B,) Tensor
        The largest margin, and the range of the finite scores.

    Attributes
    ----------
    sums : (B, m) Tensor
        The sums of the columns of the plan.
    """

    sums: Tensor

    def __init__(self, scores: Tensor, rows: Tensor, columns: Tensor, largest: Tensor, spread: Tensor) -> None:
        self._scores, self._rows, self._columns = scores, rows, columns
        self._largest, self._spread = largest, spread

    def update(self, g: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Set g (B, m) and the temperature (B,). Return the residual, and its part explained by rounding, (B,)."""
        self._g, self._t = g, t
        self._plan = plan_from_column_potentials(self._scores, self._rows, g, t[:, None, None])
        self.sums = self._plan.sum(1)
        error = (self.sums - self._columns).abs().amax(1) / self._largest
        return error, _rounding(self._scores, self._plan, g, t, self._largest, self._spread)

    def plan(self) -> Tensor:
        """Return the plan (B, n, m)."""
        return self._plan

    def row_potentials(self) -> Tensor:
        """Return the dual potentials of the rows (B, n)."""
        return _potential(self._scores, self._rows, self._g, self._t[:, None], 2)

    def swept(self) -> Tensor:
        """Return g after a sweep over rows and columns."""
        return _potential(self._scores, self._columns, self.row_potentials(), self._t[:, None], 1)

    def direction(self) -> Tensor:
        """Return the change of g / T of a Newton step (B, m)."""
        return laplacian(self._plan, MAX_STEP)(self._columns - self.sums, self._columns + self.sums)

    def sums_of(self, g: Tensor, t: Tensor) -> Tensor:
        """Return the sums of the columns of the plan of other potentials, (B, m)."""
        return plan_from_column_potentials(self._scores, self._rows, g, t[:, None, None]).sum(1)


def _potential(scores: Tensor, margins: Tensor, other: Tensor, t: Tensor, dim: int) -> Tensor:
    """Return f given g as ``other`` (``dim`` 2), or g given f (``dim`` 1), at the temperatures (B, 1)."""
    lse = t * logsumexp((scores + other.unsqueeze(3 - dim)) / t[:, :, None], dim)
    return t * _log(margins) - _shifted(lse, margins)
