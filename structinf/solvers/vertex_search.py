"""Search for vertices by an oracle: starting vertices, and vertices that complete the face of a solution."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import renumber_instances
from ..oracle import Oracle
from ..parts import Parts, map_parts
from .argmax import checked_argmax
from .convex_combinations import ConvexCombinations
from .mean_problem import MeanProblem
from .mean_regularizers import MeanRegularizer
from .optimal_weights import Edges, pseudo_solve

__all__ = ["VertexOracle", "complete_face", "initial_combinations"]

_NEAR = 1e-6
"""A vertex lies on the optimal face if its slope is above minus this fraction of the largest gradient entry."""


class VertexOracle:
    """An oracle as a function of vectors: it maps directions (n, d) to best structures as vertices (n, D).

    Vertices are structures lifted to the coordinates of Ω.

    Parameters
    ----------
    problem : MeanProblem
        The oracle with the scores.
    omega : MeanRegularizer
        The regularizer Ω, for its coordinates.

    Attributes
    ----------
    rows : (n,) int64 Tensor
        The instance of each direction.
    calls : int
        The number of oracle calls so far.
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
        """Let later directions belong to the instances ``rows``."""
        if len(rows) != len(self.rows) or not torch.equal(rows, self.rows):
            self.rows, self._oracle = rows, self.problem.oracle[rows]

    def __call__(self, direction: Tensor) -> Tensor:
        """Return the best vertices (n, D) for each ``direction`` (n, d).

        Direction entries in the padding are replaced by 0, and entries at parts of score −inf by −inf.
        """
        self.calls += 1
        flattening, rows = self.problem.flattening, self.rows
        direction = direction.masked_fill(self.padding[rows], 0.0).masked_fill(self.forbidden[rows], -torch.inf)
        parts = flattening.as_parts(flattening.split(direction))
        with renumber_instances(rows):
            y = checked_argmax(self._oracle, parts)
        return self._lift(y, self._oracle, rows)

    def _lift(self, y: Parts, oracle: Oracle, rows: Tensor) -> Tensor:
        """Check the structures ``y`` (n, *event) of the instances ``rows``, and return them as vertices (n, D)."""
        vertex = torch.cat(self.problem.flatten_structures(y, oracle, len(rows)), 1)
        wrong = ((vertex != 0) & self.forbidden[rows] | ~vertex.isfinite()).any(1)
        if bool(wrong.any()):
            raise self.problem.infinite_score_error(int(rows[wrong.nonzero()[0, 0]]))
        x = self.omega.lift(vertex)
        self.omega.check(x, rows, oracle)
        return x

    def from_warm_start(self, structures: Parts) -> list[tuple[Tensor, Tensor]]:
        """Return K pairs for structures (K, B, *event): vertices (B, D), and whether each vertex is usable, (B,) bool.

        A usable structure is not zero and has a finite score.
        """
        found = []
        for y in self.problem.unstack_structures(structures):
            vertex = torch.cat(self.problem.flatten_structures(y, self.problem.oracle, self.problem.batch), 1)
            apt = (vertex != 0).any(1) & ~((vertex != 0) & self.forbidden).any(1)
            found.append((self.omega.lift(vertex), apt))
        return found


def initial_combinations(vertex_oracle: VertexOracle, warm_start: Parts | None) -> ConvexCombinations:
    """Return the average of several structures, a point in the relative interior of Ω's domain.

    The first structures are ``warm_start`` and the best structure for θ. If Ω may have infinite slopes, more oracle
    calls follow. They give positive scores to parts absent from all structures so far. Parts present in all
    structures get negative scores, if Ω may have an infinite slope there. The search ends once a call brings no
    progress, because then no structure can bring progress. The absolute scores lie between 1 and 2 and differ
    between parts, to vary the structures.
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
    """Add structures as in :func:`initial_combinations`; return the coordinates that need a slope, (B, D) bool."""
    width, everyone = vertex_oracle.theta.shape[1], vertex_oracle.rows
    place = torch.arange(1, width + 1, dtype=torch.float64, device=first.device)
    gain = 1 + (place * (5**0.5 - 1) / 2).frac()  # equidistributed in [1, 2)
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
    """Add vertices of weight 0 until the support spans the face of conv(Y) that contains the optimum.

    The support already spans the face unless θ has symmetries. For example, the centre of a square is the mean of
    only two opposite vertices. A random direction orthogonal to the support's affine hull finds a missing vertex
    with probability 1. If no vertex of the face is better along this direction, the face lies in the hull. The
    oracle is called with the gradient, under which all vertices of the face are best, plus a multiple 1e-6 of this
    direction. Oracles that require scores of at most 0 keep their supports.
    """
    if vertex_oracle.problem.oracle.requires_nonpositive_theta or vertex_oracle.theta.shape[1] == 0:
        return
    generator = torch.Generator().manual_seed(0)
    width = vertex_oracle.theta.shape[1]
    random = torch.randn(width, dtype=torch.float64, generator=generator, device="cpu").to(combinations.theta.device)
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
    """Return the components (n, d) of ``random`` (d,), scaled to length 1, orthogonal to the affine hulls."""
    edges = Edges(combinations)
    edge = edges.edge[:, :, : len(random)]
    vector = (random / random.norm()).expand(len(combinations), -1)
    for _ in range(2):  # the second pass removes the rounding error of the first
        product = (edge @ vector[:, :, None])[:, :, 0]
        vector = vector - (pseudo_solve(edge @ edge.mT, edges.others, product)[:, None] @ edge)[:, 0]
    return vector
