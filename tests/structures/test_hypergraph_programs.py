"""Hypergraph programs as users write them: queries, lengths, options, and what is wrong with some."""

from __future__ import annotations

import functools
import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import structinf as si
from hypergraph_examples import FewOnes
from structinf.dp import Hypergraph, HypergraphBuilder, HypergraphProgram
from structinf.errors import InfeasibleError, InvalidInputError, PluginError
from structinf.parts import as_tuple
from structinf.regularizers import Negentropy, SquaredL2, Tsallis, Unregularized
from structinf.testing import check_oracle

pytestmark = pytest.mark.slow

INF = math.inf

# ----------------------------------------------------------------------------- programs


def few_ones(n: int, k: int, length: int | None = None) -> list[tuple[int, ...]]:
    length = n if length is None else length
    strings = itertools.product((0, 1), repeat=length)
    return [(*s, *[0] * (n - length)) for s in strings if sum(s) <= k and (1, 1) not in itertools.pairwise(s)]


def test_a_dynamic_program_of_ones_own():
    n, k = 6, 2
    strings, oracle = torch.tensor(few_ones(n, k)).double(), FewOnes(k)
    theta = torch.randn(3, n, dtype=torch.float64)
    scores = theta @ strings.T
    p, best = scores.softmax(1), scores.argsort(1, descending=True)
    assert oracle.count(theta) == [len(strings)] * 3
    listed = oracle.enumerate((n,))
    assert sorted(listed.tolist()) == sorted(strings.tolist())
    close = torch.testing.assert_close
    close(oracle.argmax(theta), strings[best[:, 0]])
    close(oracle.log_partition(theta), scores.logsumexp(1))
    close(oracle.marginals(theta), p @ strings)
    v = torch.randn_like(theta)
    covariance = torch.einsum("bs,si,sj->bij", p, strings, strings) - torch.einsum("bi,bj->bij", *[p @ strings] * 2)
    close(oracle.covariance_product(theta, v), torch.einsum("bij,bj->bi", covariance, v))
    structures, found, valid = oracle.topk(theta, len(strings) + 1)
    close(structures[:-1], strings[best].transpose(0, 1))
    close(found[:-1], scores.gather(1, best).T)
    assert valid.tolist() == [[True] * 3] * len(strings) + [[False] * 3]
    close(oracle.entropy(theta), torch.special.entr(p).sum(1))
    close(oracle.log_prob(theta, strings[best[:, 4]]), p.log().gather(1, best[:, 4:5]).squeeze(1))
    drawn = oracle.sample(theta, 4000, torch.Generator().manual_seed(0))
    close(drawn.mean(0), p @ strings, rtol=0, atol=0.05)
    for omega in (SquaredL2(), Tsallis()):
        structures, probabilities = oracle.enumerate_support(theta, omega)
        assert len(structures) < len(strings)
        close((structures * probabilities.unsqueeze(2)).sum(0), oracle.smoothed_mean(theta, omega))
        assert (probabilities.diff(dim=0) <= 0).all()
    with pytest.raises(InvalidInputError, match="y is not a structure of FewOnes at batch index 0"):
        oracle.log_prob(theta, torch.ones_like(theta))


def test_it_keeps_every_law(conformance_dtypes):
    report = check_oracle(FewOnes(1), (3,), dtypes=conformance_dtypes)
    assert {"optimal", "batch_independence", "padding"} <= set(report.passed), report.passed
    assert not report.failed


def test_means_lie_in_the_hull():
    """Of strings with at most k ones: neighbours sum to 1 at most, all to k (totally unimodular, so that is all)."""
    theta = 3 * torch.randn(50, 9)
    for omega in (Negentropy(), SquaredL2(), Tsallis(), Unregularized()):
        mean = FewOnes(3).smoothed_mean(theta, omega)
        assert (mean >= 0).all()
        assert (mean[:, 1:] + mean[:, :-1] <= 1 + 1e-6).all()
        assert (mean.sum(1) <= 3 + 1e-5).all()


