"""Tours: values by Held and Karp's recursion, tiny and large scores, labels, limits."""

from __future__ import annotations

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import enumerators
import enumerators_integer_programs as programs
import structinf as si
from structinf import InfeasibleError, InvalidInputError, SolverLimitError
from structinf_oracles import tour
from structinf_oracles.common.integer_solver import integer_scores
from structinf_oracles.tour import Tour

INF = float("inf")


def held_karp(scores: np.ndarray) -> float:
    """The best tour's score, by Bellman's recursion over sets of nodes (Held & Karp 1962)."""
    n = len(scores)
    best = {(1 << j, j): scores[0, j] for j in range(1, n)}
    for size in range(2, n):
        for nodes in itertools.combinations(range(1, n), size):
            seen = sum(1 << j for j in nodes)
            for j in nodes:
                rest = seen & ~(1 << j)
                best[seen, j] = max(best[rest, i] + scores[i, j] for i in nodes if i != j)
    whole = sum(1 << j for j in range(1, n))
    return max(best[whole, j] + scores[j, 0] for j in range(1, n))


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e3, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_best_of_nine_nodes(dtype, scale):
    theta = (torch.randn(3, 9, 9, dtype=torch.float64) * scale).to(dtype)
    y = Tour().argmax(theta)
    expected = [held_karp(t) for t in theta.double().numpy()]
    assert Tour().score(theta.double(), y.double()).tolist() == pytest.approx(expected, rel=1e-14)
    for labels in Tour().decode(y).tolist():
        assert labels[0] == 0
        assert sorted(labels) == list(range(9))


def test_ties_and_forbidden_arcs():
    generator = torch.Generator().manual_seed(1)
    theta = torch.randint(-1, 2, (20, 5, 5), generator=generator).double()
    keep = Tour().argmax(torch.randn(20, 5, 5, generator=generator)) > 0
    theta = torch.where(keep | (torch.rand(20, 5, 5, generator=generator) < 0.5), theta, -INF)
    y, structures = Tour().argmax(theta), list(programs.tour(5))
    for t, z in zip(theta.numpy(), y.numpy(), strict=True):
        assert enumerators.score((t,), (z,)) == enumerators.best((t,), structures)


def test_ties_go_to_the_lowest_node_from_the_end_backwards():
    theta = torch.randint(-2, 3, (30, 6, 6), generator=torch.Generator().manual_seed(0)).double()
    oracle = Tour()
    every = oracle.enumerate((6,) * 2)
    labels = oracle.decode(every).tolist()
    for t, found in zip(theta, oracle.decode(oracle.argmax(theta)).tolist(), strict=True):
        scores = (t * every).sum((1, 2))
        best = [visit for visit, score in zip(labels, scores, strict=True) if score == scores.max()]
        assert found == min(best, key=lambda visit: visit[::-1])


