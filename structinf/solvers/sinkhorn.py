"""Entropic optimal transport as a convex function of scores and margins, with its derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import parallel_rows, to_numpy
from ..kernels.gpu import uses_triton
from ..kernels.logsumexp import logsumexp
from ..parts import Parts, scale_per_instance, sum_to_batch_of
from ..shapes import Float
from ..validation import check_feasible
from . import sinkhorn_torch
from .margins import slack_totals
from .sinkhorn_torch import SinkhornResult

__all__ = ["EntropicTransport", "SinkhornResult", "add_slack", "equal_totals", "forbid_unusable_cells"]


def add_slack(
    scores: Tensor, rows: Tensor, columns: Tensor, total: Tensor | None
) -> tuple[Float[Tensor, "batch rows columns"], Tensor, Tensor]:
    """Make the totals of both margins equal by a slack column or row of score 0, which takes the rest of a margin.

    Parameters
    ----------
    scores : (B, n, m) Tensor
        The scores.
    rows : (B | 1, n) Tensor
        The sums of the rows, or upper bounds of the sums.
    columns : (B | 1, m) Tensor
        The sums of the columns, or upper bounds of the sums.
    total : (B,) Tensor, optional
        The total of the plan. By default the smaller total of the two margins.

    Returns
    -------
    tuple of Tensor
        The scores, rows and columns with slack; the margins are in float64.
    """
    over_rows, over_columns = slack_totals(rows, columns, total)
    rows, columns = rows.double(), columns.double()
    width = scores.shape[2]
    if bool((over_rows > 0).any()):
        scores = torch.nn.functional.pad(scores, (0, 1))
        columns = torch.cat(_expand_to_same_batch(columns, over_rows[:, None]), 1)
    if bool((over_columns > 0).any()):
        scores = torch.nn.functional.pad(scores, (0, 0, 0, 1))
        rows = torch.cat(_expand_to_same_batch(rows, over_columns[:, None]), 1)
        if scores.shape[2] > width:
            corner = torch.zeros_like(scores, dtype=torch.bool)
            corner[:, -1, -1] = True
            scores = scores.masked_fill(corner, -torch.inf)
    return scores, rows, columns


def equal_totals(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the arguments with ``columns`` scaled to the total of ``rows``, which corrects the rounding of totals."""
    total = columns.sum(1, keepdim=True)
    factor = rows.sum(1, keepdim=True) / torch.where(total > 0, total, 1.0)
    return scores, rows, columns * torch.where(total > 0, factor, 1.0)


def _expand_to_same_batch(a: Tensor, b: Tensor) -> list[Tensor]:
    size = max(len(a), len(b))
    return [t.expand(size, t.shape[1]) for t in (a, b)]


