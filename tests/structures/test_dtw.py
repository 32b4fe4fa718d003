"""Alignments, against enumeration, analytic counts and published values."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from dtw_enumeration import CASES, DTYPES, INF, ORACLE, SHAPES, instances, paths, score, scores
from regularizers_by_alpha import FAMILY
from structinf.regularizers import Unregularized


def squared(x, y):
    """Squared differences of two series, (1, n, m) in float64."""
    x, y = torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y, dtype=torch.float64)
    return (x.unsqueeze(1) - y).square().unsqueeze(0)


# ----------------------------------------------------------------------------- values of the literature


def test_soft_alignment_of_three_by_three():
    cost = torch.tensor([[[0.0, 1, 4], [1, 0, 1], [4, 1, 0]]], dtype=torch.float64)
    assert -ORACLE.log_partition(-cost).item() == pytest.approx(-1.190428, abs=1e-6)
    expected = [[1, 0.236085, 0.000754], [0.236085, 0.916184, 0.236085], [0.000754, 0.236085, 1]]
    torch.testing.assert_close(ORACLE.marginals(-cost)[0], torch.tensor(expected).double(), atol=1e-6, rtol=0)


def test_uniform_alignment_of_three_by_three():
    theta = torch.zeros(1, 3, 3)
    assert ORACLE.log_partition(theta).item() == pytest.approx(math.log(13))
    expected = torch.tensor([[[13.0, 5, 1], [5, 9, 5], [1, 5, 13]]]) / 13
    torch.testing.assert_close(ORACLE.marginals(theta), expected)


def test_soft_dtw_of_a_series_with_itself():
    x = torch.arange(100).double().cos()
    assert -ORACLE.log_partition(-squared(x, x)).item() == pytest.approx(-104.370943, abs=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "temperature", "expected"),
    [
        ([1], [3], 1.0, 4.0),
        ([1], [1, 2, 3], 1.0, 5.0),
        ([1, 2, 3], [1, 3], 1.0, 0.122654),
        ([1, 2, 3], [1, 3], 0.1, 0.930683),
        ([1, 2], [3, 2], 0.01, 4.0),
    ],
)
def test_soft_dtw_of_short_series(x, y, temperature, expected):
    theta = -squared(x, y) / temperature
    assert -temperature * ORACLE.log_partition(theta).item() == pytest.approx(expected, abs=1e-6)


def test_hard_dtw_of_short_series():
    for x, y, expected in (([1, 2, 3], [1, 3], 1.0), ([1, 2], [3, 2], 4.0), ([1], [1, 2, 3], 5.0)):
        theta = -squared(x, y)
        assert -ORACLE.smoothed_value(theta, Unregularized()).item() == expected
        assert -ORACLE.score(theta, ORACLE.argmax(theta)).item() == expected


@pytest.mark.parametrize(("n", "count"), [(1, 1), (2, 3), (3, 13), (4, 63), (5, 321)])
def test_delannoy_numbers(n, count):
    theta = torch.zeros(1, n, n, dtype=torch.float64)
    assert len(ORACLE.enumerate((n, n))) == len(paths(n, n)) == count
    assert ORACLE.log_partition(theta).exp().item() == pytest.approx(count)
    assert ORACLE.topk(theta, count + 1)[2].sum() == count


def test_long_series_in_float32():
    theta = torch.randn(2, 400, 300)
    for alpha in FAMILY:
        omega = FAMILY[alpha]
        torch.testing.assert_close(
            ORACLE.smoothed_value(theta, omega), ORACLE.smoothed_value(theta.double(), omega).float()
        )
        mean = ORACLE.smoothed_mean(theta, omega)
        torch.testing.assert_close(mean, ORACLE.smoothed_mean(theta.double(), omega).float(), atol=1e-6, rtol=1e-5)
        assert mean[:, 0, 0].tolist() == pytest.approx([1, 1], abs=1e-6)


# ----------------------------------------------------------------------------- single paths


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_best_paths_are_those_of_enumeration(n, m, case, dtype):
    oracle, theta, extents = instances(case, n, m, dtype)
    structures, found, valid = oracle.topk(theta, 12)
    best = oracle.argmax(theta)
    assert torch.equal(structures[0], best)
    for b, (t, extent) in enumerate(zip(theta, extents, strict=True)):
        expected = sorted((s for p in paths(*extent) if (s := score(t, p)) > -INF), reverse=True)[:12]
        assert valid[:, b].tolist() == [True] * len(expected) + [False] * (12 - len(expected))
        assert found[: len(expected), b].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)
        listed = [frozenset(map(tuple, y.nonzero().tolist())) for y in structures[: len(expected), b]]
        assert len(set(listed)) == len(expected)
        assert set(listed) <= {frozenset(p) for p in paths(*extent)}
        again = oracle[[b]].score(t[None].double(), structures[: len(expected), b].double())
        assert again.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert not structures[len(expected) :, b].any()


def test_ties_go_to_the_diagonal():
    assert torch.equal(ORACLE.argmax(torch.zeros(2, 4, 4)), torch.eye(4).expand(2, 4, 4))
    theta = torch.zeros(1, 3, 3)
    theta[0, 1, 1] = -INF
    assert ORACLE.argmax(theta).tolist() == [[[1, 1, 0], [0, 0, 1], [0, 0, 1]]]  # down before right, from the end
    assert torch.equal(ORACLE.smoothed_mean(theta, Unregularized()), ORACLE.argmax(theta))


@pytest.mark.parametrize("case", CASES)
def test_sample_frequencies(case):
    oracle, theta, extents = instances(case, 3, 3)
    samples = oracle.sample(theta, 4000, torch.Generator().manual_seed(1))
    assert samples.shape == (4000, *theta.shape)
    for b, (t, extent) in enumerate(zip(theta, extents, strict=True)):
        counts = Counter(frozenset(map(tuple, y.nonzero().tolist())) for y in samples[:, b])
        weights = {frozenset(p): math.exp(score(t, p)) for p in paths(*extent)}
        total = sum(weights.values())
        assert set(counts) <= {p for p, w in weights.items() if w > 0}
        for p, w in weights.items():
            assert counts[p] / 4000 == pytest.approx(w / total, abs=0.035)


def test_samples_depend_on_the_generator_alone():
    theta = scores(2, 4, 3)
    first, second = (ORACLE.sample(theta, 9, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(first, second)
    torch.manual_seed(5)
    assert not torch.equal(first, ORACLE.sample(theta, 9))
