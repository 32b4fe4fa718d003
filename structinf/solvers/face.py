"""The face of conv(Y) around a solution, and the derivative of the solution along it."""

from __future__ import annotations

import torch
from torch import Tensor

from .corral import Corral
from .corrective import Edges, null_vector, pseudo_solve
from .covering import Answers

__all__ = ["make_independent", "tangent_product", "widen"]

_NEAR = 1e-6
"""How much less than the best a vertex may gain, relative to the scores' size, to share the best one's face."""


def tangent_product(corral: Corral, x: Tensor, cotangent: Tensor) -> Tensor:
    """Product of a cotangent of the weights, (n, K), with their Jacobian with respect to θ, (n, D).

    At an optimum all vertices of the support are equally good: with edges E from one of them, and H = ∇²Ω(x), θ and the
    weights' changes q obey E (dθ − H dx) = 0 and dx = Eᵀ q. Hence

        dp = S E dθ,   dx = Eᵀ S E dθ,   S = (E H Eᵀ)⁻¹,

    as long as the optimum stays in the support's affine hull, so u on p gives Eᵀ S u. Dependent vertices take a
    pseudo-inverse, which dx does not notice.
    """
    edges = Edges(corral)
    right = torch.where(edges.others, edges.relative(cotangent), 0.0)
    change = pseudo_solve(corral.omega.gram(x, edges.edge), edges.others, right)
    return (change[:, None] @ edges.edge)[:, 0]


def make_independent(corral: Corral) -> None:
    """Reduce each support, at the same mean, to affinely independent vertices (Carathéodory).

    Vertices of weight 0 rather gain some than go.
    """
    while len(corral) and corral.weight.shape[1]:
        edges = Edges(corral)
        null, dependent = null_vector(edges.edge @ edges.edge.mT, edges.others)
        if not bool(dependent.any()):
            return
        change = edges.balanced(torch.where(dependent[:, None], null, 0.0))
        waiting = torch.where(corral.used & (corral.weight == 0), change, 0.0).sum(1, keepdim=True)
        change = torch.where(waiting < 0, -change, change)
        falling = corral.used & (change < 0)
        until = torch.where(falling, -corral.weight / change, torch.inf)
        step, spent = until.min(1)
        before = corral.weight, corral.used, corral.taken
        inside = corral.omega.inside(corral.point(), corral.movable)
        moved = (corral.weight + torch.where(dependent, step, 0.0)[:, None] * change).clamp(min=0)
        corral.weight = moved / moved.sum(1, keepdim=True)
        corral.drop(torch.zeros_like(falling).scatter(1, spent[:, None], dependent[:, None]))
        lost = inside & ~corral.omega.inside(corral.point(), corral.movable)
        if bool(lost.any()):  # of a part so rare that rounding takes it away; its vertices stay as they are
            now = corral.weight, corral.used, corral.taken
            corral.weight, corral.used, corral.taken = (
                torch.where(lost[:, None], old, new) for old, new in zip(before, now, strict=True)
            )
            if bool((lost | ~dependent).all()):
                return


def widen(corral: Corral, answers: Answers) -> None:
    """Add vertices, of weight 0, until the support spans the optimum's face.

    It mostly does, but not where θ is symmetric: the centre of a polytope is a mean of few structures. A random
    direction orthogonal to the support's affine hull tells, with probability 1: if it is constant over the face, so
    that its best vertex gains nothing, the face lies in the hull. The face's vertices are best for the gradient, which
    the direction only perturbs.
    """
    if answers.objective.oracle.requires_nonpositive_theta or answers.theta.shape[1] == 0:
        return
    generator = torch.Generator().manual_seed(0)
    width = answers.theta.shape[1]
    random = torch.randn(width, dtype=torch.float64, generator=generator).to(corral.theta.device)
    rows, part = torch.arange(len(corral), device=random.device), corral
    while len(rows):
        x = part.point()
        direction = _outside(part, random)
        found = direction.abs().amax(1) > 1e-9
        if not bool(found.all()):
            corral.put(rows, part)
            rows, part, x, direction = rows[found], part.take(found), x[found], direction[found]
            continue
        answers.restrict(rows)
        lifted = torch.cat([direction, torch.zeros_like(x[:, width:])], 1)
        gradient = part.theta - part.slopes(x)
        size = gradient.abs().amax(1, keepdim=True)
        vertex = answers(part.omega.lower(gradient) + _NEAR * size * direction)
        gains = (gradient * (vertex - x)).sum(1) >= -_NEAR * size[:, 0]
        gains = gains & ((lifted * (vertex - x)).sum(1) > 1e-7)
        corral.put(rows, part)
        rows, part, vertex = rows[gains], part.take(gains), vertex[gains]
        if len(rows):
            part.enter(vertex, torch.ones_like(rows, dtype=torch.bool))


def _outside(corral: Corral, random: Tensor) -> Tensor:
    """The share of a random vector (d,) that is orthogonal to the support's affine hull, (n, d), of length about 1."""
    edges = Edges(corral)
    edge = edges.edge[:, :, : len(random)]
    vector = (random / random.norm()).expand(len(corral), -1)
    for _ in range(2):  # the second pass takes away what rounding left
        product = (edge @ vector[:, :, None])[:, :, 0]
        vector = vector - (pseudo_solve(edge @ edge.mT, edges.others, product)[:, None] @ edge)[:, 0]
    return vector