def forbid_unusable_cells(scores: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the scores with −inf in every cell that no plan can use; raise InfeasibleError if no plan exists."""
    size, n, m = scores.shape
    if n == 0 or m == 0:
        fits = (rows.sum(1) == 0) & (columns.sum(1) == 0)
        check_feasible(fits.expand(size), "transport plan")
        return scores
    complete = ~torch.isneginf(scores.detach()).flatten(1).any(1)
    if bool(complete.all()):
        return scores
    from ..kernels.transport.support import usable_cells

    cells, feasible = (
        torch.empty(size, n, m, dtype=torch.bool, device="cpu"),
        torch.empty(size, dtype=torch.bool, device="cpu"),
    )
    arrays = to_numpy(scores, rows, columns)
    parallel_rows(usable_cells, size, *arrays, cells.numpy(), feasible.numpy(), work=4 * scores.numel())
    check_feasible(feasible, "transport plan")
    return torch.where(cells.to(scores.device) | complete[:, None, None], scores, -torch.inf)


@dataclass
class EntropicTransport:
    """V(S, a, b) = max ⟨S, P⟩ − T Σ P log P over P ≥ 0 with P 1 = a, Pᵀ 1 = b: a ConvexFunction of (S, a, b).

    V is convex in S and concave in the margins; the derivative formulas hold for both. Its gradient consists of the
    plan and of the prices of the margins, −f − T and −g. Here f and g are the dual potentials of P = exp((S + f 1ᵀ
    + 1 gᵀ) / T). Prices are determined up to a number added to all row prices and subtracted from all column
    prices. The price of a margin of 0 is unbounded, and is computed as if its dual potential were 0.

    An object belongs to one problem. The first call of a method solves the problem; derivatives use the same plan.

    Parameters
    ----------
    temperature : float
        The temperature T.
    tolerance : float
        Tolerance of the largest difference between a sum of a row or column and its margin, relative to the largest
        margin.
    max_iter : int
        Maximal number of sweeps and Newton steps together.
    first_temperature : float
        The temperature to start at, if it is higher than ``temperature``.
    transpose : bool
        Solve for the row prices instead of the column prices, which costs less for fewer rows than columns.
    """

    temperature: float
    tolerance: float
    max_iter: int
    first_temperature: float = 0.0
    transpose: bool = False
    _found: SinkhornResult | None = None

    def plan(self, theta: Parts) -> SinkhornResult:
        """Return the solution for scores (B, n, m) and margins (B | 1, n), (B | 1, m), in float64, of equal totals."""
        if self._found is None:
            scores, rows, columns = (t.detach() for t in theta)
            with torch.no_grad():
                if self.transpose:
                    plan, f, g, *status = self._solve(scores.mT, columns, rows)
                    self._found = SinkhornResult(plan.mT, g, f, *status)
                else:
                    self._found = self._solve(scores, rows, columns)
        return self._found

    def value(self, theta: Parts) -> Float[Tensor, " batch"]:
        """Return V, (B,), differentiable by autograd up to the fifth order."""
        scores, rows, columns = theta
        found = self.plan(theta)
        g = found.columns
        if torch.is_grad_enabled() and any(t.requires_grad for t in theta):
            # Each Newton step, with the constant Laplacian of the solution, makes the derivatives of g right to one
            # more order. V is stationary in g, so its derivatives are right to twice as many orders.
            solve = sinkhorn_torch.laplacian(found.plan)
            exact = torch.zeros_like(g)  # the differences are 0, and only their derivatives matter
            for _ in range(2):
                sums = sinkhorn_torch.plan_from_column_potentials(scores, rows, g, self.temperature).sum(1)
                g = g + self.temperature * solve(columns - sums, exact)
        used, positive = torch.where(columns > 0, g, 0.0), rows > 0
        lse = logsumexp((scores + g[:, None]) / self.temperature, 2)
        inner = torch.where(positive, rows, 1.0)
        each = torch.where(positive, rows * (torch.where(positive, lse, 0.0) - inner.log()), 0.0)
        return self.temperature * each.sum(1) - (columns * used).sum(1)

    def gradient(self, theta: Parts) -> Parts:
        """Return the plan and the prices of rows and columns."""
        return self.plan(theta).gradient(self.temperature)

    def value_and_gradient(self, theta: Parts) -> tuple[Tensor, Parts]:
        return self.value(theta), self.gradient(theta)

    def vjp(self, theta: Parts, weight: Tensor) -> Parts:
        return sum_to_batch_of(scale_per_instance(self.gradient(theta), weight), theta)

    def hessian_product(self, theta: Parts, v: Parts) -> Parts:
        plan = self.plan(theta).plan
        size, n, m = plan.shape
        direction, rows, columns = v[0], v[1].expand(size, n), v[2].expand(size, m)
        if _fits_triton(plan):
            from ..kernels.transport import triton_plans

            change, x, y = triton_plans.tangent(plan, direction, rows, columns, self.temperature)
            return change, -self.temperature * x, -self.temperature * y
        if not plan.is_cpu or n == 0 or m == 0 or _takes_steps_in_triton(plan):
            solver = _laplacian_solver(plan)
            change, x, y = sinkhorn_torch.tangent(plan, direction, rows, columns, self.temperature, solver)
            return change, -self.temperature * x, -self.temperature * y
        from ..kernels.transport.laplacian import tangent

        parts = (plan, direction, rows, columns) if m <= n else (plan.mT, direction.mT, columns, rows)
        arrays = to_numpy(*parts)
        change = torch.empty(parts[0].shape, dtype=plan.dtype, device="cpu")
        x, y = (torch.empty(size, k, dtype=plan.dtype, device="cpu") for k in parts[0].shape[1:])
        work = plan.numel() * min(n, m)
        parallel_rows(tangent, size, *arrays, self.temperature, *to_numpy(change, x, y), work=work)
        if m > n:
            change, x, y = change.mT, y, x
        return change, -self.temperature * x, -self.temperature * y

    def _solve(self, scores: Tensor, rows: Tensor, columns: Tensor) -> SinkhornResult:
        size, n, m = scores.shape
        settings = (self.temperature, self.first_temperature, self.tolerance, self.max_iter)
        if _fits_triton(scores):
            from ..kernels.transport import triton_plans

            return SinkhornResult(*triton_plans.solve(scores, rows, columns, *settings))
        if _takes_steps_in_triton(scores):
            from .sinkhorn_triton import TritonState

            return sinkhorn_torch.solve(scores, rows, columns, *settings, TritonState)
        if not scores.is_cpu or n == 0 or m == 0:
            return sinkhorn_torch.solve(scores, rows, columns, *settings)
        from ..kernels.transport.plans import solve

        plan = torch.empty(size, n, m, dtype=torch.float64, device="cpu")
        f, g = (torch.empty(size, k, dtype=torch.float64, device="cpu") for k in (n, m))
        residual, target_residual = torch.empty(2, size, dtype=torch.float64, device="cpu")
        iterations = torch.zeros(size, dtype=torch.int64, device="cpu")
        found = SinkhornResult(plan, f, g, residual, target_residual, iterations)
        arrays, results = to_numpy(scores, rows, columns), to_numpy(*found)
        parallel_rows(solve, size, *arrays, *map(float, settings[:3]), self.max_iter, *results, work=64 * plan.numel())
        return found


def _fits_triton(scores: Tensor) -> bool:
    """Return whether the Triton kernels process matrices (B, n, m) of this size and device."""
    if not scores.numel() or not uses_triton(scores):
        return False
    from ..kernels.transport.triton_plans import MAX_COLUMNS

    return scores.shape[2] <= MAX_COLUMNS


def _takes_steps_in_triton(scores: Tensor) -> bool:
    """Return whether each step for matrices (B, n, m) of this size and device is a Triton kernel."""
    if not scores.numel() or not uses_triton(scores):
        return False
    from ..kernels.transport import triton_plans, triton_steps

    return triton_plans.MAX_COLUMNS < scores.shape[2] <= triton_steps.MAX_COLUMNS


def _laplacian_solver(plan: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """Return the kernel that solves the Laplacian of the plan, or None for torch operations."""
    if not _takes_steps_in_triton(plan):
        return None
    from ..kernels.transport.triton_steps import laplacian_solution

    return lambda plan, right, size: laplacian_solution(plan.contiguous(), right, size, math.inf)
