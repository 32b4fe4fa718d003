"""Derivations of hypergraph programs, the best, drawn, counted, listed, and their probabilities, against lists."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from hypergraph_examples import Listed, alphas, batch, close, graphs, rows
from hypergraph_reference import INF, Hyperedges
from regularizers_by_alpha import REGULARIZERS
from structinf.errors import InvalidInputError


@graphs
@pytest.mark.parametrize("k", [1, 3, 100])
def test_topk(lists: Hyperedges, k: int) -> None:
    given = batch(lists)
    structures, scores, valid = given.oracle.topk(given.theta, k)
    assert structures.shape == (k, *given.theta.shape)
    for b, (at, goal) in enumerate(given.each(INF)):
        expected = sorted((s for d in lists.derivations(goal) if (s := lists.score(d, at.theta)) > -INF), reverse=True)
        count = min(k, len(expected))
        assert valid[:, b].tolist() == [True] * count + [False] * (k - count)
        close(scores[:count, b], expected[:count])
        assert (scores[count:, b] == -INF).all()
        assert (structures[count:, b] == 0).all()
        assert Counter(map(tuple, structures[:count, b].tolist())) <= Counter(d.parts for d in lists.derivations(goal))
        own = torch.where(structures[:count, b] > 0, given.theta[b], 0.0)
        close((own * structures[:count, b]).sum(1), expected[:count])


@graphs
@alphas
def test_sample(lists: Hyperedges, alpha: float) -> None:
    given, omega, n = batch(lists, 6), REGULARIZERS[alpha], 2000
    drawn = given.oracle.smoothed_sample(given.theta, n, omega, torch.Generator().manual_seed(0))
    assert drawn.shape == (n, *given.theta.shape)
    for b, (at, goal) in enumerate(given.each(alpha)):
        expected: Counter[Any] = Counter()
        for p, d in at.support(goal):
            expected[tuple(map(float, d.parts))] += p
        frequency = Counter(map(tuple, drawn[:, b].tolist()))
        assert frequency.keys() <= expected.keys()
        for y, p in expected.items():
            assert abs(frequency[y] / n - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1e-9
    again = given.oracle.smoothed_sample(given.theta, n, omega, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)


@graphs
@alphas
def test_entropy_and_support(lists: Hyperedges, alpha: float) -> None:
    given, omega = batch(lists), REGULARIZERS[alpha]
    each = given.each(alpha)
    close(given.oracle.entropy(given.theta, omega), [at.entropy(goal) for at, goal in each])
    structures, probabilities = given.oracle.enumerate_support(given.theta, omega)
    expected = [at.support(goal) for at, goal in each]
    assert len(structures) == max(map(len, expected))
    for b, pairs in enumerate(expected):
        close(probabilities[: len(pairs), b], [p for p, _ in pairs])
        assert (probabilities[len(pairs) :, b] == 0).all()
        assert (structures[len(pairs) :, b] == 0).all()
        assert Counter(map(tuple, structures[: len(pairs), b].tolist())) == Counter(d.parts for _, d in pairs)
    mean = (probabilities.unsqueeze(2) * structures).sum(0)
    torch.testing.assert_close(mean, given.oracle.smoothed_mean(given.theta, omega))
    with pytest.raises(
        InvalidInputError, match=r"structures have a positive probability at batch index \d+, more than"
    ):
        given.oracle.enumerate_support(given.theta, omega, max_structures=0)


@graphs
@alphas
def test_log_prob(lists: Hyperedges, alpha: float) -> None:
    given, omega = batch(lists), REGULARIZERS[alpha]
    for at, goal in given.each(alpha)[:3]:
        listed = lists.derivations(goal)
        if len({d.parts for d in listed}) < len(listed):
            continue
        oracle = Listed(lists).bind(lengths=torch.full((len(listed),), lists.goals.index(goal)))
        theta, y = rows([at.theta] * len(listed)), rows([d.parts for d in listed])
        found = oracle.log_prob(theta, y, omega)
        expected = [math.log(p) if (p := at.probability(d)) > 0 else -INF for d in listed]
        close(found, expected)
        last = len(listed) - 1
        y[last] += 0.5
        with pytest.raises(InvalidInputError, match=f"y is not a structure of Listed at batch index {last}"):
            oracle.log_prob(theta, y, omega)


@graphs
def test_count_and_enumerate(lists: Hyperedges) -> None:
    given = batch(lists)
    expected = [sum(lists.score(d, at.theta) > -INF for d in lists.derivations(goal)) for at, goal in given.each(INF)]
    assert given.oracle.count(given.theta) == expected
    for length, goal in enumerate(lists.goals):
        found = Listed(lists).bind(lengths=torch.tensor([length])).enumerate((lists.parts,))
        assert found.dtype == torch.float64
        assert found.tolist() == [list(map(float, d.parts)) for d in lists.derivations(goal)]
