"""Losses that compare a relaxed structure with the gold one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..calls.problem import Problem
from ..calls.resolution import resolve
from ..errors import InvalidInputError, UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..relaxation import Relaxation, inner_modules
from ..shapes import Float
from ..validation import check_choice
from .reduction import Reduction, check_reduction
from .structured_loss import StructuredLoss

__all__ = ["Distance", "RelaxedLoss"]

Distance = Literal["squared_l2", "kl", "area"] | Callable[[Parts, Parts], Tensor]


class RelaxedLoss(StructuredLoss):
    """A distance Δ(y, μ(θ)) from the right structure to the relaxed one; not convex in θ.

    ==============  =============================================================================
    distance        Δ(y, μ), over the parts that ``oracle.readout`` shows
    ==============  =============================================================================
    "squared_l2"    ½ ‖y − μ‖²
    "kl"            Σ y log(y / μ), infinite where μ excludes a part of y: for dense relaxations
    "area"          ‖L (y − μ)ᵀ‖² with L the lower triangular matrix of ones, for matrices: between
                    two alignments that have a column in each row, the area between their paths
    ==============  =============================================================================

    Parameters
    ----------
    oracle : str or Oracle
    relaxation : str or Relaxation
        Any whose mean has a gradient of use: neither ``map`` nor ``smoothed`` without a regularizer.
    distance : str or callable
        A name above, or a function of y and μ, in θ's form with one batch dimension, that returns (B,).
    reduction : "mean", "sum" or "none"
        Over the batch, as in torch.nn; the mean of an empty batch is 0.
    **options
        Options of whatever was given by name.

    References
    ----------
    Mensch & Blondel 2018, Differentiable Dynamic Programming, §4.1-4.3.
    Garreau, Lajugie, Arlot & Bach 2014, Metric learning for temporal sequence alignment (the area loss).

    Examples
    --------
    >>> import torch
    >>> loss = RelaxedLoss("categorical", "marginals", distance="kl")
    >>> loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.4076)
    """

    settable = (*StructuredLoss.settable, "distance")

    def __init__(
        self,
        oracle: str | Oracle,
        relaxation: str | Relaxation = "smoothed",
        *,
        distance: Distance = "squared_l2",
        reduction: Reduction = "mean",
        **options: Any,
    ) -> None:
        super().__init__()
        self.oracle, self.relaxation = resolve(oracle, relaxation, options)
        if inner := inner_modules(self.relaxation):
            self.inner = nn.ModuleList(inner)
        if self.relaxation.piecewise_constant:
            raise UnsupportedError(
                f"the gradient of {self.relaxation!r} is 0, and so is that of any distance from it; take marginals, "
                "sparsemap or smoothed, or train with FenchelYoungLoss, whose gradient is not that of the mean"
            )
        if self.relaxation.sample_ndim:
            raise UnsupportedError(
                f"{self.relaxation!r} keeps its samples apart, and this is a distance from one mean; "
                'take reduction="mean" there'
            )
        if not callable(distance):
            check_choice("distance", distance, ("squared_l2", "kl", "area"), "a callable")
        self.distance = distance
        self.reduction = check_reduction(reduction)

    def _losses(self, problem: Problem, gold: Parts, relaxation: Relaxation) -> Tensor:
        mean = relaxation.mean(problem.oracle, problem.theta)
        if callable(self.distance):
            losses, size = self.distance(gold, mean), len(as_tuple(mean)[0])
            if not isinstance(losses, Tensor) or losses.shape != (size,):
                received = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
                raise InvalidInputError(f"distance(y, mean) must return a tensor of shape ({size},), got {received}")
            return losses
        y, read = (as_tuple(problem.oracle.readout(p)) for p in (gold, mean))
        if self.distance == "area":
            each = [_area(*of_part) for of_part in zip(y, read, self._shown(problem), strict=True)]
        else:
            each = [_DISTANCES[self.distance](a, b) for a, b in zip(y, read, strict=True)]
        return torch.stack(each).sum(0)

    def _callable_option(self) -> tuple[str, Any]:
        return "distance", self.distance

    @staticmethod
    def _shown(problem: Problem) -> tuple[Tensor, ...]:
        """Which of the parts that the readout shows are not padding, (B | 1, *event) bool each."""
        masks = problem.oracle.valid_parts(problem.theta)
        inside = map_parts(torch.ones_like, problem.theta)
        if masks is not None:
            inside = map_parts(lambda m, t: m.to(t).expand(-1, *t.shape[1:]), masks, problem.theta)
        return tuple(r != 0 for r in as_tuple(problem.oracle.readout(inside)))

    def extra_repr(self) -> str:
        distance = self.distance if isinstance(self.distance, str) else "..."
        return (
            f"oracle={self.oracle!r}, relaxation={self.relaxation!r}, distance={distance}, reduction={self.reduction!r}"
        )


def _squared_l2(y: Tensor, mean: Tensor) -> Float[Tensor, " batch"]:
    return 0.5 * (y - mean).square().flatten(1).sum(1)


def _kl(y: Tensor, mean: Tensor) -> Float[Tensor, " batch"]:
    # Parts that y lacks add nothing; their probability must not reach the logarithm, whose slope is infinite at 0.
    used = y > 0
    return (torch.xlogy(y, y) - y * torch.where(used, mean, 1.0).log()).flatten(1).sum(1)


def _area(y: Tensor, mean: Tensor, shown: Tensor) -> Float[Tensor, " batch"]:
    if y.ndim != 3:
        raise InvalidInputError(
            f'distance="area" compares alignment matrices, got structures of shape {tuple(y.shape[1:])}'
        )
    # Rows may differ in length, and what is left at their ends would go on into the padding.
    return torch.where(shown, (mean - y).cumsum(2), 0.0).square().flatten(1).sum(1)


_DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"squared_l2": _squared_l2, "kl": _kl}
