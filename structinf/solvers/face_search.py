"""The exact solution of a program over the local polytope, from supports of the factors that are nearly right.

A round solves the optimality conditions on the supports. Structures of negative weight leave the supports. If no weight
is negative, a call of the oracles finds structures that violate the conditions, and these enter the supports. Without
such structures, the solution is optimal: the call bounds the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .face_system import FaceSystem, Multipliers
from .factor_projections import FactorSupport, GroupScores
from .sparse_vectors import SparseVectors

__all__ = ["ROUNDING", "Faces", "LocalProgram", "bound_objective", "search_faces"]

ROUNDING = 1e-13
"""Gaps below this number, relative to the terms of the objective, are rounding errors."""

_LEAST_WEIGHT = 1e-11
"""Smaller weights count as 0, and lower ones than −1 times this number as negative."""


@dataclass
class Faces:
    """Solutions on the supports, for R instances.

    Attributes
    ----------
    mean : (R, n) Tensor
        The coordinates.
    additional : list of (R, F, a) Tensor
        The additional parts.
    value, gap : (R,) Tensor
        The objective, and a bound of its distance to the maximum.
    residual : (R,) Tensor
        The largest difference between a coordinate and a factor's copy.
    valid, accepted : (R,) bool Tensor
        Whether all weights are at least 0; whether also the gap is within the tolerance.
    supports : list of FactorSupport
        The supports with the weights.
    """

    mean: Tensor
    additional: list[Tensor]
    value: Tensor
    gap: Tensor
    residual: Tensor
    valid: Tensor
    accepted: Tensor
    supports: list[FactorSupport]


@dataclass
class LocalProgram:
    """The programs of R instances.

    Attributes
    ----------
    groups : list of GroupScores
        The factors.
    degree : (n,) Tensor
        The number of factor parts of each coordinate.
    rows : (R,) int64 Tensor
        The instances, positions in the batch of ``groups``.
    theta : (R, n) Tensor
        The scores.
    fixed : (R, n) bool Tensor
        The coordinates that are not free: those of score −inf, and those of no factor.
    curvature, tolerance : float
        The options of the solver.
    """

    groups: list[GroupScores]
    degree: Tensor
    rows: Tensor
    theta: Tensor
    fixed: Tensor
    curvature: float
    tolerance: float

    def select(self, keep: Tensor) -> LocalProgram:
        """Return the programs of the instances ``keep``, positions in ``rows``."""
        rest = self.curvature, self.tolerance
        return LocalProgram(self.groups, self.degree, self.rows[keep], self.theta[keep], self.fixed[keep], *rest)


def search_faces(
    program: LocalProgram,
    supports: list[FactorSupport],
    multipliers: list[Tensor],
    centre: Tensor,
    proximal: Tensor,
    rounds: int,
) -> Faces:
    """Return the solutions found in at most ``rounds`` rounds.

    Parameters
    ----------
    program : LocalProgram
        The programs.
    supports : list of FactorSupport
        The supports at the start.
    multipliers : list of (R, F, m) Tensor
        The multipliers at the start.
    centre : (R, n) Tensor
        A point near the solution.
    proximal : (R,) Tensor
        For curvature 0, the factor of a term ½ ‖μ − centre‖², which vanishes at the solution.
    rounds : int
        Maximal number of rounds.
    """
    size = len(program.rows)
    found: list[tuple[Tensor, Faces]] = []
    live = torch.arange(size, device=centre.device)
    used = [s.weights > 0 for s in supports]
    for i in range(rounds):
        face, negative, best = _solve(program, supports, used, multipliers, centre, proximal)
        done = face.accepted if i + 1 < rounds else torch.ones_like(face.accepted)
        if bool(done.any()):
            keep = done.nonzero()[:, 0]
            found.append((live[keep], _take(face, keep)))
        keep = (~done).nonzero()[:, 0]
        if not len(keep):
            break
        supports, used = _exchange(program, face, used, negative, best, keep)
        program, live, centre, proximal = program.select(keep), live[keep], centre[keep], proximal[keep]
        multipliers = [y[keep] for y in multipliers]
    return _merge(found, size)


def _solve(
    program: LocalProgram,
    supports: list[FactorSupport],
    used: list[Tensor],
    multipliers: list[Tensor],
    centre: Tensor,
    proximal: Tensor,
) -> tuple[Faces, list[Tensor], list[tuple[Tensor, Tensor, Tensor]]]:
    """Return the solutions on the supports, the structures of negative weight, and the violations of the factors."""
    q, theta, groups = program.curvature, program.theta, program.groups
    curvature = torch.full_like(proximal, q) if q else proximal
    inverse = torch.where(program.fixed, 0.0, 1 / curvature[:, None])
    system = FaceSystem(groups, supports, inverse, program.degree, used)
    scores = [
        s.additional.dot(g.additional[program.rows].nan_to_num(neginf=0.0))
        for g, s in zip(groups, supports, strict=True)
    ]
    first = -system.compress([e * u for e, u in zip(scores, used, strict=True)])
    p = system.compress([s.weights * u for s, u in zip(supports, used, strict=True)])
    # The start with ν of the supports leaves λ unchanged where λ is right.
    sums = [
        -(s.weights * (e + torch.einsum("rfm,rfkm->rfk", c, s.parts))).sum(2)
        for e, c, s in zip(scores, multipliers, supports, strict=True)
    ]
    y = Multipliers(multipliers, sums)
    ones = [torch.ones_like(t) for t in sums]
    target = theta if q else theta + curvature[:, None] * centre
    p, y, error = system.solve(first, Multipliers(system.spread(inverse * target), ones), p, y)
    if not q:  # once more around the solution, where the term has no slope
        target = theta + curvature[:, None] * system.mean(p)
        p, y, error = system.solve(first, Multipliers(system.spread(inverse * target), ones), p, y)
    pieces = system.expand(p)
    negative = [u & (w < -_LEAST_WEIGHT) for u, w in zip(used, pieces, strict=True)]
    solved = system.is_regular & (error < 1e-9)
    valid = solved & ~torch.stack([n.flatten(1).any(1) for n in negative]).any(0)
    negative = [n & solved[:, None, None] for n in negative]

    weights = [torch.where(w > _LEAST_WEIGHT, w, 0.0) for w in pieces]
    weights = [w / w.sum(2, keepdim=True).clamp(min=1e-300) for w in weights]
    p = system.compress(weights)
    image, mean = system.image(p), system.mean(p)
    apart = [
        (a - b).abs().flatten(1).amax(1) for a, b in zip(image.copies, system.spread(mean), strict=True) if a.shape[1]
    ]
    residual = torch.stack(apart).amax(0)
    linear = sum((w * e).sum((1, 2)) for w, e in zip(weights, scores, strict=True))
    bound, best = bound_objective(program, y.copies)
    value = (theta * mean - 0.5 * q * mean.square()).sum(1) + linear
    # The scores alone: multipliers that are much larger have rounding errors that must not count as small.
    scale = 1 + theta.abs().sum(1)
    for g in groups:
        scale = scale + g.additional[program.rows].nan_to_num(neginf=0.0).abs().sum((1, 2))
    gap = (bound - value).clamp(min=0)
    if not q:  # the value of a vertex is exact, and the multipliers are not
        gap = torch.where(gap <= ROUNDING * scale, 0.0, gap)
    limit = 0.5 * program.tolerance**2 * mean.square().sum(1).clamp(min=1) if q else program.tolerance * scale
    valid = valid & (residual <= 1e-9)
    face = Faces(
        mean=mean,
        additional=[s.additional.combine(w) for w, s in zip(weights, supports, strict=True)],
        value=value,
        gap=gap,
        residual=residual,
        valid=valid,
        accepted=valid & (gap <= torch.maximum(limit, ROUNDING * scale)),
        supports=[FactorSupport(w, s.parts, s.additional) for w, s in zip(weights, supports, strict=True)],
    )
    own = [(w * e).sum(2) + (t * c).sum(2) for w, e, t, c in zip(weights, scores, image.copies, y.copies, strict=True)]
    violations = [
        (parts, others, score - o > ROUNDING * scale[:, None])
        for (parts, others, score), o in zip(best, own, strict=True)
    ]
    return face, negative, violations


def bound_objective(
    program: LocalProgram, multipliers: list[Tensor]
) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """Return an upper bound of the objective, (R,), without coordinates of no factor, from any multipliers.

    The second result holds the best structure of each factor: coordinates (R, F, m), additional parts (R, F, a), and
    score (R, F), for each group.
    """
    rest = program.theta.clone()
    for g, y in zip(program.groups, multipliers, strict=True):
        rest.index_add_(1, g.index.flatten(), -y.flatten(1))
    rest = rest.masked_fill(program.fixed, 0)
    if program.curvature:
        bound = rest.square().sum(1) / (2 * program.curvature)
    else:  # the multipliers of a coordinate must sum to its score
        share = rest / program.degree.clamp(min=1)
        multipliers = [y + share[:, g.index] for y, g in zip(multipliers, program.groups, strict=True)]
        bound = rest.new_zeros(len(rest))
    best = []
    for g, y in zip(program.groups, multipliers, strict=True):
        parts, others = g.maximise(program.rows, y)
        own = g.additional[program.rows]
        best.append((parts, others, (y * parts).sum(2) + torch.where(others != 0, own * others, 0.0).sum(2)))
        bound = bound + best[-1][2].sum(1)
    return bound, best


def _exchange(
    program: LocalProgram,
    face: Faces,
    used: list[Tensor],
    negative: list[Tensor],
    best: list[tuple[Tensor, Tensor, Tensor]],
    keep: Tensor,
) -> tuple[list[FactorSupport], list[Tensor]]:
    """Return the supports of the instances ``keep`` without structures of negative weight, and with violations."""
    supports, members = [], []
    for s, u, n, (parts, others, violates) in zip(face.supports, used, negative, best, strict=True):
        enters = violates & face.valid[:, None]
        u, support = u & ~n, s
        if bool(enters[keep].any()):
            weights = torch.cat([s.weights, torch.zeros_like(s.weights[..., :1])], 2)
            support = FactorSupport(
                weights,
                torch.cat([s.parts, parts[:, :, None]], 2),
                SparseVectors.concatenate([s.additional, SparseVectors.of(others[:, :, None])], 2),
            )
            u = torch.cat([u, enters[..., None]], 2)
        supports.append(support.select(keep))
        members.append(u[keep])
    return supports, members


def _take(face: Faces, keep: Tensor) -> Faces:
    return Faces(
        face.mean[keep],
        [a[keep] for a in face.additional],
        face.value[keep],
        face.gap[keep],
        face.residual[keep],
        face.valid[keep],
        face.accepted[keep],
        [s.select(keep) for s in face.supports],
    )


def _merge(found: list[tuple[Tensor, Faces]], size: int) -> Faces:
    """Return the faces of all instances in one record."""
    order = torch.cat([rows for rows, _ in found]).argsort()
    faces = [face for _, face in found]

    def join(tensors: list[Tensor]) -> Tensor:
        return torch.cat(tensors)[order]

    groups = range(len(faces[0].supports))
    return Faces(
        mean=join([f.mean for f in faces]),
        additional=[join([f.additional[g] for f in faces]) for g in groups],
        value=join([f.value for f in faces]),
        gap=join([f.gap for f in faces]),
        residual=join([f.residual for f in faces]),
        valid=join([f.valid for f in faces]),
        accepted=join([f.accepted for f in faces]),
        supports=[FactorSupport.concatenate([f.supports[g] for f in faces]).select(order) for g in groups],
    )
