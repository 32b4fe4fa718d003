"""DynamicProgram: recursions against what their grammars say, and grammars against enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch.autograd import gradcheck, gradgradcheck

import structinf as si
from recursions import (
    INF,
    FewOnes,
    Grid,
    Own,
    Rod,
    Tags,
    Twins,
    derivations,
    formed,
    mean_of,
    score,
    shapes_of,
    stacked,
    summed,
    walks,
)
from structinf import autograd
from structinf.dp.recursion import DynamicProgram
from structinf.errors import InfeasibleError, PluginError, UnsupportedError
from structinf.parts import Potentials, as_tuple, map_parts, weigh
from structinf.regularizers import Negentropy, SquaredL2, Tsallis, Unregularized
from structinf.relaxations.smoothed import SmoothedValue
from structinf.smoothing import routed_max


@dataclass(frozen=True)
class Example:
    """A batch of three, whose lengths may differ."""

    oracle: DynamicProgram
    event_shape: Any
    lengths: tuple = ()

    def __str__(self) -> str:
        return type(self.oracle).__name__ + "-lengths" * bool(self.lengths)

    @property
    def bound(self) -> DynamicProgram:
        return self.oracle.bind(lengths=torch.tensor(self.lengths)) if self.lengths else self.oracle

    def grammar(self, b: int):
        return self.oracle.grammar(self.event_shape, self.lengths[b] if self.lengths else None)

    def draw(self, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Potentials:
        drawn = [(scale * torch.randn(3, *s, dtype=torch.float64)).to(dtype) for s in shapes_of(self.event_shape)]
        theta = formed(drawn, self.event_shape)
        masks = self.bound.valid_parts(theta)
        return theta if masks is None else map_parts(lambda t, inside: t.where(inside, 0.0), theta, masks)


EXAMPLES = [
    Example(FewOnes(k=2), (5,)),
    Example(FewOnes(k=3), (1,)),
    Example(Grid(), (3, 4)),
    Example(Grid(), (3, 3), ((3, 3), (1, 2), (2, 3))),
    Example(Tags(), ((3, 2), (2, 2))),
    Example(Tags(), ((4, 3), (3, 3)), (4, 1, 2)),
    Example(Rod(length=5), (3,)),
    Example(Twins(), (5,)),
]
SMOOTH = [Negentropy(), Tsallis(), SquaredL2(), Own()]
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=str)
every_smooth = pytest.mark.parametrize("regularizer", SMOOTH, ids=lambda r: type(r).__name__)
every_regularizer = pytest.mark.parametrize("regularizer", [*SMOOTH, Unregularized()], ids=lambda r: type(r).__name__)


def rows(theta: Potentials, b: int) -> Potentials:
    """Instance ``b`` as a batch of one."""
    return map_parts(lambda t: t[b : b + 1], theta)


def flat(y: Potentials) -> torch.Tensor:
    return torch.cat([t.flatten(1) for t in as_tuple(y)], 1)


def assert_close(actual, expected, atol=1e-12):
    for a, e in zip(as_tuple(actual), as_tuple(expected), strict=True):
        torch.testing.assert_close(a, torch.as_tensor(e, dtype=a.dtype), rtol=0, atol=atol)


# ----------------------------------------------------------------------------- the grammars


def listed(oracle, event_shape, lengths=None) -> Counter:
    found = derivations(oracle.grammar(event_shape, lengths))
    return Counter(map(tuple, flat(stacked([p for p, _ in found], event_shape)).tolist()))


def test_grammars_of_strings_and_rods():
    strings = [s for s in itertools.product([0, 1], repeat=5) if not any(a and b for a, b in itertools.pairwise(s))]
    assert listed(FewOnes(k=2), (5,)) == Counter(s for s in strings if sum(s) <= 2)
    counts = itertools.product(range(6), repeat=3)
    assert listed(Rod(length=5), (3,)) == Counter(c for c in counts if c[0] + 2 * c[1] + 3 * c[2] == 5)


def test_grammar_of_tags():
    tagged = []
    for tags in itertools.product(range(2), repeat=3):
        unary, transition = np.zeros((4, 2)), np.zeros((2, 2))
        unary[range(3), tags] = 1
        np.add.at(transition, (tags[:-1], tags[1:]), 1)
        tagged.append((*unary.ravel(), *transition.ravel()))
    assert listed(Tags(), ((4, 2), (2, 2)), 3) == Counter(tagged)


def test_grammars_of_grids_and_twins_count():
    for n, m in itertools.product(range(3), range(4)):
        paths = listed(Grid(), (3, 4), (n + 1, m + 1))
        delannoy = sum(math.comb(n, k) * math.comb(n + m - k, n) for k in range(min(n, m) + 1))
        assert len(paths) == paths.total() == delannoy
    assert listed(Twins(), (5,)).total() == (4 + 1) ** 2 * 2 + 2


# ----------------------------------------------------------------------------- values and gradients


@every_example
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_gibbs_distribution_and_best_structure(example, scale):
    theta, v = example.draw(scale), example.draw()
    value, mean = example.bound.log_partition(theta), example.bound.marginals(theta)
    best, product = example.bound.argmax(theta), example.bound.covariance_product(theta, v)
    room = 1e-12 * max(1, scale)
    for b in range(3):
        y = stacked([p for p, _ in derivations(example.grammar(b))], example.event_shape)
        scores, slopes = flat(y) @ flat(theta)[b], flat(y) @ flat(v)[b]
        p = scores.softmax(0)
        assert_close(value[b], scores.logsumexp(0), room)
        assert_close(rows(mean, b), summed(p, y), room)
        assert_close(rows(product, b), summed(p * (slopes - p @ slopes), y), 10 * room)
        assert_close(rows(best, b), rows(y, int(scores.argmax())), 0)


@every_example
@every_regularizer
@pytest.mark.parametrize("ties", [False, True])
def test_smoothed_value_and_mean(example, regularizer, ties):
    theta = map_parts(torch.round, example.draw()) if ties else example.draw()
    value, mean = example.bound.smoothed_value(theta, regularizer), example.bound.smoothed_mean(theta, regularizer)
    for b in range(3):
        expected, found = walks(example.grammar(b), rows(theta, b), regularizer)
        assert_close(value[b], expected)
        assert_close(rows(mean, b), mean_of(found, example.event_shape))
    weight = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    assert_close(example.bound.smoothed_vjp(theta, weight, regularizer), weigh(mean, weight))


def test_a_shared_tensor_gets_the_sum_over_the_batch():
    theta = (torch.randn(3, 4, 2), torch.randn(1, 2, 2))
    weight = torch.tensor([0.5, -1.0, 2.0])
    unary, transition = Tags().smoothed_vjp(theta, weight, SquaredL2())
    means = weigh(Tags().smoothed_mean(theta, SquaredL2()), weight)
    assert_close((unary, transition), (means[0], means[1].sum(0, keepdim=True)), 1e-6)


@every_example
@every_regularizer
def test_smoothed_hessian_product(example, regularizer):
    theta, v, step = example.draw(), example.draw(), 1e-6
    product = example.bound.smoothed_hessian_product(theta, v, regularizer)
    ends = [map_parts(lambda t, z, s=s: t + s * z, theta, v) for s in (step, -step)]
    for b in range(3):
        means = [mean_of(walks(example.grammar(b), rows(e, b), regularizer)[1], example.event_shape) for e in ends]
        assert_close(rows(product, b), map_parts(lambda p, m: (p - m) / (2 * step), *means), 1e-7)


@every_example
@every_smooth
@pytest.mark.parametrize(
    "attach", [SmoothedValue.value, autograd.value, autograd.gradient], ids=["plain", "value", "mean"]
)
def test_derivatives_of_every_order(example, regularizer, attach):
    inputs = [t.requires_grad_() for t in as_tuple(example.draw())]

    def function(*tensors):
        return attach(SmoothedValue(example.bound, regularizer), formed(list(tensors), example.event_shape))

    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def test_gradcheck_of_relax():
    theta = [torch.randn(2, *shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 2), (2, 2))]
    assert gradcheck(lambda *t: si.relax(t, Tags(), "marginals", lengths=[3, 2]), theta)
    assert gradgradcheck(lambda *t: si.relax(t, Tags(), "marginals", lengths=[3, 2]), theta)


# ----------------------------------------------------------------------------- samples


def assert_frequencies(drawn, found, event_shape) -> None:
    """Pearson's chi-square test, which right walks fail once in a million; nothing but ``found`` may come."""
    probability: Counter = Counter()
    for y, (_, p) in zip(flat(stacked([p for p, _ in found], event_shape)).tolist(), found, strict=True):
        probability[tuple(y)] += p
    came = Counter(map(tuple, flat(drawn).tolist()))
    assert all(probability[y] > 0 for y in came)
    counts, expected = np.array([(came[y], came.total() * p) for y, p in probability.items()]).T
    rare = expected < 5
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    cells = expected > 1
    statistic = ((counts - expected)[cells] ** 2 / expected[cells]).sum()
    assert scipy.stats.chi2.sf(statistic, max(cells.sum() - 1, 1)) > 1e-6


