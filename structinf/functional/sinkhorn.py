"""Entropic optimal transport between given margins."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor

from ..calls.problem import Problem
from ..calls.resolution import get_relaxation
from ..compile.public_call import public_call
from ..errors import InvalidInputError, UnsupportedError
from ..oracle import TransportPolytope
from ..solution import Solution
from ..solvers.sinkhorn import margin_total_tolerance
from ..validation import check_flag

__all__ = ["sinkhorn"]


class _Plans(TransportPolytope):
    """All plans of the margins that are bound."""

    name: ClassVar[str] = "plans"
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"rows": 1, "columns": 1, "total": 0})

    def argmax(self, theta: Tensor) -> Tensor:
        raise UnsupportedError('plans between real margins have no argmax here; "transportation" has, of integers')

    def validate(self, theta: Tensor) -> None:
        for name, size in (("rows", theta.shape[1]), ("columns", theta.shape[2])):
            margins = self.bound[name].detach()
            if margins.shape[1] != size:
                raise InvalidInputError(
                    f"{name}: a sum for each of the {size} {name} of theta is needed, got {margins.shape[1]}"
                )
            wrong = ~(margins >= 0) | margins.isinf()
            if bool(wrong.any()):
                index, place = wrong.nonzero()[0].tolist()
                raise InvalidInputError(
                    f"{name}: sums of 0 or more are needed, got {margins[index, place].item():g} at batch index "
                    f"{index}, place {place}"
                )

    def margins(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.bound["rows"], self.bound["columns"], self.bound.get("total")


@overload
def sinkhorn(
    theta: Tensor,
    rows: Tensor | None = ...,
    columns: Tensor | None = ...,
    temperature: float = ...,
    *,
    record: Literal[False] = ...,
    **options: Any,
) -> Tensor: ...


@overload
def sinkhorn(
    theta: Tensor,
    rows: Tensor | None = ...,
    columns: Tensor | None = ...,
    temperature: float = ...,
    *,
    record: Literal[True],
    **options: Any,
) -> Solution: ...


@public_call(functorch=True)
def sinkhorn(
    theta: Tensor,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    temperature: float = 1.0,
    *,
    slack: bool = False,
    total: Tensor | float | None = None,
    record: bool = False,
    **options: Any,
) -> Tensor | Solution:
    """argmax ⟨θ, P⟩ − temperature Σ P log P over plans P ≥ 0 with P 1 = rows and Pᵀ 1 = columns.

    Differentiable in θ and in the margins, twice.

    Parameters
    ----------
    theta : (..., n, m) Tensor
        Scores, minus the costs; −inf forbids a cell.
    rows, columns : (..., n) and (..., m) Tensor, optional
        The plan's sums, 0 or more; each of 1 if not given. Those of one instance may serve all.
    temperature : float
        Above 0; smaller is closer to a best plan.
    slack : bool
        Where the totals differ, let the larger side's sums be bounds. (Otherwise that is an error.)
    total : (...) Tensor or float, optional
        With slack, what is shipped in all: both sides' sums are bounds then, unless it is their total.
    record : bool
        Return the whole :class:`structinf.Solution`, with its value, residual and whether it converged, in place of the
        plan.
    **options
        ``tolerance``, ``max_iter``, ``initial_temperature``, ``backward`` and ``on_failure``, as for the ``sinkhorn``
        relaxation, :class:`structinf.relaxations.sinkhorn.Sinkhorn`.

    Returns
    -------
    (..., n, m) Tensor, or Solution
        In θ's dtype; computed in float64.

    Raises
    ------
    InvalidInputError
        For margins that are negative, not finite or do not add up to the same, naming the instance.
    InfeasibleError
        If forbidden cells leave no plan.

    Examples
    --------
    >>> cost = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> sinkhorn(-cost, torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """
    if not isinstance(theta, Tensor) or theta.ndim < 2:
        received = f"shape {tuple(theta.shape)}" if isinstance(theta, Tensor) else f"a {type(theta).__name__}"
        raise InvalidInputError(f"theta: scores of rows and columns, a tensor (..., n, m), are needed, got {received}")
    check_flag("slack", slack)
    check_flag("record", record)
    relaxation = get_relaxation("sinkhorn", temperature=temperature, **options)
    bound = {name: _margins(name, value, theta) for name, value in (("rows", rows), ("columns", columns))}
    if total is not None:
        if not slack:
            raise InvalidInputError("total: to ship less than all needs slack=True as well")
        bound["total"] = torch.as_tensor(total, dtype=torch.float64)
    problem = Problem.build(theta, _Plans(), bound)
    _check_totals(problem.oracle.bound, slack)
    with problem.plain_modes():
        if record:
            solution = relaxation.solve(problem.oracle, problem.theta)
            return solution.with_batch_shape(problem.restore, problem.restore_parts, problem.oracle)
        plan = problem.restore_parts(relaxation.mean(problem.oracle, problem.theta))
    assert isinstance(plan, Tensor)
    return plan


def _margins(name: str, value: Any, theta: Tensor) -> Tensor:
    """Sums for each instance, (..., n or m)."""
    size = theta.shape[-2 if name == "rows" else -1]
    if value is None:
        return theta.new_ones(*theta.shape[:-2], size, dtype=torch.float64)
    margins = torch.as_tensor(value)
    margins = margins if margins.is_floating_point() else margins.double()
    try:
        return margins.expand(*theta.shape[:-2], margins.shape[-1])
    except (RuntimeError, IndexError):
        raise InvalidInputError(
            f"{name}: sums (..., {size}) for the batch {tuple(theta.shape[:-2])} of theta are needed, "
            f"got shape {tuple(margins.shape)}"
        ) from None


def _check_totals(bound: Mapping[str, Tensor], slack: bool) -> None:
    rows, columns = (bound[name].detach().double().sum(1) for name in ("rows", "columns"))
    rounding = margin_total_tolerance(bound["rows"], bound["columns"])
    if not slack:
        wrong = (rows - columns).abs() > rounding * torch.maximum(rows, columns)
        what = "add up to {:.10g} and columns to {:.10g}; they must agree, or slack=True makes the larger ones bounds"
    elif "total" in bound:
        total = bound["total"].detach()
        wrong = ~((total >= 0) & (total <= torch.minimum(rows, columns) * (1 + rounding)))
        what = "add up to {:.10g} and columns to {:.10g}: total must lie between 0 and the smaller one"
    else:
        return
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        raise InvalidInputError(
            "rows " + what.format(rows[index].item(), columns[index].item()) + f" (batch index {index})"
        )
