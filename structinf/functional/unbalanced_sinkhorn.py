"""Entropic optimal transport with soft margins."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from ..calls.problem import Problem
from ..compile.public_call import public_call
from ..errors import InfeasibleError, InvalidInputError
from ..regularizers import check_temperature
from ..solution import Solution
from ..solvers.convergence import OnFailure, check_stopping, report_nonconvergence
from ..solvers.unbalanced_transport import MarginPenalty, UnbalancedPlans, solve_unbalanced
from ..validation import check_choice, check_flag
from .sinkhorn import Plans, check_scores, margins_of_each

__all__ = ["unbalanced_sinkhorn"]

Strength = float | Tensor


@overload
def unbalanced_sinkhorn(
    theta: Tensor,
    rows: Tensor | None = ...,
    columns: Tensor | None = ...,
    temperature: float | Tensor = ...,
    *,
    penalty: Literal["kl", "squared_l2"] = ...,
    strength: Strength | tuple[Strength, Strength] = ...,
    tolerance: float = ...,
    max_iter: int = ...,
    on_failure: OnFailure = ...,
    record: Literal[False] = ...,
) -> Tensor: ...


@overload
def unbalanced_sinkhorn(
    theta: Tensor,
    rows: Tensor | None = ...,
    columns: Tensor | None = ...,
    temperature: float | Tensor = ...,
    *,
    penalty: Literal["kl", "squared_l2"] = ...,
    strength: Strength | tuple[Strength, Strength] = ...,
    tolerance: float = ...,
    max_iter: int = ...,
    on_failure: OnFailure = ...,
    record: Literal[True],
) -> Solution: ...


@public_call(functorch=True)
def unbalanced_sinkhorn(
    theta: Tensor,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    *,
    penalty: Literal["kl", "squared_l2"] = "kl",
    strength: Strength | tuple[Strength, Strength] = 1.0,
    tolerance: float = 1e-12,
    max_iter: int = 500,
    on_failure: OnFailure = "warn",
    record: bool = False,
) -> Tensor | Solution:
    """Return the entropic transport plan whose row and column sums may differ from the margins, at a price.

        argmax ⟨θ, P⟩ − temperature Σ P log P − F(P 1; rows) − F(Pᵀ 1; columns)
        over P ≥ 0

    with one of the penalties

        "kl"          F(a; r) = strength · Σ a log(a / r) − a + r
        "squared_l2"  F(a; r) = strength / 2 · Σ (a − r)²

    This is unbalanced optimal transport, with costs −θ. The totals of rows and columns may differ. The plan is
    differentiable twice, in θ, both margins, the temperature and the strengths.

    Parameters
    ----------
    theta : (..., n, m) Tensor
        Scores of the cells, for example negative costs; −inf forbids a cell.
    rows : (..., n) Tensor, optional
        The margins of the rows, at least 0, by default all 1. With "kl", the sum of a margin of 0 is 0.
    columns : (..., m) Tensor, optional
        The margins of the columns, at least 0, by default all 1.
    temperature : float or Tensor
        Above 0, default 1. A tensor with one number receives a gradient.
    penalty : "kl" or "squared_l2"
        The penalty of both sides.
    strength : float or Tensor, or a pair
        The factor of the penalty, above 0, default 1: one number, or a pair for rows and columns. A tensor with one
        number receives a gradient. With ``math.inf`` for one side, the sums of this side are its margins. For both
        sides, use :func:`structinf.sinkhorn`.
    tolerance : float
        The solver stops once each sum of rows and columns differs from the sum that its price demands by at most
        ``tolerance`` times the largest sum or margin, or by the rounding error up to 1e-4.
    max_iter : int
        The largest number of Newton steps of the batch.
    on_failure : "warn", "raise" or "ignore"
        The reaction to instances that miss the tolerance: a ConvergenceWarning, a ConvergenceError, or nothing.
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
        If margins are negative or not finite, options are out of range, or the plan is larger than the largest float64.
    InfeasibleError
        If a side has strength ∞, and forbidden cells leave nothing for a positive margin of it.

    Notes
    -----
    Newton's method on the dual function, with eliminated row prices, after M. Cuturi & G. Peyré, Semidual regularized
    optimal transport, SIAM Review 60, 2018, with the penalties of L. Chizat, G. Peyré, B. Schmitzer & F.-X. Vialard,
    Scaling algorithms for unbalanced optimal transport problems, Mathematics of Computation 87, 2018. A step takes
    O(n m min(n, m)) operations.

    Examples
    --------
    The second column gets little, because its cells cost more than the penalty:

    >>> cost = torch.tensor([[0.0, 9.0], [1.0, 9.0]])
    >>> plan = unbalanced_sinkhorn(-cost, temperature=0.1)
    >>> plan.sum(0)
    tensor([1.1382e+00, 7.0533e-04])
    """
    check_scores(theta)
    check_flag("record", record)
    check_temperature(temperature, allow_tensor=True)
    check_choice("penalty", penalty, ("kl", "squared_l2"))
    check_stopping(max_iter, tolerance, on_failure)
    penalties = _penalties(penalty, strength)
    problem = Problem.build(theta, Plans(), margins_of_each(theta, rows, columns))
    bound = problem.oracle.bound
    scores = problem.theta
    assert isinstance(scores, Tensor)
    with problem.plain_modes():
        margins = tuple(bound[name].double().expand(len(scores), -1) for name in ("rows", "columns"))
        _check_feasible(scores, margins, penalties)
        found = solve_unbalanced(
            scores.double(),
            margins[0],
            margins[1],
            *penalties,
            temperature.double() if isinstance(temperature, Tensor) else temperature,
            tolerance,
            max_iter,
        )
        if not bool((finite := found.residual.isfinite()).all()):
            raise InvalidInputError(
                "the plan is larger than the largest float64, because the penalties do not outweigh the scores; "
                "raise strength, or subtract a number from theta (batch index "
                f"{int((~finite).nonzero()[0, 0])})"
            )
        if on_failure != "ignore" and not bool(found.converged.all()):
            _report(found, tolerance, on_failure)
        if record:
            solution = Solution(
                mean=found.plan.to(scores.dtype),
                value=found.value.to(scores.dtype),
                residual=found.residual.to(scores.dtype),
                converged=found.converged,
            )
            return solution.with_batch_shape(problem.restore, problem.restore_parts, problem.oracle)
        plan = problem.restore_parts(found.plan.to(scores.dtype))
    assert isinstance(plan, Tensor)
    return plan


def _penalties(kind: Literal["kl", "squared_l2"], strength: Any) -> tuple[MarginPenalty, MarginPenalty]:
    pair = strength if isinstance(strength, tuple) else (strength, strength)
    if len(pair) != 2:
        raise InvalidInputError(f"strength must be one number, or a pair for rows and columns, got {strength!r}")
    for value in pair:
        number = value.detach() if isinstance(value, Tensor) else value
        if isinstance(number, Tensor):
            is_number = number.numel() == 1 and not number.is_complex() and number.dtype is not torch.bool
        else:
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not number > 0:
            raise InvalidInputError(f"strength must be a number above 0, or a pair of them, got {value!r}")
    sides = [
        MarginPenalty(kind, value.double().reshape(()) if isinstance(value, Tensor) else float(value)) for value in pair
    ]
    if all(side.is_hard for side in sides):
        raise InvalidInputError("strength is infinite for both sides; use si.sinkhorn, which keeps both margins")
    return sides[0], sides[1]


def _check_feasible(scores: Tensor, margins: tuple[Tensor, ...], penalties: tuple[MarginPenalty, ...]) -> None:
    usable = ~scores.isneginf()
    rows_forbidden, columns_forbidden = (p.forbids(side) for p, side in zip(penalties, margins, strict=True))
    usable = usable & ~rows_forbidden[:, :, None] & ~columns_forbidden[:, None]
    for name, penalty, side, dim in zip(("row", "column"), penalties, margins, (2, 1), strict=True):
        if penalty.is_hard and bool((missing := (side > 0) & ~usable.any(dim)).any()):
            index, place = missing.nonzero()[0].tolist()
            raise InfeasibleError(
                f"no plan has the margin {side[index, place].item():g} of {name} {place} at batch index {index}, "
                f"because all cells of the {name} are forbidden; allow a cell, or pass a finite strength",
                index,
            )


def _report(found: UnbalancedPlans, tolerance: float, on_failure: OnFailure) -> None:
    missed = ~found.converged
    worst = int(torch.where(missed, found.residual.nan_to_num(torch.inf), -1).argmax())
    report_nonconvergence(
        f"unbalanced_sinkhorn: {int(missed.sum())} of {len(missed)} instances missed the tolerance {tolerance:g}, the "
        f"worst at batch index {worst} with a residual of {found.residual[worst].item():.2e} after "
        f"{found.iterations} Newton steps; raise max_iter, the tolerance or the temperature",
        on_failure,
    )
