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
from structinf.errors import InvalidInputError
from structinf.testing import check_oracle

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


def test_too_many_states_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structinf_oracles.knapsack, "_MOST_STATES", 100)
    weights = np.random.default_rng(0).integers(1, 10**6, size=(3, 12)).tolist()
    oracle = si.get_oracle("knapsack", weights=tuple(map(tuple, weights)), capacity=(3 * 10**6,) * 3)
    with pytest.raises(InvalidInputError, match=r"more than 100 states; .* or use milp"):
        oracle.argmax(torch.zeros(1, 12))


def test_states_are_limited_for_each_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structinf_oracles.knapsack, "_MOST_STATES", 40)
    theta, weights = torch.ones(8, 6), [10] * 6
    # Capacities with different remainders share no states.
    capacity = list(range(40, 48))
    assert si.relax(theta, "knapsack", "map", weights=weights, capacity=capacity).sum(1).tolist() == [4] * 8


def test_large_batches_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structinf_oracles.knapsack, "_MOST_REMEMBERED", 50)
    for shift in range(3):
        mean = si.relax(scores(), "knapsack", "map", weights=WEIGHTS + shift, capacity=CAPACITY)
        assert (mean * (WEIGHTS + shift)).sum(1).le(CAPACITY).all()
    assert len(structinf_oracles.knapsack._RECENT) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "knapsack needs weights"),
        ({"weights": WEIGHTS}, "knapsack needs capacity"),
        ({"weights": WEIGHTS, "capacity": CAPACITY.double()}, "capacity must be integers"),
        ({"weights": -WEIGHTS, "capacity": CAPACITY}, "weights must be integers of at least 0, .* at batch index 0"),
        ({"weights": WEIGHTS[:2], "capacity": CAPACITY}, "weights must have the batch shape"),
        ({"weights": WEIGHTS[:, :3], "capacity": CAPACITY}, "a value for each of the 3 weights"),
        ({"weights": ((1, 2, 3, 4), (1, 2, 3, 4)), "capacity": 3}, "a number for each of 2 rows"),
        ({"weights": ((1, 2, 3, 4), (1, 2, 3)), "capacity": (3, 3)}, "the same number of items in each row"),
    ],
)
def test_wrong_data(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.relax(scores(), "knapsack", "map", **data)
