"""Projections onto the structures of factors: the subproblems of solvers over the local polytope of a factor graph."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import InfeasibleError, renumber_instances
from ..oracle import Oracle, Projectable
from ..parts import Parts, map_parts
from .active_set import active_set
from .active_set_sequence import ActiveSetSequence
from .argmax import checked_argmax
from .direct_mean import describes_argmax
from .graph_factors import GraphFactors, OracleGroup, check_values
from .sparse_vectors import SparseVectors

__all__ = ["MOST_ROUNDS", "FactorProjection", "FactorSupport", "GroupScores"]

MOST_ROUNDS = 10_000
"""The largest number of rounds of the active-set method for one projection."""


class FactorSupport:
    """The structures of projections, as vectors, with their weights.

    Attributes
    ----------
    weights : (R, F, K) Tensor
        The weights, 0 beyond the support.
    parts : (R, F, K, m) Tensor
        The variables of each structure, negated where the factor negates them.
    additional : SparseVectors (R, F, K, a)
        The additional parts.
    """

    def __init__(self, weights: Tensor, parts: Tensor, additional: SparseVectors) -> None:
        self.weights, self.parts, self.additional = weights, parts, additional

    def select(self, keep: Tensor) -> FactorSupport:
        """Return the supports of the instances ``keep``, positions in the batch."""
        return FactorSupport(self.weights[keep], self.parts[keep], self.additional[keep])

    @staticmethod
    def concatenate(supports: list[FactorSupport]) -> FactorSupport:
        """Return the supports of several batches as one batch."""
        most = max(s.weights.shape[2] for s in supports)
        supports = [s.padded(most) for s in supports]
        return FactorSupport(
            torch.cat([s.weights for s in supports]),
            torch.cat([s.parts for s in supports]),
            SparseVectors.concatenate([s.additional for s in supports], 0),
        )

    def padded(self, count: int) -> FactorSupport:
        """Return the supports with structures of weight 0, ``count`` in all."""
        more = count - self.weights.shape[2]
        if not more:
            return self
        index, value = (pad(t, (0, 0, 0, more)) for t in (self.additional.index, self.additional.value))
        extra = SparseVectors(index, value, self.additional.width)
        return FactorSupport(pad(self.weights, (0, more)), pad(self.parts, (0, 0, 0, more)), extra)


class GroupScores:
    """A group of factors with the scores of a batch, in float64.

    Parameters
    ----------
    factors : GraphFactors
        All factors, with the names for messages, and the instance data.
    group : OracleGroup
        The group.
    index : (F, m) int64 Tensor
        The coordinate of each part that has one; the other parts are additional.
    additional : (B, F, a) Tensor
        The additional scores.
    forbidden : (B, n) bool Tensor
        The coordinates of score −inf.

    Attributes
    ----------
    sign, offset : (F, m) Tensor
        The coordinate is sign · part + offset.
    forbidden : (B, F, m) bool Tensor
        The parts whose coordinate has the score −inf.
    origin : (B,) int64 Tensor, or None
        For scores of :meth:`select`, the place of each factor among all factors of the batch.
    """

    def __init__(
        self, factors: GraphFactors, group: OracleGroup, index: Tensor, additional: Tensor, forbidden: Tensor
    ) -> None:
        self.names, self.group, self.index, self.additional = factors.names, group, index, additional
        negated = torch.zeros(index.shape, dtype=torch.bool, device=index.device)
        negated[:, : group.negated.shape[1]] = group.negated.to(index.device)
        self.offset = negated.to(additional.dtype)
        self.sign = 1 - 2 * self.offset
        self.forbidden = forbidden[:, index]
        self.oracle = group.bind(factors.data)
        self.origin: Tensor | None = None

    def __len__(self) -> int:
        return self.index.shape[-2]

    def select(self, rows: Tensor, factor: Tensor) -> GroupScores:
        """Return R instances of one factor: in ``rows`` (R,), the factor at the place ``factor`` (R,) in the group.

        The index, the sign and the offset then have the shape (R, 1, m).
        """
        new = copy.copy(self)
        new.index, new.sign, new.offset = (t[factor][:, None] for t in (self.index, self.sign, self.offset))
        new.additional, new.forbidden = (t[rows, factor][:, None] for t in (self.additional, self.forbidden))
        new.origin = rows * len(self) + factor
        new.oracle = self.oracle[new.origin] if self.oracle.bound else self.oracle
        return new

    def to_coordinates(self, parts: Tensor) -> Tensor:
        """Return the coordinates (..., F, m) of the factors' parts, or the reverse."""
        return self.sign * parts + self.offset

    def oracle_of(self, rows: Tensor) -> Oracle:
        """Return the oracle with the data of all factors of the instances ``rows`` (R,)."""
        if not self.oracle.bound:
            return self.oracle
        return self.oracle[(rows[:, None] * len(self) + torch.arange(len(self), device=rows.device)).flatten()]

    def as_scores(self, rows: Tensor, parts: Tensor, factor: Tensor | float = 1.0) -> Parts:
        """Return scores of the oracle for ``rows``: scores of parts (R, F, m), and ``factor`` · additional."""
        blocked, additional = self.forbidden[rows] & (self.offset == 0), self.additional[rows]
        parts = parts.masked_fill(blocked, -torch.inf)
        forbidden = additional.isneginf()
        scaled = (factor * additional.masked_fill(forbidden, 0)).masked_fill(forbidden, -torch.inf)
        theta = self.group.as_parts(torch.cat([parts, scaled], 2).flatten(0, 1))
        valid = self.oracle_of(rows).valid_parts(theta) if self.oracle.bound else None
        return theta if valid is None else map_parts(lambda t, mask: torch.where(mask, t, 0.0), theta, valid)

    def maximise(self, rows: Tensor, multipliers: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the best structures for scores ``multipliers`` (R, F, m) of coordinates and ``factor`` · additional.

        Returns
        -------
        parts : (R, F, m) Tensor
            The coordinates.
        additional : (R, F, a) Tensor
            The additional parts.
        """
        theta = self.as_scores(rows, self.sign * multipliers, factor)
        with self.named(rows):
            best = self.group.as_vectors(checked_argmax(self.oracle_of(rows), theta))
        best = best.view(len(rows), len(self), -1)
        m = self.index.shape[1]
        # Additional parts may be coordinates too; a chain's shared transitions are counts.
        check_values(best[..., : self.group.variables.shape[1]], self.names[self.group.numbers[0]])
        return self.to_coordinates(best[..., :m]), best[..., m:]

    @contextlib.contextmanager
    def named(self, rows: Tensor) -> Iterator[None]:
        """Return a context whose errors name the instance of the graph, and the factor."""
        count, infeasible = len(self.group), None
        if self.origin is None:
            origin = (rows[:, None] * count + torch.arange(count, device=rows.device)).flatten()
        else:
            origin = self.origin[rows]
        with renumber_instances(origin // count):
            try:
                yield
            except InfeasibleError as error:
                infeasible = error
        if infeasible is not None:
            name = self.names[self.group.numbers[int(origin[infeasible.batch_index]) % count]]
            instances = sorted({int(origin[i]) // count for i in infeasible.batch_indices})
            raise InfeasibleError(f"{name} has no structure of finite score", instances[0], instances) from None


class FactorProjection:
    """Projections onto conv(Y) of each factor of a group, with a warm start from the last projection.

    Parameters
    ----------
    scores : GroupScores
        The group with the scores.
    rows : (R,) int64 Tensor
        The instances.
    """

    def __init__(self, scores: GroupScores, rows: Tensor) -> None:
        self.scores, self.rows, self.oracle = scores, rows, scores.oracle_of(rows)
        oracle = scores.oracle
        self.has_closed_form = (
            isinstance(oracle, Projectable)
            and scores.additional.shape[2] == 0
            and scores.index.shape == scores.group.variables.shape
            and len(scores.group.shapes) == 1
            and describes_argmax(type(oracle), "project")
        )
        self._sequence = ActiveSetSequence(self.oracle, first_tensor=scores.additional.shape[2] > 0)
        self._target: Parts | None = None
        self._calls = 0

    @property
    def oracle_calls(self) -> int:
        """The number of batched calls of the oracle."""
        return self._calls + self._sequence.oracle_calls

    @property
    def is_exact(self) -> Tensor:
        """Whether the last projections had enough rounds, for all factors of each instance, (R,) bool."""
        if self.has_closed_form:
            return torch.ones_like(self.rows, dtype=torch.bool)
        return self._sequence.finished.view(len(self.rows), len(self.scores)).all(1)

    def project(self, target: Tensor, factor: Tensor, rounds: int = MOST_ROUNDS) -> Tensor:
        """Return argmin ½ ‖x − target‖² − factor · ⟨additional scores, w⟩ over the factors' structures, (R, F, m).

        Parameters
        ----------
        target : (R, F, m) Tensor
            The coordinates to project.
        factor : (R, 1, 1) Tensor
            The factor of the additional scores.
        rounds : int
            The most rounds of the active-set method. If these are not enough, x is the best mean of the structures
            found so far.
        """
        scores = self.scores
        theta = scores.as_scores(self.rows, scores.sign * (target - scores.offset), factor)
        if self.has_closed_form:
            self._target = theta
            with scores.named(self.rows):
                mean = self.oracle.project(theta)  # type: ignore[attr-defined]
            return scores.to_coordinates(scores.group.as_vectors(mean).view_as(target))
        with scores.named(self.rows):
            self._sequence.solve(theta, rounds)
        return scores.to_coordinates(self._sequence.mean.view_as(target))

    def support(self, positions: Tensor) -> FactorSupport:
        """Return the support of the last projection, for ``positions`` in the rows."""
        scores, count = self.scores, len(self.scores)
        flat = (positions[:, None] * count + torch.arange(count, device=positions.device)).flatten()
        if self.has_closed_form:
            rows, target = self.rows[positions], map_parts(lambda t: t[flat], cast(Parts, self._target))
            with scores.named(rows):
                result = active_set(scores.oracle_of(rows), target, max_iter=MOST_ROUNDS)
            self._calls += result.oracle_calls
            vectors = scores.group.as_vectors(result.support()).double().transpose(0, 1)
            weights, others = result.weights.double().T, SparseVectors.of(vectors[..., :0])
        else:
            weights, vectors, others = self._sequence.support(flat)
        shape = len(positions), count, weights.shape[1]
        parts = vectors.reshape(*shape, vectors.shape[2]) * scores.sign[:, None] + scores.offset[:, None]
        return FactorSupport(weights.reshape(shape), parts, others.view(*shape))

    def select(self, keep: Tensor) -> None:
        """Keep only the instances ``keep``, positions in the rows."""
        count = len(self.scores)
        self.rows = self.rows[keep]
        self.oracle = self.scores.oracle_of(self.rows)
        self._sequence.select((keep[:, None] * count + torch.arange(count, device=keep.device)).flatten(), self.oracle)
