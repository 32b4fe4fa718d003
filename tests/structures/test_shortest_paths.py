"""Shortest paths of general graphs: against lists of all simple paths, networkx and scipy."""

from __future__ import annotations

import copy
import math
import pickle
import time
from dataclasses import dataclass
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

import structinf as si
from enumerators import projection, score
from enumerators_graph_paths import graph_paths
from structinf.calls.problem import Problem
from structinf.dp.graph import Graph
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.testing import check_oracle, check_relaxation
from structinf_oracles.path import Path

pytestmark = pytest.mark.slow

# Two edges lead from a to c, e is a dead end, f can be left but not entered, and g leads to itself alone.
ROADS = (
    ("a", "b"), ("b", "c"), ("c", "a"), ("a", "c"), ("c", "d"), ("d", "b"), ("a", "c"),
    ("b", "e"), ("f", "a"), ("d", "c"), ("g", "g"),
)  # fmt: skip

kinds = pytest.mark.parametrize("scores", ["edges", "nodes"])
directions = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])


def costs(*shape: int, seed: int = 0) -> torch.Tensor:
    return -torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).abs()


def random_graph(nodes: int, edges: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, nodes, (edges, 2))


# ----------------------------------------------------------------------------- the best path


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros"])
@pytest.mark.parametrize(("source", "target"), [("a", "d"), ("d", "a"), ("f", "e"), ("b", "b")])
@directions
@kinds
def test_argmax_is_the_best_of_all_paths(scores, directed, source, target, kind) -> None:
    oracle = Path(ROADS, source, target, directed=directed, scores=scores)
    structures = list(graph_paths(ROADS, source, target, directed, scores))
    theta = costs(6, len(structures[0][0]))
    theta = {"normal": theta, "ties": theta.round(), "zeros": -torch.zeros_like(theta)}[kind]
    listed = sorted(y.tolist() for (y,) in structures)
    assert sorted(oracle.enumerate(theta.shape[1:]).tolist()) == listed
    for t, y in zip(theta, oracle.argmax(theta), strict=True):
        assert y.tolist() in listed
        assert (t * y).sum().item() == pytest.approx(max(score((t.numpy(),), z) for z in structures))


@pytest.mark.parametrize("seed", range(4))
@directions
@kinds
def test_against_networkx(scores, directed, seed) -> None:
    graph = (networkx.DiGraph if directed else networkx.Graph)(random_graph(12, 30, seed).tolist())
    oracle = Path(graph, scores=scores)
    names = sorted(graph)
    assert oracle.graph.nodes == tuple(names)
    theta = costs(len(names) * len(names), len(names if scores == "nodes" else graph.edges), seed=seed)
    pairs = torch.cartesian_prod(torch.arange(len(names)), torch.arange(len(names)))
    for t, (source, target) in zip(theta, pairs.tolist(), strict=True):
        for e, (u, v) in enumerate(graph.edges):
            graph.edges[u, v]["cost"] = -t[e].item() if scores == "edges" else 0.0

        def cost(u, v, data, t=t):
            return data["cost"] if scores == "edges" else -t[names.index(v)].item()

        try:
            expected = networkx.dijkstra_path_length(graph, names[source], names[target], weight=cost)
        except networkx.NetworkXNoPath:
            with pytest.raises(InfeasibleError):
                oracle.bind(terminals=[[source, target]]).argmax(t[None])
            continue
        y = si.relax(t, oracle, "map", terminals=[source, target])
        first = t[source].item() if scores == "nodes" else 0.0
        assert -(t @ y).item() + first == pytest.approx(expected)
        way = oracle.bind(terminals=[[source, target]]).nodes(y[None])[0]
        assert networkx.is_simple_path(graph, way)
        assert (way[0], way[-1]) == (names[source], names[target])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_graphs_against_scipy(dtype) -> None:
    nodes, begun = 5000, time.perf_counter()
    ends = np.vstack([np.stack([np.arange(nodes - 1), np.arange(1, nodes)], 1), random_graph(nodes, 15_000, 0)])
    ends = np.unique(np.sort(ends, 1), axis=0)
    theta = costs(3, len(ends)).to(dtype)
    oracle = Path(ends, 0, nodes - 1, directed=False)
    y = oracle.argmax(theta)
    for t, z in zip(theta.double().numpy(), y.double().numpy(), strict=True):
        graph = csr_array((-t, tuple(ends.T)), shape=(nodes, nodes))
        assert -(t @ z) == pytest.approx(dijkstra(graph, directed=False, indices=0)[-1], rel=1e-6)
    assert torch.equal(oracle.encode(oracle.decode(y), y), y)
    line = Path(ends[ends[:, 1] == ends[:, 0] + 1], 0, nodes - 1)
    y = line.argmax(torch.zeros(2, nodes - 1))
    assert line.decode(y)[1].tolist() == list(range(nodes - 1))
    assert time.perf_counter() - begun < 20  # a second, usually


