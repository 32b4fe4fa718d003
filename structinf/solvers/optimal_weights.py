"""Optimal weights of given vertices, by Newton's method with an active set of weights, and their derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from .convex_combinations import ConvexCombinations

__all__ = ["Edges", "optimize_weights", "optimum_vjp", "pseudo_solve", "remove_dependent_vertices"]

_NEGLIGIBLE = 1e-12
"""For matrices with unit diagonal, an eigenvalue or a squared pivot below this counts as 0."""

_IDLE = 1e-18
"""A weight may fall only if its predicted gain is above this fraction of the objective's size."""

_LAST = 1e-16
"""A Newton step is the last step if its predicted gain is below this fraction of the objective's size."""


class Edges:
    """Differences between an instance's vertices and its heaviest vertex.

    The differences span the possible directions of the mean.

    Parameters
    ----------
    combinations : ConvexCombinations
        The vertices and weights.

    Attributes
    ----------
    base : (n,) int64 Tensor
        Slot of the heaviest vertex.
    edge : (n, K, D) Tensor
        The differences, 0 for empty slots.
    others : (n, K) bool Tensor
        The slots in use, except the slot of the heaviest vertex.
    """

    def __init__(self, combinations: ConvexCombinations) -> None:
        self.base = combinations.weight.argmax(1)
        origin = combinations.vertex[torch.arange(len(combinations), device=self.base.device), self.base]
        self.edge = torch.where(combinations.used[:, :, None], combinations.vertex - origin[:, None], 0.0)
        self.others = combinations.used.scatter(1, self.base[:, None], False)

    def relative(self, rise: Tensor) -> Tensor:
        """Return ``rise`` (n, K) minus its entry for the heaviest vertex."""
        return rise - rise.gather(1, self.base[:, None])

    def balanced(self, change: Tensor) -> Tensor:
        """Return ``change`` (n, K) with the entry of the heaviest vertex replaced, so that each row sums to 0."""
        return change.scatter(1, self.base[:, None], 0.0).scatter(1, self.base[:, None], -change.sum(1, keepdim=True))


def optimize_weights(combinations: ConvexCombinations, target: Tensor, size: Tensor, most: int = 100) -> None:
    """Replace the weights by optimal weights for the vertices in use.

    Each Newton step changes the weights that are positive or would rise. Let E have the edges e_k from the heaviest
    vertex as rows, let H = ∇²Ω(x), and let r_k be the slopes. The change q of the other weights solves E H Eᵀ q =
    r. The step ends at the best point along q or where a weight becomes 0.

    A weight stays constant if it is too small for the objective to gain from its fall to 0. Otherwise, an infinite
    slope of Ω at 0 would let the weight fall in every step, and shorten the steps of the other weights.

    Parameters
    ----------
    combinations : ConvexCombinations
        The vertices and weights; changed in place.
    target : (n,) Tensor
        An instance is finished once no slope r_k exceeds its target. With a negative target, an instance is
        finished once the predicted gain of a step is rounding.
    size : (n,) Tensor
        Magnitude of the terms summed in the objective.
    most : int
        Maximal number of steps.
    """
    rows = torch.arange(len(combinations), device=target.device)
    part = combinations
    for _ in range(most):
        x = part.point()
        rise = part.weight_gradient(part.theta - part.omega_gradient(x))
        going = rise.amax(1) > target[rows]
        if not bool(going.all()):
            rows, part, x, rise = rows[going], part.select(going), x[going], rise[going]
        if not len(rows):
            break
        idle = (0.01 * target[rows]).maximum(_IDLE * size[rows]) / rise.shape[1]
        change = _newton_step(part, x, rise, idle)
        promise = torch.where(change == 0, 0.0, change * rise).sum(1)
        part.move(x, change, 1.0, 0.1)
        if part is not combinations:
            combinations.weight[rows] = part.weight
        going = (target[rows] >= 0) | (promise > _LAST * size[rows])
        if not bool(going.all()):
            rows, part = rows[going], part.select(going)


def optimum_vjp(combinations: ConvexCombinations, x: Tensor, cotangent: Tensor) -> Tensor:
    """Return the product of a cotangent (n, K) of the weights with their Jacobian with respect to θ, (n, D).

    At an optimum, all vertices of the support have equal slopes. Let E have the edges from one vertex as rows, and
    let H = ∇²Ω(x). Then θ and the changes q of the weights satisfy E (dθ − H dx) = 0 and dx = Eᵀ q. Hence

        dp = S E dθ,   dx = Eᵀ S E dθ,   S = (E H Eᵀ)⁻¹,

    as long as the optimum stays in the support's affine hull. The product for a cotangent u of p is Eᵀ S u. For
    dependent vertices, S is a pseudo-inverse; dx stays the same.

    Parameters
    ----------
    combinations : ConvexCombinations
        The vertices and optimal weights.
    x : (n, D) Tensor
        The optimum.
    cotangent : (n, K) Tensor
        The cotangent of the weights.
    """
    edges = Edges(combinations)
    right = torch.where(edges.others, edges.relative(cotangent), 0.0)
    change = pseudo_solve(combinations.omega.hessian_gram(x, edges.edge), edges.others, right)
    return (change[:, None] @ edges.edge)[:, 0]


