"""The k best assignments, against the full ranking."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from assignment_enumeration import DTYPES, INF, ORACLE, SHAPES, is_feasible, is_matching, ranking, scores, whole
from structinf.errors import InvalidInputError


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), [*SHAPES, (2, 7), (7, 2), (5, 5), (4, 6)])
@pytest.mark.parametrize("kind", ["normal", "ties", "forbidden"])
@pytest.mark.parametrize("k", [1, 2, 9, 400])
def test_topk_is_the_head_of_the_full_ranking(n, m, dtype, kind, k):
    theta = scores(4, n, m, dtype, kind=kind)
    theta = theta[[b for b, t in enumerate(theta) if is_feasible(t)]]
    structures, value, valid = ORACLE.topk(theta, k)
    assert structures.dtype == value.dtype == dtype
    assert structures.shape == (k, *theta.shape)
    every = whole(n, m)
    for b, t in enumerate(theta):
        best = ranking(t.numpy(), every)[:k]
        count = len(best)
        assert valid[:, b].tolist() == [True] * count + [False] * (k - count)
        assert value[:count, b].tolist() == pytest.approx(best, rel=1e-6 if dtype == torch.float32 else 1e-12, abs=1e-6)
        assert (value[: count - 1, b] >= value[1:count, b]).all()
        assert (value[count:, b] == -INF).all()
        found = structures[:count, b]
        assert is_matching(found)
        assert (found.sum((1, 2)) == min(n, m)).all()
        assert len(found.flatten(1).unique(dim=0)) == count
        assert (structures[count:, b] == 0).all()
        torch.testing.assert_close(
            ORACLE.score(t[None].expand_as(found), found), value[:count, b], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_topk_of_seven_by_seven(scale):
    theta = scores(2, 7, 7, scale=scale)
    value = ORACLE.topk(theta, 300)[1]
    for b, t in enumerate(theta):
        best = ranking(t.numpy(), list(itertools.permutations(range(7))))[:300]
        np.testing.assert_allclose(value[:, b].numpy(), best, rtol=1e-12, atol=1e-12 * scale)


def test_topk_of_larger_instances_begins_with_the_best():
    theta = scores(3, 30, 40)
    structures, value, _ = ORACLE.topk(theta, 50)
    assert torch.equal(structures[0], ORACLE.argmax(theta))
    torch.testing.assert_close(value[:8], ORACLE.topk(theta, 8)[1])
    # Every exchange of two rows' columns, and every move to a free column, is in the list or not better than its last.
    for b in range(3):
        listed = {tuple(c) for c in ORACLE.decode(structures[:, b]).tolist()}
        columns = ORACLE.decode(structures[:1, b])[0].tolist()
        for i in range(30):
            free = [c for c in range(40) if c not in columns]
            neighbours = [[*columns[:i], c, *columns[i + 1 :]] for c in free]
            for j in range(i):
                swapped = list(columns)
                swapped[i], swapped[j] = swapped[j], swapped[i]
                neighbours.append(swapped)
            for labels in neighbours:
                total = float(theta[b, torch.arange(30), torch.tensor(labels)].sum())
                assert tuple(labels) in listed or total <= value[-1, b] + 1e-12


def test_topk_needs_a_positive_k():
    with pytest.raises(InvalidInputError, match="k must be an integer of at least 1, got 0"):
        ORACLE.topk(torch.zeros(1, 2, 2), 0)
    with pytest.raises(InvalidInputError, match=r"k must be an integer of at least 1, got 2\.0"):
        ORACLE.topk(torch.zeros(1, 2, 2), 2.0)
