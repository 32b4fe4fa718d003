"""Hypergraph programs at small sizes, potentials of many kinds, and what is to be known of them in plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

import enumerators
from enumerators import Structure
from hypergraph_reference import INF, Derivation, Grammar, Hyperedges, Recursion, of_grammar
from structinf.dp import HypergraphProgram
from structinf.parts import Parts, as_tuple, map_parts, pack_like

# ----------------------------------------------------------------------------- kinds of potentials


@dataclass(frozen=True)
class ThetaKind:
    """Of potentials. Of those forbidden, a third is −inf where one structure is not."""

    scale: float = 1.0
    ties: bool = False
    forbidden: bool = False
    dtype: torch.dtype = torch.float64

    @property
    def rounding(self) -> float:
        """How far answers may be off, next to 1 and to their own size."""
        return 1e-9 if self.dtype is torch.float64 else 3e-6


NORMAL = ThetaKind()
TIES = ThetaKind(ties=True)
FORBIDDEN = ThetaKind(forbidden=True)
EVERY = (
    *(exact := (NORMAL, FORBIDDEN, ThetaKind(1e-3), ThetaKind(1e3), ThetaKind(1e3, forbidden=True))),
    *(replace(kind, dtype=torch.float32) for kind in exact),
    TIES,
)


def kinds_for(place: int, programs: int) -> Sequence[ThetaKind]:
    """Those of all programs, and those that fall to number ``place`` of so many: others fall to two or more of them."""
    common = (NORMAL, FORBIDDEN, TIES)
    others, step = [kind for kind in EVERY if kind not in common], max(programs // 2, 1)
    return (*common, *others[place % step % len(others) :: step])


# ----------------------------------------------------------------------------- programs


@dataclass(frozen=True, eq=False)
class Program:
    """An oracle at one small size.

    Attributes
    ----------
    listing, grammar : callable
        From an instance's lengths (None for the whole) to its structures, and to its recursion.
    lengths : sequence
        Those to bind; none if the oracle takes none.
    kinds : sequence of Kind
        On which all answers are compared.
    """

    oracle: HypergraphProgram
    event_shape: Any
    listing: Callable[[Any], list[Structure]]
    grammar: Callable[[Any], Grammar]
    lengths: Sequence[Any] = ()
    kinds: Sequence[ThetaKind] = EVERY
    _plain: dict[Any, Plain] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.oracle}-{self.event_shape}".replace(" ", "")

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return shapes_of(self.event_shape)

    def plain(self, length: Any) -> Plain:
        if length not in self._plain:
            self._plain[length] = Plain(self.listing(length), of_grammar(self.grammar(length), self.shapes))
        return self._plain[length]

    def bound(self, lengths: Sequence[Any]) -> HypergraphProgram:
        return self.oracle if lengths[0] is None else self.oracle.bind(lengths=torch.tensor(lengths))

    def batches(self, *kinds: ThetaKind) -> Iterator[Batch]:
        """Of each kind one without lengths and one with all of them, at least two."""
        own = list(self.lengths)
        for kind in kinds:
            for lengths in ([None] * 3, own if len(own) > 1 else own * 2):
                if lengths:
                    yield Batch(self, kind, lengths)


@dataclass(frozen=True, eq=False)
class Plain:
    """All structures of one size, and the recursion over them."""

    structures: list[Structure]
    recursion: Hyperedges

    @cached_property
    def rows(self) -> np.ndarray:
        """Structures as rows of parts."""
        return np.array([np.concatenate([z.ravel() for z in y]) for y in self.structures])

    @property
    def derivations(self) -> list[Derivation]:
        return self.recursion.derivations(self.goal)

    @property
    def goal(self) -> int:
        (goal,) = self.recursion.goals
        return goal


@dataclass(frozen=True, eq=False)
class Batch:
    """Potentials of a kind for instances of these lengths, with noise in the padding, which nothing may read."""

    program: Program
    kind: ThetaKind
    lengths: Sequence[Any]

    @cached_property
    def oracle(self) -> HypergraphProgram:
        return self.program.bound(self.lengths)

    @cached_property
    def theta(self) -> Parts:
        generator = np.random.default_rng([len(self.lengths), EVERY.index(self.kind)])
        tensors = []
        for shape in self.program.shapes:
            t = generator.normal(size=(len(self.lengths), *shape))
            tensors.append(np.round(t) if self.kind.ties else t * self.kind.scale)
        if self.kind.forbidden:
            for b, length in enumerate(self.lengths):
                structures = self.program.plain(length).structures
                for t, y in zip(tensors, structures[int(generator.integers(len(structures)))], strict=True):
                    t[b][(generator.random(y.shape) < 0.35) & (y == 0)] = -INF
        return formed([torch.from_numpy(t).to(self.kind.dtype) for t in tensors], self.program.event_shape)

    @cached_property
    def direction(self) -> Parts:
        return map_parts(lambda t: torch.cos(1 + torch.arange(t.numel())).reshape(t.shape).to(t), self.theta)

    @cached_property
    def instances(self) -> list[Instance]:
        rows = self.flat(self.theta)
        return [Instance(self, b, rows[b], self.program.plain(length)) for b, length in enumerate(self.lengths)]

    def flat(self, parts: Parts) -> np.ndarray:
        """Parts (..., *event) as (..., P)."""
        pairs = zip(as_tuple(parts), self.program.shapes, strict=True)
        return torch.cat([t.unsqueeze(-1).flatten(t.ndim - len(s)) for t, s in pairs], -1).double().numpy()


@dataclass(frozen=True, eq=False)
class Instance:
    """One of a batch."""

    batch: Batch
    index: int
    theta: np.ndarray
    plain: Plain

    @property
    def count(self) -> int:
        return len(self.plain.structures)

    @cached_property
    def scores(self) -> np.ndarray:
        """Of each structure."""
        theta = [t[self.index].double().numpy() for t in as_tuple(self.batch.theta)]
        return np.array([enumerators.score(theta, y) for y in self.plain.structures])

    @cached_property
    def ranking(self) -> list[float]:
        """Finite scores, the best first."""
        return sorted(self.scores[self.scores > -INF].tolist(), reverse=True)

    @cached_property
    def log_partition(self) -> float:
        return self.ranking[0] + math.log(math.fsum(math.exp(s - self.ranking[0]) for s in self.ranking))

    @cached_property
    def gibbs(self) -> np.ndarray:
        """The probability of each structure."""
        return np.exp(self.scores - self.log_partition)

    def at(self, alpha: float) -> Recursion:
        return self.plain.recursion.at(self.theta.tolist(), alpha)

    def support(self, alpha: float) -> dict[tuple[float, ...], float]:
        """Structures that the walk can make, with their probabilities, the most probable first."""
        return {tuple(map(float, d.parts)): p for p, d in self.at(alpha).support(self.plain.goal)}

    def every_structure(self) -> tuple[HypergraphProgram, Parts, Parts]:
        """A batch of all structures of this instance: its oracle, potentials and structures."""
        count = self.count
        oracle = self.batch.oracle[torch.full((count,), self.index)]
        theta = map_parts(lambda t: t[self.index].expand(count, *t.shape[1:]), self.batch.theta)
        columns = [np.stack(column) for column in zip(*self.plain.structures, strict=True)]
        tensors = [torch.from_numpy(c).to(t) for c, t in zip(columns, as_tuple(theta), strict=True)]
        return oracle, theta, pack_like(tensors, theta)


# ----------------------------------------------------------------------------- forms


def shapes_of(event_shape: Any) -> list[tuple[int, ...]]:
    return [event_shape] if isinstance(event_shape[0], int) else list(event_shape)


def formed(tensors: list[torch.Tensor], event_shape: Any) -> Parts:
    """A tuple if the event shape is one of several."""
    return tensors[0] if isinstance(event_shape[0], int) else tuple(tensors)
