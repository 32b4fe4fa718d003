"""The imitation loss: a margin loss with any cost of mistakes that has its own maximiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..calls.arguments import OnInfeasible, check_on_infeasible
from ..calls.problem import Problem
from ..calls.resolution import get_oracle
from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..relaxation import resolve_relaxation
from ..shapes import Float
from ..validation import check_positive, check_real
from .gold_scores import gold_scores
from .reduction import Reduction, check_reduction, describe_rules, without_negative_rounding
from .structured_loss import StructuredLoss

__all__ = ["ImitationLoss"]


class ImitationLoss(StructuredLoss):
    """L(θ, y) = max δ(y', y) + α ⟨θ, y' − y⟩ over y' ∈ Y, for any cost δ(y', y) of deciding y' instead of y.

    The gradient is α (ŷ − y) for the structure ŷ that attains the maximum, which a function of the user computes. A
    cost that is linear in y' needs no such function: use ``FenchelYoungLoss(oracle, "map", cost=...)``.

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    delta : callable
        The cost δ. It gets y' and y, (B, *event) in θ's form with one batch dimension, and returns (B,). Neither
        function is called for an empty batch.
    maximiser : callable
        Gets the oracle with the instance data, the scores α θ (B | 1, *event) in float64 and y (B, *event), and returns
        argmax δ(y', y) + ⟨α θ, y'⟩ over y' ∈ Y, (B, *event).
    alpha : float
        The factor α, above 0, in units of δ over units of a score.
    reduction : "mean", "sum" or "none"
        The reduction over the batch, as in torch.nn; the mean of an empty batch is 0.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or give the instance the
        loss 0 with gradient 0, whatever its gold structure is. A mean over the batch counts the instance.
    **options
        Options of an oracle given by name. An object already has its options.

    Raises
    ------
    InvalidInputError
        In a call, if a function returns a wrong shape or NaN, or if ŷ is worse than y for the maximum.

    References
    ----------
    Dalle, Baty, Bouvier & Parmentier 2022, Learning with Combinatorial Optimization Layers: a Probabilistic Approach,
    Section 5.2, without a regularizer.
    Tsochantaridis, Joachims, Hofmann & Altun 2005, Large margin methods for structured and interdependent output
    variables, Section 3 (margin rescaling).

    Examples
    --------
    The square of the difference of the sizes of two subsets, maximised over all subsets of 3 elements:

    >>> import structinf as si
    >>> subsets = si.get_oracle("bits").enumerate((3,))
    >>> def delta(chosen, y):
    ...     return (chosen.sum(-1) - y.sum(-1)).square()
    >>> def maximiser(oracle, theta, y):
    ...     gain = delta(subsets, y[:, None]) + theta @ subsets.T
    ...     return subsets[gain.argmax(1)]
    >>> loss = ImitationLoss("bits", delta, maximiser)
    >>> loss(torch.tensor([[1.0, -1.0, 0.5]]), torch.tensor([[1.0, 0.0, 0.0]]))
    tensor(3.5000)
    """

    def __init__(
        self,
        oracle: str | Oracle,
        delta: Callable[[Parts, Parts], Tensor],
        maximiser: Callable[[Oracle, Parts, Parts], Parts],
        *,
        alpha: float = 1.0,
        reduction: Reduction = "mean",
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__()
        check_on_infeasible(on_infeasible)
        check_positive("alpha", alpha)
        for name, function in (("delta", delta), ("maximiser", maximiser)):
            if not callable(function):
                raise TypeError(f"{name} must be a function, got {type(function).__name__}")
        self.on_infeasible = on_infeasible
        self.oracle, self.relaxation = get_oracle(oracle, **options), resolve_relaxation("map")
        self.delta, self.maximiser, self.alpha = delta, maximiser, alpha
        self.reduction = check_reduction(reduction)

    def _losses(self, problem: Problem, gold: Parts, relaxation: Any) -> Tensor:
        oracle, theta, y = problem.oracle, *(map_parts(Tensor.double, parts) for parts in (problem.theta, gold))
        theta = map_parts(lambda t: self.alpha * t, theta)
        own = gold_scores(oracle, theta, y)
        if not len(own):
            return own
        with torch.no_grad():
            found = self.maximiser(oracle, map_parts(Tensor.detach, theta), y)
            received = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in as_tuple(found)]
            wanted = [tuple(t.shape) for t in as_tuple(y)]
            if isinstance(found, tuple) != isinstance(y, tuple) or received != wanted:
                raise InvalidInputError(f"maximiser must return structures of shapes {wanted}, got {received}")
            found = map_parts(Tensor.double, found)
            cost, own_cost = self._cost(found, y), self._cost(y, y)
        losses = cost + oracle.score(theta, found) - own
        least = own_cost - torch.finfo(torch.float64).eps ** 0.5 * (1 + cost.abs() + own.detach().abs())
        wrong = ~(losses.detach() >= least)
        if bool(wrong.any()):
            raise InvalidInputError(
                f"maximiser: at batch index {int(wrong.nonzero()[0, 0])} its structure has a lower value "
                "δ(y', y) + ⟨α θ, y'⟩ than the gold structure y, or NaN; return the structure of the highest value, "
                "without parts of score −inf"
            )
        return without_negative_rounding(losses)

    def _cost(self, chosen: Parts, y: Parts) -> Float[Tensor, " batch"]:
        size = len(as_tuple(y)[0])
        cost = self.delta(chosen, y)
        check_real("delta(y', y)", cost)
        if not isinstance(cost, Tensor) or cost.shape != (size,):
            received = tuple(cost.shape) if isinstance(cost, Tensor) else type(cost).__name__
            raise InvalidInputError(f"delta(y', y) must return a tensor of shape ({size},), got {received}")
        return cost.double()

    def _callable_option(self) -> tuple[str, Any]:
        return "maximiser", self.maximiser

    def extra_repr(self) -> str:
        return f"oracle={self.oracle!r}, delta=..., maximiser=..., alpha={self.alpha}, {describe_rules(self)}"
