"""SparseDistribution: a few structures with their probabilities, against sums over them."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch.distributions import Independent, kl_divergence

import structinf as si
import toy_oracles
from gibbs_examples import close, draw
from oracle_examples import parametrize
from structinf.parts import as_tuple, map_parts

BATCH = 3
Y = torch.eye(4, dtype=torch.float64)


def sums(p):
    """Mean, variance and entropy of each instance from its own structures, merged, in numpy."""
    rows = torch.cat([t.flatten(1 + len(p.batch_shape)) for t in as_tuple(p.structures)], -1).numpy()
    weights = p.weights.detach().numpy()
    means, variances, entropies = [], [], []
    for b in itertools.product(*map(range, p.batch_shape)):
        own = {}
        for row, w in zip(rows[(slice(None), *b)], weights[(slice(None), *b)], strict=True):
            own[tuple(row)] = own.get(tuple(row), 0.0) + w
        y, q = np.array(list(own)), np.array(list(own.values()))
        means.append(q @ y)
        variances.append(q @ (y - q @ y) ** 2)
        entropies.append(-sum(w * math.log(w) for w in q if w > 0))
    return np.array(means), np.array(variances), np.array(entropies)


def flat(parts):
    return torch.cat([t.flatten(1) for t in as_tuple(parts)], 1)


# ----------------------------------------------------------------------------- of every oracle


@parametrize(lambda example: example.relaxed)
def test_everything_of_sparsemap(example):
    theta = draw(example, batch=(BATCH,))
    p = si.SparseDistribution.of(theta, example.oracle(), "sparsemap", tolerance=0)
    mean, variance, entropy = sums(p)
    close(flat(p.mean), mean)
    close(flat(p.mean), flat(si.relax(theta, example.oracle(), "sparsemap", tolerance=0)))
    close(flat(p.variance), variance)
    close(flat(map_parts(torch.square, p.stddev)), variance)
    close(p.entropy(), entropy)
    close(p.perplexity(), np.exp(entropy))
    close(p.cross_entropy(p), entropy)
    close(p.log_prob(p.mode).exp(), p.weights.max(0).values)
    used = p.weights > 0
    close(p.log_prob(p.structures).exp()[used], p.weights[used])
    assert bool(p.support.check(p.structures)[used].all())
    close(kl_divergence(p, p), np.zeros(BATCH))
    drawn = p.sample((4, 2))
    assert [tuple(t.shape) for t in as_tuple(drawn)] == [(4, 2, BATCH, *shape) for shape in example.shapes]
    assert bool((p.log_prob(drawn) > -math.inf).all())
    beyond = p.log_prob(map_parts(lambda t: t + 0.5, p.mode))
    assert bool(beyond.isneginf().all())
    again = pickle.loads(pickle.dumps(copy.deepcopy(p)))
    close(again.entropy(), entropy)


@parametrize(lambda example: example.relaxed and isinstance(example.oracle(), si.KBest))
def test_topk_sparsemax(example):
    theta, k = draw(example, batch=(BATCH,)), 4
    p = si.SparseDistribution.topk(theta, example.oracle(), k)
    best = si.topk(theta, example.oracle(), k)
    scores = best.scores.numpy()
    for b in range(BATCH):
        s = scores[:, b][np.isfinite(scores[:, b])]
        sizes = np.arange(1, len(s) + 1)
        support = sizes[1 + sizes * s > np.cumsum(s)][-1]  # Held, Wolfe & Crowder 1974
        threshold = (s[:support].sum() - 1) / support
        close(p.weights[: len(s), b], np.maximum(s - threshold, 0))
    close(p.weights.sum(0), np.ones(BATCH))


def test_divergence_from_a_gibbs_distribution():
    theta = torch.randn(2, 4, 4, dtype=torch.float64)
    q = si.Gibbs(theta, "arborescence")
    p = si.SparseDistribution.of(theta, "arborescence")
    expected = (p.weights * torch.where(p.weights > 0, p.log_prob(p.structures) - q.log_prob(q.mode), 0.0)).sum(0)
    scores = (p.structures * theta).sum((2, 3))
    best = (q.mode * theta).sum((1, 2))
    close(kl_divergence(p, q), expected + (p.weights * (best - scores)).sum(0))
    close(p.cross_entropy(q), kl_divergence(p, q) + p.entropy())
    with pytest.raises(NotImplementedError):
        kl_divergence(q, p)


# ----------------------------------------------------------------------------- by hand


def by_hand(*weights, **options):
    """Over the unit vectors, the second one twice where there are five weights."""
    w = torch.tensor(weights, dtype=torch.float64).T
    return si.SparseDistribution(Y[[0, 1, 2, 3, 1]][: len(w)].unsqueeze(1).expand(-1, w.shape[1], -1), w, **options)


def test_values_by_hand():
    p = by_hand([0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0])
    close(p.entropy(), [1.5 * math.log(2), 0.0])
    close(p.mean, p.weights.T)
    close(p.variance, (p.weights * (1 - p.weights)).T)
    close(p.mode, Y[[0, 0]])
    close(p.log_prob(Y.unsqueeze(1)).exp(), p.weights)
    assert p.log_prob(Y[2]).tolist() == [math.log(0.25), -math.inf]


def test_what_is_listed_twice_has_both_weights():
    p = by_hand([0.3, 0.2, 0.25, 0.0, 0.25])
    close(p.log_prob(Y[1]).exp(), [0.45])
    close(p.mode, Y[[1]])
    close(p.entropy(), sums(p)[2])
    close(kl_divergence(p, by_hand([0.3, 0.45, 0.25, 0.0])), [0.0])
    drawn = si.SparseDistribution.of(torch.zeros(2, 3), "categorical", "perturbed", noise="gumbel", samples=50)
    close(drawn.entropy(), sums(drawn)[2], atol=1e-6)
    close(drawn.log_prob(torch.eye(3).unsqueeze(1)).exp().sum(0), np.ones(2), atol=1e-6)


def test_divergences_are_infinite_where_a_structure_is_missing():
    p = by_hand([0.5, 0.5, 0.0, 0.0]).weights.requires_grad_()
    q = by_hand([0.25, 0.25, 0.5, 0.0]).weights.requires_grad_()
    a, b = (si.SparseDistribution(Y.unsqueeze(1), w) for w in (p, q))
    close(kl_divergence(a, b), [math.log(2)])
    assert kl_divergence(b, a).tolist() == b.cross_entropy(a).tolist() == [math.inf]
    for gradient in torch.autograd.grad(kl_divergence(b, a).sum() + kl_divergence(a, b).sum(), (p, q)):
        assert bool(gradient.isfinite().all())


def test_padding_is_no_structure():
    # Zeros fill up the first instance's support, and the second has the empty set in it.
    structures = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]])
    p = si.SparseDistribution(structures, torch.tensor([[1.0, 0.5], [0.0, 0.5]]))
    close(p.log_prob(torch.zeros(2)), [-math.inf, math.log(0.5)], atol=1e-6)
    assert p.support.check(torch.zeros(2)).tolist() == [False, True]
    gibbs = si.Gibbs(torch.zeros(2), "subset", k=2)  # of which zeros are no structure
    assert kl_divergence(si.SparseDistribution(structures[:, 0], p.weights[:, 0]), gibbs).item() == 0
    close(p.enumerate_support(), structures)
    close(p.log_prob(structures).exp(), [[1.0, 0.5], [0.0, 0.5]])
    with pytest.raises(si.UnsupportedError, match="2 instances"):
        p.enumerate_support(expand=False)


def test_samples_pass_a_chi_square_test():
    p, n = by_hand([0.4, 0.1, 0.0, 0.3, 0.2], [0.0, 0.0, 1.0, 0.0, 0.0]), 5000
    drawn = p.sample((n // 10, 10), generator=torch.Generator().manual_seed(0)).flatten(0, 1)
    counts = drawn.sum(0)
    assert counts[1].tolist() == [0, 0, n, 0]
    assert counts[0, 2] == 0
    expected = n * np.array([0.4, 0.3, 0.3])
    statistic = ((counts[0, [0, 1, 3]].numpy() - expected) ** 2 / expected).sum()
    assert chi2.sf(statistic, 2) > 1e-4


def test_randomness_is_the_generators_alone():
    p = by_hand([0.25, 0.25, 0.25, 0.25])
    before = torch.get_rng_state()
    a, b = (p.sample((9,), generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(a, b)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(p.sample((50,)), p.sample((50,)))


# ----------------------------------------------------------------------------- gradients


def test_gradients_reach_the_potentials():
    theta = torch.tensor([[1.0, 0.3, 0.1], [0.2, 0.5, 0.0], [0.0, 0.4, 0.9]], dtype=torch.float64, requires_grad=True)
    other = si.SparseDistribution.of(theta.detach() + 0.05, "assignment")
    y = si.SparseDistribution.of(theta, "assignment").mode

    def values(t):
        p = si.SparseDistribution.of(t, "assignment")
        return p.log_prob(y), p.entropy(), p.mean, p.variance, kl_divergence(p, other)

    assert (other.weights > 0).sum() > 1
    torch.autograd.gradcheck(values, theta)
    torch.autograd.gradcheck(lambda t: si.SparseDistribution.topk(0.7 * t, "assignment", 5).entropy(), theta)


def test_deviations_of_certain_parts_have_the_gradient_0():
    w = torch.tensor([0.25, 0.75], dtype=torch.float64, requires_grad=True)
    p = si.SparseDistribution(torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]], dtype=torch.float64), w)
    deviation = math.sqrt(0.25 * 0.75)
    assert p.stddev.tolist() == pytest.approx([0, deviation, deviation])
    (slope,) = torch.autograd.grad(p.stddev.sum(), w)
    assert slope.tolist() == pytest.approx([0.75**2 / deviation, 0.25**2 / deviation])  # Σ (y − m)² / 2 deviation


def test_derivatives_in_the_weights():
    w = torch.tensor([[0.5], [0.2], [0.2], [0.1]], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([[0.1], [0.2], [0.3], [0.4]], dtype=torch.float64, requires_grad=True)

    def values(w, q):
        a, b = (si.SparseDistribution(Y.unsqueeze(1), v, validate_args=False) for v in (w, q))
        return a.log_prob(Y[1]), a.entropy(), a.cross_entropy(b), kl_divergence(a, b), a.mean, a.variance

    torch.autograd.gradcheck(values, (w, q))
    torch.autograd.gradgradcheck(values, (w, q), fast_mode=True)


# ----------------------------------------------------------------------------- forms


def test_expanding_tuples():
    theta = torch.randn(2, 1, 4, 2), torch.randn(2, 2)
    p = si.SparseDistribution.of(theta, "chain")
    wide = p.expand((5, 2, 3))
    assert (wide.batch_shape, wide.event_shape) == ((5, 2, 3), ((4, 2), (2, 2)))
    close(wide.entropy(), p.entropy().expand(5, 2, 3))
    assert [t.shape for t in wide.sample((7,))] == list(wide._extended_shape((7,)))
    assert wide.log_prob(p.mode).shape == p.expand((2, 3)).log_prob(wide.mode).shape == (5, 2, 3)
    assert kl_divergence(p, wide).shape == kl_divergence(wide, p).shape == (5, 2, 3)
    with pytest.raises(si.InvalidInputError, match="cannot be expanded"):
        p.expand((2,))


def test_samples_kept_apart_are_part_of_the_batch():
    theta = torch.randn(2, 3, 3)
    solution = si.infer(theta, "assignment", "stochastic", base_relaxation="sparsemap", samples=4, reduction="none")
    p = si.SparseDistribution.from_solution(solution)
    assert (p.batch_shape, p.event_shape) == ((4, 2), (3, 3))
    close(p.mean, solution.mean, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types_are_kept(dtype):
    p = si.SparseDistribution.of(torch.randn(2, 3, 3).to(dtype), "assignment")
    values = [p.weights, p.entropy(), p.log_prob(p.mode), p.mean, p.variance, p.mode, p.sample((2,)), p.stddev]
    assert {v.dtype for v in values} == {dtype}


def test_every_public_name_works_with_its_defaults():
    for validate in (True, False, None):
        p = si.SparseDistribution.of(torch.randn(2, 3, 3), "assignment", validate_args=validate)
        skipped = ("cdf", "icdf", "sample_n", "rsample", "set_default_validate_args", "of", "topk", "from_solution")
        for name in dir(p):
            if name.startswith("_") or name in skipped:
                continue
            attribute = getattr(p, name)
            if callable(attribute):
                attribute(*{"log_prob": (p.mode,), "expand": ((3, 2),), "cross_entropy": (p,)}.get(name, ()))
    assert repr(p) == f"SparseDistribution(structures: {tuple(p.structures.shape)}, weights: {tuple(p.weights.shape)})"
    empty = si.SparseDistribution.of(torch.randn(0, 3, 3), "assignment")
    assert empty.entropy().shape == (0,)
    assert empty.sample((2,)).shape == (2, 0, 3, 3)
    assert Independent(p, 1).log_prob(p.mode).shape == ()
    assert p.sample((0,)).shape == (0, 2, 3, 3)


def test_refusals():
    with pytest.raises(si.UnsupportedError, match="no support"):
        si.SparseDistribution.of(torch.zeros(3), "categorical", "marginals")
    with pytest.raises(si.UnsupportedError, match="KBest"):
        si.SparseDistribution.topk(torch.zeros(3, 3), toy_oracles.Knapsack(2), 2)
    with pytest.raises(si.InvalidInputError, match="k must be an integer of at least 1"):
        si.SparseDistribution.topk(torch.zeros(3), "categorical", 0)
    with pytest.raises(si.InvalidInputError, match=r"same dimensions, got shapes \(4, 4\) and \(3,\)"):
        si.SparseDistribution(torch.eye(4), torch.ones(3) / 3)
    with pytest.raises(TypeError, match=r"must be floating-point tensors, got torch\.int64"):
        si.SparseDistribution(torch.eye(4).long(), torch.ones(4) / 4)
    with pytest.raises(si.InvalidInputError, match="at least one structure"):
        si.SparseDistribution(torch.zeros(0, 2, 3), torch.zeros(0, 2))
    for weights in ([0.5, 0.6], [1.5, -0.5], [math.nan, 1.0]):
        with pytest.raises(ValueError, match="weights"):
            si.SparseDistribution(torch.eye(2), torch.tensor(weights))
    p = si.SparseDistribution(torch.eye(2), torch.tensor([0.5, 0.5]))
    with pytest.raises(si.InvalidInputError, match=r"Convert labels with structinf\.encode"):
        p.log_prob(torch.tensor([0, 1]))
    with pytest.raises(si.InvalidInputError, match="value must hold floating-point structures of shape"):
        p.log_prob(torch.ones(3))
    for value, came in ((None, "a NoneType"), ([1.0, 0.0], "a list")):
        with pytest.raises(si.InvalidInputError, match=rf"got {came}\. "):
            p.log_prob(value)
    for value in (torch.tensor([0, 1]), torch.ones(3), (torch.ones(2), torch.ones(2)), torch.ones(2)):
        assert p.support.check(value).tolist() is False
    assert p.support.check(torch.eye(2)).tolist() == [True, True]
    with pytest.raises(TypeError, match=r"torch\.Generator or None, got int"):
        p.sample(generator=0)
