"""Every query of a hypergraph program against a plain list of its structures and a plain recursion over them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import enumerators
from enumerators import Structure
from hyperedges import Derivation, Hyperedges, Recursion
from structinf.dp import HypergraphProgram
from structinf.errors import InvalidInputError
from structinf.parts import Potentials, as_tuple, map_parts
from structinf.regularizers import Negentropy, SquaredL2, Tsallis, Unregularized

INF = math.inf
SMOOTH = {1: Negentropy(), 1.5: Tsallis(alpha=1.5), 2: SquaredL2()}
REGULARIZERS = SMOOTH | {INF: Unregularized()}

alphas = pytest.mark.parametrize("alpha", REGULARIZERS)
smooth_alphas = pytest.mark.parametrize("alpha", SMOOTH)


@dataclass(frozen=True, eq=False)
class Program:
    """An oracle, and what it should know by itself.

    Attributes
    ----------
    listing, recursion : callable
        From an instance's lengths (None for the whole) to all structures, and to the recursion over them.
    lengths : sequence
        Those that ``listing`` takes, None among them.
    """

    oracle: HypergraphProgram
    event_shape: Any
    listing: Callable[[Any], list[Structure]]
    recursion: Callable[[Any], Hyperedges]
    lengths: Sequence[Any] = (None,)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return self.event_shape if not isinstance(self.event_shape[0], int) else (self.event_shape,)

    def form(self, tensors: Sequence[Tensor]) -> Potentials:
        return tuple(tensors) if len(self.shapes) > 1 else tensors[0]

    def __str__(self) -> str:
        return f"{self.oracle!r}-{self.event_shape}".replace(" ", "")


@dataclass(frozen=True, eq=False)
class Instance:
    """One of a batch, in plain numbers."""

    theta: list[np.ndarray]
    structures: list[Structure]
    recursion: Hyperedges

    @property
    def flat(self) -> list[float]:
        return np.concatenate([t.ravel() for t in self.theta]).tolist()

    def at(self, alpha: float) -> tuple[Recursion, int]:
        return self.recursion.at(self.flat, alpha), self.recursion.goals[0]

    def support(self, alpha: float) -> list[tuple[float, Derivation]]:
        at, goal = self.at(alpha)
        found = [(at.probability(d), d) for d in self.recursion.derivations(goal)]
        return sorted((pair for pair in found if pair[0] > 0), key=lambda pair: -pair[0])

    @property
    def scores(self) -> list[float]:
        return [enumerators.score(self.theta, y) for y in self.structures]


@dataclass(frozen=True, eq=False)
class Batch:
    """Random potentials; a structure is left to each instance where some parts are forbidden."""

    program: Program
    kind: str = "normal"
    scale: float = 1.0
    dtype: torch.dtype = torch.float64

    @cached_property
    def lengths(self) -> Sequence[Any]:
        """Of each instance, every one twice."""
        return [length for length in self.program.lengths for _ in range(2)]

    @cached_property
    def oracle(self) -> HypergraphProgram:
        if self.lengths == [None, None]:
            return self.program.oracle
        whole = self.program.shapes[0]
        return self.program.oracle.bind(lengths=torch.tensor([whole if n is None else n for n in self.lengths]))

    @cached_property
    def theta(self) -> Potentials:
        rows = [self._row(self.program.listing(length)) for length in self.lengths]
        return self.program.form([torch.stack([r[i] for r in rows]) for i in range(len(self.program.shapes))])

    def _row(self, structures: list[Structure]) -> list[Tensor]:
        tensors = [torch.randn(shape, dtype=torch.float64) for shape in self.program.shapes]
        if self.kind == "ties":
            tensors = [torch.randint(-1, 2, shape).double() for shape in self.program.shapes]
        if self.kind == "forbidden":
            kept = structures[int(torch.randint(len(structures), ()))]
            for t, y in zip(tensors, kept, strict=True):
                t[(torch.rand(t.shape) < 0.3) & (torch.from_numpy(y) == 0)] = -INF
        return [(t * self.scale).to(self.dtype) for t in tensors]

    @cached_property
    def instances(self) -> list[Instance]:
        tensors = [t.double().numpy() for t in as_tuple(self.theta)]
        return [
            Instance([t[b] for t in tensors], self.program.listing(length), self.program.recursion(length))
            for b, length in enumerate(self.lengths)
        ]

    def flat(self, parts: Potentials) -> Tensor:
        """(..., B, P)."""
        ndims = [len(shape) for shape in self.program.shapes]
        pieces = [t.unsqueeze(-1).flatten(t.ndim - n) for t, n in zip(as_tuple(parts), ndims, strict=True)]
        return torch.cat(pieces, -1).double()

    def stacked(self, structures: Sequence[Structure]) -> Potentials:
        """(N, *event)."""
        tensors = [np.stack([y[i] for y in structures]) for i in range(len(self.program.shapes))]
        return self.program.form([torch.from_numpy(t).to(self.dtype) for t in tensors])


def joined(y: Structure) -> tuple[float, ...]:
    return tuple(np.concatenate([t.ravel() for t in y]).tolist())


def close(found: Tensor, expected: Any, tolerance: float = 1e-9) -> None:
    expected = torch.as_tensor(np.array(expected), dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


KINDS = [
    ("normal", 1.0, torch.float64, 1e-9),
    ("ties", 1.0, torch.float64, 1e-9),
    ("forbidden", 1.0, torch.float64, 1e-9),
    ("normal", 1e-3, torch.float64, 1e-9),
    ("forbidden", 1e3, torch.float64, 1e-9),
    ("forbidden", 1.0, torch.float32, 3e-6),
    ("normal", 1e3, torch.float32, 3e-6),
]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]:g}-{str(kind[2])[6:]}")
def drawn(request: Any, program: Program) -> tuple[Batch, float]:
    """A batch, and how exact its answers must be."""
    kind, scale, dtype, tolerance = request.param
    return Batch(program, kind, scale, dtype), tolerance


class ProgramTests:
    """To inherit, with ``program`` parametrized."""

    def test_the_plain_recursion_is_that_of_the_list(self, program: Program) -> None:
        for instance in Batch(program).instances:
            found = [tuple(map(float, d.parts)) for d in instance.recursion.derivations(instance.recursion.goals[0])]
            assert sorted(found) == sorted(map(joined, instance.structures))
            assert len(set(found)) == len(found)

    def test_enumerate_and_count(self, program: Program) -> None:
        given = Batch(program, "forbidden")
        for b, instance in enumerate(given.instances):
            listed = given.flat(given.oracle[b : b + 1].enumerate(program.event_shape)).tolist()
            assert sorted(map(tuple, listed)) == sorted(map(joined, instance.structures))
        allowed = [sum(score > -INF for score in instance.scores) for instance in given.instances]
        assert given.oracle.count(given.theta) == allowed

    def test_best_structures(self, program: Program, drawn: tuple[Batch, float]) -> None:
        given, tolerance = drawn
        y = given.flat(given.oracle.argmax(given.theta)).tolist()
        k = 5
        structures, scores, valid = given.oracle.topk(given.theta, k)
        for b, instance in enumerate(given.instances):
            of = {joined(s): score for s, score in zip(instance.structures, instance.scores, strict=True)}
            best = sorted((s for s in of.values() if s > -INF), reverse=True)[:k]
            room = tolerance * max(map(abs, best)) + tolerance
            assert of[tuple(y[b])] == pytest.approx(best[0], abs=room, rel=tolerance)
            assert valid[:, b].sum() == len(best)
            found = [of[tuple(row)] for row in given.flat(structures)[: len(best), b].tolist()]
            assert found == pytest.approx(best, abs=room, rel=tolerance)
            assert scores[: len(best), b].tolist() == pytest.approx(best, abs=room, rel=tolerance)
            assert (scores[len(best) :, b] == -INF).all()

    def test_ties_go_to_the_first_rule(self, program: Program) -> None:
        given = Batch(program, "ties")
        expected = [at.mean(goal) for at, goal in (instance.at(INF) for instance in given.instances)]
        assert given.flat(given.oracle.argmax(given.theta)).tolist() == expected

    def test_sums_over_the_list(self, program: Program, drawn: tuple[Batch, float]) -> None:
        given, tolerance = drawn
        z = self._direction(given)
        product = given.flat(given.oracle.covariance_product(given.theta, z))
        room = tolerance * max(1.0, given.scale)
        for b, instance in enumerate(given.instances):
            value = enumerators.log_partition(instance.theta, instance.structures)
            p = np.exp([score - value for score in instance.scores])
            rows = np.array([joined(y) for y in instance.structures])
            mean = p @ rows
            along = rows @ given.flat(z)[b].numpy()
            close(given.oracle.log_partition(given.theta)[b], value, tolerance * max(1.0, abs(value)))
            close(given.flat(given.oracle.marginals(given.theta))[b], mean, room)
            close(product[b], (p * (along - p @ along)) @ rows, 10 * room)
            entropy = -math.fsum(x * math.log(x) for x in p if x > 0)
            close(given.oracle.entropy(given.theta)[b], entropy, 10 * room)

    @alphas
    def test_smoothed(self, program: Program, alpha: float, drawn: tuple[Batch, float]) -> None:
        given, tolerance = drawn
        omega, room, z = REGULARIZERS[alpha], tolerance * max(1.0, given.scale), self._direction(given)
        value = given.oracle.smoothed_value(given.theta, omega)
        mean = given.flat(given.oracle.smoothed_mean(given.theta, omega))
        product = given.flat(given.oracle.smoothed_hessian_product(given.theta, z, omega))
        entropy = given.oracle.entropy(given.theta, omega)
        for b, instance in enumerate(given.instances):
            at, goal = instance.at(alpha)
            close(value[b], at.v[goal], max(room, tolerance * abs(at.v[goal])))
            close(mean[b], at.mean(goal), room)
            if given.kind != "ties":  # where the Hessian may have steps
                close(product[b], at.hessian_product(goal, given.flat(z)[b].tolist()), 20 * room)
            close(entropy[b], at.entropy(goal), 10 * room)

    @alphas
    def test_samples_and_support(self, program: Program, alpha: float) -> None:
        given, omega, n = Batch(program, "forbidden"), REGULARIZERS[alpha], 2000
        drawn = given.flat(given.oracle.smoothed_sample(given.theta, n, omega, torch.Generator().manual_seed(0)))
        structures, probabilities = given.oracle.nonzero(given.theta, omega)
        for b, instance in enumerate(given.instances):
            expected = {tuple(map(float, d.parts)): p for p, d in instance.support(alpha)}
            found = [tuple(row) for row in given.flat(structures)[: len(expected), b].tolist()]
            assert set(found) == set(expected)
            close(probabilities[: len(expected), b], sorted(expected.values(), reverse=True))
            assert (probabilities[len(expected) :, b] == 0).all()
            frequency = Counter(map(tuple, drawn[:, b].tolist()))
            assert set(frequency) <= set(expected)
            for y, p in expected.items():
                assert abs(frequency[y] / n - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1e-9
        if alpha == 1:
            plain = given.oracle.sample(given.theta, n, torch.Generator().manual_seed(0))
            assert torch.equal(given.flat(plain), drawn)

    @smooth_alphas
    def test_log_prob(self, program: Program, alpha: float) -> None:
        given = Batch(program)
        for b, instance in enumerate(given.instances):
            probability = {tuple(map(float, d.parts)): p for p, d in instance.support(alpha)}
            count = len(instance.structures)
            theta = map_parts(lambda t, b=b, n=count: t[b : b + 1].expand(n, *t.shape[1:]), given.theta)
            oracle = given.oracle[torch.full((count,), b)]
            found = oracle.log_prob(theta, given.stacked(instance.structures), SMOOTH[alpha])
            close(found.exp(), [probability.get(joined(y), 0.0) for y in instance.structures])

    @smooth_alphas
    def test_derivatives(self, program: Program, alpha: float) -> None:
        given = Batch(program)
        leaves = [t[:1].clone().requires_grad_() for t in as_tuple(given.theta)]

        def value(*tensors: Tensor) -> Tensor:
            return given.oracle[:1].smoothed_value(given.program.form(tensors), SMOOTH[alpha])

        assert gradcheck(value, leaves)
        assert gradgradcheck(value, leaves)

    def test_labels(self, program: Program) -> None:
        given = Batch(program)
        for b, instance in enumerate(given.instances):
            oracle = given.oracle[torch.full((len(instance.structures),), b)]
            y = given.stacked(instance.structures)
            labels = oracle.decode(y)
            assert len(labels.unique(dim=0)) == len(instance.structures)
            assert torch.equal(given.flat(oracle.encode(labels, y)), given.flat(y))
            with pytest.raises(InvalidInputError, match=r"labels: .* at batch index 0"):
                oracle.encode(torch.full_like(labels, 99), y)
            with pytest.raises(InvalidInputError, match="labels: "):
                oracle.encode(labels[:, :-1] if labels.shape[1] > 1 else labels[:, :0], y)

    def test_empty_batch(self, program: Program) -> None:
        given = Batch(program)
        oracle, theta = given.oracle[:0], map_parts(lambda t: t[:0], given.theta)
        assert given.flat(oracle.argmax(theta)).shape[0] == 0
        assert given.flat(oracle.marginals(theta)).shape[0] == 0
        assert oracle.log_partition(theta).shape == (0,)
        assert oracle.decode(oracle.argmax(theta)).shape[0] == 0

    @staticmethod
    def _direction(given: Batch) -> Potentials:
        generator = torch.Generator().manual_seed(3)
        return map_parts(lambda t: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t), given.theta)
