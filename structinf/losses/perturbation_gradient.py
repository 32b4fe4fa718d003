"""The perturbation gradient loss: a difference quotient of the best score, in the direction of the true scores."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..calls.arguments import OnInfeasible
from ..calls.problem import Problem
from ..calls.true_scores import combine
from ..oracle import Oracle
from ..parts import Parts, map_parts
from ..solvers.argmax import best_structures
from ..validation import check_choice, check_in_range, check_positive
from .decision_loss import DecisionLoss
from .reduction import Reduction

__all__ = ["PerturbationGradientLoss"]


class PerturbationGradientLoss(DecisionLoss):
    """L(θ, t) = −(V(θ + ht) − V(θ − ht)) / 2h for the best score V(θ) = max ⟨θ, y⟩ and true scores t.

    The slope of V in the direction t is the true score ⟨t, y*(θ)⟩ of the decision, wherever the decision is unique. So
    the loss approaches minus the value of the decision for small h, and it is continuous in θ. It lies between
    −⟨t, y*(θ + ht)⟩ and −⟨t, y*(θ − ht)⟩. The loss needs no best structure for t. Its gradient is
    (y*(θ − ht) − y*(θ + ht)) / 2h.

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    h : float
        The step, above 0, in units of θ over units of t. If h t is small compared with the differences of θ, few
        instances have a gradient, and it is of the size 1 / h. With a large h, the loss approaches the differences of
        scores of :class:`FenchelYoungLoss` with ``map``, divided by h.
    difference : "central" or "backward"
        "backward" is the loss −(V(θ) − V(θ − ht)) / h, whose gradient (y*(θ − ht) − y*(θ)) / h has no term for
        decisions better than y*(θ).
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
        If the oracle accepts only scores of at most 0, because θ − ht can be positive.

    References
    ----------
    Huang & Gupta 2024, Decision-Focused Learning with Directional Gradients, arXiv 2402.03256: the central and the
    backward PG loss, where costs are c = −t.

    Examples
    --------
    >>> loss = PerturbationGradientLoss("categorical", h=1.0)
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]], requires_grad=True)
    >>> value = loss(theta, torch.tensor([[2.0, 0.5, 1.0]]))
    >>> value.backward()
    >>> value.item(), theta.grad
    (-0.75, tensor([[-0.5000,  0.5000,  0.0000]]))
    """

    def __init__(
        self,
        oracle: str | Oracle,
        *,
        h: float = 1.0,
        difference: Literal["central", "backward"] = "central",
        reduction: Reduction = "mean",
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__(oracle, options, reduction, on_infeasible)
        check_positive("h", h)
        check_in_range("h", h, torch.float64)
        check_choice("difference", difference, ("central", "backward"))
        self.h, self.difference = h, difference
        self._refuse_nonpositive("the loss needs the best structure for θ − ht")

    def _losses(self, problem: Problem, predicted: Parts, true: Parts) -> Tensor:
        high = self.h if self.difference == "central" else 0.0
        theta, t = (map_parts(Tensor.detach, parts) for parts in (predicted, true))
        up, down = (combine(problem, theta, t, 1, step) for step in (high, -self.h))
        y, worse = best_structures(problem.oracle, up, down)
        step = high + self.h
        losses = (problem.oracle.score(down, worse) - problem.oracle.score(up, y)) / step
        # Both structures are constant near θ and t, and the loss is linear.
        gradient = map_parts(lambda a, b: (a - b) / step, worse, y)

        def of_true() -> Parts:
            return map_parts(lambda a, b: -(self.h * a + high * b) / step, worse, y)

        return self._linear(losses, problem, gradient, true, of_true)

    def extra_repr(self) -> str:
        oracle, rest = f"oracle={self.oracle!r}", super().extra_repr()
        return f"{oracle}, h={self.h}, difference={self.difference!r}{rest.removeprefix(oracle)}"