def test_counts_beyond_64_bits():
    n = 400
    expected = functools.reduce(lambda pair, _: (pair[1], sum(pair)), range(n + 1), (0, 1))[1]  # Fibonacci's
    assert FewOnes(n).count(torch.zeros(1, n)) == [expected]
    assert expected > 2**64
    with pytest.raises(InvalidInputError, match=r"there are about 10\^84 structures of FewOnes, too many to list"):
        FewOnes(n).enumerate((n,))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_long_recursions_in_float32(scale):
    n = 3000
    theta = scale * torch.randn(2, n)
    v = torch.randn_like(theta)
    for omega in (Negentropy(), Tsallis(alpha=1.3), Tsallis(), SquaredL2()):
        for query, *more in (("smoothed_value",), ("smoothed_mean",), ("smoothed_hessian_product", v)):
            found = getattr(FewOnes(5), query)(theta, *more, omega)
            expected = getattr(FewOnes(5), query)(theta.double(), *[m.double() for m in more], omega)
            assert (found - expected).abs().max() <= 5e-6 * max(1e-3, expected.abs().max())


# ----------------------------------------------------------------------------- lengths


def test_lengths_choose_goals():
    n, k = 5, 2
    lengths = torch.tensor([5, 0, 3, 1, 3])
    oracle, theta = FewOnes(k).bind(lengths=lengths), torch.randn(5, n, dtype=torch.float64)
    theta[1:, 4] = 7.0  # padding, never seen
    strings = [torch.tensor(few_ones(n, k, int(length))).double() for length in lengths]
    scores = [theta[b] @ s.T for b, s in enumerate(strings)]
    torch.testing.assert_close(oracle.log_partition(theta), torch.stack([s.logsumexp(0) for s in scores]))
    means = torch.stack([s.softmax(0) @ y for s, y in zip(scores, strings, strict=True)])
    torch.testing.assert_close(oracle.marginals(theta), means)
    assert oracle.count(theta) == list(map(len, strings))
    inside = torch.arange(n) < lengths[:, None]
    assert torch.equal(oracle.valid_parts(theta), inside)
    assert torch.equal(oracle[:1].valid_parts(theta[:1]), torch.ones(1, n, dtype=torch.bool))
    assert torch.equal(oracle[2:3].valid_parts(theta[2:3]), inside[2:3])
    assert FewOnes(k).valid_parts(theta) is None
    assert oracle[3:4].enumerate((n,)).tolist() == [[0.0] * 5, [1.0] + [0.0] * 4]


@pytest.mark.parametrize("wrong", [-1, 6, 1 << 40])
def test_lengths_without_a_goal(wrong):
    theta = torch.zeros(2, 5)
    oracle = FewOnes(2).bind(lengths=torch.tensor([3, wrong]))
    message = f"FewOnes has no structure of lengths {wrong} at batch index 1"
    for query in (oracle.argmax, oracle.log_partition, oracle.valid_parts, oracle.count):
        with pytest.raises(InvalidInputError, match=message):
            query(theta)
    with pytest.raises(InvalidInputError, match=message):
        si.infer(theta, FewOnes(2), "map", lengths=[3, wrong])


def test_masks_of_many_lengths():
    n = 150
    lengths = torch.arange(n).flip(0)
    mask = FewOnes(1).bind(lengths=lengths).valid_parts(torch.zeros(n, n))
    assert torch.equal(mask, torch.arange(n) < lengths[:, None])


def test_no_instances():
    oracle, theta = FewOnes(2), torch.zeros(0, 5)
    assert oracle.argmax(theta).shape == (0, 5)
    assert oracle.log_partition(theta).shape == (0,)
    assert oracle.topk(theta, 3)[0].shape == (3, 0, 5)
    assert oracle.sample(theta, 2).shape == (2, 0, 5)
    assert oracle.count(theta) == []
    assert oracle.enumerate_support(theta, SquaredL2())[1].shape[1] == 0
    bound = oracle.bind(lengths=torch.zeros(0, dtype=torch.int64))
    assert bound.valid_parts(theta).shape == (0, 5)
    assert bound.marginals(theta).shape == (0, 5)


