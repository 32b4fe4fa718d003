"""Samples of DynamicProgram: those of the Gibbs distribution, and random walks of smoothed recursions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import scipy.stats
import torch

from dynamic_program_examples import FewOnes, Tags, assert_close, derived, every_example, every_smooth, flat
from regularizers_by_alpha import INF, REGULARIZERS
from structinf.dp.recursion import DynamicProgram
from structinf.errors import InvalidInputError
from structinf.parts import map_parts
from structinf.regularizers import Unregularized


def assert_frequencies(drawn: torch.Tensor, rows: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Pearson's chi-square test, which right walks fail once in a million; nothing but ``rows`` may come."""
    probability: Counter = Counter()
    for y, p in zip(rows.tolist(), probabilities.tolist(), strict=True):
        probability[tuple(y)] += p
    came = Counter(map(tuple, drawn.tolist()))
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
        y = derived(example.lists(b))
        assert_frequencies(flat(map_parts(lambda t, b=b: t[:, b], drawn)), y, (y @ flat(theta)[b]).softmax(0))


@every_example
@every_smooth
def test_smoothed_samples_are_walks(example, alpha):
    theta = example.draw(0.5)
    drawn = example.bound.smoothed_sample(theta, 3000, REGULARIZERS[alpha], torch.Generator().manual_seed(2))
    for b in range(3):
        at, goal = example.at(theta, b, alpha)
        found = at.lists.derivations(goal)
        p = torch.tensor([at.probability(d) for d in found], dtype=torch.float64)
        assert_frequencies(flat(map_parts(lambda t, b=b: t[:, b], drawn)), derived(at.lists), p)


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
    with pytest.raises(InvalidInputError, match="number of samples, must be an integer of at least 0, got -1"):
        oracle.sample(theta, -1)


def test_no_entry_of_probability_zero_is_drawn(monkeypatch):
    last = 1 - 2.0**-53  # the largest uniform number: times the total it rounds to the total
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, last, dtype=torch.float64))
    theta = torch.tensor([[0.0, 0.0, -INF]], dtype=torch.float64)

    class First(DynamicProgram):
        event_ndim = 1

        def value(self, theta, smax):
            return smax(theta)

    assert First().sample(theta, 1).tolist() == [[[0.0, 1.0, 0.0]]]
