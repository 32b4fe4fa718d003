"""The cone-aligned loss: the distance of the scores from the cone of scores for which the gold structure is best."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..calls.arguments import OnInfeasible, check_on_infeasible
from ..calls.problem import Problem
from ..calls.resolution import get_oracle
from ..errors import UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, batch_size, map_parts, parts_to_vectors, vectors_to_parts
from ..relaxation import Relaxation, resolve_relaxation
from ..solvers.argmax import best_structure
from ..solvers.normal_cone import NormalConeProjection
from ..validation import check_in_range, check_natural, check_nonnegative
from .gold_scores import gold_scores
from .reduction import Reduction, attach_gradient, check_reduction, describe_rules
from .structured_loss import StructuredLoss

__all__ = ["ConeLoss"]

_SMALLEST = 1e-9
"""The direction of a projection P(v) below this length is noise: it counts as 0."""


class ConeLoss(StructuredLoss):
    """The distance of the direction of θ from the cone of the scores for which the gold structure y is best.

    The cone is N(y) = {t : ⟨t, y⟩ ≥ ⟨t, y'⟩ for all y' ∈ Y}, the normal cone of conv(Y) at y. With the projection P
    onto N(y) and û = θ / ‖θ‖, the losses are

    ======  ======================================  ==================================================================
    margin  loss                                    is 0
    ======  ======================================  ==================================================================
    0       1 − cos ∠(θ, P(θ)) = 1 − ‖P(û)‖         if y is best for θ ≠ 0
    m > 0   ½ ‖û − T‖² for T = m a + P(û − m a)     if ⟨û, y − y'⟩ ≥ m ⟨a, y − y'⟩ for all y'
    ======  ======================================  ==================================================================

    Here a is minus the Hamming cost of y, divided by its length. ⟨a, y − y'⟩ is proportional to the Hamming distance of
    y and y', so y must be best by a margin. T is the projection of û onto the scores with this margin, which are inside
    N(y). The gradient has the direction of the gradient of 1 − cos ∠(θ, T) for fixed T. Without a margin, scores on the
    border of N(y) have the loss 0. Scores far from N(y) often have the projection 0, and the loss 1 with gradient 0.

    The losses do not depend on the scale of θ, and their gradients are exact. The gradient at θ = 0 is 0.

    The projection needs only the argmax. By Moreau's decomposition, P(v) = v − p for the projection p of v onto the
    cone of the directions y' − y. Each round calls the oracle for v − p, and projects v onto the cone of all directions
    found. The loss of fewer rounds than P needs is the loss of the structures found. It is at most the exact loss, and
    0 for the same scores.

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    margin : float
        The margin m, at least 0. Above 0, the oracle needs a Hamming cost.
    max_iter : int, optional
        The largest number of rounds, each a call of the oracle for the batch. None: as many as the exact projection
        needs.
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
        If the oracle accepts only scores of at most 0; or in a call with a margin above 0 and an oracle without a
        Hamming cost.

    References
    ----------
    Tang & Khalil 2024, CaVE: A Cone-Aligned Approach for Fast Predict-then-optimize with Binary Linear Programs,
    arXiv 2312.07718. There, N(y) is spanned by the normals of the constraints that are tight at y. The paper's
    projection into the interior has the purpose of the margin.

    Examples
    --------
    >>> theta = torch.tensor([[1.0, 2.0, 0.0], [3.0, 2.0, 0.0]])
    >>> gold = torch.tensor([0, 0])
    >>> ConeLoss("categorical", reduction="none")(theta, gold)
    tensor([0.3249, 0.0432])
    >>> exact = {"margin": 0.0, "max_iter": None, "reduction": "none"}
    >>> ConeLoss("categorical", **exact)(theta, gold)
    tensor([0.0513, 0.0000])
    """

    def __init__(
        self,
        oracle: str | Oracle,
        *,
        margin: float = 0.6,
        max_iter: int | None = 3,
        reduction: Reduction = "mean",
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__()
        check_on_infeasible(on_infeasible)
        check_nonnegative("margin", margin)
        if margin:
            check_in_range("margin", margin, torch.float64)
        if max_iter is not None:
            check_natural("max_iter", max_iter)
        self.on_infeasible = on_infeasible
        self.oracle, self.relaxation = get_oracle(oracle, **options), resolve_relaxation("map")
        if self.oracle.requires_nonpositive_theta:
            raise UnsupportedError(
                f"{self.oracle!r} takes scores of at most 0, but the projection onto the cone needs the best structure "
                "for other scores; train with FenchelYoungLoss or through a Layer of blackbox"
            )
        self.margin, self.max_iter = margin, max_iter
        self.reduction = check_reduction(reduction)

    def _losses(self, problem: Problem, gold: Parts, relaxation: Relaxation) -> Tensor:
        oracle, y = problem.oracle, map_parts(Tensor.double, gold)
        forbidden = None
        if not problem.is_finite:
            theta = map_parts(lambda t: t.detach().double(), problem.theta)
            gold_scores(oracle, theta, y)
            best_structure(oracle, theta)  # raises the error of an infeasible instance
            forbidden = _vectors(map_parts(Tensor.isneginf, theta), batch_size(y))
        with torch.no_grad():
            inside = self._inside(problem, y, forbidden) if self.margin else 0.0
            unit, inverse = _unit(problem.theta, batch_size(y), forbidden)
            projection = NormalConeProjection(oracle, unit - inside, y, forbidden, self.max_iter)
            losses, slope = self._compare(unit - inside, projection.value)
            gradient = _through_unit(slope, unit, inverse, problem.theta)

        def differentiable_gradient(theta: Parts) -> Parts:
            unit, inverse = _unit(theta, batch_size(y), forbidden)
            v = unit - inside
            return _through_unit(self._compare(v, projection.project_onto_face(v))[1], unit, inverse, theta)

        return attach_gradient(losses, problem, self.reduction, problem.theta, gradient, differentiable_gradient)

    def _compare(self, v: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses, (B,), and their derivative by v, (B, D), given the projection of v onto N(y)."""
        if self.margin:
            rest = v - projection
            return 0.5 * torch.linalg.vecdot(rest, rest), rest
        length, inverse = _length(projection)
        # The direction of a projection of the size of rounding errors is noise.
        is_noise = length <= _SMALLEST
        return (1 - length[:, 0]).clamp(min=0), torch.where(is_noise, 0.0, -projection * inverse)

    def _inside(self, problem: Problem, y: Parts, forbidden: Tensor | None) -> Tensor:
        """Return minus the Hamming cost of y, (B, D), of the length of the margin, and 0 at forbidden parts.

        Raises UnsupportedError if the oracle has no Hamming cost.
        """
        try:
            costs = problem.without_padding(problem.oracle.hamming_cost(y))
        except UnsupportedError as error:
            raise UnsupportedError(
                f"a margin above 0 needs a Hamming cost, but {problem.oracle.label()} has none; set margin=0"
            ) from error
        vectors = _vectors(costs, batch_size(y))
        if forbidden is not None:
            vectors = vectors.masked_fill(forbidden, 0.0)
        return -self.margin * normalize(vectors)

    def extra_repr(self) -> str:
        return f"oracle={self.oracle!r}, margin={self.margin}, max_iter={self.max_iter}, {describe_rules(self)}"


