"""Weights and capacities of each instance, and several capacities of a knapsack."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import structinf as si
import structinf_oracles.knapsack
from structinf.errors import InvalidInputError, UnsupportedError
from structinf.testing import check_oracle
from structinf_oracles.common import knapsack_problems, knapsack_search, knapsack_states

WEIGHTS = torch.tensor([[1, 2, 3, 1], [2, 2, 2, 2], [1, 2, 3, 1], [0, 5, 1, 4], [1, 2, 3, 1]])
CAPACITY = torch.tensor([3, 4, 5, 0, 3])
DATA: dict[str, Any] = {"weights": WEIGHTS, "capacity": CAPACITY}


def scores(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(5, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))


def listed(weights: Any, capacity: Any) -> Tensor:
    """All subsets within the capacities, for weights (m, d)."""
    every = np.array(list(itertools.product([0, 1], repeat=4)))
    rows, limits = (torch.as_tensor(t).numpy() for t in (weights, capacity))
    return torch.tensor(every[(every @ rows.T <= limits).all(1)], dtype=torch.float64)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("relaxation", ["map", "marginals", "smoothed"])
@pytest.mark.parametrize("shared", [False, True])
def test_each_instance_has_the_answer_that_it_gets_alone(relaxation: str, dtype: torch.dtype, shared: bool) -> None:
    theta, options = scores(dtype), {"regularizer": "squared_l2"} if relaxation == "smoothed" else {}
    data = {"weights": [1, 2, 3, 1], "capacity": CAPACITY} if shared else DATA
    mean = si.relax(theta, "knapsack", relaxation, **data, **options)
    for b in range(5):
        own = {"weights": [1, 2, 3, 1] if shared else WEIGHTS[b].tolist(), "capacity": int(CAPACITY[b])}
        assert torch.equal(mean[b], si.relax(theta[b], "knapsack", relaxation, **own, **options))


def test_blocks_of_large_instances_do_not_depend_on_the_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.randint(1, 9, (3, 60), generator=generator)
    theta = torch.randn(3, 60, generator=generator).requires_grad_()
    cotangent = torch.randn(3, 60, generator=generator)
    mean = si.relax(theta, "knapsack", "marginals", weights=weights, capacity=[60, 45, 70])
    (gradient,) = torch.autograd.grad(mean, theta, cotangent)
    for b, capacity in enumerate((60, 45, 70)):
        own = si.relax(theta[b], "knapsack", "marginals", weights=weights[b].tolist(), capacity=capacity)
        assert torch.equal(mean[b], own)
        assert torch.equal(gradient[b], torch.autograd.grad(own, theta, cotangent[b])[0][b])


def test_against_enumeration_and_labels() -> None:
    theta = scores()
    log_z = si.log_partition(theta, "knapsack", **DATA)
    exact = si.relax(theta, "knapsack", si.get_relaxation("sparsemap").exact(), **DATA)
    for b in range(5):
        every = listed(WEIGHTS[b : b + 1], CAPACITY[b : b + 1])
        torch.testing.assert_close(log_z[b], (every @ theta[b]).logsumexp(0))
        own = {"weights": WEIGHTS[b].tolist(), "capacity": int(CAPACITY[b])}
        alone = si.relax(theta[b], si.get_oracle("knapsack", **own), si.get_relaxation("sparsemap").exact())
        torch.testing.assert_close(exact[b], alone, atol=1e-9, rtol=0)
    y = si.relax(theta, "knapsack", "map", **DATA)
    assert torch.equal(si.encode(y.long(), theta, "knapsack", **DATA), y)
    full = torch.ones(5, 4, dtype=torch.long)
    with pytest.raises(InvalidInputError, match="weigh more than the capacity"):
        si.encode(full, theta, "knapsack", **DATA)


def test_gradients_and_rows() -> None:
    theta = scores().requires_grad_()
    assert gradcheck(lambda t: si.relax(t, "knapsack", "marginals", **DATA), theta)
    oracle = si.get_oracle("knapsack").bind(**DATA)
    whole = oracle.marginals(theta.detach())
    assert torch.equal(oracle[torch.tensor([3, 1])].marginals(theta.detach()[[3, 1]]), whole[[3, 1]])
    assert torch.equal(pickle.loads(pickle.dumps(oracle)).marginals(theta.detach()), whole)
    layer = si.Layer("knapsack", "marginals", weights=[1, 2, 3, 1])
    assert torch.equal(layer(theta, capacity=[3, 3, 3, 3, 3])[0], whole[0])
    empty = si.relax(theta[:0], "knapsack", "map", weights=WEIGHTS[:0], capacity=CAPACITY[:0])
    assert empty.shape == (0, 4)
    # The oracle without data is not changed by earlier batches.
    plain = si.get_oracle("knapsack", weights=[1, 2, 3, 1], capacity=3)
    bound = plain.bind(capacity=[4, 4, 4, 4, 4])
    bound.marginals(theta.detach())
    assert torch.equal(bound._with_instance_data({}).marginals(theta.detach())[0], whole[0])


def test_several_capacities() -> None:
    theta, weights, capacity = scores(), ((1, 2, 3, 1), (2, 1, 0, 3)), (4, 3)
    oracle, every = si.get_oracle("knapsack", weights=weights, capacity=capacity), listed(weights, capacity)
    assert len(oracle.enumerate((4,))) == len(every) == si.count(theta[:1], oracle)[0]
    torch.testing.assert_close(oracle.log_partition(theta), (theta @ every.T).logsumexp(1))
    best = si.relax(theta, "knapsack", "map", weights=weights, capacity=capacity)
    assert torch.equal(best, every[(theta @ every.T).argmax(1)])
    assert oracle == si.get_oracle("knapsack", weights=np.array(weights), capacity=[4, 3])
    with pytest.raises(InvalidInputError, match="weigh more than the capacity"):
        oracle.encode(torch.tensor([[1, 0, 0, 1]]), theta[:1])


@pytest.mark.full
def test_laws(conformance_dtypes: Any) -> None:
    check_oracle(
        si.get_oracle("knapsack", weights=[1, 2, 3, 1], capacity=3),
        (4,),
        instance_data={"weights": WEIGHTS[:4].tolist(), "capacity": CAPACITY[:4].tolist()},
        dtypes=conformance_dtypes,
    )
    check_oracle(
        si.get_oracle("knapsack", weights=((1, 2, 3, 1), (2, 1, 0, 3)), capacity=(4, 3)),
        (4,),
        dtypes=conformance_dtypes,
    )


SEVERAL: dict[str, Any] = {
    # The second instance has few states, as its capacities have room for all items.
    "weights": torch.tensor([[[9, 14, 5, 12], [8, 3, 11, 7]], [[1, 2, 1, 1], [1, 1, 2, 3]], [[7, 6, 10, 3]] * 2]),
    "capacity": torch.tensor([[25, 17], [9, 9], [16, 13]]),
}


def test_several_capacities_of_instances() -> None:
    theta = scores()[:3]
    log_z, best = si.log_partition(theta, "knapsack", **SEVERAL), si.relax(theta, "knapsack", "map", **SEVERAL)
    labels = best.long()
    assert torch.equal(si.encode(labels, theta, "knapsack", **SEVERAL), best)
    for b in range(3):
        every = listed(SEVERAL["weights"][b], SEVERAL["capacity"][b])
        torch.testing.assert_close(log_z[b], (every @ theta[b]).logsumexp(0))
        assert torch.equal(best[b], every[(every @ theta[b]).argmax()])
    shaped = {"weights": SEVERAL["weights"].expand(2, 3, 2, 4), "capacity": SEVERAL["capacity"].expand(2, 3, 2)}
    assert torch.equal(si.relax(theta.expand(2, 3, 4), "knapsack", "map", **shaped)[1], best)
    assert torch.equal(si.relax(theta, si.pooled("knapsack"), "map", **SEVERAL), best)
    of_weights = si.relax(theta, "knapsack", "map", weights=SEVERAL["weights"], capacity=(16, 13))
    assert torch.equal(of_weights[2], best[2])
    option = tuple(map(tuple, SEVERAL["weights"][1].tolist()))
    of_capacities = si.relax(theta, "knapsack", "map", weights=option, capacity=SEVERAL["capacity"])
    assert torch.equal(of_capacities[1], best[1])
    with pytest.raises(InvalidInputError, match="knapsack needs capacity"):
        si.relax(theta, "knapsack", "map", weights=option)
    with pytest.raises(InvalidInputError, match="weigh more than the capacity"):
        si.encode(torch.ones_like(labels), theta, "knapsack", **SEVERAL)
    with pytest.raises(InvalidInputError, match="a number for each of 2 rows of weights for each instance, got one"):
        si.relax(theta, "knapsack", "map", weights=SEVERAL["weights"], capacity=[3, 3, 3])


@pytest.fixture
def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structinf_oracles.knapsack, "MOST_STATES", 9)
    knapsack_problems._RECENT.clear()


@pytest.mark.usefixtures("few_states")
def test_large_instances_are_integer_programs() -> None:
    theta = scores().abs()[:3].requires_grad_()
    best, ranked = si.relax(theta, "knapsack", "map", **SEVERAL), si.topk(theta, "knapsack", 3, **SEVERAL)
    exact = si.get_relaxation("sparsemap").exact()
    mean = si.relax(theta, "knapsack", exact, **SEVERAL)
    mean.square().sum().backward()
    assert theta.grad is not None
    for b in range(3):
        weights, capacity = (SEVERAL[name][b] for name in ("weights", "capacity"))
        every, values = listed(weights, capacity), theta[b].detach()
        assert torch.equal(best[b], every[(every @ values).argmax()])
        torch.testing.assert_close(ranked.scores[:, b], (every @ values).topk(3).values)
        alone = values.clone().requires_grad_()
        options = {"weights": tuple(map(tuple, weights.tolist())), "capacity": tuple(capacity.tolist())}
        own = si.relax(alone, si.get_oracle("knapsack", **options), exact)
        own.square().sum().backward()
        torch.testing.assert_close(mean[b], own, atol=1e-9, rtol=0)
        torch.testing.assert_close(theta.grad[b], alone.grad, atol=1e-9, rtol=0)
        assert torch.equal(best[b], si.relax(values, "knapsack", "map", **options))
        assert bool(si.get_oracle("knapsack", **options).unsupported) == (b != 1)


@pytest.mark.usefixtures("few_states")
@pytest.mark.parametrize("m", [1, 2, 4])
def test_branch_and_bound_is_exact(m: int) -> None:
    g = torch.Generator().manual_seed(m)
    items = 9
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=items)), dtype=torch.float64)
    for trial in range(40):
        weights = torch.randint(0, 12, (m, items), generator=g) * (2**40 if trial % 4 == 0 else 1)
        capacity = torch.randint(0, 40, (m,), generator=g) * (2**40 if trial % 4 == 0 else 1)
        integral = torch.randint(-3, 9, (2, items), generator=g).double()
        theta = (
            integral if trial % 2 else torch.randn(2, items, generator=g, dtype=torch.float64) * 10.0 ** (trial - 20)
        )
        theta = theta.masked_fill(torch.rand(2, items, generator=g) < 0.1, -torch.inf)
        oracle = si.get_oracle(
            "knapsack", weights=tuple(map(tuple, weights.tolist())), capacity=tuple(capacity.tolist())
        )
        y = oracle.argmax(theta)
        assert ((y @ weights.double().T) <= capacity).all()
        allowed = every[((every @ weights.double().T) <= capacity).all(1)]
        best = torch.where(allowed == 0, 0.0, theta[:, None]).sum(2).amax(1)
        torch.testing.assert_close(oracle.score(theta, y), best, rtol=1e-13, atol=0)


@pytest.mark.usefixtures("few_states")
def test_branch_and_bound_with_scores_of_very_different_sizes() -> None:
    theta = torch.tensor([[-1e300, 1e-300, 2e-300, 1e-300, 3e-300]], dtype=torch.float64)
    oracle = si.get_oracle("knapsack", weights=(1, 2, 4, 8, 16), capacity=24)
    assert oracle.unsupported
    assert oracle.argmax(theta).tolist() == [[0, 1, 1, 0, 1]]


@pytest.mark.usefixtures("few_states")
def test_highs_solves_instances_of_a_long_search(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    theta = torch.rand(4, 12, generator=g)
    data = {"weights": torch.randint(3, 8, (4, 2, 12), generator=g), "capacity": torch.full((4, 2), 20)}
    best = si.relax(theta, "knapsack", "map", **data)
    monkeypatch.setattr(knapsack_search, "_MOST_NODES", 8)
    assert torch.equal(si.relax(theta, "knapsack", "map", **data), best)


@pytest.mark.usefixtures("few_states")
def test_large_instances_have_no_sums() -> None:
    theta, middle = scores()[:3], {name: t[1:2] for name, t in SEVERAL.items()}
    with pytest.raises(UnsupportedError, match=r"more than .* states, .*, at batch index 0 and 2; divide"):
        si.log_partition(theta, "knapsack", **SEVERAL)
    assert torch.isfinite(si.log_partition(theta[1:2], "knapsack", **middle)).all()
    oracle = si.get_oracle("knapsack", weights=((9, 14, 5, 12), (8, 3, 11, 7)), capacity=(25, 17))
    for relaxation in ("marginals", "smoothed", "gumbel_crf"):
        with pytest.raises(UnsupportedError, match=r"the limit of the dynamic program.* such as sparsemap"):
            si.Layer(oracle, relaxation)
    for query in (lambda: si.sample(theta, oracle, 2), lambda: si.count(theta, oracle), lambda: oracle.enumerate((4,))):
        with pytest.raises(UnsupportedError, match="the limit of the dynamic program"):
            query()
    assert oracle.argmax(theta[:0]).shape == (0, 4)
    single = oracle.argmax(theta.float())
    assert single.dtype is torch.float32
    assert torch.equal(single.double(), oracle.argmax(theta))


@pytest.mark.parametrize("most", [9, 2_000_000])
def test_integer_programs_of_graphs_take_the_capacities(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structinf_oracles.knapsack, "MOST_STATES", most)
    theta, oracle = scores()[:3], si.get_oracle("knapsack", weights=((9, 14, 5, 0), (8, 3, 11, 7)), capacity=(25, 17))
    assert oracle.linear_constraints((4,)).matrix.shape == (6, 4)
    graph = si.FactorGraph((4,), solver="milp")
    graph.add(oracle, graph.variables)
    graph.add("at_most_one", graph.variables[:2])
    every = listed(oracle.weights, oracle.capacity)
    allowed = every[every[:, :2].sum(1) <= 1]
    assert torch.equal(graph.argmax(theta), allowed[(theta @ allowed.T).argmax(1)])


def test_states_are_limited_for_each_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structinf_oracles.knapsack, "MOST_STATES", 40)
    theta, weights = torch.ones(8, 6), [10] * 6
    # Capacities with different remainders share no states.
    capacity = list(range(40, 48))
    assert si.relax(theta, "knapsack", "map", weights=weights, capacity=capacity).sum(1).tolist() == [4] * 8
    assert torch.isfinite(si.log_partition(theta, "knapsack", weights=weights, capacity=capacity)).all()


def test_rows_of_large_numbers_have_distinct_states() -> None:
    rows = np.random.default_rng(0).integers(0, 3, size=(40, 3)) * [1, 2**52, 2**40]
    values, place = knapsack_states._distinct(rows)
    expected, expected_place = np.unique(rows, axis=0, return_inverse=True)
    assert np.array_equal(values, expected)
    assert np.array_equal(place, expected_place.ravel())


def test_large_batches_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knapsack_problems, "_MOST_REMEMBERED", 50)
    for shift in range(3):
        mean = si.relax(scores(), "knapsack", "map", weights=WEIGHTS + shift, capacity=CAPACITY)
        assert (mean * (WEIGHTS + shift)).sum(1).le(CAPACITY).all()
    assert len(knapsack_problems._RECENT) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "knapsack needs weights"),
        ({"weights": WEIGHTS}, "knapsack needs capacity"),
        ({"weights": WEIGHTS, "capacity": CAPACITY.double()}, "capacity must be integers"),
        ({"weights": -WEIGHTS, "capacity": CAPACITY}, "weights must be integers of at least 0, .* at batch index 0"),
        ({"weights": WEIGHTS[:2], "capacity": CAPACITY}, "weights must have the batch shape"),
        ({"weights": WEIGHTS[:, None][:, :0], "capacity": CAPACITY[:, None][:, :0]}, "at least one row"),
        ({"weights": WEIGHTS[:, :3], "capacity": CAPACITY}, "a value for each of the 3 weights"),
        ({"weights": ((1, 2, 3, 4), (1, 2, 3, 4)), "capacity": 3}, "a number for each of 2 rows"),
        ({"weights": ((1, 2, 3, 4), (1, 2, 3)), "capacity": (3, 3)}, "the same number of items in each row"),
    ],
)
def test_wrong_data(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.relax(scores(), "knapsack", "map", **data)