@every_example
def test_samples_are_exact(example):
    theta = example.draw()
    drawn = example.bound.sample(theta, 4000, torch.Generator().manual_seed(1))
    for b in range(3):
        every = [parts for parts, _ in derivations(example.grammar(b))]
        p = scipy.special.softmax([score(rows(theta, b), parts) for parts in every])
        assert_frequencies(
            map_parts(lambda y, b=b: y[:, b], drawn), list(zip(every, p, strict=True)), example.event_shape
        )


@every_example
@every_smooth
def test_smoothed_samples_are_walks(example, regularizer):
    theta = example.draw(0.5)
    drawn = example.bound.smoothed_sample(theta, 3000, regularizer, torch.Generator().manual_seed(2))
    for b in range(3):
        _, found = walks(example.grammar(b), rows(theta, b), regularizer)
        assert_frequencies(map_parts(lambda y, b=b: y[:, b], drawn), found, example.event_shape)


def test_hard_samples_are_the_best_structure():
    theta = torch.randn(2, 5)
    drawn = FewOnes(k=2).smoothed_sample(theta, 3, Unregularized())
    assert_close(drawn, FewOnes(k=2).argmax(theta).expand(3, 2, 5), 0)


def test_samples_have_the_form_of_theta_and_come_from_the_generator():
    theta = (torch.randn(3, 4, 3), torch.randn(1, 3, 3))
    oracle = Tags().bind(lengths=torch.tensor([4, 1, 2]))
    state = torch.get_rng_state()
    first, second = (oracle.sample(theta, 5, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert [y.shape for y in first] == [(5, 3, 4, 3), (5, 3, 3, 3)]
    assert first[0].dtype is torch.float32
    assert_close(first, second, 0)
    assert [y.shape for y in oracle.sample(theta, 0)] == [(0, 3, 4, 3), (0, 3, 3, 3)]


def test_no_entry_of_probability_zero_is_drawn(monkeypatch):
    last = 1 - 2.0**-53  # the largest uniform number: times the total it rounds to the total
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, last, dtype=torch.float64))
    theta = torch.tensor([[0.0, 0.0, -INF]], dtype=torch.float64)

    class First(DynamicProgram):
        event_ndim = 1

        def value(self, theta, smax):
            return smax(theta)

    assert First().sample(theta, 1).tolist() == [[[0.0, 1.0, 0.0]]]