def _vectors(parts: Parts, size: int) -> Tensor:
    """Return parts (B | 1, *event) as vectors (B, D) for ``size`` instances."""
    return parts_to_vectors(map_parts(lambda t: t.expand(size, *t.shape[1:]), parts))


def _unit(parts: Parts, size: int, forbidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return vectors (B, D) of length 1, in float64, and the inverse of the lengths of the ``parts``, (B, 1).

    Both are 0 for parts of 0. Forbidden parts count as 0.
    """
    given = _vectors(parts, size)
    vectors = given.double()
    if forbidden is not None:
        vectors = vectors.masked_fill(forbidden, 0.0)
    if given.dtype is not torch.float64:
        inverse = _length(vectors)[1]
        return vectors * inverse, inverse
    # Squares of large scores would overflow, and squares of small scores would be 0.
    scale = vectors.detach().abs().sum(1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0)
    vectors = vectors / scale
    inverse = _length(vectors)[1]
    return vectors * inverse, inverse / scale


def _length(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the length of each of the vectors (B, D), and its inverse, (B, 1); both are 0, with gradient 0, at 0."""
    square = torch.linalg.vecdot(vectors, vectors)[:, None]
    positive = square > 0
    length = torch.where(positive, square, 1.0).sqrt()
    return torch.where(positive, length, 0.0), torch.where(positive, 1 / length, 0.0)


def _through_unit(slope: Tensor, unit: Tensor, inverse: Tensor, theta: Parts) -> Parts:
    """Return the derivative by θ, (B, *event), given the derivative by θ / ‖θ‖, (B, D)."""
    return vectors_to_parts((slope - torch.linalg.vecdot(slope, unit)[:, None] * unit) * inverse, theta)
