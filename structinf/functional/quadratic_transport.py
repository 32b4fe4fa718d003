"""Optimal transport with a squared-norm regularizer and given row and column sums."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from ..calls.problem import Problem
from ..compile.public_call import public_call
from ..kernels.transport.tolerances import MAX_RESIDUAL
from ..regularizers import check_temperature
from ..solution import Solution
from ..solvers.argmax import best_structure
from ..solvers.convergence import OnFailure, check_stopping, report_nonconvergence
from ..solvers.transport_projection import solve_projection
from ..validation import check_flag
from .sinkhorn import Plans, check_scores, check_totals, margins_of_each

__all__ = ["quadratic_transport"]


@overload
def quadratic_transport(
    theta: Tensor,
    rows: Tensor | None = ...,
    columns: Tensor | None = ...,
    temperature: float | Tensor = ...,
    *,
    max_iter: int = ...,
    on_failure: OnFailure = ...,
    record: Literal[False] = ...,
) -> Tensor: ...


@overload
def quadratic_transport(
    theta: Tensor,
    rows: Tensor | None = ...,
    columns: Tensor | None = ...,
    temperature: float | Tensor = ...,
    *,
    max_iter: int = ...,
    on_failure: OnFailure = ...,
    record: Literal[True],
) -> Solution: ...


@public_call(functorch=True)
def quadratic_transport(
    theta: Tensor,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    *,
    max_iter: int = 1000,
    on_failure: OnFailure = "warn",
    record: bool = False,
) -> Tensor | Solution:
    """Return the transport plan with a squared-norm regularizer, whose cells can be exactly 0.

        argmax ⟨θ, P⟩ − temperature / 2 · ‖P‖²   over P ≥ 0 with P 1 = rows and Pᵀ 1 = columns

    The plan and the value are differentiable twice, in θ, both margins and the temperature.

    Parameters
    ----------
    theta : (..., n, m) Tensor
        Scores of the cells, for example negative costs; −inf forbids a cell.
    rows : (..., n) Tensor, optional
        Row sums of the plan, at least 0, by default all 1. Batch dimensions broadcast.
    columns : (..., m) Tensor, optional
        Column sums of the plan, at least 0, by default all 1. Batch dimensions broadcast.
    temperature : float or Tensor
        Above 0, default 1. A tensor with one number receives a gradient.
    max_iter : int
        The largest number of Newton steps. The last step leaves only rounding errors.
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances without convergence: a ConvergenceWarning, a ConvergenceError, or nothing.
    record : bool
        Whether to return a :class:`structinf.Solution` with value, residual and convergence, instead of the plan.
        Default False.

    Returns
    -------
    (..., n, m) Tensor, or Solution
        The plan, in the dtype of θ, computed in float64. The value is the maximum.

    Raises
    ------
    InvalidInputError
        If margins are negative or not finite, or if the totals of rows and columns differ.
    InfeasibleError
        If forbidden cells leave no plan.

    Notes
    -----
    Newton's method on the dual function, as for ``sparsemap`` of ``transportation``, but with margins of real numbers.
    The gradients are those of the linear system of the positive cells. Where the set of positive cells is about to
    change, they are an element of the generalised Jacobian. If the positive cells form a graph that is not connected,
    the value has several supergradients in the margins, and the dual prices of the solver are one of them.

    References
    ----------
    D. Lorenz, P. Manns & C. Meyer, Quadratically regularized optimal transport, Applied Mathematics & Optimization
    83, 2021.

    Examples
    --------
    >>> cost = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> half = torch.tensor([0.5, 0.5])
    >>> quadratic_transport(-cost, half, half, temperature=4.0)
    tensor([[0.3750, 0.1250],
            [0.1250, 0.3750]])
    """
    check_scores(theta)
    check_flag("record", record)
    check_temperature(temperature, allow_tensor=True)
    check_stopping(max_iter, 0.0, on_failure)
    problem = Problem.build(theta, Plans(), margins_of_each(theta, rows, columns))
    check_totals(problem.oracle.bound, slack=False)
    scores = problem.theta
    assert isinstance(scores, Tensor)
    with problem.plain_modes():
        size = len(scores)
        row_sums, column_sums = (problem.oracle.bound[k].double().expand(size, -1) for k in ("rows", "columns"))
        factor = temperature.double().reshape(()) if isinstance(temperature, Tensor) else temperature
        plan, value, residual = _solve(scores.double(), row_sums, column_sums, factor, max_iter, has_value=record)
        converged = residual <= MAX_RESIDUAL
        if not bool(converged.all()):
            best_structure(problem.oracle, scores.detach())  # raises InfeasibleError
            report_nonconvergence(
                f"quadratic_transport: {int((~converged).sum())} of {size} instances did not converge, the first at "
                f"batch index {int((~converged).nonzero()[0, 0])}; raise max_iter or the temperature",
                on_failure,
            )
        if record:
            solution = Solution(
                mean=plan.to(scores.dtype),
                value=value.to(scores.dtype),
                residual=residual.to(scores.dtype),
                converged=converged,
            )
            return solution.with_batch_shape(problem.restore, problem.restore_parts, problem.oracle)
        restored = problem.restore_parts(plan.to(scores.dtype))
    assert isinstance(restored, Tensor)
    return restored


def _solve(
    theta: Tensor, rows: Tensor, columns: Tensor, temperature: float | Tensor, max_iter: int, *, has_value: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the plans (B, n, m), the values (B,) and the residuals (B,), for arguments in float64.

    Without ``has_value``, the values are 0, and the prices that they need are not computed.

    The prices f and g of the solver are constants. The derivatives are those of the solution of the linear system
    Σ_j (θ / temperature + f + g) = rows and Σ_i (θ / temperature + f + g) = columns over the positive cells.
    """
    n, m = theta.shape[1:]
    with torch.no_grad():
        totals = [side.sum(1, keepdim=True) for side in (rows, columns)]
        scaled = columns * torch.where(totals[1] > 0, totals[0] / totals[1], 1.0)  # corrects rounding of the totals
        fixed, slack = theta.detach() / temperature, rows.new_zeros(len(theta), 2)
        scores, longer, shorter = (fixed, rows.detach(), scaled) if m <= n else (fixed.mT, scaled, rows.detach())
        found = solve_projection(scores.contiguous(), longer.contiguous(), shorter.contiguous(), slack, max_iter)
        reduced = found.reduced if m <= n else found.reduced.mT
        positive = reduced > 0
        plan = reduced.clamp(min=0)
        known = reduced.isfinite() & fixed.isfinite()
        difference = torch.where(known, reduced - fixed, 0.0)
    changing = None
    if torch.is_grad_enabled():
        scores = torch.where(positive, theta, 0.0) / temperature
        missing = torch.cat([rows - scores.sum(2), columns - scores.sum(1)], 1)
        changing = _solve_prices(positive, missing)
        cells = torch.where(positive, scores + changing[:, :n, None] + changing[:, None, n:], 0.0)
        plan = plan + (cells - cells.detach())
    if not has_value:
        return plan, torch.zeros_like(found.residual), found.residual
    prices = _solve_prices(known, torch.cat([difference.sum(2), difference.sum(1)], 1))
    if changing is not None:
        prices = prices + (changing - changing.detach())
    value = temperature * (plan.square().sum((1, 2)) / 2 - (prices * torch.cat([rows, columns], 1)).sum(1))
    return plan, value, found.residual