# ----------------------------------------------------------------------------- the laws


@pytest.mark.parametrize(
    ("oracle", "event_shape", "structure", "dtype"),
    [
        (FewOnes(k=2), (4,), None, torch.float64),
        (Grid(), (2, 3), {"lengths": [[2, 3], [1, 2], [2, 2], [2, 1]]}, torch.float64),
        (Tags(), ((2, 2), (2, 2)), None, torch.float32),
    ],
    ids=["FewOnes", "Grid", "Tags"],
)
def test_laws(oracle, event_shape, structure, dtype):
    assert not si.testing.check_oracle(oracle, event_shape, structure=structure, dtypes=[dtype]).broken


def test_laws_of_counts():
    # Pieces are counted, up to four of a length: no cost of a piece adds up to a Hamming distance then.
    broken = [
        r.law for r in si.testing.oracle_results(Rod(length=4), (3,), dtypes=[torch.float64]) if r.error is not None
    ]
    assert broken == ["hamming_cost"]


def test_ties_go_to_the_first_entry():
    assert FewOnes(k=2).argmax(torch.zeros(2, 4)).tolist() == [[0.0] * 4] * 2
    assert Grid().argmax(torch.zeros(1, 2, 2)).tolist() == [[[1.0, 1.0], [0.0, 1.0]]]