def test_costs_at_the_far_end_of_float64() -> None:
    theta = torch.full((1, 9), -1.7e308, dtype=torch.float64)
    assert Path([(i, i + 1) for i in range(9)], 0, 9).argmax(theta).sum() == 9


def test_one_node_is_a_path() -> None:
    graph = networkx.Graph()
    graph.add_node("here")
    for scores, width in (("edges", 0), ("nodes", 1)):
        oracle = Path(graph, "here", "here", scores=scores)
        y = oracle.argmax(torch.zeros(2, width))
        assert torch.equal(y, torch.ones(2, width))
        assert oracle.nodes(y) == [["here"], ["here"]]
        assert oracle.enumerate((width,)).shape == (1, width)
        assert torch.equal(oracle.encode(oracle.decode(y), y), y)
        assert oracle.decode(y).tolist() == [[0 if width else -1]] * 2


def test_forbidden_parts() -> None:
    oracle = Path(ROADS, "a", "d", directed=False)
    theta = costs(3, len(ROADS))
    theta[1, [4, 5, 9]] = -math.inf
    with pytest.raises(InfeasibleError, match="no path of finite score exists for batch index 1, as the parts above"):
        oracle.argmax(theta)
    theta[1, 5] = -100.0
    assert oracle.argmax(theta)[1, 5] == 1
    nodes = Path(ROADS, "a", "d", scores="nodes")
    for node in (0, 2, 3):  # a itself, c that all must pass, and d itself
        theta = torch.zeros(1, 7)
        theta[0, node] = -math.inf
        with pytest.raises(InfeasibleError):
            nodes.argmax(theta)


def test_a_positive_potential_is_refused() -> None:
    theta = costs(3, len(ROADS))
    theta[2, 4] = 1e-3
    with pytest.raises(
        InvalidInputError, match=r"theta: path takes .* got 0.001 for part 4 at batch index 2; .*softplus.*dag_path, if"
    ):
        si.infer(theta, "path", "sparsemap", graph=ROADS, source="a", target="d")


@directions
@kinds
def test_sparsemap_is_the_projection(scores, directed) -> None:
    structures = list(graph_paths(ROADS, "a", "d", directed, scores))
    oracle = Path(ROADS, "a", "d", directed=directed, scores=scores)
    theta = costs(4, len(structures[0][0]))
    solution = si.infer(theta, oracle, "sparsemap", tolerance=0)
    for t, mean in zip(theta.numpy(), solution.mean.numpy(), strict=True):
        np.testing.assert_allclose(mean, projection((t,), structures)[0], atol=1e-6)
    again = si.infer(theta, oracle, "sparsemap", tolerance=0, warm_start=solution)
    torch.testing.assert_close(again.mean, solution.mean)