def _solve_prices(cells: Tensor, sums: Tensor) -> Tensor:
    """Return f and g, (B, n + m), whose f 1ᵀ + 1 gᵀ has the given sums over ``cells`` of rows and columns.

    Within each component of the graph of cells, a constant can move from f to g. Of all solutions, the solution of
    least norm is returned.
    """
    edges = cells.to(sums)
    top = torch.cat([torch.diag_embed(edges.sum(2)), edges], 2)
    bottom = torch.cat([edges.mT, torch.diag_embed(edges.sum(1))], 2)
    components = _components(cells)
    n = cells.shape[1]
    # The null space has the vectors that are 1 at the rows and −1 at the columns of a component.
    signs = torch.cat([torch.ones_like(sums[:, :n]), -torch.ones_like(sums[:, n:])], 1)
    shared = (components[:, :, None] == components[:, None, :]) * signs[:, :, None] * signs[:, None, :]
    factor = torch.linalg.cholesky(torch.cat([top, bottom], 1) + shared)
    return torch.cholesky_solve(sums[:, :, None], factor)[:, :, 0]


def _components(cells: Tensor) -> Tensor:
    """Return the number of the component of each row and column, (B, n + m), in the graph of ``cells`` (B, n, m)."""
    n, m = cells.shape[1:]
    rows = torch.arange(n, device=cells.device).expand(len(cells), n)
    alone = torch.arange(n, n + m, device=cells.device).expand(len(cells), m)
    while True:
        columns = torch.where(cells, rows[:, :, None], n + m).amin(1).minimum(alone)
        reached = torch.where(cells, columns[:, None, :], n + m).amin(2).minimum(rows)
        if bool((reached == rows).all()):
            return torch.cat([rows, columns], 1)
        rows = reached
