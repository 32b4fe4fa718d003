"""Flows: values against networkx, scipy and enumeration, and what bad networks get."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import enumerators
import enumerators_flows
import structinf
from structinf import InfeasibleError, InvalidInputError, Oracle, UnboundedError
from structinf_oracles.kernels.flow import network_simplex

SOLVERS = pytest.mark.parametrize("solver", ["simplex", "ortools"])


def flow(graph, supplies, capacities=None, **options) -> Oracle:
    return structinf.get_oracle("flow", graph=graph, supplies=supplies, capacities=capacities, **options)


def random_network(seed: int, nodes: int, edges: int, share: float = 0.3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges, with loops and parallel ones among them, capacities, and supplies that some flow balances."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes, (edges, 2))
    ends[:nodes] = np.stack([np.arange(nodes), np.roll(np.arange(nodes), 1)], 1)[:edges]
    capacities = rng.integers(0, 7, edges)
    some = rng.integers(0, capacities + 1) * (rng.random(edges) < share)
    supplies = np.zeros(nodes, np.int64)
    np.add.at(supplies, ends[:, 0], some)
    np.add.at(supplies, ends[:, 1], -some)
    return ends, capacities, supplies


def balance(ends: np.ndarray, y: Tensor, nodes: int) -> np.ndarray:
    left = np.zeros((len(y), nodes))
    for row, amounts in zip(left, y.numpy(), strict=True):
        np.add.at(row, ends[:, 0], amounts)
        np.add.at(row, ends[:, 1], -amounts)
    return left


def linprog_value(scores: np.ndarray, ends: np.ndarray, capacities: np.ndarray, supplies: np.ndarray) -> float:
    matrix = np.zeros((len(supplies), len(ends)))
    np.add.at(matrix, (ends[:, 0], np.arange(len(ends))), 1)
    np.add.at(matrix, (ends[:, 1], np.arange(len(ends))), -1)
    bounds = [(0, 0 if s == -np.inf else most) for s, most in zip(scores, capacities, strict=True)]
    costs = -np.where(scores == -np.inf, 0, scores)
    result = linprog(costs, A_eq=matrix, b_eq=supplies, bounds=bounds, method="highs")
    return -result.fun if result.success else -math.inf


# ----------------------------------------------------------------------------- values


@SOLVERS
@pytest.mark.parametrize(("nodes", "edges"), [(2, 5), (4, 9), (12, 40), (60, 250)])
@pytest.mark.parametrize("kind", ["normal", "ties", "costs", "forbidden"])
def test_best_flows_are_those_of_linear_programs(nodes: int, edges: int, kind: str, solver: str) -> None:
    ends, capacities, supplies = random_network(edges, nodes, edges)
    theta = torch.randn(5, edges, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta = {"normal": theta, "ties": theta.round(), "costs": -theta.abs(), "forbidden": theta}[kind].clone()
    if kind == "forbidden":
        theta[:, ::9] = -math.inf
    best = [linprog_value(scores, ends, capacities, supplies) for scores in theta.numpy()]
    oracle = flow(ends, supplies, capacities, solver=solver)
    if -math.inf in best:
        with pytest.raises(InfeasibleError, match=f"batch index {best.index(-math.inf)}"):
            oracle.argmax(theta)
        return
    y = oracle.argmax(theta)
    assert (balance(ends, y, nodes) == supplies).all()
    assert ((y >= 0) & (y <= torch.from_numpy(capacities)) & (y == y.round())).all()
    np.testing.assert_allclose(oracle.score(theta, y), best, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_most_flow_at_least_cost_is_that_of_networkx(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(12, 0.4, seed=seed, directed=True)
    for _, _, data in graph.edges(data=True):
        data.update(capacity=int(rng.integers(1, 9)), weight=int(rng.integers(0, 20)))
    expected = nx.max_flow_min_cost(graph, 0, 11)
    value = sum(expected[0].values()) - sum(flows.get(0, 0) for flows in expected.values())
    oracle = flow(graph, {0: value, 11: -value}, [data["capacity"] for *_, data in graph.edges(data=True)])
    costs = torch.tensor([[data["weight"] for *_, data in graph.edges(data=True)]], dtype=torch.float32)
    assert -(oracle.score(-costs, oracle.argmax(-costs))).item() == nx.cost_of_flow(graph, expected)


@SOLVERS
@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 1e3, 1e300])
def test_the_scale_of_scores_does_not_matter(scale: float, solver: str) -> None:
    ends, capacities, supplies = random_network(1, 5, 9)
    capacities = capacities.clip(max=3)
    supplies = np.zeros(5, np.int64)
    structures = list(
        enumerators_flows.flows([tuple(e) for e in ends.tolist()], dict(enumerate(supplies.tolist())), capacities)
    )
    theta = torch.randn(20, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = flow(ends, supplies, capacities, solver=solver).argmax(theta * scale)
    best = [max(structures, key=lambda z, t=t: enumerators.score((t,), z))[0] for t in theta.numpy()]
    assert (y.numpy() == best).all()


def test_scores_far_apart_are_compared_exactly() -> None:
    rng = np.random.default_rng(0)
    for seed in range(40):
        ends, capacities, _ = random_network(seed, 4, 7)
        capacities, supplies = capacities.clip(max=2), np.zeros(4, np.int64)
        theta = rng.standard_normal((4, 7)) * 10.0 ** rng.uniform(-7, 7, (4, 7))
        oracle = flow(ends, supplies, capacities)
        structures = oracle.enumerate((7,)).long().tolist()
        for scores, y in zip(theta, oracle.argmax(torch.from_numpy(theta)).long().tolist(), strict=True):
            exact = [Fraction(score) for score in scores]
            assert y == max(structures, key=lambda z, e=exact: sum(a * b for a, b in zip(e, z, strict=True)))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_flow_it_starts_from_the_simplex_method_ends_with_a_best_one(seed: int) -> None:
    ends, capacities, supplies = random_network(seed, 5, 12)
    rng = np.random.default_rng(seed)
    limits = np.where(rng.random(12) < 0.2, network_simplex.UNLIMITED, capacities)
    theta = rng.standard_normal((1, 12)).round(1)
    outcomes = []
    for start in (np.zeros((1, 12), np.int64), rng.integers(0, capacities + 1)[None]):
        status = np.empty(1, np.int8)
        tails, heads = np.ascontiguousarray(ends.T)[:, None]
        network = (tails, heads, limits[None], supplies[None], np.zeros(1, np.int64))
        network_simplex.best_flows(0, 1, theta, *network, start, np.empty(1, np.int64), status)
        outcomes.append((status[0], (theta * start).sum() if status[0] == network_simplex.FOUND else 0.0))
    assert outcomes[1] == pytest.approx(outcomes[0])


@SOLVERS
def test_scores_that_rule_edges_out_leave_small_ones_their_say(solver: str) -> None:
    """Integers in the range of scores as different as these know nothing of the small ones; nor do sums of floats."""
    edges = [("a", "b"), ("a", "b"), ("b", "c"), ("b", "c"), ("a", "c"), ("c", "d"), ("c", "d")]
    oracle = flow(edges, {"a": 1, "d": -1}, solver=solver)
    theta = torch.tensor([[1.0, 1.0 + 2**-40, -1e20, -1e20 + 1e6, -1e30, 2e-9, 3e-9]], dtype=torch.float64)
    assert oracle.argmax(theta).tolist() == [[0, 1, 0, 1, 0, 0, 1]]


@SOLVERS
def test_edges_of_unlimited_capacity(solver: str) -> None:
    edges = [("a", "b"), ("b", "c"), ("c", "b"), ("b", "d")]
    oracle = flow(edges, {"a": 2, "d": -2}, math.inf, solver=solver)
    theta = torch.tensor([[1.0, 2.0, -2.0, 1.0], [1.0, -2.0, 1.0, 1.0], [-1.0, -1.0, -1.0, 3.0]])
    assert oracle.argmax(theta)[:, [0, 3]].tolist() == [[2, 2]] * 3
    theta[1, 2] = 2.5
    with pytest.raises(UnboundedError, match="unbounded for batch index 1") as caught:
        oracle.argmax(theta)
    assert caught.value.batch_index == 1
    theta[1, 0] = -math.inf  # without any flow, none scores high
    with pytest.raises(InfeasibleError, match="batch index 1"):
        oracle.argmax(theta)
    with pytest.raises(InvalidInputError, match=r"the number of flows is infinite.*'b' -> 'c' -> 'b'"):
        oracle.enumerate((4,))
    dag = flow([(0, 1), (0, 1), (1, 2)], [2, 0, -2], [math.inf, 1, math.inf])
    assert dag.enumerate((3,)).tolist() == [[1, 1, 2], [2, 0, 2]]
    loop = flow([("a", "a"), ("a", "b")], {"a": 1, "b": -1}, math.inf, solver=solver)
    assert loop.argmax(torch.tensor([[0.0, 1.0]])).tolist() == [[0, 1]]
    with pytest.raises(UnboundedError):
        loop.argmax(torch.tensor([[0.5, 1.0]]))


def test_capacities_are_by_default_all_supplies_together() -> None:
    oracle = flow([(0, 1), (1, 2), (2, 1), (1, 3)], [3, 1, 0, -4])
    assert oracle.argmax(torch.tensor([[0.0, 1.0, 1.0, 0.0]])).tolist() == [[3, 4, 4, 4]]


def test_special_cases() -> None:
    theta = torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(0))
    pairs = [(f"row {i}", f"column {j}") for i in range(4) for j in range(4)]
    sides = {f"row {i}": 1 for i in range(4)} | {f"column {j}": -1 for j in range(4)}
    oracle = flow(pairs, sides, 1)
    assert oracle.argmax(theta.flatten(1)).equal(structinf.relax(theta, "assignment", "map").flatten(1))
    two_each = flow(pairs, {node: 2 * amount for node, amount in sides.items()}, 1).argmax(theta.flatten(1))
    assert (two_each.reshape(theta.shape).sum(1) == 2).all()
    assert (two_each <= 1).all()
    graph = nx.gnp_random_graph(10, 0.4, seed=1, directed=True)
    costs = np.random.default_rng(1).random(graph.number_of_edges())
    nx.set_edge_attributes(graph, dict(zip(graph.edges, costs, strict=True)), "cost")
    y = flow(graph, {0: 1, 9: -1}).argmax(-torch.tensor(costs)[None])
    path = nx.shortest_path(graph, 0, 9, weight="cost")
    assert {e for e, used in zip(graph.edges, y[0], strict=True) if used} == set(itertools.pairwise(path))


def test_tiny_networks() -> None:
    assert flow([(0, 1)], [0, 0]).argmax(torch.ones(2, 1)).tolist() == [[0], [0]]
    assert flow([(0, 1)], [2, -2]).argmax(-torch.ones(1, 1)).tolist() == [[2]]
    alone = nx.DiGraph()
    alone.add_node("a")
    assert flow(alone, {}).argmax(torch.ones(3, 0)).shape == (3, 0)
    assert flow(alone, {}).enumerate((0,)).shape == (1, 0)
    assert flow([(0, 1)], [1, -1]).argmax(torch.ones(0, 1)).shape == (0, 1)


def test_threads_and_places_in_the_batch_do_not_matter() -> None:
    ends, capacities, supplies = random_network(3, 40, 200)
    theta = torch.randint(-2, 3, (64, 200), generator=torch.Generator().manual_seed(0)).float()
    oracle, threads = flow(ends, supplies, capacities), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        together = oracle.argmax(theta)
        torch.set_num_threads(1)
        assert oracle.argmax(theta.flip(0)).flip(0).equal(together)
    finally:
        torch.set_num_threads(threads)


def test_sparsemap_mixes_few_flows_with_amounts_above_1() -> None:
    edges = [("a", "b"), ("a", "c"), ("b", "c"), ("b", "d"), ("c", "d")]
    oracle = flow(edges, {"a": 5, "d": -5}, [4, 4, 4, 5, 5])
    theta = torch.tensor([[3.0, 2.0, 0.5, 2.0, 1.0]], dtype=torch.float64)
    solution = structinf.infer(theta, oracle, "sparsemap", tolerance=0)
    structures = list(enumerators_flows.flows(edges, {"a": 5, "d": -5}, [4, 4, 4, 5, 5]))
    (expected,) = enumerators.projection((theta[0].numpy(),), structures)
    np.testing.assert_allclose(solution.mean[0], expected, atol=1e-6)
    assert solution.converged.all()
    assert solution.support.max() > 1
    leaf = theta.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: structinf.relax(t, oracle, "sparsemap", tolerance=0), leaf)


# ----------------------------------------------------------------------------- options and labels


def test_forms_of_options() -> None:
    pairs = [("a", "b"), ("b", "c"), ("a", "c")]
    graph = nx.DiGraph(pairs)
    one = flow(pairs, {"a": 2, "b": 0, "c": -2}, [2, 2, 1])
    assert one == flow(pairs, (("c", -2), ("a", 2)), np.array([2, 2, 1])) == dataclasses.replace(one)
    assert hash(one) == hash(dataclasses.replace(one))
    assert flow(graph, {"a": 2, "c": -2}, 1).graph.nodes == ("a", "b", "c")
    # A list of supplies goes by the nodes' numbers, in whichever order the edges name them.
    backwards = flow(np.array([[2, 0], [0, 1]]), torch.tensor([0, -1, 1]), torch.tensor(1))
    assert backwards.argmax(torch.zeros(1, 2)).tolist() == [[1, 1]]
    assert backwards.argmax(torch.zeros(1, 2, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("supplies", "capacities", "message"),
    [
        ([1, 0, 0], None, "supplies must sum to 0, got 1"),
        ([10**15 + 1, 0, -(10**15)], None, "supplies must sum to 0, got 1"),
        ({0: 1, 7: -1}, None, "7 is not a node of the graph"),
        ([1.5, 0, -1], None, "supplies must sum to 0, got 0.5"),
        ([math.inf, 0, -math.inf], None, "supplies must be finite numbers, got inf at index 0"),
        ([True, 0, -1], None, "supplies must be finite numbers.*got True"),
        ([2**60, 0, -(2**60)], None, "at most 2\\^53"),
        ([2**53, 0, -(2**53)], None, "sum of magnitudes of at most 2\\^53"),
        ([1, 0, -1], [1, -2, 1], "capacities must be numbers of at least 0.*got -2 at index 1"),
        ([1, 0, -1], [1, 2], "one number for each of 3 edges, got 2"),
        ([1, 0, -1], "5", "capacities must be a number for all edges"),
        ([1, 0, -1], math.nan, "capacities must be numbers.*got nan"),
    ],
)
def test_networks_that_are_refused(supplies, capacities, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        flow([(0, 1), (1, 2), (0, 2)], supplies, capacities)


def test_refusals() -> None:
    with pytest.raises(InvalidInputError, match='solver must be "simplex" or "ortools", got \'glop\''):
        flow([(0, 1)], [0, 0], solver="glop")
    with pytest.raises(InvalidInputError, match=r"the graph's 1 edges.*got 2"):
        structinf.relax(torch.ones(2), flow([(0, 1)], [0, 0]), "map")
    with pytest.raises(InvalidInputError, match="must be a directed graph"):
        flow(nx.Graph([(0, 1)]), [0, 0])
    with pytest.raises(InvalidInputError, match="beginnings of flows"):
        flow([(0, 1)] * 30, [30, -30]).enumerate((30,))
    with pytest.raises(structinf.UnsupportedError, match="#P-complete"):
        structinf.relax(torch.ones(1), flow([(0, 1)], [0, 0]), "marginals")


def test_without_ortools(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ortools", None)
    flow([(0, 1)], [1, -1]).argmax(torch.ones(1, 1))
    with pytest.raises(ImportError, match=r"run pip install ortools"):
        flow([(0, 1)], [1, -1], solver="ortools")


def test_labels() -> None:
    oracle, like = flow([("a", "b"), ("b", "c"), ("a", "c")], {"a": 3, "c": -3}, 2), torch.zeros(2, 3)
    labels = torch.tensor([[1, 1, 2], [2, 2, 1]])
    assert oracle.encode(labels, like).equal(labels.float())
    assert oracle.decode(labels.float()).equal(labels)
    for wrong, message in (
        ([[1, 1, 2], [3, 3, 0]], "between 0 and the capacities at batch index 1"),
        ([[1, 1, 2], [1, 2, 1]], r"\+1 more units must leave node 'a'.*batch index 1"),
        ([[1, 1], [1, 2]], "amounts on 3 edges"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            oracle.encode(torch.tensor(wrong), like)


def test_hamming_cost_counts_units_at_the_edges_that_are_empty_or_full() -> None:
    oracle = flow([(0, 1), (0, 1), (0, 1)], [3, -3], [2, 2, 3])
    gold = torch.tensor([[2.0, 0.0, 1.0]])
    cost = oracle.hamming_cost(gold)
    for y in oracle.enumerate((3,)).float():
        distance = (cost * (y - gold)).sum().item()
        assert distance == (y - gold)[:, :2].abs().sum() / 2 <= (y - gold).abs().sum() / 2
