"""Vertices from an oracle: to start from, and to complete the face of conv(Y) that a solution lies on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..oracle import Oracle
from ..parts import Parts, map_parts
from .convex_combinations import ConvexCombinations
from .mean_problem import MeanProblem
from .mean_regularizers import MeanRegularizer
from .optimal_weights import Edges, pseudo_solve

__all__ = ["VertexOracle", "complete_face", "initial_combinations"]

_NEAR = 1e-6
"""How much less than the best a vertex may gain, relative to the scores' size, to share the best one's face."""


class VertexOracle:
    """An oracle as a function of vectors: from directions (n, d) to the best structures, lifted to Ω's coordinates.

    Attributes
    ----------
    rows : (n,) int64 Tensor
        The instances that directions belong to.
    calls : int
        The number of calls of the oracle so far.
    """

    def __init__(self, problem: MeanProblem, omega: MeanRegularizer) -> None:
        flattening = problem.flattening
        theta = flattening.as_parts([t.expand(problem.batch, *t.shape[1:]) for t in problem.theta])
        self.problem, self.omega = problem, omega
        self.theta = flattening.flatten(theta)
        self.forbidden = self.theta.isneginf()
        valid = problem.oracle.valid_parts(theta)
        self.padding = torch.zeros_like(self.forbidden)
        if valid is not None:
            self.padding = flattening.flatten(map_parts(lambda mask, t: mask.expand_as(t), valid, theta)) == 0
        self.rows = torch.arange(problem.batch, device=flattening.device)
        self.calls = 0
        self._oracle = problem.oracle

    def restrict(self, rows: Tensor) -> None:
        """From now on, directions belong to the instances ``rows``."""
        if len(rows) != len(self.rows) or not torch.equal(rows, self.rows):
            self.rows, self._oracle = rows, self.problem.oracle[rows]

    def __call__(self, direction: Tensor) -> Tensor:
        """The best vertices (n, D). Entries of the directions in the padding and at parts of −inf do not count."""
        self.calls += 1
        flattening, rows = self.problem.flattening, self.rows
        direction = direction.masked_fill(self.padding[rows], 0.0).masked_fill(self.forbidden[rows], -torch.inf)
        parts = flattening.as_parts(flattening.split(direction))
        return self._lift(self._oracle.argmax(parts), self._oracle, rows)

    def _lift(self, y: Parts, oracle: Oracle, rows: Tensor) -> Tensor:
        """The structures (n, *event) of the instances ``rows`` as vertices (n, D), after checks."""
        vertex = torch.cat(self.problem.flatten_structures(y, oracle, len(rows)), 1)
        wrong = ((vertex != 0) & self.forbidden[rows] | ~vertex.isfinite()).any(1)
        if bool(wrong.any()):
            raise self.problem.infinite_score_error(int(rows[wrong.nonzero()[0, 0]]))
        x = self.omega.lift(vertex)
        self.omega.check(x, rows, oracle)
        return x

    def from_warm_start(self, structures: Parts) -> list[tuple[Tensor, Tensor]]:
        """Structures (K, B, *event) as K pairs: vertices (B, D), and whether each has a finite score, (B,) bool."""
        found = []
        for y in self.problem.unstack_structures(structures):
            vertex = torch.cat(self.problem.flatten_structures(y, self.problem.oracle, self.problem.batch), 1)
            apt = (vertex != 0).any(1) & ~((vertex != 0) & self.forbidden).any(1)
            found.append((self.omega.lift(vertex), apt))
        return found


def initial_combinations(vertex_oracle: VertexOracle, warm_start: Parts | None) -> ConvexCombinations:
    """The average of a few structures, in the relative interior of Ω's domain.

    These are the structures of ``warm_start`` and the best one for θ. If Ω may have infinite slopes, more follow: the
    oracle is called with positive scores for the parts that no structure has used yet and, if Ω may have an infinite
    slope there, negative ones for the parts that all structures have used. Once an answer brings no progress, no
    structure would. The scores differ between parts, so that instances get different structures.
    """
    omega, device = vertex_oracle.omega, vertex_oracle.theta.device
    theta = torch.where(vertex_oracle.forbidden, 0.0, vertex_oracle.theta)
    combinations = ConvexCombinations.empty(omega, torch.cat([theta, omega.lift(theta)[:, theta.shape[1] :] * 0], 1))
    everyone = torch.ones(len(theta), dtype=torch.bool, device=device)

    def add(vertex: Tensor, which: Tensor) -> None:
        slot = combinations.add(vertex, which)
        combinations.weight[which.nonzero()[:, 0], slot[which]] = 1.0

    if len(theta):
        for vertex, apt in vertex_oracle.from_warm_start(warm_start) if warm_start is not None else []:
            add(vertex, apt)
        first = vertex_oracle(theta)
        add(first, everyone)
        if omega.steep:
            combinations.needs_slope = _cover_parts(vertex_oracle, first, add)
    combinations.weight = combinations.weight / combinations.weight.sum(1, keepdim=True)
    return combinations


def _cover_parts(vertex_oracle: VertexOracle, first: Tensor, add: Callable[[Tensor, Tensor], None]) -> Tensor:
    """Add structures as :func:`initial_combinations` says; return the coordinates that need a slope, (B, D) bool."""
    width, everyone = vertex_oracle.theta.shape[1], vertex_oracle.rows
    place = torch.arange(1, width + 1, dtype=torch.float64, device=first.device)
    gain = 1 + (place * (5**0.5 - 1) / 2).frac()  # equidistributed
    low, high = first[:, :width].clone(), first[:, :width].clone()
    rows, vertex = everyone, first.clone()
    while len(rows):
        vertex_oracle.restrict(rows)
        wanted = vertex_oracle.omega.parts_to_cover(low[rows], high[rows])
        found = vertex_oracle(gain * wanted)
        y = found[:, :width]
        progress = ((wanted > 0) & (y != 0) | (wanted < 0) & (y != low[rows])).any(1)
        rows, y = rows[progress], y[progress]
        low[rows], high[rows], vertex[rows] = low[rows].minimum(y), high[rows].maximum(y), found[progress]
        which = torch.zeros_like(everyone, dtype=torch.bool)
        which[rows] = True
        add(vertex, which)
    vertex_oracle.restrict(everyone)
    return vertex_oracle.omega.needs_slope(low, high)


def complete_face(combinations: ConvexCombinations, vertex_oracle: VertexOracle) -> None:
    """Add vertices of weight 0 until the support spans the face of conv(Y) that the optimum lies on.

    The support spans it already, unless θ is symmetric: the centre of a polytope is a mean of few structures. A random
    direction orthogonal to the support's affine hull finds what is missing, with probability 1: if no vertex of the
    face is better along it, the face lies in the hull. The oracle is called with the gradient, for which all vertices
    of the face are best, plus a small multiple of this direction.
    """
    if vertex_oracle.problem.oracle.requires_nonpositive_theta or vertex_oracle.theta.shape[1] == 0:
        return
    generator = torch.Generator().manual_seed(0)
    width = vertex_oracle.theta.shape[1]
    random = torch.randn(width, dtype=torch.float64, generator=generator).to(combinations.theta.device)
    rows, part = torch.arange(len(combinations), device=random.device), combinations
    while len(rows):
        x = part.point()
        direction = _orthogonal_to_support(part, random)
        found = direction.abs().amax(1) > 1e-9
        if not bool(found.all()):
            combinations.write_back(rows, part)
            rows, part, x, direction = rows[found], part.select(found), x[found], direction[found]
            continue
        vertex_oracle.restrict(rows)
        lifted = torch.cat([direction, torch.zeros_like(x[:, width:])], 1)
        gradient = part.theta - part.omega_gradient(x)
        size = gradient.abs().amax(1, keepdim=True)
        vertex = vertex_oracle(part.omega.lift_transpose(gradient) + _NEAR * size * direction)
        gains = (gradient * (vertex - x)).sum(1) >= -_NEAR * size[:, 0]
        gains = gains & ((lifted * (vertex - x)).sum(1) > 1e-7)
        combinations.write_back(rows, part)
        rows, part, vertex = rows[gains], part.select(gains), vertex[gains]
        if len(rows):
            part.add(vertex, torch.ones_like(rows, dtype=torch.bool))


def _orthogonal_to_support(combinations: ConvexCombinations, random: Tensor) -> Tensor:
    """The component of a random vector (d,) orthogonal to the support's affine hull, (n, d), of length about 1."""
    edges = Edges(combinations)
    edge = edges.edge[:, :, : len(random)]
    vector = (random / random.norm()).expand(len(combinations), -1)
    for _ in range(2):  # the second pass takes away what rounding left
        product = (edge @ vector[:, :, None])[:, :, 0]
        vector = vector - (pseudo_solve(edge @ edge.mT, edges.others, product)[:, None] @ edge)[:, 0]
    return vector