def remove_dependent_vertices(combinations: ConvexCombinations) -> None:
    """Reduce each support to affinely independent vertices with the same mean (Carathéodory).

    If there is a choice, vertices of weight 0 gain weight instead of leaving.
    """
    while len(combinations) and combinations.weight.shape[1]:
        edges = Edges(combinations)
        null, dependent = _null_vector(edges.edge @ edges.edge.mT, edges.others)
        if not bool(dependent.any()):
            return
        change = edges.balanced(torch.where(dependent[:, None], null, 0.0))
        waiting = torch.where(combinations.used & (combinations.weight == 0), change, 0.0).sum(1, keepdim=True)
        change = torch.where(waiting < 0, -change, change)
        falling = combinations.used & (change < 0)
        until = torch.where(falling, -combinations.weight / change, torch.inf)
        step, spent = until.min(1)
        before = combinations.weight, combinations.used
        inside = combinations.omega.has_slope(combinations.point(), combinations.needs_slope)
        moved = (combinations.weight + torch.where(dependent, step, 0.0)[:, None] * change).clamp(min=0)
        combinations.weight = moved / moved.sum(1, keepdim=True)
        combinations.remove(torch.zeros_like(falling).scatter(1, spent[:, None], dependent[:, None]))
        lost = inside & ~combinations.omega.has_slope(combinations.point(), combinations.needs_slope)
        if bool(lost.any()):  # rounding removed a part from the mean: the instance keeps its vertices
            now = combinations.weight, combinations.used
            combinations.weight, combinations.used = (
                torch.where(lost[:, None], old, new) for old, new in zip(before, now, strict=True)
            )
            if bool((lost | ~dependent).all()):
                return


# ----------------------------------------------------------------------------- linear systems of weights


def _newton_step(combinations: ConvexCombinations, x: Tensor, rise: Tensor, idle: Tensor) -> Tensor:
    """Return the Newton change of the weights, (n, K).

    Weights do not fall if they are 0 or if their fall would gain less than ``idle`` (n,).
    """
    edges = Edges(combinations)
    gram = combinations.omega.hessian_gram(x, edges.edge)
    slope = torch.where(edges.others, edges.relative(rise), 0.0)
    free = edges.others & ((rise > 0) | (-rise * combinations.weight > idle[:, None]))
    while True:
        change = _solve(gram, free, slope)
        stuck = free & (combinations.weight == 0) & (change < 0)
        if not bool(stuck.any()):
            return edges.balanced(change)
        free = free & ~stuck


def _scale_diagonal_to_one(gram: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrices, scaled to a unit diagonal over the ``free`` slots, and the scale factors (n, K).

    The scaled matrices equal the identity outside the free slots.
    """
    diagonal = gram.diagonal(dim1=1, dim2=2)
    factor = torch.where(free, torch.where(diagonal > 0, diagonal.rsqrt(), 1.0), 0.0)
    scaled = factor[:, :, None] * gram * factor[:, None, :]
    scaled.diagonal(dim1=1, dim2=2).fill_(1.0)
    return scaled, factor


def _cholesky(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower Cholesky factors of matrices (n, K, K) with unit diagonals, and which matrices are singular."""
    lower, info = torch.linalg.cholesky_ex(scaled)
    return lower, (info > 0) | ~(lower.diagonal(dim1=1, dim2=2).square().amin(1) > _NEGLIGIBLE)


def _solve(gram: Tensor, free: Tensor, right: Tensor) -> Tensor:
    """Solve gram · q = right over the ``free`` slots, with q = 0 elsewhere; return q (n, K).

    A singular system gets the solution of :func:`pseudo_solve`.
    """
    scaled, factor = _scale_diagonal_to_one(gram, free)
    lower, singular = _cholesky(scaled)
    solution = factor * torch.cholesky_solve((factor * right)[:, :, None], lower)[:, :, 0]
    if bool(singular.any()):
        solution[singular] = pseudo_solve(gram[singular], free[singular], right[singular])
    return solution


def pseudo_solve(gram: Tensor, used: Tensor, right: Tensor) -> Tensor:
    """Solve gram · q = right over the ``used`` slots by a pseudo-inverse, with q = 0 elsewhere; return q (n, K)."""
    scaled, factor = _scale_diagonal_to_one(gram, used)
    values, vectors = torch.linalg.eigh(scaled)
    inverse = torch.where(values > _NEGLIGIBLE * values[:, -1:], values.reciprocal(), 0.0)
    inner = (vectors.mT @ (factor * right)[:, :, None]) * inverse[:, :, None]
    return factor * (vectors @ inner)[:, :, 0]


def _null_vector(gram: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Return q (n, K) with gram · q = 0 over the ``used`` slots and 0 elsewhere, and a (n,) mask of the nonzero q."""
    scaled, factor = _scale_diagonal_to_one(gram, used)
    _, singular = _cholesky(scaled)
    null = torch.zeros_like(factor)
    if bool(singular.any()):
        null[singular] = factor[singular] * torch.linalg.eigh(scaled[singular])[1][:, :, 0]
    return null, singular
