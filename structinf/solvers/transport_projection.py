"""Euclidean projections onto transport polytopes: the quadratically regularized mean of assignments and plans."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import parallel_rows, to_numpy
from ..kernels.gpu import uses_triton
from ..kernels.transport.tolerances import INFINITE_WEIGHT, MAX_RESIDUAL
from ..oracle import TransportPolytope
from ..parts import Parts
from ..shapes import Float
from . import sinkhorn_torch, transport_projection_torch
from .argmax import best_structure
from .direct_mean import DirectMean
from .margins import checked_margins, slack_totals
from .transport_projection_torch import Projection

__all__ = ["project_transport", "solve_projection"]


def project_transport(oracle: TransportPolytope, theta: Tensor, *, tolerance: float, max_iter: int) -> DirectMean:
    """Solve max ⟨θ, μ⟩ − ½ ‖μ‖² over the transport polytope of ``oracle`` by Newton's method on the dual.

    The sums of rows and columns are equalities or upper bounds, as :class:`structinf.oracle.TransportPolytope` states.
    All arithmetic is in float64, whatever θ's dtype.

    Newton's method is finite here: its last step solves the linear system of the solution's positive cells and tight
    sums, so only rounding errors remain. A converged mean keeps the sums up to 1e-13 times the largest margin, and
    meets every tolerance. Without convergence, the mean keeps the sums of one side only, and the caller needs another
    solver.

    Parameters
    ----------
    oracle : TransportPolytope
        The oracle, whose margins define the polytope.
    theta : (B, n, m) Tensor
        The scores, finite or −inf.
    tolerance : float
        Tolerance of ‖μ − μ*‖ relative to the largest ‖y‖. The method does not stop before the exact solution, since
        tolerances above the rounding errors would save at most one step.
    max_iter : int
        Maximal number of Newton steps.

    Returns
    -------
    DirectMean
        The means. The gap is the absolute sum of the terms of the duality gap, Σ f (μ 1 − r) + Σ g (μᵀ 1 − c) with the
        dual potentials f and g, plus a bound on the rounding error of the value. It bounds the error of the value with
        and without convergence.

    Raises
    ------
    InfeasibleError
        If the oracle finds no structure of finite score.
    PluginError
        If the margins of the oracle have wrong shapes or values.

    Notes
    -----
    The derivative of μ along dθ is the projection of dθ onto the tangent space of the face of μ: the changes of
    positive cells that keep the tight sums. The projection is dθ + x 1ᵀ + 1 yᵀ on the positive cells, where x and y
    solve a Laplacian system. Where the set of positive cells is about to change, this is an element of the generalised
    Jacobian.
    """
    del tolerance
    with torch.no_grad():
        rows, columns, total = checked_margins(oracle, theta)
        slack = torch.stack(slack_totals(rows, columns, total), 1).expand(len(theta), 2)
        rows, columns, scores = rows.double(), columns.double(), theta.detach().double()
        if total is not None:  # without rests in plans of 0
            slack, rows, columns = (torch.where(total[:, None] > 0, t, 0.0) for t in (slack, rows, columns))
        column_total = columns.sum(1, keepdim=True)
        factor = rows.sum(1, keepdim=True) / torch.where(column_total > 0, column_total, 1.0)
        is_equality = (slack == 0).all(1, keepdim=True) & (column_total > 0)
        columns = torch.where(is_equality, columns * factor, columns)  # corrects the rounding of equal totals
        # The Newton system has the size of the columns.
        is_transposed = theta.shape[1] < theta.shape[2]
        if is_transposed:
            scores, rows, columns, slack = scores.mT, columns, rows, slack.flip(1)
        found = solve_projection(scores, rows, columns, slack, max_iter)
        converged = found.residual <= MAX_RESIDUAL
        all_converged = bool(converged.all())
        if not all_converged:
            best_structure(oracle, theta)  # raises InfeasibleError
        mean = found.reduced.clamp(min=0).to(theta.dtype)
        mean = mean.mT.contiguous() if is_transposed else mean

    def vjp(cotangent: Parts) -> Parts:
        assert isinstance(cotangent, Tensor)
        with torch.no_grad():
            v = cotangent.detach().double()
            change = _project_onto_face(found, slack, v.mT if is_transposed else v).to(cotangent.dtype)
            return (change.mT if is_transposed else change).contiguous()

    return DirectMean(
        mean=mean,
        value=found.value.to(theta.dtype),
        gap=found.gap.to(theta.dtype),
        converged=converged,
        vjp=vjp,
        all_converged=all_converged,
    )


def solve_projection(scores: Tensor, rows: Tensor, columns: Tensor, slack: Tensor, max_iter: int) -> Projection:
    """Solve max ⟨θ, μ⟩ − ½ ‖μ‖² for given margins, in float64. The Newton system has the size of the columns.

    Parameters
    ----------
    scores : (B, n, m) Tensor
        The scores θ.
    rows, columns : (B | 1, n) and (B | 1, m) Tensor
        The margins.
    slack : (B, 2) Tensor
        The totals of the rests of the row sums and of the column sums; 0 for sums without rests.
    max_iter : int
        Maximal number of Newton steps.
    """
    size, n, m = scores.shape
    if uses_triton(scores) and scores.numel():
        from ..kernels.transport import triton_projection

        if m <= triton_projection.MAX_COLUMNS:
            return Projection(*triton_projection.project(scores, rows, columns, slack, max_iter))
    if not scores.is_cpu or scores.numel() == 0:
        return transport_projection_torch.solve(scores, rows, columns, slack, max_iter)
    from ..kernels.transport.projection import project

    loose_rows, loose_columns = (torch.empty(size, k, dtype=torch.bool, device="cpu") for k in (n, m))
    value, gap, residual = torch.empty(3, size, dtype=torch.float64, device="cpu")
    reduced = torch.empty(size, n, m, dtype=torch.float64, device="cpu")
    found = Projection(reduced, loose_rows, loose_columns, value, gap, residual)
    arrays, results = to_numpy(scores, rows, columns, slack), to_numpy(*found)
    parallel_rows(project, size, *arrays, max_iter, *results, work=64 * scores.numel())
    return found


def _project_onto_face(found: Projection, slack: Tensor, v: Tensor) -> Float[Tensor, "batch n m"]:
    """Return the projection of ``v`` onto the changes of positive cells that keep the tight sums."""
    size, n, m = v.shape
    plan = (found.reduced > 0).to(v)
    if not v.is_cpu or bool((slack > 0).any()):  # on a GPU, the additional cells cost less than to wait
        # A loose sum has a slack cell in an additional row or column. Weights far above 1 fix the potentials of loose
        # rows to the slack column's, and of loose columns to 0, the potential of the first column.
        plan = torch.nn.functional.pad(plan, (1, 1, 0, 1))
        v = torch.nn.functional.pad(v, (1, 1, 0, 1))
        both = (slack > 0).all(1, keepdim=True)
        loose_rows = torch.where(found.loose_rows, INFINITE_WEIGHT, 0.0)
        plan[:, :n, 0] = torch.where(both, 0.0, loose_rows)
        plan[:, :n, -1] = torch.where(both, loose_rows, 0.0)
        plan[:, n, 1:-1] = torch.where(found.loose_columns, INFINITE_WEIGHT, 0.0)
        plan[:, n, 0] = INFINITE_WEIGHT**2
    row_changes, column_changes = (v.new_zeros(size, k) for k in plan.shape[1:])
    triton_change = _tangent_by_triton(plan, v, row_changes, column_changes)
    if triton_change is not None:
        change = triton_change
    elif not v.is_cpu or v.numel() == 0:
        change = sinkhorn_torch.tangent(plan, v, row_changes, column_changes, 1.0)[0]
    else:
        from ..kernels.transport.laplacian import tangent

        change = torch.empty(plan.shape, dtype=v.dtype, device="cpu")
        x, y = torch.empty_like(row_changes), torch.empty_like(column_changes)
        work = plan.numel() * plan.shape[2]
        arrays, results = to_numpy(plan, v, row_changes, column_changes), to_numpy(change, x, y)
        parallel_rows(tangent, size, *arrays, 1.0, *results, work=work)
    return change[:, :n, 1 : m + 1] if change.shape[1] > n else change


def _tangent_by_triton(plan: Tensor, v: Tensor, row_changes: Tensor, column_changes: Tensor) -> Tensor | None:
    """Return the change of the plan by a Triton kernel; None if the kernels do not serve the plan."""
    if not (uses_triton(v) and v.numel()):
        return None
    from ..kernels.transport import triton_plans

    if plan.shape[2] > triton_plans.MAX_COLUMNS:
        return None
    return triton_plans.tangent(plan, v, row_changes, column_changes, 1.0)[0]
