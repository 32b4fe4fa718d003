"""Pooled oracles: exact calls by schedule, the cache, pools of instance data, the report and the state."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch

import oracle_examples
import structinf as si
from oracle_example import Example
from structinf import InfeasibleError, InvalidInputError, UnsupportedError
from structinf.testing import check_oracle


class Counting(si.Oracle):
    """The best of d choices; counts the solved instances."""

    event_ndim = 1

    def __init__(self):
        self.solved = []

    def argmax(self, theta):
        self.solved.append(len(theta))
        if bool(theta.isneginf().all(1).any()):
            raise InfeasibleError("no choice", int(theta.isneginf().all(1).nonzero()[0, 0]))
        return torch.nn.functional.one_hot(theta.argmax(1), theta.shape[1]).to(theta)


def scores(rows, parts=8, seed=0):
    return torch.rand(rows, parts, generator=torch.Generator().manual_seed(seed))


def test_exact_calls_follow_the_schedule():
    inner = Counting()
    oracle = si.pooled(inner, solve_ratio=0.25)
    for seed in range(5):
        si.relax(scores(10, seed=seed), oracle, "map")
    # of 50 instances, the numbers 1, 5, 9, ...
    assert sum(inner.solved) == 13
    report = oracle.report()
    assert (report.answers, report.exact, report.cached) == (50, 13, 0)
    assert report.hit_rate == 1 - 13 / 50
    assert 0 <= report.gap < 0.5
    oracle.reset_report()
    assert math.isnan(oracle.report().gap)
    assert math.isnan(oracle.report().hit_rate)


def test_answers_are_the_best_of_the_pool():
    oracle = si.pooled("subset", k=2, solve_ratio=0.2)
    si.relax(scores(30, seed=1), oracle, "map")
    (pool,) = oracle._memory.pools.values()
    theta = scores(20, seed=2)
    y = si.relax(theta, oracle, "map")
    exact = si.relax(theta, oracle.exact(), "map")
    values, best = (theta * y).sum(1), (theta @ pool.structures.T).amax(1)
    solved = (y == exact).all(1)
    assert bool(((values - best).abs() < 1e-6)[~solved].all())
    assert bool((values <= (theta * exact).sum(1) + 1e-6).all())


def test_the_gap_estimates_the_loss():
    theta = scores(4000, 12)
    oracle = si.pooled("subset", k=3, solve_ratio=0.1, capacity=30)
    y = torch.cat([si.relax(rows, oracle, "map") for rows in theta.split(40)])
    best = (theta * si.relax(theta, "subset", "map", k=3)).sum(1)
    lost = (best - (theta * y).sum(1)) / best
    assert oracle.report().gap == pytest.approx(lost.mean().item() / 0.9, rel=0.2)
    (pool,) = oracle._memory.pools.values()
    assert len(pool) == 30


def test_ratio_0_and_1():
    inner = Counting()
    oracle = si.pooled(inner, solve_ratio=0.0)
    theta = scores(4)
    # an empty pool needs exact answers
    assert torch.equal(si.relax(theta, oracle, "map"), si.relax(theta, "categorical", "map"))
    si.relax(scores(4, seed=1), oracle, "map")
    assert inner.solved == [4]
    filled = si.pooled(inner, solve_ratio=0.0)
    filled.add(torch.eye(8)[2:4])
    assert torch.equal(si.relax(theta, filled, "map")[:, 2:4].argmax(1), theta[:, 2:4].argmax(1))
    assert filled.report().hit_rate == 1
    with pytest.raises(InvalidInputError, match="structures must be finite tensors"):
        filled.add(torch.eye(8).long())
    inner = Counting()
    oracle = si.pooled(inner, solve_ratio=1.0)
    for seed in (0, 1, 0, 0):
        theta = scores(4, seed=seed)
        assert torch.equal(si.relax(theta, oracle, "map"), si.relax(theta, "categorical", "map"))
    assert inner.solved == [4, 4]
    assert oracle.report().cached == 8
    without = si.pooled(Counting(), solve_ratio=1.0, cache=0)
    for _ in range(2):
        si.relax(theta, without, "map")
    assert without.report().exact == 8


def test_the_cache_of_examples_keeps_the_true_scores():
    """SPO+ asks for the true scores in each epoch: they are solved once."""
    inner = Counting()
    oracle = si.pooled(inner, solve_ratio=1.0, cache=6)
    loss = si.SPOPlusLoss(oracle)
    true = scores(6)
    for epoch in range(4):
        for rows in torch.arange(6).split(3):
            loss(scores(6, seed=1 + epoch)[rows], true[rows], example=rows)
    # 6 true scores, and 6 predicted scores in each of 4 epochs
    assert sum(inner.solved) == 6 + 4 * 6
    without = Counting()
    loss = si.SPOPlusLoss(si.pooled(without, solve_ratio=1.0, cache=6))
    for epoch in range(4):
        for rows in torch.arange(6).split(3):
            loss(scores(6, seed=1 + epoch)[rows], true[rows])
    assert sum(without.solved) == 48
    with pytest.raises(InvalidInputError, match="example must be an integer"):
        si.relax(true, oracle, "map", example=torch.rand(6))


def test_instances_with_other_instance_data_use_other_pools():
    oracle = si.pooled("chain", solve_ratio=0.0)
    unary, transition = torch.randn(6, 4, 2), torch.randn(2, 2)
    lengths = torch.tensor([4, 2, 4, 1, 2, 4])
    exact = si.relax((unary, transition), "chain", "map", lengths=lengths)
    first = si.relax((unary, transition), oracle, "map", lengths=lengths)
    assert all(torch.equal(a, b) for a, b in zip(first, exact, strict=True))
    assert len(oracle._memory.pools) == 3
    again = si.relax((unary.flip(0), transition), oracle, "map", lengths=lengths.flip(0))
    assert all(torch.equal(a.flip(0), b) for a, b in zip(again, exact, strict=True))
    assert oracle.report().exact == 6
    other = si.relax((torch.randn(3, 4, 2), transition), oracle, "map", lengths=[1, 2, 4])
    for y, length in zip(other[0], (1, 2, 4), strict=True):
        assert not y[length:].any()


def test_a_full_memory_drops_the_oldest_structures_of_the_pool_used_the_longest_ago():
    theta = torch.eye(4)
    oracle = si.pooled("bits", solve_ratio=0.0, capacity=4, cache=0)

    def solve(rows, length):
        oracle.solve_ratio = 1.0
        si.relax(theta[rows], oracle, "map", lengths=[length] * len(rows))
        oracle.solve_ratio = 0.0

    def sizes():
        return [len(pool) for pool in oracle._memory.pools.values()]

    solve([0, 1, 2, 3], 4)
    solve([0], 3)
    assert sizes() == [3, 1]
    left = next(iter(oracle._memory.pools.values())).structures
    assert sorted(left.argmax(1).tolist()) == [1, 2, 3]
    # An answer from a pool uses the structure and the pool.
    si.relax(theta[1:2], oracle, "map", lengths=[4])
    solve([1], 3)
    assert sizes() == [2, 2]
    left = next(iter(oracle._memory.pools.values())).structures
    assert sorted(left.argmax(1).tolist()) == [1, 3]
    si.relax(theta[1:2], oracle, "map", lengths=[4])
    solve([0], 2)
    assert sizes() == [1, 2, 1]
    other = si.pooled("bits", capacity=2)
    other.load_state_dict(oracle.state_dict())
    assert [len(pool) for pool in other._memory.pools.values()] == [1, 1]


def test_a_call_that_fails_does_not_count():
    oracle = si.pooled("categorical", solve_ratio=0.5, cache=0)
    theta = torch.tensor([[1.0, 0.0], [2.0, 1.0], [-math.inf] * 2])
    si.relax(theta, oracle, "map", on_infeasible="zero")
    assert oracle.report()[:3] == (2, 1, 0)


def test_forbidden_and_infeasible_instances():
    oracle = si.pooled("categorical", solve_ratio=0.0)
    si.relax(torch.eye(3)[:1], oracle, "map")
    closed = torch.tensor([[-math.inf, 1.0, 0.0], [0.0, 5.0, 1.0]])
    y = si.relax(closed, oracle, "map")
    assert y.tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(InfeasibleError, match="batch index 1"):
        si.relax(torch.tensor([[1.0, 0.0], [-math.inf, -math.inf]]), si.pooled(Counting()), "map")
    infeasible = torch.tensor([[1.0, 0.0, 0.0], [-math.inf] * 3])
    assert si.relax(infeasible, oracle, "map", on_infeasible="zero").tolist() == [[1, 0, 0], [0, 0, 0]]


def test_state():
    oracle = si.pooled("chain", solve_ratio=0.3)
    theta = torch.randn(6, 4, 2), torch.randn(2, 2)
    si.relax(theta, oracle, "map", lengths=[4, 2, 4, 1, 2, 4])
    file = io.BytesIO()
    torch.save(oracle.state_dict(), file)
    file.seek(0)
    other = si.pooled("chain", solve_ratio=0.3)
    other.load_state_dict(torch.load(file, weights_only=True))
    for twin in (other, copy.deepcopy(oracle), pickle.loads(pickle.dumps(oracle))):
        assert twin.report() == oracle.report()
        new = torch.randn(6, 4, 2), torch.randn(2, 2)
        a, b = (si.relax(new, o, "map", lengths=[4, 2, 4, 1, 2, 4]) for o in (twin, copy.deepcopy(oracle)))
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    shared = oracle.bind(lengths=[4])
    assert shared._memory is oracle._memory


def test_a_gold_structure_outside_the_pool_costs_nothing():
    theta = torch.tensor([[3.0, 2.0, 0.0], [0.0, 1.0, 2.0]], requires_grad=True)
    oracle = si.pooled("categorical", solve_ratio=0.0)
    oracle.add(torch.eye(3)[1:])
    assert not oracle.is_exact
    losses = si.FenchelYoungLoss(oracle, "map", reduction="none")(theta, torch.tensor([0, 1]))
    assert losses.tolist() == [0.0, 1.0]
    losses.sum().backward()
    assert theta.grad.tolist() == [[0, 0, 0], [0, -1, 1]]
    assert si.pooled("categorical", solve_ratio=1).is_exact


def test_training_with_noise_and_losses():
    theta = scores(16, seed=3).requires_grad_()
    oracle = si.pooled("subset", k=2)
    gold = si.relax(scores(16, seed=4), "subset", "map", k=2)
    si.FenchelYoungLoss(oracle, "perturbed", samples=5)(theta, gold).backward()
    assert bool(theta.grad.any())
    assert oracle.report().exact == 8
    si.Layer(oracle, "imle")(theta).sum().backward()
    with pytest.raises(UnsupportedError, match="lacks the ability GibbsOracle"):
        si.Layer(oracle, "marginals")


@oracle_examples.parametrize(lambda e: e.relaxed and e.name == "knapsack")
def test_laws_of_exact_calls(example: Example, conformance_dtypes: Any):
    report = check_oracle(
        si.pooled(example.oracle(), solve_ratio=1.0), event_shape=example.event_shape, dtypes=conformance_dtypes
    )
    assert not report.failed


@pytest.mark.full
@oracle_examples.parametrize(lambda e: e.relaxed and e.name in ("chain", "milp", "tour", "transportation"))
def test_laws_of_exact_calls_of_other_oracles(example: Example, conformance_dtypes: Any):
    report = check_oracle(
        si.pooled(example.oracle(), solve_ratio=1.0), event_shape=example.event_shape, dtypes=conformance_dtypes
    )
    assert not report.failed


def test_dtypes_and_batches():
    oracle = si.pooled("subset", k=2, solve_ratio=0.0)
    theta = scores(6).double()
    exact = si.relax(theta, oracle, "map")
    for dtype in (torch.float32, torch.float16, torch.float64):
        found = si.relax(theta.to(dtype).view(2, 3, 8), oracle, "map")
        assert found.dtype == dtype
        assert torch.equal(found.view(6, 8).double(), exact)
    assert si.relax(theta[:0], oracle, "map").shape == (0, 8)
    assert torch.equal(si.relax(1000 * theta[0], oracle, "map"), exact[0])
    assert torch.equal(si.relax(theta.T.contiguous().T, oracle, "map"), exact)


def test_wrong_options():
    for options, message in (
        ({"solve_ratio": 2.0}, "solve_ratio must be a number between 0 and 1"),
        ({"solve_ratio": "0.1"}, "solve_ratio must be a number between 0 and 1"),
        ({"capacity": 0}, "capacity must be an integer of at least 1"),
        ({"cache": -1}, "cache must be an integer of at least 0"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            si.pooled("categorical", **options)
    with pytest.raises(TypeError, match="has no option 'k'"):
        si.pooled("categorical", k=2)
    with pytest.raises(TypeError, match=r"capacity=4 may belong to pooled or to knapsack; .*get_oracle\('knapsack'"):
        si.pooled("knapsack", weights=[1, 2, 3], capacity=4)
    with pytest.raises(InvalidInputError, match="has the instance data lengths"):
        si.pooled(si.get_oracle("chain").bind(lengths=[3]))
    for structures, message in (
        (torch.eye(3)[None], "structures must have one batch dimension before the \\[1\\] dimensions"),
        ([torch.eye(3), torch.eye(3)], "structures: categorical takes one tensor, got a tuple of 2"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            si.pooled("categorical").add(structures)
    with pytest.raises(InvalidInputError, match="state must be the result of state_dict, a dict with pools, answers"):
        si.pooled("categorical").load_state_dict({})
    assert repr(si.pooled("subset", k=2)) == (
        "pooled(Subset(k=2, at_most=False), solve_ratio=0.1, capacity=1000, cache=10000)"
    )
