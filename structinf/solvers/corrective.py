"""The best weights over vertices at hand, by Newton's method with an active set of weights."""

from __future__ import annotations

import torch
from torch import Tensor

from .corral import Corral

__all__ = ["Edges", "correct", "null_vector", "pseudo_solve"]

_NEGLIGIBLE = 1e-12
"""An eigenvalue, or the square of a pivot, below this, of a matrix whose diagonal is 1, is 0."""

_IDLE = 1e-18
"""What the removal of a vertex must promise, relative to the size of the objective, to be worth a step."""

_LAST = 1e-16
"""A step of Newton's that promises less than this, relative to the size of the objective, leads to rounding."""


class Edges:
    """Differences of an instance's vertices from its heaviest one, which span the directions that weights can move in.

    Attributes
    ----------
    base : (n,) int64 Tensor
        Slot of the heaviest vertex.
    edge : (n, K, D) Tensor
        0 for empty slots.
    """

    def __init__(self, corral: Corral) -> None:
        self.base = corral.weight.argmax(1)
        origin = corral.vertex[torch.arange(len(corral), device=self.base.device), self.base]
        self.edge = torch.where(corral.used[:, :, None], corral.vertex - origin[:, None], 0.0)
        self.others = corral.used.scatter(1, self.base[:, None], False)

    def relative(self, rise: Tensor) -> Tensor:
        """Values of the vertices (n, K) less the heaviest one's."""
        return rise - rise.gather(1, self.base[:, None])

    def balanced(self, change: Tensor) -> Tensor:
        """Changes of the other weights (n, K) with that of the heaviest vertex, so that they sum to 0."""
        return change.scatter(1, self.base[:, None], 0.0).scatter(1, self.base[:, None], -change.sum(1, keepdim=True))


def correct(corral: Corral, target: Tensor, size: Tensor, most: int = 100) -> None:
    """Bring the weights to their best, over the vertices in use.

    Each step is Newton's on the weights that are above 0 or would rise: with edges e_k from the heaviest vertex,
    H = ∇²Ω(x) and slopes r_k, the change of the others' weights q solves E H Eᵀ q = r. It ends at the best point along
    it or where a weight is spent. Weights so small that their fall to 0 promises nothing stay where they are: below an
    infinite slope they would fall for ever, and hold up the others.

    Parameters
    ----------
    target : (n,) Tensor
        An instance is done once no vertex rises by more than this. If it is negative, it is done at rounding.
    size : (n,) Tensor
        Of the objective.
    """
    rows = torch.arange(len(corral), device=target.device)
    part = corral
    for _ in range(most):
        x = part.point()
        rise = part.rise(part.theta - part.slopes(x))
        going = rise.amax(1) > target[rows]
        if not bool(going.all()):
            rows, part, x, rise = rows[going], part.take(going), x[going], rise[going]
        if not len(rows):
            break
        idle = (0.01 * target[rows]).maximum(_IDLE * size[rows]) / rise.shape[1]
        change = _newton(part, x, rise, idle)
        promise = torch.where(change == 0, 0.0, change * rise).sum(1)
        part.move(x, change, 1.0, 0.1)
        if part is not corral:
            corral.weight[rows] = part.weight
        going = (target[rows] >= 0) | (promise > _LAST * size[rows])
        if not bool(going.all()):
            rows, part = rows[going], part.take(going)


def _newton(corral: Corral, x: Tensor, rise: Tensor, idle: Tensor) -> Tensor:
    """Newton's change of the weights, (n, K), which has no weight of 0 fall; ``idle`` (n,) is a promise of nothing."""
    edges = Edges(corral)
    gram = corral.omega.gram(x, edges.edge)
    slope = torch.where(edges.others, edges.relative(rise), 0.0)
    free = edges.others & ((rise > 0) | (-rise * corral.weight > idle[:, None]))
    while True:
        change = _solve(gram, free, slope)
        stuck = free & (corral.weight == 0) & (change < 0)
        if not bool(stuck.any()):
            return edges.balanced(change)
        free = free & ~stuck


def _scaled(gram: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix over the ``free`` slots with 1 on its diagonal, elsewhere the identity, and the factors (n, K)."""
    diagonal = gram.diagonal(dim1=1, dim2=2)
    factor = torch.where(free, torch.where(diagonal > 0, diagonal.rsqrt(), 1.0), 0.0)
    scaled = factor[:, :, None] * gram * factor[:, None, :]
    scaled.diagonal(dim1=1, dim2=2).fill_(1.0)
    return scaled, factor


def _cholesky(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """The lower factors of matrices (n, K, K) whose diagonals are 1, and which of these are singular, (n,) bool."""
    lower, info = torch.linalg.cholesky_ex(scaled)
    return lower, (info > 0) | ~(lower.diagonal(dim1=1, dim2=2).square().amin(1) > _NEGLIGIBLE)


def _solve(gram: Tensor, free: Tensor, right: Tensor) -> Tensor:
    """The solution of gram · q = right over the ``free`` slots, 0 elsewhere, right (n, K); the least one of several."""
    scaled, factor = _scaled(gram, free)
    lower, singular = _cholesky(scaled)
    solution = factor * torch.cholesky_solve((factor * right)[:, :, None], lower)[:, :, 0]
    if bool(singular.any()):
        solution[singular] = pseudo_solve(gram[singular], free[singular], right[singular])
    return solution


def pseudo_solve(gram: Tensor, used: Tensor, right: Tensor) -> Tensor:
    """The least solution of gram · q = right over the slots ``used``, 0 elsewhere, right (n, K)."""
    scaled, factor = _scaled(gram, used)
    values, vectors = torch.linalg.eigh(scaled)
    inverse = torch.where(values > _NEGLIGIBLE * values[:, -1:], values.reciprocal(), 0.0)
    inner = (vectors.mT @ (factor * right)[:, :, None]) * inverse[:, :, None]
    return factor * (vectors @ inner)[:, :, 0]


def null_vector(gram: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """q (n, K) with gram · q = 0 over the slots ``used``, 0 elsewhere, and for which instances there is one."""
    scaled, factor = _scaled(gram, used)
    _, singular = _cholesky(scaled)
    null = torch.zeros_like(factor)
    if bool(singular.any()):
        null[singular] = factor[singular] * torch.linalg.eigh(scaled[singular])[1][:, :, 0]
    return null, singular
