"""Fenchel-Young losses over structures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from .api import bind_problem, resolve
from .compiling import untraced
from .errors import InvalidInputError, UnsupportedError
from .oracle import Oracle
from .parts import Potentials, map_parts
from .problem import Problem
from .relaxation import RegularizedRelaxation, Relaxation

if TYPE_CHECKING:
    import jaxtyping

__all__ = ["Cost", "FenchelYoungLoss"]

Cost = Literal["hamming"] | Tensor | tuple[Tensor, ...] | Callable[[Potentials], Potentials]


class FenchelYoungLoss(nn.Module):
    """L(θ, y) = Ω*(θ) + Ω(y) − ⟨θ, y⟩ ≥ 0, with gradient μ(θ) − y.

    ============  ==============  ==========================================
    relaxation    without cost    with cost
    ============  ==============  ==========================================
    map           perceptron      structured SVM (margin rescaling)
    marginals     CRF             softmax-margin
    sparsemap     SparseMAP       margin-SparseMAP
    ============  ==============  ==========================================

    With a cost ⟨c, y'⟩ − ⟨c, y⟩ of predicting y' for y, the loss is L(θ + c, y).

    Parameters
    ----------
    oracle : str or Oracle
    relaxation : str or Relaxation
        One that comes from a regularizer Ω; surrogate gradients generate no loss.
    cost : None, "hamming", Tensor (or tuple), or callable
        ``"hamming"`` counts wrong tokens (``oracle.hamming_cost``). A tensor c of θ's shape is a cost for each
        part. A callable gets the gold structures in θ's form and returns such a c.
    reduction : "mean", "sum" or "none"
        Over the batch, as in torch.nn; the mean of an empty batch is 0.
    **options
        Options of whatever was given by name.

    References
    ----------
    Blondel, Martins & Niculae 2020, Learning with Fenchel-Young Losses, Definition 2 and §3.4.

    Examples
    --------
    >>> import torch
    >>> loss = FenchelYoungLoss("categorical", "marginals")
    >>> loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.4076)
    """

    def __init__(
        self,
        oracle: str | Oracle,
        relaxation: str | Relaxation = "sparsemap",
        *,
        cost: Cost | None = None,
        reduction: Literal["mean", "sum", "none"] = "mean",
        **options: Any,
    ) -> None:
        super().__init__()
        self.oracle, found = resolve(oracle, relaxation, options)
        if not isinstance(found, RegularizedRelaxation):
            raise UnsupportedError(
                f"{found.label()} is no argmax of ⟨θ, μ⟩ − Ω(μ) and generates no Fenchel-Young loss; "
                "train through its Layer with a loss of your own, or take map, marginals or sparsemap"
            )
        if reduction not in ("mean", "sum", "none"):
            raise InvalidInputError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
        if isinstance(cost, str) and cost != "hamming":
            raise InvalidInputError(f'cost must be None, "hamming", a tensor or a callable, got {cost!r}')
        self.relaxation = found
        self.cost = cost
        self.reduction = reduction

    @untraced
    def forward(self, theta: Potentials, y: Potentials, **structure: Any) -> jaxtyping.Float[Tensor, "*batch"]:
        """The loss of potentials ``theta`` (..., *event) for gold ``y``.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of them
        y : the form of θ with the full batch, or an integer Tensor of labels
            A structure of Y.
        **structure
            Instance data such as lengths.

        Returns
        -------
        Tensor
            A scalar, or (...) with ``reduction="none"``.

        Raises
        ------
        InfeasibleError
            If an instance has no structure of finite score.
        InvalidInputError
            If a gold structure is none of Y's (checked where the oracle has labels), or uses a forbidden part, so
            that its loss is infinite; and as :func:`structinf.relax`.
        """
        problem = bind_problem(theta, self.oracle, structure)
        with problem.plain_modes():
            gold = problem.gold(y, "y")
            losses = self._losses(problem, gold)
        if self.reduction == "none":
            return problem.restore(losses)
        total = losses.sum() if self.reduction == "sum" else losses.sum() / max(len(losses), 1)
        return total.to(problem.dtype)

    def _losses(self, problem: Problem, gold: Potentials) -> Tensor:
        oracle, theta = problem.oracle, problem.theta
        if self.cost is not None:
            theta = map_parts(lambda t, c: t + c, theta, self._cost(problem, gold))
        gold_score = oracle.score(theta, gold)
        if bool(gold_score.isneginf().any()):
            index = int(gold_score.isneginf().nonzero()[0, 0])
            raise InvalidInputError(
                f"y: the gold structure at batch index {index} uses a part whose potential is −inf; "
                "its loss is infinite"
            )
        conjugate, omega = self.relaxation.conjugate(oracle, theta), self.relaxation.omega(oracle, gold)
        losses = conjugate + omega - gold_score
        # Rounding aside, only a point outside conv(Y) can do better than the best.
        size = 1 + conjugate.detach().abs() + omega.detach() + gold_score.detach().abs()
        below = losses.detach() < -(torch.finfo(losses.dtype).eps ** 0.5) * size
        if bool(below.any()):
            index = int(below.nonzero()[0, 0])
            raise InvalidInputError(
                f"y is no structure of {oracle.label()} at batch index {index}: it scores more than the best one"
            )
        return losses

    def _cost(self, problem: Problem, gold: Potentials) -> Potentials:
        if self.cost == "hamming":
            return problem.without_padding(problem.oracle.hamming_cost(gold))
        if callable(self.cost):
            return problem.flatten_parts(self.cost(problem.restore_parts(gold)), "cost(y)")
        return problem.flatten_parts(self.cost, "cost")

    def extra_repr(self) -> str:
        cost = "" if self.cost is None else f", cost={self.cost if isinstance(self.cost, str) else '...'}"
        return f"oracle={self.oracle!r}, relaxation={self.relaxation!r}{cost}, reduction={self.reduction!r}"