def test_the_recursion_and_the_solver_agree(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(3, 17, 17, generator=generator, dtype=torch.float64)
    theta[torch.rand(3, 17, 17, generator=generator) < 0.3] = -INF
    oracle = Tour().bind(lengths=[16, 17, 11])
    y = oracle.argmax(theta)
    monkeypatch.setattr(tour, "_MOST_NODES", 1)
    assert torch.equal(y, oracle.argmax(theta))
    # With a positive score everywhere else, each tour still has a forbidden arc.
    monkeypatch.undo()
    theta = torch.full((1, 12, 12), 1e3)
    theta[:, 3] = -INF
    with pytest.raises(InfeasibleError, match="batch index 0"):
        Tour().argmax(theta)


def test_one_and_two_nodes_and_none():
    assert Tour().argmax(torch.full((2, 1, 1), -INF)).tolist() == [[[0.0]], [[0.0]]]
    assert Tour().decode(torch.zeros(1, 1, 1)).tolist() == [[0]]
    assert Tour().argmax(torch.zeros(1, 2, 2)).tolist() == [[[0, 1], [1, 0]]]
    assert Tour().argmax(torch.zeros(3, 0, 0)).shape == (3, 0, 0)
    assert Tour().argmax(torch.zeros(0, 3, 3)).shape == (0, 3, 3)
    with pytest.raises(InfeasibleError, match=r"no tour .* batch index 1"):
        Tour().argmax(torch.tensor([[[0, 1.0], [1, 0]], [[0, -INF], [1, 0]]]))


def test_a_batch_of_lengths():
    theta = torch.randn(4, 5, 5)
    lengths = [5, 1, 2, 4]
    y = si.relax(theta, "tour", "map", lengths=lengths)
    oracle = Tour().bind(lengths=lengths)
    assert [[j for j in row if j >= 0] for row in oracle.decode(y).tolist()][1:3] == [[0], [0, 1]]
    for t, z, n in zip(theta, y, lengths, strict=True):
        alone = Tour().argmax(t[None, :n, :n])[0]
        assert torch.equal(z[:n, :n], alone)
        assert z.sum() == alone.sum()
    assert torch.equal(oracle.encode(oracle.decode(y), theta), y)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ([1, 0, 2], "must start at node 0"),
        ([0, 1, 1], "visited twice"),
        ([0, 1, 3], "between 0"),
        ([0, 1], "in the order of the visit"),
    ],
)
def test_wrong_labels(labels, why):
    with pytest.raises(InvalidInputError, match=why):
        Tour().encode(torch.tensor([labels]), torch.zeros(1, 3, 3))


def test_threads_and_copies_agree():
    theta = torch.randn(6, 8, 8)
    y = Tour().argmax(theta)
    with ThreadPoolExecutor(2) as pool:
        assert all(torch.equal(z, y) for z in pool.map(Tour().argmax, [theta] * 4))
    assert torch.equal(pickle.loads(pickle.dumps(Tour())).argmax(theta), y)
    assert torch.equal(torch.cat([Tour().argmax(t[None]) for t in theta]), y)


def test_limits():
    theta = torch.randn(2, 60, 60)
    with pytest.raises(SolverLimitError, match="without any tour for batch index 0"):
        Tour(time_limit=1e-4, on_limit="warn").argmax(theta)
    for options in ({"time_limit": 0}, {"gap": -1}, {"seed": -1}, {"seed": True}, {"on_limit": "ignore"}):
        with pytest.raises(InvalidInputError, match=next(iter(options))):
            Tour(**options)
    with pytest.raises(InvalidInputError, match=r"scores \(n, n\)"):
        si.relax(torch.zeros(2, 3, 4), "tour", "map")


# ----------------------------------------------------------------------------- scores as integers


@pytest.mark.parametrize("scale", [1e-320, 1e-3, 1.0, 1e300])
@pytest.mark.parametrize("most", [1000, 2**50, 2**60, 2**62])
@pytest.mark.parametrize("size", [1, 3, 50])
def test_integer_scores_fit_and_keep_proportions(scale, most, size):
    scores = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64).numpy() * scale
    found = integer_scores(scores, most)
    total = sum(map(abs, found.tolist()))
    assert 0 < total <= most
    size_of_scores = np.abs(scores / scale).sum()
    np.testing.assert_allclose(found / total, scores / scale / size_of_scores, atol=4 / min(most, 2**50) * size)


def test_integer_scores_are_exact_where_they_can_be():
    assert integer_scores(np.array([0.75, -1.5, 0.0, 3e5]), 2**60).tolist() == [1, -2, 0, 400000]
    assert integer_scores(np.zeros(3), 2**60).tolist() == [0, 0, 0]
    assert integer_scores(np.zeros(0), 2**60).tolist() == []
    scores = np.random.default_rng(0).standard_normal(50).astype(np.float32).astype(np.float64)
    found = integer_scores(scores, 2**60)
    assert len(set((found / scores).tolist())) == 1
    times = np.array([1, 1000])
    assert (np.abs(integer_scores(np.array([1e-9, np.pi]), 2**40, times)) * times).sum() <= 2**40
