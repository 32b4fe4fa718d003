"""Every query of a hypergraph program against a list of its structures and its recursion in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import enumerators
from enumerators import Structure
from recursions import Grammar, formed, mean_of, shapes_of, walks
from structinf.dp import HypergraphProgram
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.parts import Potentials, as_tuple, batch_size, like_potentials, map_parts
from structinf.regularizers import Negentropy, Regularizer, SquaredL2, Tsallis

__all__ = ["Program", "every_query"]

INF = math.inf
REGULARIZERS: tuple[Regularizer, ...] = (Negentropy(), Tsallis(alpha=1.5), SquaredL2())


@dataclass(frozen=True, eq=False)
class Program:
    """An oracle at one small size.

    Attributes
    ----------
    listing, grammar : callable
        From an instance's lengths (None for the whole) to its structures, and to its recursion.
    lengths : sequence
        Those to bind; none if the oracle takes none.
    """

    oracle: HypergraphProgram
    event_shape: Any
    listing: Callable[[Any], list[Structure]]
    grammar: Callable[[Any], Grammar]
    lengths: Sequence[Any] = ()
    _structures: dict[Any, list[Structure]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.oracle}-{self.event_shape}".replace(" ", "")

    def structures(self, length: Any) -> list[Structure]:
        if length not in self._structures:
            self._structures[length] = self.listing(length)
        return self._structures[length]

    @cached_property
    def batches(self) -> Sequence[Sequence[Any]]:
        """The lengths of the instances of each batch to try, of at least two."""
        own = list(self.lengths)
        return [[None] * 3, *([own if len(own) > 1 else own * 2] if own else [])]

    def bound(self, lengths: Sequence[Any]) -> HypergraphProgram:
        return self.oracle if lengths[0] is None else self.oracle.bind(lengths=torch.tensor(lengths))

    def draw(self, lengths: Sequence[Any], kind: str, dtype: torch.dtype = torch.float64) -> Potentials:
        """Potentials, 0 in the padding; of those "forbidden", a third is −inf where one structure is not."""
        generator = np.random.default_rng(len(lengths))
        tensors = []
        for shape in shapes_of(self.event_shape):
            t = generator.normal(size=(len(lengths), *shape))
            t = {"ties": np.round, "small": lambda t: t * 1e-3, "large": lambda t: t * 1e3}.get(kind, lambda t: t)(t)
            tensors.append(t)
        for b, length in enumerate(lengths):
            structures = self.structures(length)
            kept = structures[int(generator.integers(len(structures)))]
            for t, y, *all_y in zip(tensors, kept, *structures, strict=True):
                if kind == "forbidden":
                    t[b][(generator.random(y.shape) < 0.35) & (y == 0)] = -INF
                if length is not None:
                    t[b][~np.any([np.asarray(z) != 0 for z in all_y], axis=0)] = 0
        return formed([torch.from_numpy(t).to(dtype) for t in tensors], self.event_shape)

    def cases(self, *kinds: str, dtype: torch.dtype = torch.float64) -> Iterator[tuple[HypergraphProgram, Any, Any]]:
        for kind in kinds:
            for lengths in self.batches:
                yield self.bound(lengths), self.draw(lengths, kind, dtype), lengths

    def instances(self, theta: Potentials, lengths: Sequence[Any]) -> Iterator[tuple[int, list[np.ndarray], list]]:
        """Index, potentials as arrays, and structures of each instance."""
        for b, length in enumerate(lengths):
            yield b, [t[b].double().numpy() for t in as_tuple(theta)], self.structures(length)


# ----------------------------------------------------------------------------- queries


def argmax(program: Program) -> None:
    for oracle, theta, lengths in program.cases("normal", "ties", "forbidden", "large"):
        y = oracle.argmax(theta)
        for b, scores, structures in program.instances(theta, lengths):
            found = [t[b].numpy() for t in as_tuple(y)]
            assert any(all(np.array_equal(f, z) for f, z in zip(found, s, strict=True)) for s in structures)
            assert enumerators.score(scores, tuple(found)) == pytest.approx(enumerators.best(scores, structures))


def sums(program: Program) -> None:
    """log Z, its gradient, the latter weighted, the entropy and the number of structures."""
    for oracle, theta, lengths in program.cases("normal", "ties", "forbidden", "small", "large"):
        value, mean, entropy = oracle.log_partition(theta), oracle.marginals(theta), oracle.entropy(theta)
        weight = torch.linspace(-1, 2, len(lengths), dtype=torch.float64)
        weighted, count = oracle.log_partition_vjp(theta, weight), oracle.count(theta)
        for b, scores, structures in program.instances(theta, lengths):
            total = enumerators.log_partition(scores, structures)
            close(value[b], total)
            expected = enumerators.mean(scores, structures)
            close(row(mean, b), expected)
            close(row(weighted, b), [weight[b].item() * e for e in expected])
            each = [p for s in structures if (p := math.exp(enumerators.score(scores, s) - total)) > 0]
            close(entropy[b], -math.fsum(p * math.log(p) for p in each))
            assert count[b] == sum(enumerators.score(scores, s) > -INF for s in structures)


def covariances(program: Program) -> None:
    for oracle, theta, lengths in program.cases("normal", "forbidden"):
        v = map_parts(lambda t: torch.cos(torch.arange(t.numel()).double()).reshape(t.shape), theta)
        product = oracle.covariance_product(theta, v)
        for b, scores, structures in program.instances(theta, lengths):
            p = gibbs(scores, structures)
            along = np.array([enumerators.score([t[b].numpy() for t in as_tuple(v)], s) for s in structures])
            pieces = [np.array([s[i] for s in structures]) for i in range(len(scores))]
            close(row(product, b), [np.tensordot(p * (along - p @ along), piece, 1) for piece in pieces])


def log_probabilities(program: Program) -> None:
    for oracle, theta, lengths in program.cases("normal", "forbidden"):
        for b, scores, structures in program.instances(theta, lengths):
            total = enumerators.log_partition(scores, structures)
            own = oracle[torch.tensor([b])].repeat(len(structures))
            y = stack(structures, theta)
            found = own.log_prob(map_parts(lambda t, z, b=b: t[b : b + 1].expand(z.shape), theta, y), y)
            close(found, [enumerators.score(scores, s) - total for s in structures])
        with pytest.raises(InvalidInputError, match=r"no structure .*index 0"):
            oracle.log_prob(theta, map_parts(lambda t: torch.full_like(t, 0.5), theta))


def k_best(program: Program) -> None:
    for oracle, theta, lengths in program.cases("normal", "ties", "forbidden"):
        most = max(len(program.structures(length)) for length in lengths) + 1
        y, scores, valid = oracle.topk(theta, most)
        for b, own, structures in program.instances(theta, lengths):
            expected = sorted((enumerators.score(own, s) for s in structures), reverse=True)
            expected += [-INF] * (most - len(expected))
            close(scores[:, b], expected)
            assert valid[:, b].tolist() == [e > -INF for e in expected]
            found = np.concatenate([t[:, b].flatten(1).numpy() for t in as_tuple(y)], 1)
            count = int(valid[:, b].sum())
            assert len(np.unique(found[:count], axis=0)) == count
            assert not found[count:].any()
            close(
                [enumerators.score(own, tuple(t[i, b].numpy() for t in as_tuple(y))) for i in range(count)],
                expected[:count],
            )


def lists(program: Program) -> None:
    for lengths in program.batches:
        for length in lengths:
            oracle = program.bound([length])
            listed = flat(oracle.enumerate(program.event_shape))
            shapes = shapes_of(program.event_shape)
            like = formed([torch.zeros(1, *shape).double() for shape in shapes], program.event_shape)
            expected = flat(stack(program.structures(length), like))
            assert sorted(listed.tolist()) == sorted(expected.tolist())


def labels(program: Program) -> None:
    for oracle, theta, lengths in program.cases("normal"):
        for b, length in enumerate(lengths):
            y = stack(program.structures(length), theta)
            own = oracle[torch.tensor([b])].repeat(len(program.structures(length)))
            names = own.decode(y)
            assert names.dtype == torch.int64
            assert names.ndim == 1 + oracle.label_ndim
            assert len(names.flatten(1).unique(dim=0)) == len(names)
            for actual, expected in zip(as_tuple(own.encode(names, y)), as_tuple(y), strict=True):
                assert torch.equal(actual, expected)


def samples(program: Program) -> None:
    """Each structure comes as often as it should, within five standard errors, and nothing else comes."""
    n = 3000
    for oracle, theta, lengths in program.cases("normal", "forbidden"):
        drawn = oracle.sample(theta, n, torch.Generator().manual_seed(3))
        for b, scores, structures in program.instances(theta, lengths):
            p = gibbs(scores, structures)
            known = {tuple(np.concatenate([z.ravel() for z in s])): i for i, s in enumerate(structures)}
            found = np.concatenate([t[:, b].flatten(1).numpy() for t in as_tuple(drawn)], 1)
            count = np.bincount([known[tuple(y)] for y in found], minlength=len(p))
            assert not count[p == 0].any()
            assert (np.abs(count / n - p) <= 5 * np.sqrt(p * (1 - p) / n) + 1 / n).all()


def smoothed(program: Program) -> None:
    """DP_Ω, its gradient, its Hessian along a direction, and everything about the walk, by grammars."""
    for oracle, theta, lengths in program.cases("normal", "forbidden", "ties"):
        for regularizer in REGULARIZERS:
            value, mean = oracle.smoothed_value(theta, regularizer), oracle.smoothed_mean(theta, regularizer)
            entropy = oracle.entropy(theta, regularizer)
            structures, p = oracle.nonzero(theta, regularizer)
            for b, length in enumerate(lengths):
                one = map_parts(lambda t, b=b: t[b : b + 1], theta)
                expected, found = walks(program.grammar(length), one, regularizer)
                close(value[b], expected)
                close(row(mean, b), row(mean_of(found, program.event_shape), 0))
                weights = sorted((w for _, w in found if w > 1e-12), reverse=True)
                close(entropy[b], -math.fsum(w * math.log(w) for w in weights))
                close(p[: len(weights), b], weights)
                assert bool((p[len(weights) :, b] < 1e-12).all())
                close([np.tensordot(p[:, b], t[:, b], 1) for t in as_tuple(structures)], row(mean, b))


def hessians(program: Program) -> None:
    """By differences of the gradients that grammars give."""
    step = 1e-5
    for oracle, theta, lengths in program.cases("normal"):
        v = map_parts(lambda t: torch.cos(1 + torch.arange(t.numel()).double()).reshape(t.shape), theta)
        for regularizer in REGULARIZERS:
            product = oracle.smoothed_hessian_product(theta, v, regularizer)
            for b, length in enumerate(lengths):
                ahead, behind = (
                    mean_of(
                        walks(
                            program.grammar(length),
                            map_parts(lambda t, z, b=b, s=sign: (t + s * step * z)[b : b + 1], theta, v),
                            regularizer,
                        )[1],
                        program.event_shape,
                    )
                    for sign in (1, -1)
                )
                slope = map_parts(lambda a, c: (a - c) / (2 * step), ahead, behind)
                close(row(product, b), row(slope, 0), 2e-5)


def smoothed_samples(program: Program) -> None:
    regularizer = SquaredL2()
    for oracle, theta, _ in program.cases("normal"):
        drawn = oracle.smoothed_sample(theta, 2000, regularizer, torch.Generator().manual_seed(3))
        mean = oracle.smoothed_mean(theta, regularizer)
        for t, m in zip(as_tuple(drawn), as_tuple(mean), strict=True):
            variance = (t.square().mean(0) - t.mean(0).square()).clamp(min=0)
            assert bool(((t.mean(0) - m).abs() <= 5 * (variance / len(t)).sqrt() + 1e-3).all())


def derivatives(program: Program) -> None:
    for oracle, theta, _ in program.cases("normal"):
        leaves = [t[:2].clone(memory_format=torch.contiguous_format).requires_grad_() for t in as_tuple(theta)]
        own = oracle[torch.arange(2)]

        def log_partition(*tensors, own=own, theta=theta):
            return own.log_partition(like_potentials(tensors, theta))

        assert torch.autograd.gradcheck(log_partition, leaves)
        assert torch.autograd.gradgradcheck(log_partition, leaves)


def single_precision(program: Program) -> None:
    for kind in ("normal", "forbidden", "small", "large"):
        for oracle, theta, lengths in program.cases(kind, dtype=torch.float32):
            value, mean = oracle.log_partition(theta), oracle.marginals(theta)
            assert all(t.dtype == torch.float32 for t in [value, *as_tuple(mean), *as_tuple(oracle.argmax(theta))])
            for b, scores, structures in program.instances(theta, lengths):
                total = enumerators.log_partition(scores, structures)
                assert value[b].item() == pytest.approx(total, rel=1e-5, abs=1e-5)
                close(row(mean, b), enumerators.mean(scores, structures), 1e-5)


def batches(program: Program) -> None:
    """Each instance alone is as in its batch; an empty batch has empty answers."""
    for oracle, theta, lengths in program.cases("normal", "ties"):
        for ask in (oracle.__class__.argmax, oracle.__class__.marginals, oracle.__class__.log_partition):
            together = ask(oracle, theta)
            spread = map_parts(lambda t: t.transpose(0, -1).contiguous().transpose(0, -1), theta)
            for b in range(len(lengths)):
                alone = ask(oracle[torch.tensor([b])], map_parts(lambda t, b=b: t[b : b + 1], spread))
                close(row(alone, 0), row(together, b))
        none = torch.arange(0)
        nothing = map_parts(lambda t: t[:0], theta)
        assert oracle[none].log_partition(nothing).shape == (0,)
        for ask in (oracle[none].argmax, oracle[none].marginals):
            assert [t.shape for t in as_tuple(ask(nothing))] == [t.shape for t in as_tuple(nothing)]


def infeasible(program: Program) -> None:
    for oracle, theta, lengths in program.cases("normal"):
        best = oracle.argmax(theta)
        if any(
            not np.concatenate([z.ravel() for z in s]).any() for length in lengths for s in program.structures(length)
        ):
            assert batch_size(best) == len(lengths)  # the empty structure needs no part
            continue
        for t in as_tuple(theta):
            t[1] = -INF
        for ask in (oracle.argmax, oracle.log_partition, oracle.marginals, lambda t, o=oracle: o.topk(t, 2)):
            with pytest.raises(InfeasibleError, match="batch index 1"):
                ask(theta)


QUERIES = (
    argmax,
    sums,
    covariances,
    log_probabilities,
    k_best,
    lists,
    labels,
    samples,
    smoothed,
    hessians,
    smoothed_samples,
    derivatives,
    single_precision,
    batches,
    infeasible,
)


def every_query(programs: Sequence[Program]) -> Callable[[Any], Any]:
    """Run a test for each of the ``programs`` and each of the queries."""

    def decorate(test: Any) -> Any:
        asked = [(query, program) for program in programs for query in QUERIES]
        names = [f"{query.__name__}-{program}" for query, program in asked]
        return pytest.mark.parametrize(("query", "program"), asked, ids=names)(test)

    return decorate


# ----------------------------------------------------------------------------- shared steps


def row(parts: Potentials, b: int) -> list[np.ndarray]:
    """Instance ``b``, as arrays."""
    return [t[b].detach().double().numpy() for t in as_tuple(parts)]


def close(actual: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Within the tolerance, relative to the size of what is expected."""
    pairs = zip(actual, expected, strict=True) if isinstance(actual, list) else [(actual, expected)]
    for a, e in pairs:
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=tolerance, atol=tolerance)


def stack(structures: Sequence[Structure], like: Potentials) -> Potentials:
    """(N, *event), of the form of ``like``."""
    columns = [np.stack(column) for column in zip(*structures, strict=True)]
    return like_potentials([torch.from_numpy(c).to(t) for c, t in zip(columns, as_tuple(like), strict=True)], like)


def flat(parts: Potentials) -> Tensor:
    return torch.cat([t.flatten(1) for t in as_tuple(parts)], 1)


def gibbs(scores: Sequence[np.ndarray], structures: Sequence[Structure]) -> np.ndarray:
    """The probability of each structure."""
    total = enumerators.log_partition(scores, structures)
    return np.array([math.exp(enumerators.score(scores, s) - total) for s in structures])
