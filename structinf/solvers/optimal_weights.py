"""The best weights of given vertices, by Newton's method with an active set of weights, and their derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from .convex_combinations import ConvexCombinations

__all__ = ["Edges", "optimize_weights", "optimum_vjp", "pseudo_solve", "remove_dependent_vertices"]

_NEGLIGIBLE = 1e-12
"""An eigenvalue, or the square of a pivot, below this, of a matrix whose diagonal is 1, is 0."""

_IDLE = 1e-18
"""The least gain, relative to the size of the objective, for which the weight of a vertex may fall."""

_LAST = 1e-16
"""A step of Newton's method whose predicted gain, relative to the size of the objective, is less is the last one."""


class Edges:
    """Differences of an instance's vertices from its heaviest vertex, which span the directions of the mean.

    Attributes
    ----------
    base : (n,) int64 Tensor
        Slot of the heaviest vertex.
    edge : (n, K, D) Tensor
        0 for empty slots.
    others : (n, K) bool Tensor
        The slots in use, without the heaviest vertex's.
    """

    def __init__(self, combinations: ConvexCombinations) -> None:
        self.base = combinations.weight.argmax(1)
        origin = combinations.vertex[torch.arange(len(combinations), device=self.base.device), self.base]
        self.edge = torch.where(combinations.used[:, :, None], combinations.vertex - origin[:, None], 0.0)
        self.others = combinations.used.scatter(1, self.base[:, None], False)

    def relative(self, rise: Tensor) -> Tensor:
        """Values of the vertices (n, K) minus the value of the heaviest vertex."""
        return rise - rise.gather(1, self.base[:, None])

    def balanced(self, change: Tensor) -> Tensor:
        """Changes of the other weights (n, K) with that of the heaviest vertex, so that they sum to 0."""
        return change.scatter(1, self.base[:, None], 0.0).scatter(1, self.base[:, None], -change.sum(1, keepdim=True))


def optimize_weights(combinations: ConvexCombinations, target: Tensor, size: Tensor, most: int = 100) -> None:
    """Replace the weights by the best ones for the vertices in use.

    Each step is Newton's on the weights that are above 0 or would rise: with edges e_k from the heaviest vertex,
    H = ∇²Ω(x) and slopes r_k, the change of the others' weights q solves E H Eᵀ q = r. It ends at the best point along
    it or where a weight becomes 0. A weight stays as it is if it is so small that the objective cannot gain from its
    fall to 0: if Ω has an infinite slope at 0, it would fall in every step and shorten the steps of the others.

    Parameters
    ----------
    target : (n,) Tensor
        An instance is finished once no slope r_k is larger. If negative, it is finished once steps gain nothing but
        rounding.
    size : (n,) Tensor
        The size of the numbers that the objective sums.
    most : int
        The largest number of steps.
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
    """Product of a cotangent of the weights, (n, K), with their Jacobian with respect to θ, (n, D).

    At an optimum all vertices of the support are equally good: with edges E from one of them, and H = ∇²Ω(x), θ and the
    weights' changes q obey E (dθ − H dx) = 0 and dx = Eᵀ q. Hence

        dp = S E dθ,   dx = Eᵀ S E dθ,   S = (E H Eᵀ)⁻¹,

    as long as the optimum stays in the support's affine hull, so u on p gives Eᵀ S u. Dependent vertices take a
    pseudo-inverse, which leaves dx as it is.
    """
    edges = Edges(combinations)
    right = torch.where(edges.others, edges.relative(cotangent), 0.0)
    change = pseudo_solve(combinations.omega.hessian_gram(x, edges.edge), edges.others, right)
    return (change[:, None] @ edges.edge)[:, 0]


def remove_dependent_vertices(combinations: ConvexCombinations) -> None:
    """Reduce each support, at the same mean, to affinely independent vertices (Carathéodory).

    Vertices of weight 0 gain weight rather than leave, where there is a choice.
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
        if bool(lost.any()):  # a part was so rare that rounding removed it: its instance keeps its vertices
            now = combinations.weight, combinations.used
            combinations.weight, combinations.used = (
                torch.where(lost[:, None], old, new) for old, new in zip(before, now, strict=True)
            )
            if bool((lost | ~dependent).all()):
                return


# ----------------------------------------------------------------------------- linear systems of weights


def _newton_step(combinations: ConvexCombinations, x: Tensor, rise: Tensor, idle: Tensor) -> Tensor:
    """Newton's change of the weights, (n, K), without a fall of weights that are 0 or gain less than ``idle`` (n,)."""
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
    scaled, factor = _scale_diagonal_to_one(gram, free)
    lower, singular = _cholesky(scaled)
    solution = factor * torch.cholesky_solve((factor * right)[:, :, None], lower)[:, :, 0]
    if bool(singular.any()):
        solution[singular] = pseudo_solve(gram[singular], free[singular], right[singular])
    return solution


def pseudo_solve(gram: Tensor, used: Tensor, right: Tensor) -> Tensor:
    """The least solution of gram · q = right over the slots ``used``, 0 elsewhere, right (n, K)."""
    scaled, factor = _scale_diagonal_to_one(gram, used)
    values, vectors = torch.linalg.eigh(scaled)
    inverse = torch.where(values > _NEGLIGIBLE * values[:, -1:], values.reciprocal(), 0.0)
    inner = (vectors.mT @ (factor * right)[:, :, None]) * inverse[:, :, None]
    return factor * (vectors @ inner)[:, :, 0]


def _null_vector(gram: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """q (n, K) with gram · q = 0 over the slots ``used``, 0 elsewhere, and for which instances there is one."""
    scaled, factor = _scale_diagonal_to_one(gram, used)
    _, singular = _cholesky(scaled)
    null = torch.zeros_like(factor)
    if bool(singular.any()):
        null[singular] = factor[singular] * torch.linalg.eigh(scaled[singular])[1][:, :, 0]
    return null, singular
