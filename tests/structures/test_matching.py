"""Matchings in general graphs, against all matchings listed in plain Python, assignments and networkx."""

from __future__ import annotations

import math
from fractions import Fraction

import networkx
import numpy as np
import pytest
import torch

import structinf as si
from enumerators_graphs import all_pairs, matchings
from structinf.errors import InfeasibleError, InvalidInputError, UnsupportedError
from structinf.kernels.jit import jit
from structinf_oracles.assignment import Assignment
from structinf_oracles.kernels.matching import argmax as kernel
from structinf_oracles.matching import Matching

pytestmark = pytest.mark.slow

NEVER = -math.inf
DTYPES = [torch.float32, torch.float64]
# From an issue about minimum costs of either sign: 2-5, 0-1 and 3-4 cost −7 + 3 + 0.
EDGES = [(0, 1), (0, 3), (1, 2), (1, 4), (1, 5), (2, 5), (3, 4), (4, 5)]
COSTS = [3.0, 10, -1, 5, 4, -7, 0, 4]
PARALLEL = [(0, 1), (2, 1), (1, 0), (0, 2), (3, 1), (1, 2), (3, 2), (0, 3)]

GRAPHS = {
    "complete": (6, all_pairs(6)),
    "sparse": (6, EDGES),
    "parallel": (4, PARALLEL),
    "odd": (5, all_pairs(5)),
    "pair": (2, [(0, 1)]),
}
either = pytest.mark.parametrize("perfect", [True, False], ids=["perfect", "any"])


def listed(nodes, edges, perfect):
    """All matchings, (|Y|, E) in float64."""
    found = [[e in matching for e in range(len(edges))] for matching in matchings(nodes, edges, perfect)]
    return torch.tensor(found).double().reshape(-1, len(edges))


def as_matrix(values, nodes):
    """Values (..., E) of all pairs of nodes as (..., n, n), with rubbish where nothing is read."""
    matrix = torch.full((*values.shape[:-1], nodes, nodes), 77.0, dtype=values.dtype)
    low, high = torch.tensor(all_pairs(nodes)).reshape(-1, 2).T
    matrix[..., low, high] = values
    return matrix


# ----------------------------------------------------------------------------- golden values


def test_costs_of_either_sign():
    oracle, costs = Matching(EDGES), torch.tensor([COSTS])
    y = oracle.argmax(-costs)
    assert y.tolist() == [[1, 0, 0, 0, 0, 1, 1, 0]]
    assert oracle.score(costs, y).item() == -4
    assert oracle.decode(y).tolist() == [[1, 0, 5, 4, 3, 2]]
    for shift in (-100.0, 100.0):
        assert torch.equal(oracle.argmax(shift - costs), y)


def test_whether_nodes_stay_alone():
    theta = torch.tensor([[3.0, 10.0, 3.0], [-1.0, -5.0, -1.0], [0.0, 0.0, 0.0]])
    path = [(0, 1), (1, 2), (2, 3)]
    assert Matching(path).argmax(theta).tolist() == [[1, 0, 1]] * 3
    assert Matching(path, perfect=False).argmax(theta).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


@either
@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_nodes(n, perfect):
    oracle, theta = Matching(perfect=perfect), torch.ones(2, n, n)
    if perfect and n == 1:
        with pytest.raises(InvalidInputError, match="theta: a perfect matching needs an even number of nodes, got 1"):
            si.relax(theta, oracle, "map")
        return
    assert torch.equal(si.relax(theta, oracle, "map"), theta.triu(1))
    assert len(oracle.enumerate((n, n))) == (1 if perfect or n < 2 else 2)
    labels = oracle.decode(theta.triu(1))
    assert labels.tolist() == [list(range(n))[::-1] if n == 2 else [-1] * n] * 2
    assert torch.equal(oracle.encode(labels, theta), theta.triu(1))


# ----------------------------------------------------------------------------- against enumeration


