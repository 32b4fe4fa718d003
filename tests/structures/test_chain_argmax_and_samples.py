"""The best tag sequences, and samples, against all of them listed in plain Python."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from chain_enumeration import (
    CHAIN,
    DTYPES,
    FORMS,
    LENGTHS,
    NEG,
    SCALES,
    B,
    T,
    assert_equal_parts,
    bound,
    forbid,
    indicators,
    log_sum,
    potentials,
    sequences,
    tolerance,
)
from structinf.errors import InvalidInputError
from structinf.parts import as_tuple, map_parts


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("form", FORMS)
def test_argmax_and_topk_equal_enumeration(form, scale, dtype):
    theta = forbid(potentials(form, dtype, scale))
    chain, close = bound(), tolerance(theta)
    best = chain.argmax(theta)
    top, scores, valid = chain.topk(theta, 5)
    assert all(y.dtype == dtype for y in (*as_tuple(best), *as_tuple(top), scores))
    for b, scored in enumerate(sequences(theta, LENGTHS)):
        wanted = sorted((x for x in scored.values() if x > NEG), reverse=True)[:5]
        assert valid[:, b].tolist() == [r < len(wanted) for r in range(5)]
        for r, value in enumerate(wanted):
            assert scores[r, b].item() == pytest.approx(value, abs=close)
            row = map_parts(lambda t, r=r, b=b: t[r, b][None], top)
            found = chain[[b]].decode(row)[0, : LENGTHS[b]].tolist()
            assert scored[tuple(found)] == pytest.approx(value, abs=close)
            assert_equal_parts(map_parts(lambda t: t.double(), row), indicators(theta, found))
        missing = map_parts(lambda t, b=b: t[:, b][~valid[:, b]], top)
        assert all(not bool(t.any()) for t in as_tuple(missing))
        assert bool(scores[len(wanted) :, b].isneginf().all())
    torch.testing.assert_close(chain.score(theta, best), scores[0], atol=close, rtol=0)
    assert_equal_parts(best, map_parts(lambda t: t[0], top))


@pytest.mark.parametrize("form", FORMS)
def test_ties_go_to_the_lowest_tags(form):
    theta = map_parts(torch.zeros_like, potentials(form, torch.float32))
    assert_equal_parts(CHAIN.argmax(theta), CHAIN.encode(torch.zeros(B, T, dtype=torch.int64), theta))
    top, scores, valid = CHAIN.topk(theta, 4)
    assert bool(valid.all())
    assert not bool(scores.any())
    listed = [CHAIN.decode(map_parts(lambda t, r=r: t[r], top)).tolist() for r in range(4)]
    assert listed == [[tags] * B for tags in ([0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [0, 1, 0, 0])]


def test_topk_lists_every_sequence_once():
    theta = potentials("shared", shape=(2, 3, 3))
    top, scores, valid = CHAIN.topk(theta, 30)
    assert valid.sum(0).tolist() == [27, 27]
    assert bool((scores[:26] >= scores[1:27]).all())
    for b in range(2):
        tags = CHAIN.decode(map_parts(lambda t, b=b: t[:27, b], top))
        assert len({tuple(row) for row in tags.tolist()}) == 27
    torch.testing.assert_close(scores.logsumexp(0), CHAIN.log_partition(theta))


def test_topk_needs_a_positive_k():
    with pytest.raises(InvalidInputError, match="k must be an integer of at least 1, got 0"):
        CHAIN.topk(potentials("shared"), 0)


def test_log_probabilities_are_at_most_zero():
    theta = potentials("shared", torch.float32, 5.0, (5, 4, 6))
    chain = bound([4, 1, 2, 3, 4])
    best = chain.argmax(theta)
    log_prob = chain.score(theta, best) - chain.log_partition(theta)
    assert bool((log_prob <= 1e-6).all())


# ----------------------------------------------------------------------------- samples


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
def test_samples_follow_the_distribution(form, dtype):
    theta = forbid(potentials(form, dtype, shape=(3, 3, 2)))
    lengths = [3, 2, 3]
    chain, n = bound(lengths), 20_000
    y = chain.sample(theta, n, torch.Generator().manual_seed(3))
    assert all(t.dtype == dtype and t.shape[:2] == (n, 3) for t in as_tuple(y))
    for b, scored in enumerate(sequences(theta, lengths)):
        tags = chain[[b]].repeat(n).decode(map_parts(lambda t, b=b: t[:, b], y))
        seen = Counter(tuple(row[: lengths[b]]) for row in tags.tolist())
        total = log_sum(list(scored.values()))
        assert set(seen) <= {s for s, x in scored.items() if x > NEG}
        for sequence, score in scored.items():
            p = math.exp(score - total)
            assert abs(seen[sequence] / n - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1e-9
    assert_equal_parts(y, chain.sample(theta, n, torch.Generator().manual_seed(3)))
    again = chain.sample(theta, n)
    assert any(not torch.equal(a, b) for a, b in zip(as_tuple(y), as_tuple(again), strict=True))