# ----------------------------------------------------------------------------- tuples, caches


class TwoTensors(HypergraphProgram):
    """One of the parts of the first tensor, and then one of the second, which counts twice."""

    event_ndim = (1, 2)

    def build(self, event_shape: Any) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        one, other = graph.parts
        first, second, goal = graph.nodes(3)
        graph.add(first, part=one)
        graph.add(second, part=other.ravel())
        twice = graph.node()
        graph.add(twice, first, second)
        graph.add(goal, twice, second)
        return graph.build(goal)


def test_tensors_that_instances_share():
    own, shared = torch.randn(4, 3, dtype=torch.float64), torch.randn(1, 2, 2, dtype=torch.float64)
    oracle, theta = TwoTensors(), (own, shared)
    expected = own.logsumexp(1) + 2 * shared.logsumexp((1, 2))
    torch.testing.assert_close(oracle.log_partition(theta), expected)
    one, other = as_tuple(oracle.marginals(theta))
    torch.testing.assert_close(one, own.softmax(1))
    torch.testing.assert_close(other, 2 * shared.flatten(1).softmax(1).view(1, 2, 2).expand(4, 2, 2))
    weight = torch.randn(4, dtype=torch.float64)
    one, other = as_tuple(oracle.log_partition_vjp(theta, weight))
    assert (one.shape, other.shape) == (own.shape, shared.shape)
    torch.testing.assert_close(other, 2 * weight.sum() * shared.flatten(1).softmax(1).view(1, 2, 2))
    one, other = as_tuple(oracle.covariance_product(theta, (own, shared)))
    assert (one.shape, other.shape) == (own.shape, (4, 2, 2))
    assert [t.shape for t in as_tuple(oracle.enumerate(((3,), (2, 2))))] == [(48, 3), (48, 2, 2)]


def test_graphs_are_kept_for_equal_options_and_shapes():
    theta = torch.zeros(2, 5)
    graph = FewOnes(2).hypergraph(theta)
    assert FewOnes(2).hypergraph(torch.ones(7, 5)) is graph
    assert FewOnes(2).bind(lengths=torch.tensor([1, 2])).hypergraph(theta) is graph
    assert FewOnes(3).hypergraph(theta) is not graph
    assert FewOnes(2).hypergraph(torch.zeros(2, 6)) is not graph


def test_several_threads_of_python():
    theta = torch.randn(40, 23)  # a shape that no other test has built
    with ThreadPoolExecutor(4) as pool:
        means = list(pool.map(lambda omega: FewOnes(4).smoothed_mean(theta, omega), [SquaredL2(), Negentropy()] * 4))
    for omega, mean in zip((SquaredL2(), Negentropy()) * 4, means, strict=True):
        assert torch.equal(mean, FewOnes(4).smoothed_mean(theta, omega))


class Plain(HypergraphProgram):
    """No dataclass; ``kept`` is found out on the way."""

    event_ndim = 1

    def __init__(self, options: Any) -> None:
        self.options = options

    @functools.cached_property
    def kept(self) -> list[int]:
        return [1]

    @staticmethod
    def _path(count: int) -> Hypergraph:
        graph = HypergraphBuilder((1,))
        nodes = graph.nodes(count + 1)
        graph.add(nodes[0])
        graph.add(nodes[1:], nodes[:-1], part=0)
        return graph.build(nodes[-1])

    def build(self, event_shape: Any) -> Any:
        return self.options if self.options == "no graph" else self._path(len(self.kept))


