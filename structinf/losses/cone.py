"""The cone-aligned loss: the angle between the scores and the cone of scores for which the gold structure is best."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import autograd
from ..calls.arguments import OnInfeasible, check_on_infeasible
from ..calls.problem import Problem
from ..calls.resolution import get_oracle
from ..errors import UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size, inner_product, map_parts, scale_per_instance, select_rows
from ..relaxation import RELAXATIONS, Relaxation
from ..solvers.argmax import best_structure
from ..validation import check_ratio
from .gold_scores import gold_scores
from .reduction import Reduction, check_reduction, describe_rules
from .structured_loss import StructuredLoss

__all__ = ["ConeLoss"]

_STEPS = (1.0, 2.0**-3, 2.0**-6, 2.0**-9, 2.0**-12)
"""Lengths of the step from y in the direction of the scores, tried until the projection is on a face at y."""

_TOLERANCE = 1e-9


class ConeLoss(StructuredLoss):
    """1 − cos ∠(θ, P(θ)), where P projects onto the cone N(y) of the scores for which the gold structure y is best.

    N(y) = {t : ⟨t, y⟩ ≥ ⟨t, y'⟩ for all y' ∈ Y} is the normal cone of conv(Y) at y. The loss is 0 if y is best for
    θ ≠ 0, and at most 1. It does not depend on the scale of θ, and θ = 0 has the loss 1 with gradient 0. The gradient
    is exact, also with respect to P.

    The projection needs only the argmax. By Moreau's decomposition, P(θ) = θ − p for the projection p of θ onto the
    cone of the directions y' − y. For a short step s, y + s p is the projection of y + s θ onto conv(Y), the mean of
    ``sparsemap`` for the scores y + s θ. The loss tries s ‖θ‖ = 1, 1/8, ..., 1/4096 until y is best for P(θ).

    If the projection is 0, which is common for scores far from the cone, the loss is 1 with gradient 0. With
    ``interior_weight`` w, the loss is (1 − w) (1 − cos ∠(θ, P(θ))) + w (1 − cos ∠(θ, a)) for a direction a inside N(y),
    minus the Hamming cost of y. The second term has a gradient for all θ, but it is not 0 everywhere in N(y).

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    interior_weight : float
        The weight w, between 0 and 1. Above 0 it needs an oracle whose parts are 0 or 1.
    reduction : "mean", "sum" or "none"
        The reduction over the batch, as in torch.nn; the mean of an empty batch is 0.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or give the instance the
        loss 0 with gradient 0, whatever its gold structure is. A mean over the batch counts the instance.
    **options
        Options of an oracle given by name. An object already has its options.

    Raises
    ------
    UnsupportedError
        If the oracle accepts only scores of at most 0; or in a call with ``interior_weight`` above 0 and parts other
        than 0 and 1.

    References
    ----------
    Tang & Khalil 2024, CaVE: A Cone-Aligned Approach for Fast Predict-then-optimize with Binary Linear Programs,
    arXiv 2312.07718. There, N(y) is spanned by the normals of the constraints that are tight at y. The paper's
    projection into the interior has the purpose of ``interior_weight``.

    Examples
    --------
    >>> loss = ConeLoss("categorical")
    >>> theta = torch.tensor([[1.0, 2.0, 0.0], [3.0, 2.0, 0.0]])
    >>> ConeLoss("categorical", reduction="none")(theta, torch.tensor([0, 0]))
    tensor([0.0513, 0.0000])
    """

    def __init__(
        self,
        oracle: str | Oracle,
        *,
        interior_weight: float = 0.0,
        reduction: Reduction = "mean",
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__()
        check_on_infeasible(on_infeasible)
        check_ratio("interior_weight", interior_weight)
        self.on_infeasible = on_infeasible
        self.oracle = get_oracle(oracle, **options)
        self.relaxation = RELAXATIONS.get("sparsemap", penalty="all", tolerance=0.0)
        if self.oracle.requires_nonpositive_theta:
            raise UnsupportedError(
                f"{self.oracle!r} takes scores of at most 0, but the projection onto the cone needs the best structure "
                "for other scores; train with FenchelYoungLoss or through a Layer of blackbox"
            )
        self.interior_weight = interior_weight
        self.reduction = check_reduction(reduction)

    def _losses(self, problem: Problem, gold: Parts, relaxation: Relaxation) -> Tensor:
        oracle, theta, y = problem.oracle, *(map_parts(Tensor.double, parts) for parts in (problem.theta, gold))
        gold_scores(oracle, theta, y)
        if self.interior_weight and not oracle.has_binary_parts(theta):
            raise UnsupportedError(
                f"interior_weight needs structures whose parts are 0 or 1, and {oracle.label()} does not declare this; "
                "set interior_weight=0"
            )
        best_structure(oracle, theta)  # raises the error of an infeasible instance
        forbidden = map_parts(Tensor.isneginf, theta)
        size = batch_size(y)
        own = map_parts(lambda t, f: torch.where(f, 0.0, t).expand(size, *t.shape[1:]), theta, forbidden)
        # The loss does not depend on the scale of θ, and squares of large scores would overflow.
        scale = torch.stack([t.detach().abs().flatten(1).sum(1) for t in as_tuple(own)]).sum(0)
        own = scale_per_instance(own, 1 / torch.where(scale > 0, scale, 1.0))
        norm = _norm(own)
        residual = self._projection(oracle, own, forbidden, y, norm.detach(), relaxation)
        half_square = autograd.attach_envelope_gradient(
            0.5 * inner_product(*[map_parts(Tensor.detach, residual)] * 2), own, residual
        )
        cosine = _sqrt(2 * half_square) / torch.where(norm > 0, norm, 1.0)
        losses = (1 - cosine).clamp(min=0)
        if not self.interior_weight:
            return losses
        costs = problem.without_padding(oracle.hamming_cost(y))
        inside = map_parts(lambda c, f: torch.where(f, 0.0, -c), costs, forbidden)
        cosine = inner_product(own, inside) / torch.where(norm > 0, norm * _norm(inside), 1.0)
        return (1 - self.interior_weight) * losses + self.interior_weight * (1 - cosine)

    def _projection(
        self, oracle: Oracle, theta: Parts, forbidden: Parts, y: Parts, norm: Tensor, relaxation: Relaxation
    ) -> Parts:
        """Return P(θ), (B, *event), with the gradient of the projection; 0 at forbidden parts.

        Parameters
        ----------
        oracle : Oracle
            The oracle of the batch.
        theta : (B, *event) Parts
            The scores, 0 at forbidden parts.
        forbidden : (B | 1, *event) bool Parts
            The parts of score −inf.
        y : (B, *event) Parts
            The gold structures.
        norm : (B,) Tensor
            ‖θ‖.
        relaxation : Relaxation
            The projection onto conv(Y).
        """
        found, rows = map_parts(torch.zeros_like, theta), torch.arange(len(norm), device=norm.device)
        for step in _STEPS:
            at, gold, closed = (select_rows(parts, rows) for parts in (theta, y, forbidden))
            s = step / torch.where(norm > 0, norm, 1.0)[rows]

            def score(parts: Parts, closed: Parts = closed) -> Parts:
                return map_parts(lambda t, f: torch.where(f, -torch.inf, t), parts, closed)

            some = oracle[rows]
            mean = relaxation.mean(some, score(map_parts(torch.add, gold, scale_per_instance(at, s))))
            residual = map_parts(torch.sub, at, scale_per_instance(map_parts(torch.sub, mean, gold), 1 / s))
            fixed = map_parts(Tensor.detach, residual)
            gap = inner_product(fixed, map_parts(torch.sub, best_structure(some, score(fixed)), gold))
            found = map_parts(lambda out, r, rows=rows: out.index_copy(0, rows, r), found, residual)
            rows = rows[gap > _TOLERANCE * norm[rows]]
            if not len(rows):
                break
        # The direction of a projection of the size of rounding errors is noise.
        size = inner_product(*[map_parts(Tensor.detach, found)] * 2).sqrt()
        return scale_per_instance(found, (size > _TOLERANCE * norm).to(norm))

    def extra_repr(self) -> str:
        weight = f", interior_weight={self.interior_weight}" if self.interior_weight else ""
        return f"oracle={self.oracle!r}{weight}, {describe_rules(self)}"


def _norm(parts: Parts) -> Tensor:
    """Return the Euclidean norm of each instance, (B,), with gradient 0 at 0."""
    return _sqrt(inner_product(parts, parts))


def _sqrt(square: Tensor) -> Tensor:
    """Return the square root, with gradient 0 instead of infinity at 0."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)
