"""Projections onto the structures of factors: the subproblems of solvers over the local polytope of a factor graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import InfeasibleError, renumber_instances
from ..oracle import Oracle, Projectable
from ..parts import Parts, as_tuple, map_parts
from .active_set import ActiveSetResult, active_set
from .argmax import checked_argmax
from .direct_mean import describes_argmax
from .graph_factors import GraphFactors, OracleGroup, check_values

__all__ = ["FactorProjection", "FactorSupport", "GroupScores"]

_MOST_VERTICES = 10_000
"""The largest number of rounds of the active-set method for one projection."""

_FACTORISE_EVERY = 50
"""Projections between two that compute the factorisation of the support anew, which bounds its rounding errors."""


class _Factors(Oracle):
    """The oracle of a group, whose readout is the variables.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the group.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.bound = oracle.bound  # type: ignore[misc]

    @property
    def instance_ndim(self) -> Mapping[str, int]:  # type: ignore[override]
        return self.oracle.instance_ndim

    def __getitem__(self, rows: Any) -> _Factors:
        return _Factors(self.oracle[rows])

    def label(self) -> str:
        return self.oracle.label()

    def resolve_event_ndim(self, theta: Parts) -> tuple[int, ...]:
        return self.oracle.resolve_event_ndim(theta)

    def resolve_instance_ndim(self, name: str, ndim: int, batch_ndim: int) -> int:
        return self.oracle.resolve_instance_ndim(name, ndim, batch_ndim)

    def validate(self, theta: Parts) -> None:
        self.oracle.validate(theta)

    def readout(self, y: Parts) -> Parts:
        return as_tuple(y)[0]

    def argmax(self, theta: Parts) -> Parts:
        return self.oracle.argmax(theta)


class FactorSupport:
    """The structures of projections, as vectors, with their weights.

    Attributes
    ----------
    weights : (R, F, K) Tensor
        The weights, 0 beyond the support.
    parts : (R, F, K, m) Tensor
        The variables of each structure, negated where the factor negates them.
    additional : (R, F, K, a) Tensor
        The additional parts.
    """

    def __init__(self, weights: Tensor, parts: Tensor, additional: Tensor) -> None:
        self.weights, self.parts, self.additional = weights, parts, additional

    def select(self, keep: Tensor) -> FactorSupport:
        """Return the supports of the instances ``keep``, positions in the batch."""
        return FactorSupport(self.weights[keep], self.parts[keep], self.additional[keep])

    @staticmethod
    def concatenate(supports: list[FactorSupport]) -> FactorSupport:
        """Return the supports of several batches as one batch."""
        most = max(s.weights.shape[2] for s in supports)

        def join(tensors: list[Tensor]) -> Tensor:
            padded = [torch.cat([t, t.new_zeros(*t.shape[:2], most - t.shape[2], *t.shape[3:])], 2) for t in tensors]
            return torch.cat(padded)

        return FactorSupport(
            join([s.weights for s in supports]),
            join([s.parts for s in supports]),
            join([s.additional for s in supports]),
        )


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
    blocked : (B, F, m) bool Tensor
        The parts of score −inf.
    """

    def __init__(
        self, factors: GraphFactors, group: OracleGroup, index: Tensor, additional: Tensor, forbidden: Tensor
    ) -> None:
        self.names, self.group, self.index, self.additional = factors.names, group, index, additional
        negated = torch.zeros(index.shape, dtype=torch.bool, device=index.device)
        negated[:, : group.negated.shape[1]] = group.negated.to(index.device)
        self.offset = negated.to(additional.dtype)
        self.sign = 1 - 2 * self.offset
        self.blocked = forbidden[:, index] & ~negated
        self.oracle = group.bind(factors.data)

    def __len__(self) -> int:
        return len(self.group)

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
        parts, additional = parts.masked_fill(self.blocked[rows], -torch.inf), self.additional[rows]
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
        count, infeasible = len(self), None
        with renumber_instances(rows.repeat_interleave(count)):
            try:
                yield
            except InfeasibleError as error:
                infeasible = error
        if infeasible is not None:
            name = self.names[self.group.numbers[infeasible.batch_index % count]]
            instances = sorted({int(rows[i // count]) for i in infeasible.batch_indices})
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
        self.oracle_calls = self.runs = 0
        self._result: ActiveSetResult | None = None
        self._target: Parts | None = None

    def project(self, target: Tensor, factor: Tensor) -> Tensor:
        """Return argmin ½ ‖x − target‖² − factor · ⟨additional scores, w⟩ over the factors' structures, (R, F, m).

        Parameters
        ----------
        target : (R, F, m) Tensor
            The coordinates to project.
        factor : (R, 1, 1) Tensor
            The factor of the additional scores.
        """
        scores = self.scores
        theta = scores.as_scores(self.rows, scores.sign * (target - scores.offset), factor)
        self._target = theta
        if self.has_closed_form:
            with scores.named(self.rows):
                mean = self.oracle.project(theta)  # type: ignore[attr-defined]
            return scores.to_coordinates(scores.group.as_vectors(mean).view_as(target))
        self._result = self._run(self.oracle, theta, self.rows, self._result)
        self._places = torch.arange(len(self._result.converged), device=self.rows.device)
        mean = scores.group.as_vectors(self._result.mean)[:, : target.shape[2]]
        return scores.to_coordinates(mean.view_as(target))

    def _run(self, oracle: Oracle, theta: Parts, rows: Tensor, last: ActiveSetResult | None) -> ActiveSetResult:
        readout = self.scores.additional.shape[2] > 0
        oracle = _Factors(oracle) if readout else oracle
        self.runs += 1
        start: dict[str, Any] = {}
        if last is not None and self.runs % _FACTORISE_EVERY:
            start["previous"] = last, self._places
        elif last is not None:
            start["warm_start"] = map_parts(lambda t: t[:, self._places], last.support())
        with self.scores.named(rows):
            result = active_set(oracle, theta, readout=readout, max_iter=_MOST_VERTICES, **start)
        self.oracle_calls += result.oracle_calls
        return result

    def support(self, positions: Tensor) -> FactorSupport:
        """Return the support of the last projection, for ``positions`` in the rows."""
        scores, count = self.scores, len(self.scores)
        flat = self._flat(positions)
        if self.has_closed_form:
            rows, target = self.rows[positions], map_parts(lambda t: t[flat], cast(Parts, self._target))
            result = self._run(scores.oracle_of(rows), target, rows, None)
            weights, structures = result.weights, result.support()
        else:
            result, places = cast(ActiveSetResult, self._result), self._places[flat]
            weights, structures = result.weights[:, places], map_parts(lambda t: t[:, places], result.support())
        vectors = scores.group.as_vectors(structures).double()
        vectors = vectors.view(-1, len(positions), count, vectors.shape[-1]).permute(1, 2, 0, 3)
        weights = weights.double().view(-1, len(positions), count).permute(1, 2, 0)
        m = scores.index.shape[1]
        parts = vectors[..., :m] * scores.sign[:, None] + scores.offset[:, None]
        return FactorSupport(weights, parts, vectors[..., m:])

    def _flat(self, positions: Tensor) -> Tensor:
        """Return the positions of all factors of instances in a batch of factors."""
        count = len(self.scores)
        return (positions[:, None] * count + torch.arange(count, device=positions.device)).flatten()

    def select(self, keep: Tensor) -> None:
        """Keep only the instances ``keep``, positions in the rows."""
        if self._result is not None:
            self._places = self._places[self._flat(keep)]
        self.rows = self.rows[keep]
        self.oracle = self.scores.oracle_of(self.rows)
