"""Structures to start from, and the oracle as a function of vectors that gives them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..oracle import Oracle
from ..parts import Parts, map_parts
from .coordinates import Objective
from .corral import Corral
from .mean_regularizers import MeanRegularizer

__all__ = ["Answers", "cover"]


class Answers:
    """The oracle's best structures along directions (n, d), lifted, for the instances ``rows``.

    Attributes
    ----------
    rows : (n,) int64 Tensor
    calls : int
        Of the oracle so far.
    """

    def __init__(self, objective: Objective, omega: MeanRegularizer) -> None:
        coordinates = objective.coordinates
        theta = coordinates.like([t.expand(objective.batch, *t.shape[1:]) for t in objective.theta])
        self.objective, self.omega = objective, omega
        self.theta = coordinates.join(theta)
        self.forbidden = self.theta.isneginf()
        valid = objective.oracle.valid_parts(theta)
        self.padding = torch.zeros_like(self.forbidden)
        if valid is not None:
            self.padding = coordinates.join(map_parts(lambda mask, t: mask.expand_as(t), valid, theta)) == 0
        self.rows = torch.arange(objective.batch, device=coordinates.device)
        self.calls = 0
        self._oracle = objective.oracle

    def restrict(self, rows: Tensor) -> None:
        """Ask for the instances ``rows`` from now on."""
        if len(rows) != len(self.rows) or not torch.equal(rows, self.rows):
            self.rows, self._oracle = rows, self.objective.oracle[rows]

    def __call__(self, direction: Tensor) -> Tensor:
        """(n, D), of directions whose entries in the padding and at parts of −inf are ignored."""
        self.calls += 1
        coordinates, rows = self.objective.coordinates, self.rows
        direction = direction.masked_fill(self.padding[rows], 0.0).masked_fill(self.forbidden[rows], -torch.inf)
        parts = coordinates.like(coordinates.parts(direction))
        return self.lifted(self._oracle.argmax(parts), self._oracle, rows)

    def lifted(self, y: Parts, oracle: Oracle, rows: Tensor) -> Tensor:
        """The structures (n, *event) of the instances ``rows``, checked."""
        vertex = torch.cat(self.objective.vertices(y, oracle, len(rows)), 1)
        wrong = ((vertex != 0) & self.forbidden[rows] | ~vertex.isfinite()).any(1)
        if bool(wrong.any()):
            raise self.objective.invalid_vertex_error(int(rows[wrong.nonzero()[0, 0]]))
        x = self.omega.lift(vertex)
        self.omega.check(x, rows, oracle)
        return x

    def given(self, structures: Parts) -> list[tuple[Tensor, Tensor]]:
        """Those of (K, B, *event) one by one, (B, D) each, and which of them are structures of a finite score."""
        found = []
        for y in self.objective.iterate_structures(structures):
            vertex = torch.cat(self.objective.vertices(y, self.objective.oracle, self.objective.batch), 1)
            apt = (vertex != 0).any(1) & ~((vertex != 0) & self.forbidden).any(1)
            found.append((self.omega.lift(vertex), apt))
        return found


def cover(answers: Answers, warm_start: Parts | None, *, keep: bool) -> Corral:
    """The average of a few structures, in the relative interior of Ω's domain.

    The first is the best one for θ; those of ``warm_start`` join it. Wherever Ω may have an infinite slope, more
    follow until every part that some structure uses is used and, where Ω minds, every part that some structure does
    without is lacking once: each is asked for with gains for such parts and nothing for the others, so that one without
    progress shows that none makes any. The gains differ between parts, for the sake of variety.
    """
    omega, device = answers.omega, answers.theta.device
    theta = torch.where(answers.forbidden, 0.0, answers.theta)
    corral = Corral.empty(omega, torch.cat([theta, omega.lift(theta)[:, theta.shape[1] :] * 0], 1), keep=keep)
    everyone = torch.ones(len(theta), dtype=torch.bool, device=device)

    def enter(vertex: Tensor, which: Tensor) -> None:
        slot = corral.enter(vertex, which)
        corral.weight[which.nonzero()[:, 0], slot[which]] = 1.0

    if len(theta):
        for vertex, apt in answers.given(warm_start) if warm_start is not None else []:
            enter(vertex, apt)
        first = answers(theta)
        enter(first, everyone)
        if omega.open:
            corral.movable = _cover(answers, first, enter)
    corral.weight = corral.weight / corral.weight.sum(1, keepdim=True)
    return corral


def _cover(answers: Answers, first: Tensor, enter: Callable[[Tensor, Tensor], None]) -> Tensor:
    """Enter structures until they cover; the coordinates that vary, (B, D)."""
    width, everyone = answers.theta.shape[1], answers.rows
    place = torch.arange(1, width + 1, dtype=torch.float64, device=first.device)
    gain = 1 + (place * (5**0.5 - 1) / 2).frac()  # equidistributed
    low, high = first[:, :width].clone(), first[:, :width].clone()
    rows, vertex = everyone, first.clone()
    while len(rows):
        answers.restrict(rows)
        wanted = answers.omega.wanted(low[rows], high[rows])
        found = answers(gain * wanted)
        y = found[:, :width]
        progress = ((wanted > 0) & (y != 0) | (wanted < 0) & (y != low[rows])).any(1)
        rows, y = rows[progress], y[progress]
        low[rows], high[rows], vertex[rows] = low[rows].minimum(y), high[rows].maximum(y), found[progress]
        which = torch.zeros_like(everyone, dtype=torch.bool)
        which[rows] = True
        enter(vertex, which)
    answers.restrict(everyone)
    return answers.omega.movable(low, high)