@either
@pytest.mark.parametrize(("nodes", "edges"), GRAPHS.values(), ids=GRAPHS)
def test_enumeration(nodes, edges, perfect):
    expected = listed(nodes, edges, perfect)
    if perfect and nodes % 2:
        with pytest.raises(InvalidInputError, match="even number of nodes, got 5"):
            Matching(perfect=perfect).enumerate((nodes, nodes))
    elif edges == all_pairs(nodes):
        found = Matching(perfect=perfect).enumerate((nodes, nodes))
        low, high = torch.tensor(edges).T
        assert found.sum() == found[:, low, high].sum()
        found = found[:, low, high]
        assert sorted(found.tolist()) == sorted(expected.tolist())
    else:
        found = Matching(edges, perfect=perfect).enumerate((len(edges),))
        assert sorted(found.tolist()) == sorted(expected.tolist())


@either
@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "negative", "forbidden", "wide"])
@pytest.mark.parametrize(("nodes", "edges"), GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax(nodes, edges, kind, perfect, dtype):
    if perfect and nodes % 2:
        with pytest.raises(InvalidInputError, match="edges: a perfect matching needs an even number of nodes, got 5"):
            Matching(edges)
        return
    every = listed(nodes, edges, perfect)
    theta = torch.randn(20, len(edges), dtype=dtype)
    if kind == "forbidden":
        kept = every[torch.randint(len(every), (20,))].bool()
        theta = theta.masked_fill((torch.rand(theta.shape) < 0.5) & ~kept, NEVER)
    other = {"ties": theta.round().clamp(-1, 1), "zeros": theta * 0, "negative": -theta.abs() - 100}
    theta = {**other, "wide": theta * 10.0 ** torch.randint(-6, 6, theta.shape)}.get(kind, theta)
    oracle = Matching(edges, perfect=perfect)
    y = oracle.argmax(theta)
    assert y.dtype == dtype
    assert ((y[:, None] == every).all(2).sum(1) == 1).all()
    best = torch.where(every == 0, 0.0, theta.double()[:, None] * every).sum(2).amax(1)
    torch.testing.assert_close(oracle.score(theta.double(), y.double()), best, rtol=1e-14, atol=1e-14)
    assert torch.equal(oracle.argmax(theta), y)
    assert torch.equal(oracle.argmax(theta[3:5]), y[3:5])
    if edges == all_pairs(nodes):
        assert torch.equal(
            Matching(perfect=perfect).argmax(as_matrix(theta, nodes)),
            as_matrix(y, nodes).where(torch.ones(nodes, nodes).triu(1) > 0, 0),
        )


def test_scores_of_very_different_size():
    # What 2^47 times the least score does not hide decides; in float64's own sums it would be lost.
    theta = torch.zeros(1, 4, 4, dtype=torch.float64)
    theta[0, 0, 1], theta[0, 0, 2], theta[0, 1, 3] = 2.0**60, 2.0**60, 2.0**-20
    y = Matching().argmax(theta)
    assert Matching().decode(y).tolist() == [[2, 3, 0, 1]]
    # From scores whose least is the least number above 0, to scores whose sum is almost infinite.
    for scale in (2.0**-994, 1.0, torch.finfo(torch.float64).max / 8):
        assert Matching().decode(Matching().argmax(theta / 2.0**60 * scale)).tolist() == [[2, 3, 0, 1]]


# ----------------------------------------------------------------------------- against other algorithms


def test_two_sides():
    scores = torch.randn(4, 6, 6)
    theta = torch.full((4, 12, 12), NEVER)
    theta[:, :6, 6:] = scores
    y = Matching().argmax(theta)
    assert torch.equal(y[:, :6, 6:], Assignment().argmax(scores))
    assert y.sum() == 24


@pytest.mark.parametrize("sign", [1, -1])
def test_many_nodes(sign):
    theta = sign * torch.randn(2, 30, 30, dtype=torch.float64).abs()
    y = Matching().argmax(theta)
    for t, matching in zip(theta, y, strict=True):
        graph = networkx.Graph()
        graph.add_weighted_edges_from((i, j, t[i, j].item()) for i, j in all_pairs(30))
        pairs = networkx.max_weight_matching(graph, maxcardinality=True)
        assert sum(graph.edges[pair]["weight"] for pair in pairs) == pytest.approx((t * matching).sum().item())
    # The best of the scores is the least of the costs.
    costs = (theta[1].max() - theta[1]).triu(1)
    graph.add_weighted_edges_from((i, j, costs[i, j].item()) for i, j in all_pairs(30))
    least = networkx.min_weight_matching(graph)
    assert sorted(map(sorted, least)) == sorted(y[1].nonzero().tolist())


# ----------------------------------------------------------------------------- against optimal dual variables

SCORES = {
    "float64": lambda rng, size: rng.normal(size=size),
    "float32": lambda rng, size: rng.normal(size=size).astype(np.float32).astype(float),
    "ties": lambda rng, size: rng.integers(-2, 3, size).astype(float),
    "positive": lambda rng, size: rng.integers(1, 4, size).astype(float),
    "wide": lambda rng, size: rng.integers(-10, 10, size) * 10.0 ** rng.integers(3, 13),
    "forbidden": lambda rng, size: np.where(rng.random(size) < 0.4, NEVER, rng.integers(-3, 4, size)),
}


def draw_graph(rng):
    """Return the number of nodes and the edges (E, 2) of a random graph of odd circles, with parallel edges."""
    n = int(rng.integers(2, 60))
    if rng.random() < 0.2:
        return n, np.array(all_pairs(n))
    edges = rng.integers(0, n, (int(rng.integers(1, 4)) * n, 2))
    edges = edges[edges[:, 0] != edges[:, 1]]
    path = np.stack([np.arange(n - 1), np.arange(1, n)], 1)
    return n, np.sort(np.concatenate([edges, path, path[::2]]), 1)


def read_state(state):
    """Return the chosen edges, the variables of the nodes, and the nodes and the variable of each blossom."""
    node, n = state.node, len(state.first_arc) - 1
    value = [(int(x["high"]) << 60) + int(x["low"]) for x in node]
    unused = set(state.lists[0, : state.sizes[0]].tolist())
    blossoms = []
    for b in set(range(n, 2 * n)) - unused:
        leaves = [int(node[b]["first_leaf"])]
        while leaves[-1] != node[b]["last_leaf"]:
            leaves.append(int(node[leaves[-1]]["next_leaf"]))
        blossoms.append((set(leaves), value[b]))
    chosen = {int(state.arc[x["mate"]]["edge"]) for x in node[:n] if x["mate"] >= 0}
    return chosen, value[:n], blossoms


@jit(called_from_python=True)
def _solve(ends, scores, nodes, perfect):
    return kernel.solve(ends, scores, nodes, perfect)


@either
@pytest.mark.parametrize("kind", SCORES)
def test_dual_variables_prove_that_matchings_are_best(kind, perfect):
    rng = np.random.default_rng(0)
    with_blossoms = 0
    for _ in range(60):
        n, ends = draw_graph(rng)
        scores = SCORES[kind](rng, len(ends))
        feasible, state = _solve(ends, scores, n, perfect)
        usable = np.flatnonzero(scores > (NEVER if perfect else 0))
        if not feasible:
            graph = networkx.Graph()
            graph.add_nodes_from(range(n))
            graph.add_edges_from(ends[usable].tolist())
            assert 2 * len(networkx.max_weight_matching(graph, maxcardinality=True)) < n
            continue
        chosen, u, blossoms = read_state(state)
        degree = np.bincount(ends[sorted(chosen)].ravel(), minlength=n)
        assert degree.max(initial=0) <= 1
        if perfect:
            assert degree.min(initial=1) == 1
        else:
            assert min(u) >= 0
            assert {u[v] for v in range(n) if not degree[v]} <= {0}
        for leaves, z in blossoms:
            assert z >= 0
            assert sum({*ends[e].tolist()} <= leaves for e in chosen) == (len(leaves) - 1) / 2
        with_blossoms += any(z > 0 for _, z in blossoms)
        _, exponent = math.frexp(np.abs(scores[usable]).max(initial=0))
        for e in usable.tolist():
            i, j = ends[e].tolist()
            slack = u[i] + u[j] + sum(z for leaves, z in blossoms if {i, j} <= leaves)
            slack -= 2 * round(Fraction(scores[e]) * Fraction(2) ** (100 - exponent))
            assert slack >= 0
            assert slack == 0 or e not in chosen
    assert with_blossoms > 5


# ----------------------------------------------------------------------------- refusals


def test_no_perfect_matching():
    star = torch.zeros(3, 3)
    oracle = Matching([(0, 1), (0, 2), (0, 3)])
    with pytest.raises(InfeasibleError, match="no perfect matching of finite score exists for batch index 0"):
        oracle.argmax(star)
    theta = torch.zeros(3, 4, 4)
    theta[2, 1:] = NEVER
    with pytest.raises(InfeasibleError, match="batch index 2") as caught:
        Matching().argmax(theta)
    assert caught.value.batch_index == 2
    assert Matching(perfect=False).argmax(theta + NEVER).sum() == 0
    with pytest.raises(InvalidInputError, match="even number of nodes, got 3"):
        Matching().argmax(torch.zeros(1, 3, 3))


def test_lengths():
    theta = torch.rand(3, 5, 5) + 1
    with pytest.raises(InvalidInputError, match=r"lengths, at batch index 1: .* even number of nodes, got 3"):
        si.relax(theta, "matching", "map", lengths=[2, 3, 4])
    with pytest.raises(InvalidInputError, match="between 0 and 5"):
        si.relax(theta, "matching", "map", lengths=[2, 4, 6])
    y = si.relax(theta, "matching", "map", lengths=[2, 0, 4])
    assert y.sum((1, 2)).tolist() == [1, 0, 2]
    assert torch.equal(y[2, :4, :4], Matching().argmax(theta[2:, :4, :4])[0])
    assert si.relax(theta, "matching", "map", perfect=False, lengths=[3, 1, 5]).sum((1, 2)).tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("options", "labels", "message"),
    [
        ({}, [[1, 0, 3, 4]], "a partner must be a node in use"),
        ({}, [[1, 0, 3, -2]], "a partner must be a node in use"),
        ({}, [[1, 2, 3, 0]], "a node is not the partner of its partner"),
        ({}, [[0, 1, 3, 2]], "or is its own partner"),
        ({}, [[1, 0, -1, -1]], "a node has no partner; pass perfect=False"),
        ({}, [[1, 0]], r"for each of 4 nodes, shape \(..., 4\); got \(1, 2\)"),
        ({"edges": PARALLEL}, [[1, 0, 3, 2]], "parallel edges join a node and its partner; pass y"),
        ({"edges": PARALLEL[3:], "perfect": False}, [[1, 0, 3, 2]], "no edge joins a node and its partner"),
        ({"edges": [], "perfect": False}, [[0]], r"\(..., 0\); got \(1, 1\)"),
    ],
)
def test_labels_that_are_no_matchings(options, labels, message):
    oracle = Matching(**options)
    like = torch.zeros(1, len(options["edges"])) if "edges" in options else torch.zeros(1, 4, 4)
    with pytest.raises(InvalidInputError, match=message):
        oracle.encode(torch.tensor(labels), like)


def test_labels_in_padding():
    oracle = Matching(perfect=False).bind(lengths=[2])
    with pytest.raises(InvalidInputError, match="a node is not the partner of its partner"):
        oracle.encode(torch.tensor([[-1, -1, 1, -1]]), torch.zeros(1, 4, 4))


def test_too_many_to_list():
    with pytest.raises(InvalidInputError, match="there are 1405215 ways to match the first 9 of 16 nodes, too many"):
        Matching().enumerate((16, 16))


def test_form():
    wide = torch.randn(6, 6, 8)
    theta, before = wide.permute(2, 1, 0)[::2], wide.clone()
    y = Matching().argmax(theta)
    assert torch.equal(y, Matching().argmax(theta.contiguous()))
    assert Matching().argmax(theta[:0]).shape == (0, 6, 6)
    assert torch.equal(wide, before)
    assert {Matching(np.array(EDGES)), Matching(EDGES), Matching(EDGES, perfect=False)} == {
        Matching(torch.tensor(EDGES)),
        Matching(EDGES, perfect=False),
    }
    with pytest.raises(InvalidInputError, match="perfect must be True or False"):
        Matching(perfect=1)
    with pytest.raises(UnsupportedError, match="#P-complete"):
        si.Layer("matching", "marginals")