@pytest.mark.parametrize("relaxation", ["map", "sparsemap"])
def test_training_recovers_the_paths(relaxation) -> None:
    """Fenchel-Young losses with a margin lead costs to those under which the paths shown are the best."""
    torch.manual_seed(0)
    features = torch.randn(40, len(ROADS), 3, dtype=torch.float64)
    oracle = Path(ROADS, "a", "d", directed=False)
    softplus = torch.nn.functional.softplus
    gold = oracle.argmax(-softplus(features @ torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64)))
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    loss = si.FenchelYoungLoss(oracle, relaxation, cost="hamming")
    optimizer = torch.optim.Adam([weight], 0.1)
    for _ in range(60):
        optimizer.zero_grad()
        loss(-softplus(features @ weight), gold).backward()
        optimizer.step()
    found = oracle.argmax(-softplus(features @ weight.detach()))
    assert (found == gold).all(1).double().mean() > 0.9


@dataclass(frozen=True)
class Blind(si.Oracle):
    """What a plugin for costs may be: an argmax alone."""

    event_ndim = 1
    requires_nonpositive_theta = True

    def argmax(self, theta):
        return Path(ROADS[:6], "a", "d").argmax(theta)


def test_laws_are_tried_on_costs_where_nothing_can_be_listed(conformance_dtypes: Any) -> None:
    report = check_oracle(Blind(), 6, dtypes=conformance_dtypes)
    assert {"vertex", "optimal", "forbidden", "infeasible"} <= set(report.passed)
    report = check_relaxation("sparsemap", Blind(), 6, dtypes=conformance_dtypes)
    assert {"support", "first_derivative", "loss_derivatives"} <= set(report.passed)
    assert "only scores of at most 0" in report.not_applicable["hull"]


# ----------------------------------------------------------------------------- graphs


def test_every_form_of_a_graph_is_the_same() -> None:
    edges = random_graph(9, 25, 1)
    forms = [edges.tolist(), edges, edges.astype(np.uint8), torch.from_numpy(edges), map(tuple, edges.tolist())]
    forms += [list(torch.from_numpy(edges)), zip(*torch.from_numpy(edges.T), strict=True)]
    ends = edges[0].tolist()
    first = Path(edges, *ends)
    for form in forms:
        oracle = Path(form, *ends)
        assert oracle == first
        assert hash(oracle) == hash(first)
    assert Path(first.graph, *ends) == first
    multi = networkx.MultiDiGraph(edges.tolist())
    assert Path(multi, *ends) == Path(list(multi.edges()), *ends)
    assert Path(edges, *ends, directed=False) != first
    assert Path(networkx.Graph([(0, 1), (2, 1)]), 0, 2) == Path([(0, 1), (1, 2)], 0, 2, directed=False)
    assert Path(networkx.DiGraph([(0, 1), (2, 1)]), 0, 2, directed=False).directed is False
    assert first.graph != edges.tolist()


def test_integers_are_in_ascending_order_and_others_as_they_appear() -> None:
    assert Graph.of([(7, 3), (3, 5)]).nodes == (3, 5, 7)
    assert Graph.of(np.array([[7, 3], [3, 5]])).ends.tolist() == [[2, 0], [0, 1]]
    assert Graph.of([("z", "b"), ("b", (0, 1))]).nodes == ("z", "b", (0, 1))
    grid = networkx.grid_2d_graph(2, 2)
    assert Graph.of(grid).nodes == tuple(grid.nodes)


