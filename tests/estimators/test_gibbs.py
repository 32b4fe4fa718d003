"""Gibbs, as a torch.distributions.Distribution: everything against enumeration, for every oracle that sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch.distributions import kl_divergence

import enumerators
import structinf as si
from gibbs_examples import BATCH, close, draw, first_of_each_name, is_listed, one_each, pair
from oracle_examples import parametrize
from structinf.parts import as_tuple, map_parts

pytestmark = pytest.mark.slow

listed = parametrize(is_listed)


def every(example):
    """All structures, (N, 1, *event)."""
    pieces = [torch.from_numpy(np.stack(t)).unsqueeze(1) for t in zip(*example.listing(None), strict=True)]
    return tuple(pieces) if example.is_tuple else pieces[0]


def probabilities(theta, structures, temperature=1.0):
    """(N, B), from scores in numpy."""
    rows = [tuple(t[n, 0].numpy() for t in as_tuple(structures)) for n in range(len(as_tuple(structures)[0]))]
    own = [[t[b].numpy() for t in as_tuple(theta)] for b in range(BATCH)]
    scores = np.array([[enumerators.score(t, y) for t in own] for y in rows]) / temperature
    return np.exp(scores - np.logaddexp.reduce(scores, 0))


# ----------------------------------------------------------------------------- against enumeration


@listed
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_everything_equals_enumeration(example, temperature):
    structures, theta, theta_q = every(example), draw(example), draw(example, seed=1)
    p, q = probabilities(theta, structures, temperature), probabilities(theta_q, structures, 0.7)
    gibbs = si.Gibbs(theta, example.oracle(), temperature=temperature)
    other = si.Gibbs(theta_q, example.oracle(), temperature=0.7)
    close(gibbs.log_prob(structures), np.log(p))
    close(gibbs.log_prob(structures).exp().sum(0), np.ones(BATCH))
    close(gibbs.entropy(), -(p * np.log(p)).sum(0))
    close(gibbs.perplexity(), np.exp(-(p * np.log(p)).sum(0)))
    close(gibbs.cross_entropy(other), -(p * np.log(q)).sum(0))
    close(kl_divergence(gibbs, other), (p * np.log(p / q)).sum(0))

    def weighed(t):
        return np.tensordot(p, t[:, 0].numpy(), (0, 0))

    mean = map_parts(lambda t: torch.from_numpy(weighed(t)), structures)
    variance = map_parts(lambda t, m: torch.from_numpy(weighed(t.square()) - m.numpy() ** 2), structures, mean)
    close(gibbs.mean, mean)
    close(gibbs.variance, variance)
    close(map_parts(torch.square, gibbs.stddev), variance)
    close(gibbs.log_prob(gibbs.mode), np.log(p.max(0)))
    log_z = gibbs.log_prob(gibbs.mode) + gibbs.log_partition
    close(log_z, [enumerators.best([t[b].numpy() for t in as_tuple(theta)], example.listing(None)) / temperature
                  for b in range(BATCH)])  # fmt: skip


@listed
def test_the_support_is_listed_and_known(example):
    gibbs = si.Gibbs(draw(example), example.oracle())
    structures = gibbs.enumerate_support(expand=False)
    wide = gibbs.enumerate_support()
    assert {tuple(np.concatenate([t.ravel() for t in y])) for y in example.listing(None)} == {
        tuple(y) for y in torch.cat([t[:, 0].flatten(1) for t in as_tuple(structures)], 1).numpy()
    }
    close(gibbs.log_prob(structures).exp().sum(0), np.ones(BATCH))
    close(wide, map_parts(lambda t: t.expand(-1, BATCH, *t.shape[2:]), structures))
    assert bool(gibbs.support.check(wide).all())
    beyond = map_parts(lambda t: t + 9, structures)
    assert not gibbs.support.check(beyond).any() or not sum(t[0].numel() for t in as_tuple(structures))


@one_each
def test_samples_pass_a_chi_square_test(example):
    n, structures = 5000, every(example)
    gibbs = si.Gibbs(draw(example, seed=2), example.oracle())
    drawn = gibbs.sample((n // 50, 50), generator=torch.Generator().manual_seed(0))
    p = gibbs.log_prob(structures).exp().numpy()
    rows = torch.cat([t[:, 0].flatten(1) for t in as_tuple(structures)], 1)
    own = torch.cat([t.flatten(0, 1).flatten(2) for t in as_tuple(drawn)], 2)
    for b in range(BATCH):
        same = (own[:, b, None] == rows).all(2)
        assert bool((same.sum(1) == 1).all())  # each sample is one of the structures
        expected, counts = n * p[:, b], same.sum(0).numpy()
        often = expected >= 5
        expected = np.append(expected[often], expected[~often].sum())
        counts = np.append(counts[often], counts[~often].sum())
        kept = expected > 0
        statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
        assert counts[~kept].sum() == 0
        assert kept.sum() == 1 or chi2.sf(statistic, kept.sum() - 1) > 1e-4


@listed
def test_labels_have_the_probability_of_their_structures(example):
    oracle = example.oracle()
    gibbs = si.Gibbs(draw(example), oracle)
    drawn = gibbs.sample((3, 2))
    labels = oracle.decode(map_parts(lambda t: t.flatten(0, 2), drawn))
    labels = labels.view(3, 2, BATCH, *labels.shape[1:])
    close(gibbs.log_prob(labels), gibbs.log_prob(drawn))
    assert bool(gibbs.support.check(labels).all())


# ----------------------------------------------------------------------------- derivatives


KINDS = ["categorical", "chain", "dtw", "arborescence", "spanning_tree", "subset", "semi_markov", "needleman_wunsch"]
kinds = pytest.mark.parametrize("example", [e for e in first_of_each_name() if e.name in KINDS], ids=str)


def leaves(example, seed=0):
    return tuple(t.requires_grad_() for t in as_tuple(draw(example, seed, batch=(1,))))


@kinds
def test_first_and_second_derivatives(example):
    def gibbs(tensors):
        return si.Gibbs(tuple(tensors) if example.is_tuple else tensors[0], example.oracle(), temperature=1.5)

    p, q = leaves(example), leaves(example, seed=1)
    y = gibbs(p).sample()

    def values(*tensors):
        own, other = gibbs(tensors[: len(p)]), gibbs(tensors[len(p) :])
        return own.log_prob(y), own.entropy(), own.cross_entropy(other), kl_divergence(own, other)

    torch.autograd.gradcheck(values, (*p, *q))
    torch.autograd.gradgradcheck(values, (*p, *q), fast_mode=True)
    torch.autograd.gradcheck(lambda *t: as_tuple(gibbs(t).variance), p)


def test_variances_are_the_same_a_few_at_a_time(monkeypatch):
    gibbs = pair(lengths=[4, 2, 1])
    whole = gibbs.variance
    monkeypatch.setattr("structinf.distributions.variance._MAX_ELEMENTS", 100)
    close(gibbs.variance, whole, atol=1e-14)


def test_each_value_has_a_graph_of_its_own():
    theta = torch.randn(2, 3, 3, requires_grad=True)
    gibbs = si.Gibbs(theta, "dtw", lengths=[[3, 2], [2, 2]])
    for value in (gibbs.log_prob(gibbs.sample()), gibbs.entropy(), gibbs.log_partition, gibbs.mean):
        value.sum().backward()
    assert bool(theta.grad.isfinite().all())


def test_the_users_tensors_are_left_alone():
    x = torch.randn(3, 3, requires_grad=True)
    gibbs = si.Gibbs(x[None], "arborescence")
    gibbs.log_partition.sum().backward()
    gibbs.variance.sum().backward()
    plain = torch.randn(3, 3)
    wide = si.Gibbs(plain, "arborescence").expand((2, 4))
    assert wide.variance.shape == (2, 4, 3, 3)
    assert (x._version, x.requires_grad, plain._version, plain.requires_grad) == (0, True, 0, False)
    assert not wide.entropy().requires_grad