def test_options_of_other_classes():
    theta = torch.zeros(1, 1)
    oracle = Plain((1, 2))
    graph = oracle.hypergraph(theta)
    assert oracle.hypergraph(theta) is graph  # although `kept` is there now, a list
    assert Plain((1, 2)).hypergraph(theta) is graph
    assert Plain((1, 3)).hypergraph(theta) is not graph
    oracle.options = (1, 3)
    assert oracle.hypergraph(theta) is Plain((1, 3)).hypergraph(theta)
    with pytest.raises(PluginError, match=r"Plain: options must be hashable, .*list.*; use tuples instead"):
        Plain([1]).hypergraph(theta)
    with pytest.raises(PluginError, match="build of Plain must return a Hypergraph, got str; return builder"):
        Plain("no graph").hypergraph(theta)


class Nothing(HypergraphProgram):
    """Nothing to score."""

    event_ndim = 1

    def build(self, event_shape: Any) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        goal = graph.node()
        graph.add(goal)
        return graph.build(goal)


def test_no_parts():
    theta = torch.zeros(2, 0)
    assert Nothing().argmax(theta).shape == (2, 0)
    assert Nothing().log_partition(theta).tolist() == [0, 0]
    assert Nothing().covariance_product(theta, theta).shape == (2, 0)
    assert Nothing().sample(theta, 3).shape == (3, 2, 0)
    assert Nothing().topk(theta, 2)[2].tolist() == [[True, True], [False, False]]
    assert Nothing().enumerate((0,)).shape == (1, 0)
    assert Nothing().log_prob(theta, theta).tolist() == [0, 0]


class Gaps(HypergraphProgram):
    """Subsets, and how many are left out: a part that comes several times."""

    event_ndim = (1, 1)

    def build(self, event_shape: Any) -> Hypergraph:
        graph = HypergraphBuilder(event_shape)
        one, gap = graph.parts
        nodes = graph.nodes(len(one) + 1)
        graph.add(nodes[0])
        graph.add(nodes[1:], nodes[:-1], part=gap)
        graph.add(nodes[1:], nodes[:-1], part=one)
        return graph.build(nodes[-1])


def test_probabilities_of_structures_that_count():
    theta = torch.randn(32, 5, dtype=torch.float64), torch.randn(1, 1, dtype=torch.float64)
    y = Gaps().enumerate(((5,), (1,)))
    scores = theta[0] @ y[0].T + theta[1] @ y[1].T
    found = Gaps().log_prob(theta, y)
    torch.testing.assert_close(found, scores.diagonal() - scores.logsumexp(1))
    with pytest.raises(InvalidInputError, match="y is not a structure of Gaps at batch index 0"):
        Gaps().log_prob(theta, (y[0], y[1] + 1))


def test_infeasible():
    theta = torch.zeros(3, 4)
    theta[1] = -INF
    assert FewOnes(2).count(theta) == [8, 1, 8]  # no ones at all
    both = torch.full((2, 3), -INF), torch.zeros(1, 2, 2)
    with pytest.raises(InfeasibleError, match="no structure of TwoTensors of finite score exists for batch index 0"):
        TwoTensors().argmax(both)


def test_derivations_too_large_to_be_drawn():
    graph = HypergraphBuilder((1,))
    nodes = graph.nodes(70)
    graph.add(nodes[0], part=0)
    graph.add(nodes[1:], nodes[:-1], nodes[:-1])

    class Doubled(HypergraphProgram):
        event_ndim = 1

        def build(self, event_shape):
            return graph.build(nodes[-1])

    theta = torch.tensor([[0.5]], dtype=torch.float64)
    assert Doubled().marginals(theta).item() == 2.0**69
    assert Doubled().log_partition(theta).item() == 2.0**68
    with pytest.raises(InvalidInputError, match="are too many to draw at once"):
        Doubled().sample(theta, 1)


@pytest.mark.parametrize("edges", [1, 6])
def test_a_graph_of_other_parts_than_theta_has(edges):
    class Path(si.dp.HypergraphProgram):
        event_ndim = 1

        def build(self, event_shape):
            return si.dp.path_graph([(i, i + 1) for i in range(edges)])

    for query in (Path().argmax, Path().marginals, Path().log_partition):
        with pytest.raises(PluginError, match=rf"hypergraph of {edges} parts .* \(3,\), which has 3 parts"):
            query(torch.zeros(2, 3))