def test_oracles_are_values() -> None:
    oracle = Path(ROADS, "a", target="d", directed=False)
    assert repr(oracle) == (
        "Path(graph=Graph(7 nodes, 11 edges), source='a', target='d', directed=False, scores='edges')"
    )
    theta = costs(2, len(ROADS))
    for twin in (copy.deepcopy(oracle), pickle.loads(pickle.dumps(oracle))):
        assert twin == oracle
        assert hash(twin) == hash(oracle)
        assert torch.equal(twin.argmax(theta), oracle.argmax(theta))
    edges = np.array([[0, 1], [1, 2]])
    kept = Path(edges, 0, 2)
    edges[:] = 0
    assert kept == Path([(0, 1), (1, 2)], 0, 2)


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (ROADS, {"source": "a"}, r"source and target must be given together, got 'a' and None"),
        (ROADS, {"source": "a", "target": "x"}, r"'x' is not a node of the graph; its nodes are 'a', 'b', 'c', 'd'"),
        (ROADS, {"source": "a", "target": "f"}, r"target: no path leads from 'a' to 'f'"),
        (ROADS, {"directed": 1}, r"directed must be True or False, got 1"),
        (ROADS, {"scores": "arcs"}, r"scores must be 'edges' or 'nodes', got 'arcs'"),
        (
            networkx.Graph([(0, 1)]),
            {"directed": True},
            r"graph must be a directed graph, got a Graph",
        ),
        ([], {}, r"graph must have at least one node"),
        (
            np.zeros((2, 3), int),
            {},
            r"graph: edges are pairs of integers, \(E, 2\), got an array of int64",
        ),
        (np.zeros((2, 2)), {}, r"graph: edges are pairs of integers, .* got an array of float64"),
        ([(0, 1, 2)], {}, r"graph must be an \(E, 2\) integer array, a sequence of pairs .* got a list"),
        ([([], 1)], {}, r"graph must be an \(E, 2\) integer array, .* got a list: .*unhashable"),
        (5, {}, r"graph must be an \(E, 2\) integer array, .* got a int"),
    ],
)
def test_what_is_no_problem_of_paths_is_refused(graph, options, message) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Path(graph, **options)


# ----------------------------------------------------------------------------- terminals


def test_each_instance_may_have_its_own_terminals() -> None:
    theta, terminals = costs(2, 3, len(ROADS)), torch.tensor([[[0, 3], [3, 0], [1, 1]], [[5, 4], [2, 1], [0, 2]]])
    y = si.relax(theta, "path", "map", graph=ROADS, terminals=terminals)
    for i in range(2):
        for j in range(3):
            source, target = terminals[i, j].tolist()
            alone = Path(ROADS, "abcdefg"[source], "abcdefg"[target])
            assert torch.equal(y[i, j], alone.argmax(theta[i, j][None])[0])
    oracle = Path(ROADS).bind(terminals=terminals.flatten(0, 1))
    flat = y.flatten(0, 1)
    assert torch.equal(oracle.encode(oracle.decode(flat), flat), flat)
    assert [way[0] for way in oracle.nodes(flat)] == list("adbfca")
    loss = si.FenchelYoungLoss("path", "sparsemap", cost="hamming", graph=ROADS)
    assert loss(theta, y, terminals=terminals) >= 0
    with pytest.raises(InfeasibleError, match="batch index 1"):
        si.relax(theta[0, :2], "path", "map", graph=ROADS, terminals=[[0, 3], [4, 0]])


@pytest.mark.parametrize(
    ("terminals", "message"),
    [
        (None, r"terminals: the oracle needs this instance data; pass terminals=\.\.\. along with theta"),
        ([[0, 1], [0, 7]], r"terminals must lie between 0 and 6, got \[0, 7\] at batch index 1"),
        ([[0, -1], [0, 6]], r"terminals must lie between 0 and 6, got \[0, -1\] at batch index 0"),
        ([[0.0, 1.0], [0.0, 6.0]], r"terminals of path must be integers, got torch\.float32"),
        ([[False, True]] * 2, r"terminals of path must be integers, got torch\.bool"),
        (
            [[0], [1]],
            r"terminals of path must have shape \(\.\.\., 2\), the node numbers of source and target, got \(2, 1\)",
        ),
    ],
)
def test_wrong_terminals_are_refused(terminals, message) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.relax(torch.zeros(2, len(ROADS)), "path", "map", graph=ROADS, terminals=terminals)


