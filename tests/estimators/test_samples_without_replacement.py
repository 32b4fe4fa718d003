"""Samples without replacement: frequencies against exact probabilities, and all structures in the end."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.parts import as_tuple, map_parts
from structinf.solvers import distinct_samples

BATCH = 4000

S = torch.tensor([[0.0, 1.0, 0.2, 0.5], [0.0, 0.0, 0.9, 0.1], [0.0, 0.3, 0.0, 0.8], [0.0, 0.6, 0.4, 0.0]])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample(*args: Any, **options: Any) -> Any:
    return si.sample(*args, replacement=False, **options)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(sum(shape)), dtype=torch.float64)


class TwoChoices(si.dp.DynamicProgram):
    """One of three choices, and after the first choice one of two: a recursion without lists and restrictions."""

    event_ndim = 1

    def value(self, theta: Any, smax):
        return smax(torch.stack([theta[:, 0] + smax(theta[:, 3:5], 1), theta[:, 1], theta[:, 2]], 1), 1)


ALL_OF_TWO_CHOICES = torch.tensor([[1, 0, 0, 1, 0], [1, 0, 0, 0, 1], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0]]).double()

CASES: dict[str, tuple[Any, Any, int]] = {
    "subset": (si.get_oracle("subset", k=2), normal(4), 2),
    "all subsets": (si.get_oracle("subset", k=2), normal(3), 3),
    "chain": (si.get_oracle("chain"), (normal(3, 2), normal(2, 2)), 2),
    "projective_tree": (si.get_oracle("projective_tree"), normal(4, 4), 2),
    "categorical": (si.get_oracle("categorical"), torch.tensor([0.5, 0.3, 0.15, 0.05]).log().double(), 2),
    "arborescence": (si.get_oracle("arborescence"), S.double(), 2),
    "arborescence, single root": (si.get_oracle("arborescence", single_root=True), S.double(), 2),
    "spanning_tree": (si.get_oracle("spanning_tree"), normal(4, 4), 2),
    "recursion in torch": (TwoChoices(), normal(5), 3),
}


def all_structures(oracle, theta):
    """Return all structures as vectors, (|Y|, D), and their log-probabilities."""
    if isinstance(oracle, TwoChoices):
        listed = ALL_OF_TWO_CHOICES
    else:
        shapes = tuple(t.shape for t in theta) if isinstance(theta, tuple) else theta.shape
        listed = torch.cat([t.flatten(1) for t in as_tuple(oracle.enumerate(shapes))], 1)
    scores = torch.where(listed != 0, listed * torch.cat([t.flatten() for t in as_tuple(theta)]), 0.0).sum(1)
    return listed, scores.log_softmax(0)


def draw(oracle, theta, n, seed=0, batch=BATCH):
    """Return the numbers of the structures drawn, (batch, n)."""
    listed, _ = all_structures(oracle, theta)
    many = map_parts(lambda t: t.expand(batch, *t.shape), theta)
    y = sample(many, oracle, n, generator=generator(seed))
    flat = torch.cat([t.flatten(2) for t in as_tuple(y)], 2)
    same = (flat[:, :, None] == listed.to(flat)).all(3)
    assert same.any(2).all()
    return same.to(torch.int8).argmax(2).T


def check_frequencies(drawn, p):
    """Compare the frequencies of ordered draws with their probabilities, within six standard errors."""
    n = drawn.shape[1]
    counts = Counter(map(tuple, drawn.tolist()))
    total = 0.0
    for order in itertools.permutations(range(len(p)), n):
        expected, left = 1.0, 1.0
        for i in order:
            expected *= p[i].item() / max(left, 1e-12)
            left -= p[i].item()
        error = max((expected * (1 - expected) / len(drawn)) ** 0.5, 1 / len(drawn))
        assert abs(counts[order] / len(drawn) - expected) < 6 * error
        total += counts[order]
    assert total == len(drawn)


@pytest.mark.parametrize("name", CASES)
def test_frequencies(name):
    oracle, theta, n = CASES[name]
    check_frequencies(draw(oracle, theta, n), all_structures(oracle, theta)[1].exp())


@pytest.mark.parametrize("name", ["arborescence", "arborescence, single root", "spanning_tree"])
def test_frequencies_from_a_partition(name, monkeypatch):
    """After two draws with replacement, all other draws come from the partition."""
    monkeypatch.setattr(distinct_samples, "_most_draws", lambda *_: 1)
    oracle, theta, n = CASES[name]
    check_frequencies(draw(oracle, 2 * theta, n, batch=1000), all_structures(oracle, 2 * theta)[1].exp())


def test_best_tree_among_two_draws():
    p = all_structures(*CASES["arborescence"][:2])[1].exp()
    best, others = p.max(), p[torch.arange(16) != p.argmax()]
    exact = best + (others * best / (1 - others)).sum()
    torch.testing.assert_close(exact.item(), 0.304122, atol=1e-6, rtol=0)
    drawn = draw(si.get_oracle("arborescence"), S.double(), 2, seed=1, batch=20_000)
    share = (drawn == p.argmax()).any(1).double().mean()
    assert abs(share - exact) < 6 * (exact * (1 - exact) / 20_000) ** 0.5


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_all_structures_are_drawn_once(name, scale):
    if name == "recursion in torch" and scale > 1:
        with pytest.raises(si.UnsupportedError, match="draws without replacement by draws with replacement"):
            sample(scale * CASES[name][1], CASES[name][0], 4)
        return
    oracle, theta, _ = CASES[name]
    theta = map_parts(lambda t: (scale * t).float(), theta)
    log_p = all_structures(oracle, map_parts(Tensor.double, theta))[1]
    gibbs = si.Gibbs(theta, oracle)
    found = gibbs.sample_unordered(len(log_p) + 2, generator(1))
    assert found.valid.tolist() == [True] * len(log_p) + [False] * 2
    rows = torch.cat([t.flatten(1) for t in as_tuple(found.structures)], 1)
    assert len(rows[: len(log_p)].unique(dim=0)) == len(log_p)
    assert not rows[len(log_p) :].any()
    expected = log_p.sort().values
    torch.testing.assert_close(found.log_probs[: len(log_p)].double().sort().values, expected, atol=2e-3, rtol=1e-5)
    assert found.log_probs[len(log_p) :].isneginf().all()


def test_forbidden_parts_lengths_and_batches():
    theta = torch.randn(2, 3, 4, 4, generator=generator())
    theta[0, 0, :, 2] = theta[0, 0, 2, :] = -torch.inf
    theta[0, 0, 0, 2] = 0.0
    lengths = torch.tensor([[3, 1, 2], [3, 3, 3]])
    for name in ("arborescence", "projective_tree"):
        gibbs = si.Gibbs(theta, name, lengths=lengths)
        found: Any = gibbs.sample_unordered(7, generator(2))
        assert found.structures.shape == (7, 2, 3, 4, 4)
        best: Any = si.topk(theta, name, 7, lengths=lengths)
        torch.testing.assert_close(found.valid, best.valid)
        torch.testing.assert_close((found.structures * best.structures.isfinite()).sum((3, 4))[0], lengths.float())
        torch.testing.assert_close(gibbs.log_prob(found.structures[0]), found.log_probs[0], atol=1e-5, rtol=1e-5)
    empty = sample(theta[:0], "arborescence", 3)
    assert empty.shape == (3, 0, 3, 4, 4)
    assert sample(theta, "arborescence", 0, lengths=lengths).shape == (0, 2, 3, 4, 4)


def test_infeasible_instances():
    theta = torch.zeros(2, 3, 3)
    theta[1] = -torch.inf
    for name in ("arborescence", "projective_tree", "spanning_tree"):
        with pytest.raises(si.InfeasibleError, match="batch index 1"):
            sample(theta, name, 2)
        found = si.Gibbs(theta, name, on_infeasible="zero").sample_unordered(2)
        assert found.valid.tolist() == [[True, False], [True, False]]


def test_equal_seeds_and_temperature():
    theta = normal(5, 5)
    draws = [sample(theta, "arborescence", 4, generator=generator(3)) for _ in range(2)]
    torch.testing.assert_close(*draws)
    cold = sample(theta, "projective_tree", 3, temperature=1e-3, generator=generator(4))
    torch.testing.assert_close(cold, si.topk(theta, "projective_tree", 3).structures)
    sparse = sample(theta, "projective_tree", 3, regularizer="squared_l2", temperature=1e-6)
    assert sparse[0].sum() == 4
    assert not sparse[1:].any()


def test_unsupported_oracles():
    with pytest.raises(si.UnsupportedError, match="Samplable"):
        sample(torch.zeros(3, 3), "assignment", 2)
    with pytest.raises(si.UnsupportedError, match="arborescence"):
        sample(torch.zeros(3, 3), "arborescence", 2, regularizer="squared_l2")
    with pytest.raises(si.InvalidInputError, match="replacement"):
        si.sample(torch.zeros(3), "bits", 2, replacement=0)  # pyright: ignore[reportArgumentType]