@every_regularizer
def test_forbidden_parts(regularizer):
    oracle, theta = Grid(), torch.randn(2, 3, 3, dtype=torch.float64)
    theta[0, 1, :2] = theta[1, 0, 1] = -INF
    theta[1, :, 2] = theta[1, 2, 2].clone()
    inputs = theta.clone().requires_grad_()
    value = oracle.smoothed_value(inputs, regularizer)
    (first,) = torch.autograd.grad(value.sum(), inputs, create_graph=True)
    (second,) = torch.autograd.grad((first * torch.randn_like(theta)).sum(), inputs)
    for derivative in (first, second):
        assert derivative.isfinite().all()
        assert not derivative[theta.isneginf()].any()
    for b in range(2):
        expected, found = walks(oracle.grammar((3, 3)), theta[b : b + 1], regularizer)
        assert_close(value[b], expected)
        assert_close(first[b : b + 1], mean_of(found, (3, 3)))
    drawn = oracle.smoothed_sample(theta, 50, regularizer)
    assert not drawn[:, theta.isneginf()].any()


def test_infeasible_instances_are_named():
    theta = torch.zeros(3, 3, 3)
    theta[1, 2, 2] = -INF
    oracle = Grid()
    queries = [
        oracle.argmax,
        oracle.log_partition,
        oracle.marginals,
        lambda t: oracle.sample(t, 2),
        lambda t: oracle.smoothed_value(t, SquaredL2()),
        lambda t: oracle.smoothed_hessian_product(t, t, SquaredL2()),
    ]
    for query in queries:
        with pytest.raises(InfeasibleError, match=r"no structure of Grid .* batch index 1") as error:
            query(theta)
        assert error.value.batch_index == 1


@every_example
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_empty_batch_and_dtypes(example, dtype):
    oracle, some = example.bound, example.draw(dtype=dtype)
    none = map_parts(lambda t: t[:0], some)
    for o, theta, size in ((oracle, some, 3), (oracle[torch.zeros(3, dtype=torch.bool)], none, 0)):
        assert o.log_partition(theta).shape == (size,)
        assert o.log_partition(theta).dtype is dtype
        for answer in (o.argmax(theta), o.smoothed_mean(theta, SquaredL2()), rows(o.sample(theta, 1), 0)):
            assert [t.dtype for t in as_tuple(answer)] == [dtype] * len(as_tuple(theta))
        assert [t.shape for t in as_tuple(o.sample(theta, 2))] == [(2, *t.shape) for t in as_tuple(theta)]


