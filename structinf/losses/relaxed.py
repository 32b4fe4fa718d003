"""Losses that measure the distance from a relaxed structure to the gold structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..calls.arguments import OnInfeasible, check_on_infeasible
from ..calls.problem import Problem
from ..calls.resolution import resolve
from ..errors import InvalidInputError, UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..relaxation import Relaxation, inner_modules, register_parameters
from ..shapes import Float
from ..validation import check_choice, check_real
from .reduction import Reduction, check_reduction, describe_rules
from .structured_loss import StructuredLoss

__all__ = ["Distance", "RelaxedLoss"]

Distance = Literal["squared_l2", "kl", "area"] | Callable[[Parts, Parts], Tensor]


class RelaxedLoss(StructuredLoss):
    """A distance Δ(y, μ(θ)) between the gold structure and the relaxed structure; not convex in θ.

    ==============  =============================================================================
    distance        Δ(y, μ), over the parts returned by ``oracle.readout``
    ==============  =============================================================================
    "squared_l2"    ½ ‖y − μ‖²
    "kl"            Σ y log(y / μ), for dense relaxations: infinite where μ is 0 at a part of y
    "area"          ‖L (y − μ)ᵀ‖² for matrices, with the lower triangular matrix L of ones. For two
                    alignments with one column in each row, it is the area between their paths.
    ==============  =============================================================================

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    relaxation : str or Relaxation
        The relaxation μ: an object, or a name of :func:`structinf.list_relaxations`. Relaxations with
        gradient 0 raise UnsupportedError: ``map``, and ``smoothed`` with ``regularizer="none"``.
    distance : str or callable
        A name from the table, or a function. The function gets y and μ in θ's form with one batch dimension, and
        returns (B,).
    reduction : "mean", "sum" or "none"
        The reduction over the batch, as in torch.nn; the mean of an empty batch is 0.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or give the instance the
        loss 0 with gradient 0, whatever its gold structure is. A mean over the batch counts the instance.
    **options
        Options of an oracle or a relaxation given by name. An object already has its options.

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
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__()
        check_on_infeasible(on_infeasible)
        self.on_infeasible = on_infeasible
        self.oracle, self.relaxation = resolve(oracle, relaxation, options)
        register_parameters(self, self.relaxation)
        if inner := inner_modules(self.relaxation):
            self.inner = nn.ModuleList(inner)
        if self.relaxation.piecewise_constant:
            raise UnsupportedError(
                f"the gradient of {self.relaxation!r} is 0, so the gradient of every distance is 0 too; use marginals, "
                "sparsemap or smoothed, or train with FenchelYoungLoss, which does not differentiate the mean"
            )
        if self.relaxation.sample_ndim:
            raise UnsupportedError(
                f"{self.relaxation!r} returns separate samples, but the distance needs one mean; "
                'set reduction="mean" in the relaxation'
            )
        if not callable(distance):
            check_choice("distance", distance, ("squared_l2", "kl", "area"), "a callable")
        self.distance = distance
        self.reduction = check_reduction(reduction)

    def _losses(self, problem: Problem, gold: Parts, relaxation: Relaxation) -> Tensor:
        theta = problem.theta
        if not (callable(self.distance) or relaxation.is_stochastic):
            # The distance is the small difference of larger numbers. Means of samples have much larger errors.
            theta, gold = (map_parts(Tensor.double, parts) for parts in (theta, gold))
        mean = relaxation.mean(problem.oracle, theta)
        if callable(self.distance):
            losses, size = self.distance(gold, mean), len(as_tuple(mean)[0])
            check_real("distance(y, mean)", losses)
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
        """Return masks of the readout's parts outside the padding, (B | 1, *event) bool each."""
        masks = problem.oracle.valid_parts(problem.theta)
        inside = map_parts(torch.ones_like, problem.theta)
        if masks is not None:
            inside = map_parts(lambda m, t: m.to(t).expand(-1, *t.shape[1:]), masks, problem.theta)
        return tuple(r != 0 for r in as_tuple(problem.oracle.readout(inside)))

    def extra_repr(self) -> str:
        distance = self.distance if isinstance(self.distance, str) else "..."
        return f"oracle={self.oracle!r}, relaxation={self.relaxation!r}, distance={distance}, {describe_rules(self)}"


def _squared_l2(y: Tensor, mean: Tensor) -> Float[Tensor, " batch"]:
    return 0.5 * (y - mean).square().flatten(1).sum(1)


def _kl(y: Tensor, mean: Tensor) -> Float[Tensor, " batch"]:
    # Parts absent from y add 0. Their mean must not reach the logarithm, whose slope is infinite at 0.
    used = y > 0
    return (torch.xlogy(y, y) - y * torch.where(used, mean, 1.0).log()).flatten(1).sum(1)


def _area(y: Tensor, mean: Tensor, shown: Tensor) -> Float[Tensor, " batch"]:
    if y.ndim != 3:
        raise InvalidInputError(
            f'distance="area" compares alignment matrices, got structures of shape {tuple(y.shape[1:])}; '
            'use distance="squared_l2"'
        )
    # Rows may differ in length: without the mask, the sum at the end of a row would continue into the padding.
    return torch.where(shown, (mean - y).cumsum(2), 0.0).square().flatten(1).sum(1)


_DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"squared_l2": _squared_l2, "kl": _kl}
