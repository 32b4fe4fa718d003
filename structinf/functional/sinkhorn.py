"""Entropic optimal transport with given row and column sums."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor

from ..calls.problem import Problem
from ..calls.resolution import get_relaxation
from ..compile.public_call import public_call
from ..errors import InvalidInputError
from ..kernels.arrays import as_tensor
from ..oracle import TransportPolytope
from ..solution import Solution
from ..solvers.margins import margin_total_tolerance
from ..solvers.transport_vertex import best_transport_plan
from ..validation import check_flag, check_real

__all__ = ["Plans", "check_scores", "check_totals", "margins_of_each", "sinkhorn", "sinkhorn_divergence"]


class Plans(TransportPolytope):
    """The set of transport plans with the bound margins (row and column sums)."""

    name: ClassVar[str] = "plans"
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"rows": 1, "columns": 1, "total": 0})

    def argmax(self, theta: Tensor) -> Tensor:
        return best_transport_plan(theta, *self.margins(theta))

    def validate(self, theta: Tensor) -> None:
        for name, size in (("rows", theta.shape[1]), ("columns", theta.shape[2])):
            margins = self.bound[name].detach()
            if margins.shape[1] != size:
                raise InvalidInputError(
                    f"{name} must hold one sum for each of the {size} {name} of theta, got {margins.shape[1]}"
                )
            wrong = ~(margins >= 0) | margins.isinf()
            if bool(wrong.any()):
                index, place = wrong.nonzero()[0].tolist()
                raise InvalidInputError(
                    f"{name} must be finite and at least 0, got {margins[index, place].item():g} at batch index "
                    f"{index}, position {place}"
                )

    def margins(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.bound["rows"], self.bound["columns"], self.bound.get("total")


@overload
def sinkhorn(
    theta: Tensor,
    rows: Tensor | None = ...,
    columns: Tensor | None = ...,
    temperature: float | Tensor = ...,
    *,
    record: Literal[False] = ...,
    **options: Any,
) -> Tensor: ...


@overload
def sinkhorn(
    theta: Tensor,
    rows: Tensor | None = ...,
    columns: Tensor | None = ...,
    temperature: float | Tensor = ...,
    *,
    record: Literal[True],
    **options: Any,
) -> Solution: ...


@public_call(functorch=True)
def sinkhorn(
    theta: Tensor,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    *,
    slack: bool = False,
    total: Tensor | float | None = None,
    record: bool = False,
    **options: Any,
) -> Tensor | Solution:
    """Return the entropic transport plan with given row and column sums.

        argmax ⟨θ, P⟩ − temperature Σ P log P
        over P ≥ 0 with P 1 = rows and Pᵀ 1 = columns

    The plan is differentiable twice, in θ and in the margins ``rows`` and ``columns``.

    Parameters
    ----------
    theta : (..., n, m) Tensor
        Scores of the cells, for example negative costs; −inf forbids a cell.
    rows : (..., n) Tensor, optional
        Row sums of the plan, at least 0, by default all 1. Batch dimensions broadcast.
    columns : (..., m) Tensor, optional
        Column sums of the plan, at least 0, by default all 1. Batch dimensions broadcast.
    temperature : float or Tensor
        Above 0, default 1. Lower temperatures give plans closer to an optimal plan without entropy. A tensor with one
        number receives a gradient.
    slack : bool
        Whether the totals of ``rows`` and ``columns`` may differ, default False. With slack, the sums of the side with
        the larger total are upper bounds. The maximized entropy −Σ P log P then also includes the unused rest of each
        bound, as one more row or column of P.
    total : (...) Tensor or float, optional
        With slack, the total of the plan. The sums of both sides are then upper bounds, except for a side with this
        total.
    record : bool
        Whether to return a :class:`structinf.Solution` with value, residual and convergence, instead of the plan.
        Default False.
    **options
        ``tolerance``, ``max_iter``, ``initial_temperature``, ``backward`` and ``on_failure``, as for the relaxation
        :class:`structinf.relaxations.sinkhorn.Sinkhorn`.

    Returns
    -------
    (..., n, m) Tensor, or Solution
        The plan, in the dtype of θ, computed in float64.

    Raises
    ------
    InvalidInputError
        If margins are negative or not finite, or if the totals of rows and columns differ without slack.
    InfeasibleError
        If forbidden cells leave no plan.

    Examples
    --------
    >>> cost = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> sinkhorn(-cost, torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """
    check_scores(theta)
    check_flag("slack", slack)
    check_flag("record", record)
    relaxation = get_relaxation("sinkhorn", temperature=temperature, **options)
    bound = margins_of_each(theta, rows, columns)
    if total is not None:
        if not slack:
            raise InvalidInputError("total needs slack=True; pass both, or omit total")
        if isinstance(total, bool):
            raise InvalidInputError(f"total must be a number or a tensor of numbers, got {total!r}")
        bound["total"] = _numbers("total", total).double()
    problem = Problem.build(theta, Plans(), bound)
    check_totals(problem.oracle.bound, slack)
    with problem.plain_modes():
        if record:
            solution = relaxation.solve(problem.oracle, problem.theta)
            return solution.with_batch_shape(problem.restore, problem.restore_parts, problem.oracle)
        plan = problem.restore_parts(relaxation.mean(problem.oracle, problem.theta))
    assert isinstance(plan, Tensor)
    return plan


@public_call(functorch=True)
def sinkhorn_divergence(
    cost: Tensor,
    cost_rows: Tensor,
    cost_columns: Tensor,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    **options: Any,
) -> Tensor:
    """Return the Sinkhorn divergence of two weighted sets of points.

        OT(a, b) − ½ OT(a, a) − ½ OT(b, b),   OT(a, b) = min ⟨cost, P⟩ + temperature Σ P log P
        over P ≥ 0 with P 1 = a and Pᵀ 1 = b

    The entropies of the margins cancel, so the relative entropy of P and a bᵀ in place of Σ P log P gives the same
    number. The divergence is 0 for equal sets, unlike OT. It is at least 0 if exp(−cost / temperature) is a positive
    definite kernel, for example for squared Euclidean distances.

    Parameters
    ----------
    cost : (..., n, m) Tensor
        Costs between the points of the first and the second set.
    cost_rows : (..., n, n) Tensor
        Costs between the points of the first set.
    cost_columns : (..., m, m) Tensor
        Costs between the points of the second set.
    rows : (..., n) Tensor, optional
        Weights a of the first set, at least 0, by default 1 / n each.
    columns : (..., m) Tensor, optional
        Weights b of the second set, with the same total, by default 1 / m each.
    temperature : float or Tensor
        Above 0, default 1. A tensor with one number receives a gradient.
    **options
        ``tolerance``, ``max_iter``, ``initial_temperature``, ``backward`` and ``on_failure``, as for the relaxation
        :class:`structinf.relaxations.sinkhorn.Sinkhorn`.

    Returns
    -------
    (...) Tensor
        The divergence, in the unit of the costs; differentiable twice, in the costs, the weights and the temperature.

    References
    ----------
    J. Feydy, T. Séjourné, F.-X. Vialard, S. Amari, A. Trouvé & G. Peyré, Interpolating between optimal transport and
    MMD using Sinkhorn divergences, AISTATS 2019.

    Examples
    --------
    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [1.5]])
    >>> def cost(x, y):
    ...     return torch.cdist(x, y).square()
    >>> sinkhorn_divergence(
    ...     cost(x, y), cost(x, x), cost(y, y), temperature=0.1
    ... )
    tensor(0.2500)
    """
    for name, value, of in (("cost_rows", cost_rows, -2), ("cost_columns", cost_columns, -1)):
        check_scores(value, name, "costs")
        check_scores(cost, "cost", "costs")
        if value.shape[-2:] != (cost.shape[of],) * 2:
            raise InvalidInputError(
                f"{name} must have shape (..., {cost.shape[of]}, {cost.shape[of]}) for cost of shape "
                f"{tuple(cost.shape)}, got {tuple(value.shape)}"
            )
    n, m = cost.shape[-2:]
    rows = cost.new_full((n,), 1 / max(n, 1), dtype=torch.float64) if rows is None else rows
    columns = cost.new_full((m,), 1 / max(m, 1), dtype=torch.float64) if columns is None else columns

    def optimum(costs: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return -sinkhorn(-costs, a, b, temperature, record=True, **options).value

    both = optimum(cost, rows, columns)
    return both - (optimum(cost_rows, rows, rows) + optimum(cost_columns, columns, columns)) / 2


def check_scores(theta: Tensor, name: str = "theta", what: str = "scores") -> None:
    """Raise InvalidInputError unless the argument ``name`` is a batch of matrices."""
    if not isinstance(theta, Tensor) or theta.ndim < 2:
        received = f"shape {tuple(theta.shape)}" if isinstance(theta, Tensor) else f"a {type(theta).__name__}"
        raise InvalidInputError(f"{name} must be a tensor (..., n, m) of {what} of rows and columns, got {received}")


def margins_of_each(theta: Tensor, rows: Any, columns: Any) -> dict[str, Tensor]:
    """Return the row sums (..., n) and column sums (..., m) of each instance, by name; all 1 for None."""
    return {name: _margins(name, value, theta) for name, value in (("rows", rows), ("columns", columns))}


def _margins(name: str, value: Any, theta: Tensor) -> Tensor:
    """Return the row or column sums of each instance, (..., n) or (..., m); all 1 for None."""
    size = theta.shape[-2 if name == "rows" else -1]
    if value is None:
        return theta.new_ones(*theta.shape[:-2], size, dtype=torch.float64)
    margins = _numbers(name, value)
    try:
        return margins.expand(*theta.shape[:-2], margins.shape[-1])
    except (RuntimeError, IndexError):
        raise InvalidInputError(
            f"{name} must have shape (..., {size}) and broadcast to the batch shape {tuple(theta.shape[:-2])} of "
            f"theta, got shape {tuple(margins.shape)}"
        ) from None


def _numbers(name: str, value: Any) -> Tensor:
    """Return ``value``, a tensor, a number, a list or an array, as a tensor of floating-point numbers."""
    try:
        numbers = as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{name} must be a tensor or a list of numbers, got {value!r:.80}") from error
    check_real(name, numbers)
    if numbers.dtype is torch.bool:
        raise TypeError(f"{name} must be numbers, got a tensor of torch.bool; convert it with .float() first")
    return numbers if numbers.is_floating_point() else numbers.double()


def check_totals(bound: Mapping[str, Tensor], slack: bool) -> None:
    """Raise InvalidInputError if the totals of the margins differ without slack, or cannot hold the bound ``total``."""
    rows, columns = (bound[name].detach().double().sum(1) for name in ("rows", "columns"))
    rounding = margin_total_tolerance(bound["rows"], bound["columns"])
    if not slack:
        wrong = (rows - columns).abs() > rounding * torch.maximum(rows, columns)
        what = "add up to {:.10g} and columns to {:.10g}; give equal totals, or pass slack=True for upper bounds"
    elif "total" in bound:
        total = bound["total"].detach()
        wrong = ~((total >= 0) & (total <= torch.minimum(rows, columns) * (1 + rounding)))
        what = "add up to {:.10g} and columns to {:.10g}; total must lie between 0 and the smaller sum"
    else:
        return
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        raise InvalidInputError(
            "rows " + what.format(rows[index].item(), columns[index].item()) + f" (batch index {index})"
        )