def test_relax_with_lengths_and_rubbish_in_the_padding():
    unary, transition = torch.randn(2, 1, 4, 3), torch.randn(3, 3)
    unary[1, 0, 2:] = torch.nan
    for relaxation in ("map", "marginals"):
        mean, counts = si.relax((unary, transition), Tags(), relaxation, lengths=[[4], [2]])
        assert not mean[1, 0, 2:].any()
        torch.testing.assert_close(mean.sum(-1), torch.tensor([[[1.0] * 4], [[1.0, 1.0, 0.0, 0.0]]]))
        torch.testing.assert_close(counts.sum((-1, -2)), torch.tensor([[3.0], [1.0]]))


# ----------------------------------------------------------------------------- the valid parts


def test_valid_parts_are_those_of_some_derivation():
    for example in EXAMPLES:
        if not example.lengths:
            continue
        theta = example.draw()
        masks = as_tuple(example.bound.valid_parts(theta))
        for b, lengths in enumerate(example.lengths):
            used = as_tuple(example.oracle.bind(lengths=torch.tensor([lengths])).enumerate(example.event_shape))
            for mask, y in zip(masks, used, strict=True):
                assert torch.equal(mask[b], y.any(0))
        if isinstance(theta, tuple):
            shared = example.bound.valid_parts((theta[0], theta[1][:1]))[1]
            assert torch.equal(shared, masks[1].any(0, keepdim=True))


def test_valid_parts_of_opposite_signs_and_of_rare_derivations():
    class Signed(DynamicProgram):
        """Signs ±1; the first part is in one of 2^1200 derivations."""

        event_ndim = 1
        structure_ndim: ClassVar = {"lengths": 0}

        def value(self, theta, smax):
            rare = theta[:, 0]
            for _ in range(1200):
                rare = smax(torch.stack([rare, torch.zeros_like(rare)]), 0)
            inside = torch.arange(theta.shape[1]) < self.bound["lengths"][:, None]
            signs = smax(torch.stack([theta, -theta], -1)).where(inside, 0.0)
            return rare + signs[:, 1:].sum(1)

    oracle = Signed().bind(lengths=torch.tensor([3, 1]))
    assert oracle.valid_parts(torch.zeros(2, 4)).tolist() == [[True, True, True, False], [True, False, False, False]]
    assert Signed().valid_parts(torch.zeros(2, 4)) is None


# ----------------------------------------------------------------------------- wrong recursions


def program(recursion) -> DynamicProgram:
    return type("Program", (DynamicProgram,), {"event_ndim": 1, "value": recursion})()


def test_wrong_results_of_value_are_refused():
    for recursion, came in (
        (lambda self, theta, smax: smax(theta).sum(), r"shape \(\)"),
        (lambda self, theta, smax: theta, r"shape \(2, 3\)"),
        (lambda self, theta, smax: 0.0, "float"),
    ):
        with pytest.raises(PluginError, match=rf"value of Program must return .* shape \(2,\); got .*{came}"):
            program(recursion).argmax(torch.zeros(2, 3))


def test_fractions_of_a_maximum_cannot_be_sampled():
    for factor in (0.5, -1.0):
        with pytest.raises(PluginError, match=rf"whole multiples .* one is {factor:g}$"):
            program(lambda self, theta, smax, f=factor: f * smax(theta)).sample(torch.zeros(2, 3), 1)


def test_value_is_neither_theta_nor_of_another_dtype():
    theta = torch.randn(2, 3)
    first = program(lambda self, theta, smax: theta[:, 0])
    value = first.log_partition(theta)
    value += 1
    assert torch.equal(value, theta[:, 0] + 1)
    double = program(lambda self, theta, smax: smax(theta + torch.zeros(3, dtype=torch.float64)))
    assert double.log_partition(theta).dtype is torch.float32


def test_walks_have_no_second_derivative():
    x = torch.randn(2, 3, requires_grad=True)
    value = routed_max(Negentropy(), x, -1, lambda x, g: torch.zeros_like(x))
    with pytest.raises(UnsupportedError, match="no derivative"):
        torch.autograd.grad(value.sum(), x, create_graph=True)


def test_k_best_is_out_of_reach():
    assert "HypergraphProgram" in FewOnes(k=1).unsupported["KBest"]
