"""Flows with supplies, bounds and graphs of each instance: each instance has the flow that it gets alone."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor
from torch.autograd import gradcheck

import enumerators
import structinf as si
from structinf.errors import InfeasibleError, InvalidInputError, UnboundedError, UnsupportedError
from structinf.testing import check_oracle

EDGES = np.array([(0, 1), (0, 2), (1, 2), (2, 1), (1, 3), (2, 3), (3, 0)])
SUPPLIES = torch.tensor([[2, 0, 0, -2], [1, 1, -1, -1], [0, 0, 0, 0], [3, 0, -1, -2]])
CAPACITIES = torch.tensor([[2, 2, 1, 1, 2, 2, 1], [1, 1, 1, 1, 1, 1, 0], [1, 1, 2, 2, 1, 1, 2], [2, 2, 1, 1, 2, 2, 0]])
LOWER = torch.tensor([[0, 0, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0, 1], [1, 0, 0, 0, 0, 1, 0]])
DATA: dict[str, Any] = {"supplies": SUPPLIES, "capacities": CAPACITIES, "lower": LOWER}
FRACTIONS: dict[str, Any] = {name: data * torch.tensor([[0.1], [1 / 3], [0.7], [1.0]]).double()
                             for name, data in DATA.items()}  # fmt: skip


def scores(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(4, 7, dtype=dtype, generator=torch.Generator().manual_seed(0))


def alone(data: dict[str, Any], b: int, **options: Any) -> si.Oracle:
    return si.get_oracle("flow", graph=EDGES, **{name: value[b] for name, value in data.items()}, **options)


def linprog_solution(
    theta: np.ndarray, edges: np.ndarray, supplies: np.ndarray, capacities: np.ndarray, lower: np.ndarray
) -> np.ndarray:
    matrix, columns = np.zeros((len(supplies), len(edges))), np.arange(len(edges))
    np.add.at(matrix, (edges[:, 0], columns), 1)
    np.add.at(matrix, (edges[:, 1], columns), -1)
    bounds = np.stack([lower, capacities], 1)
    return linprog(-theta, A_eq=matrix, b_eq=supplies, bounds=bounds, method="highs")


# ----------------------------------------------------------------------------- values


@pytest.mark.parametrize("data", [DATA, FRACTIONS], ids=["integers", "fractions"])
@pytest.mark.parametrize("relaxation", ["map", "sparsemap", "frank_wolfe", "perturbed"])
def test_each_instance_has_the_flow_that_it_gets_alone(data: dict[str, Any], relaxation: str) -> None:
    theta = scores()
    if relaxation == "perturbed":
        theta, data = theta[1:2], {name: value[1:2] for name, value in data.items()}
    draw = {"generator": torch.Generator().manual_seed(0)} if relaxation == "perturbed" else {}
    mean = si.relax(theta, "flow", relaxation, graph=EDGES, **data, **draw)
    for b in range(len(theta)):
        draw = {"generator": torch.Generator().manual_seed(0)} if relaxation == "perturbed" else {}
        own = si.relax(theta[b], alone(data, b), relaxation, **draw)
        if relaxation == "frank_wolfe":
            torch.testing.assert_close(mean[b], own, atol=1e-8, rtol=0)
        else:
            assert torch.equal(mean[b], own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_all_flows(dtype: torch.dtype) -> None:
    theta = scores(dtype)
    for data in (DATA, FRACTIONS):
        y = si.relax(theta, "flow", "map", graph=EDGES, **data)
        mean = si.relax(theta.double(), "flow", si.get_relaxation("sparsemap").exact(), graph=EDGES, **data)
        for b in range(4):
            every = alone(data, b).enumerate((7,))
            values = every @ theta[b].double()
            torch.testing.assert_close(y[b], every[values.argmax()].to(dtype), atol=0, rtol=0)
            (expected,) = enumerators.projection((theta[b].double().numpy(),), [(row,) for row in every.numpy()])
            np.testing.assert_allclose(mean[b], expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_fractional_flows_are_those_of_linear_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, count, batch = 12, 40, 6
    edges = rng.integers(0, nodes, (count, 2))
    lower = rng.random((batch, count)) * (rng.random((batch, count)) < 0.3)
    capacities = lower + rng.random((batch, count)) * 10.0 ** rng.integers(-3, 3, (batch, count))
    some = lower + rng.random((batch, count)) * (capacities - lower)
    supplies = np.zeros((batch, nodes))
    for row, amounts in zip(supplies, some, strict=True):
        np.add.at(row, edges[:, 0], amounts)
        np.subtract.at(row, edges[:, 1], amounts)
    theta = torch.from_numpy(rng.standard_normal((batch, count)))
    data = {"supplies": supplies, "capacities": capacities, "lower": lower}
    y = si.relax(theta, "flow", "map", graph=edges, **data)
    for b in range(batch):
        found = linprog_solution(theta[b].numpy(), edges, supplies[b], capacities[b], lower[b])
        np.testing.assert_allclose(y[b], found.x, atol=1e-7)
        net = np.zeros(nodes)
        np.add.at(net, edges[:, 0], y[b])
        np.subtract.at(net, edges[:, 1], y[b])
        np.testing.assert_allclose(net, supplies[b], atol=1e-14 * np.abs(capacities[b]).sum(), rtol=0)
        assert ((y[b].numpy() >= lower[b]) & (y[b].numpy() <= capacities[b])).all()
        # The edges that are neither empty nor full form no cycle: y is a vertex.
        inside = (y[b].numpy() > lower[b]) & (y[b].numpy() < capacities[b])
        component = np.arange(nodes)
        for tail, head in edges[inside]:
            assert component[tail] != component[head]
            component[component == component[head]] = component[tail]
        options = {name: value[b].tolist() for name, value in data.items()}
        assert torch.equal(si.relax(theta[b], "flow", "map", graph=edges, **options), y[b])


@pytest.mark.parametrize("data", [DATA, pytest.param(FRACTIONS, marks=pytest.mark.full)], ids=["integers", "fractions"])
def test_conformance(data: dict[str, Any]) -> None:
    # Without integer supplies, there are no k best flows.
    options = {} if data is DATA else {"supplies": [0.5, 0, 0, -0.5]}
    check_oracle(si.get_oracle("flow", graph=EDGES, **options), (7,), instance_data=data, dtypes=[torch.float64])


@pytest.mark.full
def test_conformance_of_graphs() -> None:
    graphs = si.GraphBatch.of([EDGES, EDGES[:5]])
    oracle = si.get_oracle("flow", graph=graphs, supplies=[[1, 0, 0, -1], [2, 0, -1, -1]], capacities=2)
    check_oracle(oracle, (7,), instance_data={"graph_index": [0, 1]}, dtypes=[torch.float64])


def test_supplies_with_rounding_errors() -> None:
    # 0.1 + 0.2 exceeds the demand, and the capacity of the last edge, in the last place.
    theta, edges = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64), [(0, 2), (1, 2), (2, 3)]
    y = si.relax(theta, "flow", "map", graph=edges, supplies=[0.1, 0.2, 0, -0.3], capacities=[0.1, 0.2, 0.3])
    assert y.tolist() == pytest.approx([0.1, 0.2, 0.3], abs=1e-16)
    floats = torch.tensor([[0.1, 0.2, 0.0, -0.3]])
    torch.testing.assert_close(
        si.relax(theta[None], "flow", "map", graph=edges, supplies=floats)[0], y, atol=1e-7, rtol=0
    )
    with pytest.raises(InfeasibleError):
        si.relax(theta, "flow", "map", graph=edges, supplies=[0.1, 0.2, 0, -0.3], capacities=[0.1, 0.2, 0.3 - 1e-12])
    large = si.relax(theta, "flow", "map", graph=edges, supplies=[1e200, 1e183, 0, -1e200])
    assert large.tolist() == [1e200, 0.0, 1e200] or large.tolist() == [1e200, 1e183, 1e200]


def test_rounded_amounts_stay_feasible() -> None:
    # The large capacities of the way back make the unit so large that 0.3 + 0.42 and 0.72 round differently.
    edges, theta = [(0, 2), (1, 2), (2, 3), (3, 0), (3, 0)], torch.zeros(1, 5, dtype=torch.float64)
    for first, second in [(0.86, 0.03), (0.3, 0.42)]:
        total = round(first + second, 2)
        capacities = [first, second, total, 100.0, 1e5]
        y = si.relax(theta, "flow", "map", graph=edges, supplies=[first, second, 0, -total], capacities=capacities)
        assert y[0].tolist() == [first, second, total, 0, 0]


def test_large_capacities_round_no_small_amounts() -> None:
    edges, theta = [(0, 1), (1, 2), (2, 1), (0, 2)], torch.tensor([[-1.0, -1.0, -1.0, -3.0]] * 3, dtype=torch.float64)
    theta[2, 1:3] = 1.0  # fills the cycle
    data = {
        "supplies": torch.tensor([[0.1, 0.2, -0.30000000000000004]] * 3, dtype=torch.float64),
        "capacities": torch.tensor([[1e300, 1e18, 1e12, 0.05]] * 3, dtype=torch.float64),
    }
    theta[1, 1] = -9.0
    y = si.relax(theta, "flow", "map", graph=edges, **data)
    assert y[0].tolist() == [0.1, 0.1 + 0.2, 0.0, 0.0]
    assert y[1].tolist() == pytest.approx([0.05, 0.25, 0.0, 0.05], abs=1e-16)
    assert y[2].tolist() == pytest.approx([0.1, 1e12 + 0.3, 1e12, 0.0], rel=1e-15, abs=1e-4)
    for b in range(3):
        own = si.relax(theta[b], "flow", "map", graph=edges, **{k: v[b] for k, v in data.items()})
        assert torch.equal(own, y[b])
    whole = si.relax(theta[:1], "flow", "map", graph=edges, supplies=[2, 0, -2], capacities=[1e300, 1e18, 1.0, 1.0])
    assert whole.tolist() == [[2, 2, 0, 0]]
    assert si.topk(theta[:1], "flow", 2, graph=edges, supplies=[2, 0, -2], capacities=[1e300, 5, 1, 1]).valid.all()


def test_integer_data_of_a_call_rank_flows_of_fractional_options() -> None:
    oracle = si.get_oracle("flow", graph=EDGES, supplies=[0.5, 0, 0, -0.5], capacities=2)
    with pytest.raises(UnsupportedError, match="the k best flows need integer supplies"):
        si.topk(scores(), oracle, 2)
    with pytest.raises(UnsupportedError, match="integer supplies and bounds at batch index 1; multiply"):
        si.topk(scores()[:2], oracle, 2, supplies=SUPPLIES[:2] * torch.tensor([[1.0], [0.5]]))
    ranked = si.topk(scores(), oracle, 2, supplies=SUPPLIES)
    assert torch.equal(
        ranked.structures, si.topk(scores(), "flow", 2, graph=EDGES, supplies=SUPPLIES, capacities=2).structures
    )


# ----------------------------------------------------------------------------- gradients, labels and k best


@pytest.mark.parametrize("data", [DATA, FRACTIONS], ids=["integers", "fractions"])
def test_gradients_and_losses(data: dict[str, Any]) -> None:
    theta = scores().requires_grad_()
    options: dict[str, Any] = {"tolerance": 0.0}
    assert gradcheck(lambda t: si.relax(t, "flow", "sparsemap", graph=EDGES, **options, **data), theta)
    y = si.relax(-theta.detach(), "flow", "map", graph=EDGES, **data)
    losses = si.FenchelYoungLoss("flow", "sparsemap", reduction="none", graph=EDGES, **options)(theta, y, **data)
    for b in range(4):
        loss = si.FenchelYoungLoss(alone(data, b), "sparsemap", **options)
        torch.testing.assert_close(losses[b], loss(theta[b], y[b]), rtol=1e-12, atol=1e-12)
    costs = si.get_oracle("flow", graph=EDGES).bind(**data).hamming_cost(y)
    for b in range(4):
        assert torch.equal(costs[b], alone(data, b).hamming_cost(y[b : b + 1])[0])


def test_labels_and_best_flows() -> None:
    theta = scores()
    y = si.relax(theta, "flow", "map", graph=EDGES, **DATA)
    assert torch.equal(si.encode(y.long(), theta, "flow", graph=EDGES, **DATA), y)
    assert torch.equal(si.decode(y, "flow", graph=EDGES, **DATA), y.long())
    below = y.long()
    below[3, 5] -= 5
    with pytest.raises(InvalidInputError, match="between the lower bounds and the capacities at batch index 3"):
        si.encode(below, theta, "flow", graph=EDGES, **DATA)
    best = si.topk(theta, "flow", 4, graph=EDGES, **DATA)
    for b in range(4):
        for part, own in zip(best, si.topk(theta[b], alone(DATA, b), 4), strict=True):
            assert torch.equal(part[:, b], own)
        values = alone(DATA, b).enumerate((7,)) @ theta[b]
        count = int(best[2][:, b].sum())
        assert count == min(4, len(values))
        torch.testing.assert_close(best[1][:count, b], values.sort(descending=True).values[:count])
    for call in (
        lambda: si.topk(theta, "flow", 2, graph=EDGES, **FRACTIONS),
        lambda: si.encode(y.long(), theta, "flow", graph=EDGES, **FRACTIONS),
        lambda: si.decode(y, "flow", graph=EDGES, **FRACTIONS),
    ):
        with pytest.raises(UnsupportedError, match=r"supplies (or|and) bounds at batch index 0, 1 and 2"):
            call()
    with pytest.raises(UnsupportedError, match="integer supplies and bounds"):
        si.topk(theta[0], "flow", 2, graph=EDGES, supplies=[0.5, 0, 0, -0.5])


# ----------------------------------------------------------------------------- options, rows and errors


def test_options_and_data() -> None:
    theta = scores()
    y = si.relax(theta, "flow", "map", graph=EDGES, **DATA)
    layer = si.Layer("flow", "map", graph=EDGES, capacities=9)
    assert torch.equal(layer(theta, **DATA), y)
    oracle = si.get_oracle("flow", graph=EDGES, supplies={0: 1, 3: -1}).bind(**DATA)
    assert torch.equal(oracle[torch.tensor([2, 0])].argmax(theta[[2, 0]]), y[[2, 0]])
    assert torch.equal(pickle.loads(pickle.dumps(oracle)).argmax(theta), y)
    assert torch.equal(oracle.repeat(2).argmax(theta.repeat(2, 1)), y.repeat(2, 1))
    two = si.relax(theta.view(2, 2, 7), oracle, "map", **{k: v.view(2, 2, -1) for k, v in DATA.items()})
    assert torch.equal(two.view(4, 7), y)
    # The default capacity is the sum of the positive supplies and of the lower bounds of the instance.
    default = si.relax(theta, "flow", "map", graph=EDGES, supplies=SUPPLIES, lower=LOWER)
    for b in range(4):
        own = alone({"supplies": SUPPLIES, "lower": LOWER}, b)
        assert torch.equal(default[b], si.relax(theta[b], own, "map"))
    assert default[2].max() == LOWER[2].sum()
    ortools = si.relax(theta, "flow", "map", graph=EDGES, solver="ortools", **DATA)
    assert torch.equal(ortools, y)
    empty = si.relax(theta[:0], "flow", "map", graph=EDGES, **{k: v[:0] for k, v in DATA.items()})
    assert empty.shape == (0, 7)
    shared = si.get_oracle("flow", graph=EDGES, lower=1, capacities=[2.0] * 7, supplies=torch.zeros(4))
    assert shared.argmax(theta).min() == 1
    assert shared == si.get_oracle("flow", graph=EDGES, lower=[1] * 7, capacities=2, supplies={})


def test_infeasible_and_unbounded_instances_are_named() -> None:
    theta, tight = scores(), CAPACITIES.clone()
    tight[1, 4:6] = 0
    with pytest.raises(InfeasibleError) as error:
        si.relax(theta, "flow", "map", graph=EDGES, **{**DATA, "capacities": tight})
    assert error.value.batch_index == 1
    zero = si.relax(theta, "flow", "map", graph=EDGES, **{**DATA, "capacities": tight}, on_infeasible="zero")
    assert not zero[1].any()
    assert torch.equal(zero[[0, 2, 3]], si.relax(theta, "flow", "map", graph=EDGES, **DATA)[[0, 2, 3]])
    theta[3, 0] = -math.inf  # an edge with a lower bound of 1
    with pytest.raises(InfeasibleError) as error:
        si.relax(theta, "flow", "map", graph=EDGES, **DATA)
    assert error.value.batch_index == 3
    unlimited = CAPACITIES.double()
    unlimited[2, 2:4] = math.inf
    theta = scores()
    theta[2, 2:4] = 1.0
    with pytest.raises(UnboundedError, match="batch index 2"):
        si.relax(theta, "flow", "map", graph=EDGES, **{**DATA, "capacities": unlimited})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "flow needs supplies, as an option or with the scores"),
        ({"supplies": SUPPLIES + 1}, "supplies must sum to 0, got 4 at batch index 0; balance the nodes"),
        ({"supplies": SUPPLIES[:, :3]}, r"supplies must have shape \(..., 4\)"),
        ({"supplies": SUPPLIES.double() * math.nan}, "supplies must be numbers, finite"),
        ({"supplies": SUPPLIES[:3]}, "supplies must have the batch shape"),
        ({"supplies": SUPPLIES, "capacities": -CAPACITIES}, "capacities must be numbers, at least 0, .* index 0"),
        ({"supplies": SUPPLIES, "capacities": CAPACITIES[:, :6]}, r"capacities must have shape \(..., 7\)"),
        ({"supplies": SUPPLIES.double() * 1e305}, r"supplies must be at most 2\^1000"),
        ({"supplies": SUPPLIES, "lower": LOWER.double() * math.inf}, "lower must be numbers, at least 0"),
        (
            {"supplies": SUPPLIES, "capacities": CAPACITIES, "lower": 2 * LOWER},
            "lower must be at most the capacities, got 2 above 1 for edge 6 at batch index 0",
        ),
        ({"supplies": SUPPLIES, "capacities": 1, "lower": 2}, "got 2 above 1 for edge 0"),
        ({"supplies": SUPPLIES, "capacities": CAPACITIES > 0}, "capacities must be numbers, got torch.bool"),
        ({"supplies": SUPPLIES.double().requires_grad_()}, r"supplies requires a gradient, .* supplies=tensor.detach"),
        ({"supplies": SUPPLIES, "graph_index": [0] * 4}, "graph_index needs a batch of graphs"),
    ],
)
def test_wrong_data(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.relax(scores(), "flow", "map", graph=EDGES, **data)


# ----------------------------------------------------------------------------- batches of graphs


def test_different_graphs() -> None:
    rng = np.random.default_rng(0)
    graphs, supplies, capacities = [], [], []
    for n in (2, 5, 3, 5):
        ring = [(i, (i + 1) % n) for i in range(n)]
        graphs.append(np.array([*ring, *rng.integers(0, n, (3, 2)).tolist()]))
        amounts = rng.random(n) if n == 3 else rng.integers(0, 3, n)
        supplies.append(amounts - np.roll(amounts, 1))
        capacities.append(3 + rng.random(len(graphs[-1])) if n == 3 else rng.integers(3, 6, len(graphs[-1])))
    batch = si.GraphBatch.of(graphs)
    padded = torch.zeros(4, 5, dtype=torch.float64)
    for row, given in zip(padded, supplies, strict=True):
        row[: len(given)] = torch.from_numpy(given)
    rows = batch.pad(torch.from_numpy(np.concatenate(capacities)))
    theta = torch.randn(4, batch.most_edges, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = si.relax(theta, "flow", "map", graph=batch, supplies=padded, capacities=rows)
    options: dict[str, Any] = {"supplies": supplies, "capacities": [c.tolist() for c in capacities]}
    oracle = si.get_oracle("flow", graph=graphs, **options)
    assert torch.equal(oracle.argmax(theta), y)
    mean = si.relax(theta, oracle, si.get_relaxation("sparsemap").exact())
    for b, graph in enumerate(graphs):
        own, size = si.get_oracle("flow", graph=graph, supplies=supplies[b], capacities=capacities[b]), len(graph)
        assert torch.equal(y[b, :size], si.relax(theta[b, :size], own, "map"))
        assert not y[b, size:].any()
        exact = si.relax(theta[b, :size], own, si.get_relaxation("sparsemap").exact())
        torch.testing.assert_close(mean[b, :size], exact, atol=1e-9, rtol=0)
        assert oracle[b : b + 1].enumerate((batch.most_edges,)).shape == (len(own.enumerate((size,))), batch.most_edges)
    index = torch.tensor([3, 0, 1])
    some = si.relax(theta[index], oracle, "map", graph_index=index)
    assert torch.equal(some, y[index])
    integral = torch.tensor([0, 1, 3])
    labels = si.decode(y[integral], oracle, graph_index=integral)
    assert torch.equal(si.encode(labels, theta[integral], oracle, graph_index=integral), y[integral])
    edge = int((labels[1] > 0).nonzero()[0])
    labels[1, edge] -= 1
    with pytest.raises(InvalidInputError, match=r"more units must leave node . to match its supply, at batch index 1"):
        si.encode(labels, theta[integral], oracle, graph_index=integral)
    theta[1, : len(graphs[1])] = -math.inf
    with pytest.raises(InfeasibleError) as error:
        si.relax(theta, oracle, "map")
    assert error.value.batch_index == 1
    wrong = padded.clone()
    wrong[0, 3:5] = torch.tensor([1.0, -1.0])
    with pytest.raises(InvalidInputError, match="supplies must be 0 beyond the nodes of the graph"):
        si.relax(theta, "flow", "map", graph=batch, supplies=wrong)
    with pytest.raises(InvalidInputError, match="supplies must hold a value for each of the 4 graphs"):
        si.get_oracle("flow", graph=batch, supplies=supplies[:2])
    with pytest.raises(InvalidInputError, match="flows need directed graphs"):
        si.get_oracle("flow", graph=si.GraphBatch.of(graphs, directed=False))
