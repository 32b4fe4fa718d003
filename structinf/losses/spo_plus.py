"""SPO+: a convex upper bound of the regret of decisions by predicted scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..calls.arguments import OnInfeasible
from ..calls.problem import Problem
from ..calls.true_scores import combine
from ..errors import UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, map_parts, scale_per_instance
from ..solvers.argmax import best_structure, best_structures
from .decision_loss import DecisionLoss
from .reduction import Reduction

__all__ = ["SPOPlusLoss"]


class SPOPlusLoss(DecisionLoss):
    """L(θ, t) = max ⟨2θ − t, y⟩ − ⟨2θ − t, y*(t)⟩, where y*(t) = argmax ⟨t, y⟩ is best for the true scores t.

    The loss is convex in θ and at least the regret ⟨t, y*(t)⟩ − ⟨t, y*(θ)⟩ ≥ 0 of a decision by θ. Its gradient is
    2 (argmax ⟨2θ − t, y⟩ − y*(t)).

    Oracles that take only scores of at most 0, such as ``path``, cannot maximize 2θ − t, which may be positive. For
    these oracles, the maximum also runs over structures with any additional parts. Scores of at most 0 give them no
    better structure, so that the regret is the same, and the loss is still a convex upper bound of it. The maximum then
    takes every part of positive score, and the best structure for the scores cut off at 0.

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    reduction : "mean", "sum" or "none"
        The reduction over the batch, as in torch.nn; the mean of an empty batch is 0.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or give the instance the
        loss 0 with gradient 0. A mean over the batch counts the instance.
    **options
        Options of an oracle given by name. An object already has its options.

    Raises
    ------
    UnsupportedError
        If the oracle takes only scores of at most 0 and a part may have a value other than 0 and 1.

    References
    ----------
    Elmachtoub & Grigas 2022, Smart "Predict, then Optimize", Definition 3 and Proposition 3, where costs are c = −t.

    Examples
    --------
    >>> loss = SPOPlusLoss("categorical")
    >>> loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[3.0, 1.0, 0.0]]))
    tensor(4.)

    Shortest paths, with predicted and true costs:

    >>> loss = SPOPlusLoss(
    ...     "path", graph=[(0, 1), (1, 2), (0, 2)], source=0, target=2
    ... )
    >>> loss(-torch.tensor([1.0, 1.0, 3.0]), -torch.tensor([2.0, 2.0, 1.0]))
    tensor(5.)
    """

    def __init__(
        self,
        oracle: str | Oracle,
        *,
        reduction: Reduction = "mean",
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__(oracle, options, reduction, on_infeasible)

    def _losses(self, problem: Problem, predicted: Parts, true: Parts) -> Tensor:
        oracle, known = problem.oracle, map_parts(Tensor.detach, true)
        tilted = combine(problem, map_parts(Tensor.detach, predicted), known, 2, -1)
        if not oracle.requires_nonpositive_theta:
            y, best = best_structures(oracle, tilted, known)
        elif oracle.has_binary_parts(predicted):
            y, best = _best_with_additional_parts(oracle, tilted), best_structure(oracle, known)
        else:
            raise UnsupportedError(
                f"{oracle!r} takes scores of at most 0, but SPO+ needs the best structure for 2θ − t, which can be "
                "positive; train with FenchelYoungLoss or through a Layer of blackbox"
            )
        # Both structures are constant near θ and t, and the loss is linear.
        difference = map_parts(torch.sub, y, best)
        losses = oracle.score(tilted, difference)
        if not oracle.is_exact:
            difference = scale_per_instance(difference, (losses > 0).to(losses))
        losses = losses.clamp(min=0)
        gradient = map_parts(lambda d: 2 * d, difference)
        return self._linear(losses, problem, gradient, true, lambda: map_parts(torch.neg, difference))


def _best_with_additional_parts(oracle: Oracle, theta: Parts) -> Parts:
    """Return the best structure with additional parts for scores of any sign, (B, *event)."""
    best = best_structure(oracle, map_parts(lambda t: t.clamp(max=0), theta))
    return map_parts(lambda y, t: torch.where(t > 0, 1.0, y), best, theta)