def test_terminals_are_said_once() -> None:
    with pytest.raises(
        InvalidInputError, match="terminals must not be given, as the options fix source 'a' and target 'd'"
    ):
        si.relax(torch.zeros(len(ROADS)), Path(ROADS, "a", "d"), "map", terminals=[0, 3])
    oracle = Path(ROADS).bind(terminals=[[0, 3]])
    with pytest.raises(InvalidInputError, match="terminals is bound for a batch of 1, but theta has a batch of 2"):
        oracle.argmax(torch.zeros(2, len(ROADS)))
    with pytest.raises(InvalidInputError, match="terminals must lie between 0 and 6"):
        Path(ROADS).bind(terminals=[[0, 9]]).argmax(torch.zeros(1, len(ROADS)))


# ----------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("scores", "wrong", "message"),
    [
        ("edges", [11, -1, -1], "edges must lie between 0 and 10 at batch index 1, got"),
        ("edges", [3, -1, 4], "edges follow the padding at batch index 1"),
        ("edges", [0, 4, -1], "the edges do not form a path at batch index 1"),
        ("edges", [2, 4, -1], "the edges do not form a path at batch index 1"),  # the wrong way along c -> a
        ("edges", [-1, -1, -1], "the path must end at the target at batch index 1"),
        ("edges", [3, 2, 3], "the path must end at the target at batch index 1"),
        ("nodes", [0, 2, 7], "nodes must lie between 0 and 6 at batch index 1, got"),
        ("nodes", [0, 1, 3], "each node of the path must be a neighbour of the node before at batch index 1"),
        ("nodes", [1, 2, 3], "the path must start at the source at batch index 1"),
    ],
)
def test_wrong_labels_are_refused(scores, wrong, message) -> None:
    oracle, right = Path(ROADS, "a", "d", scores=scores), {"edges": [3, 4, -1], "nodes": [0, 2, 3]}[scores]
    like = torch.zeros(2, 11 if scores == "edges" else 7)
    with pytest.raises(InvalidInputError, match=message):
        oracle.encode(torch.tensor([right, wrong]), like)


@kinds
def test_walks_that_come_back_are_refused(scores) -> None:
    oracle, walk = Path(ROADS, "a", "d", scores=scores), {"edges": [0, 1, 2, 3, 4], "nodes": [0, 1, 2, 0, 2, 3]}[scores]
    with pytest.raises(InvalidInputError, match="the path must not visit a node twice"):
        oracle.encode(torch.tensor([walk]), torch.zeros(1, 11 if scores == "edges" else 7))


def test_lists_of_labels_have_one_number_a_part() -> None:
    for shape in ((1, 0), (1, 7)):
        with pytest.raises(
            InvalidInputError, match=r"labels must be lists of at most 6 edges, shape \(\.\.\., L\), padded"
        ):
            Path(ROADS, "a", "d").encode(torch.zeros(shape, dtype=torch.int64), torch.zeros(1, 11))


def test_a_structure_that_is_no_path_is_refused() -> None:
    oracle, theta = Path(ROADS, "a", "d"), torch.zeros(2, 11)
    y = oracle.argmax(theta)
    y[1, 7] = 1.0
    with pytest.raises(InvalidInputError, match=r"y: the parts do not form a simple path .* at batch index 1"):
        oracle.decode(y)
    with pytest.raises(InvalidInputError, match="y is not a structure of path"):
        si.FenchelYoungLoss(oracle, "map")(theta, y)


def test_an_edge_without_direction_is_marked_whichever_way_it_is_walked() -> None:
    oracle = Path([("a", "b"), ("c", "b"), ("c", "d")], "a", "d", directed=False)
    y = oracle.argmax(torch.zeros(1, 3))
    assert y.tolist() == [[1.0, 1.0, 1.0]]
    assert oracle.decode(y).tolist() == [[0, 1, 2]]
    assert oracle.nodes(y) == [["a", "b", "c", "d"]]


def test_wrong_numbers_of_scores_are_refused() -> None:
    for scores, count in (("edges", 11), ("nodes", 7)):
        with pytest.raises(
            InvalidInputError,
            match=rf"theta: path takes a score for each of the graph's {count} {scores}, .* got 5 after the batch",
        ):
            Problem.build(torch.zeros(2, 5), Path(ROADS, "a", "d", scores=scores), {})
