"""Paths of acyclic graphs and of grids: as hypergraphs, and as oracles against lists of all paths."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import pickle
import time

import networkx
import numpy as np
import pytest
import torch

import enumerators_paths as listed
from hypergraph_program_assertions import Program, every_query
from structinf.calls.problem import Problem
from structinf.dp.paths import DAG, path_graph
from structinf.errors import InfeasibleError, InvalidInputError
from structinf_oracles.dag_path import DagPath
from structinf_oracles.grid_path import GridPath

pytestmark = pytest.mark.slow

# Node 9 is a dead end, 8 cannot be reached, and two edges lead from 0 to 3.
EDGES = ((0, 3), (3, 5), (0, 5), (8, 3), (0, 3), (5, 7), (3, 7), (3, 9))
TOWN = (("home", "bus"), ("home", "train"), ("train", "bus"), ("bus", "work"), ("train", "work"))
MOVES = {
    "down-right": ((1, 0), (0, 1)),
    "with-diagonal": ((1, 1), (1, 0), (0, 1)),
    ((0, 1), (2, 1), (1, 0)): ((0, 1), (2, 1), (1, 0)),
}


def dag_program(edges, source, target, oracle: DagPath) -> Program:
    return Program(
        oracle,
        (len(edges),),
        lambda _: list(listed.dag_paths(edges, source, target)),
        lambda _: listed.dag_grammar(edges, source, target),
    )


def grid_program(rows: int, columns: int, moves, lengths=()) -> Program:
    return Program(
        GridPath(moves=moves),
        (rows, columns),
        lambda n: list(listed.grid_paths(rows, columns, MOVES[moves], n)),
        lambda n: listed.grid_grammar(rows, columns, MOVES[moves], n),
        lengths,
    )


PROGRAMS = [
    dag_program(EDGES, 0, 7, DagPath(EDGES, 0, 7)),
    dag_program(TOWN, "home", "work", DagPath(TOWN)),
    dag_program([(0, 1)], 0, 1, DagPath([(0, 1)])),
    grid_program(3, 3, "down-right", ((3, 3), (2, 3), (1, 1), (3, 1))),
    grid_program(3, 4, "with-diagonal", ((3, 4), (2, 2), (1, 4))),
    grid_program(4, 3, ((0, 1), (2, 1), (1, 0)), ((4, 3), (3, 2))),
    grid_program(1, 1, "down-right"),
]


@every_query(PROGRAMS)
def test_query(query, program) -> None:
    query(program)


# ----------------------------------------------------------------------------- graphs of the user's


def test_every_form_of_a_graph_is_the_same() -> None:
    forms = [
        EDGES,
        list(map(list, EDGES)),
        np.array(EDGES),
        np.array(EDGES, np.uint8),
        torch.tensor(EDGES),
        DAG.of(EDGES),
        networkx.MultiDiGraph(EDGES),
        (edge for edge in EDGES),
    ]
    theta = torch.randn(3, len(EDGES))
    expected = DagPath(EDGES, 0, 7).marginals(theta)
    for form in forms[:-2]:
        assert torch.equal(DagPath(form, 0, 7).marginals(theta), expected)
    assert path_graph(forms[-1], 0, 7).edges == path_graph(EDGES, 0, 7).edges
    # A MultiDiGraph's edges come node after node.
    order = [EDGES.index(edge) for edge in networkx.MultiDiGraph(EDGES).edges()]
    assert sorted(set(order)) == sorted({EDGES.index(edge) for edge in EDGES})


def test_edges_of_networkx_come_in_its_order() -> None:
    graph = networkx.DiGraph()
    graph.add_edge("b", frozenset({1}))
    graph.add_edge("a", "b")
    graph.add_edge("a", frozenset({1}))
    graph.add_node("alone")
    oracle = DagPath(graph)
    assert (oracle.source, oracle.target) == ("a", frozenset({1}))
    assert oracle.graph.nodes[:3] == ("b", frozenset({1}), "a")
    theta = torch.tensor([[1.0 if edge[0] == "a" else 5.0 for edge in graph.edges]])
    y = oracle.argmax(theta)
    assert oracle.nodes(y) == [["a", "b", frozenset({1})]]
    assert y.tolist() == [[float(edge != ("a", frozenset({1}))) for edge in graph.edges]]


@pytest.mark.parametrize("seed", range(3))
def test_against_networkx(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = networkx.DiGraph([(i, j) for j in range(9) for i in range(j) if rng.random() < 0.6 or i == j - 1])
    oracle = DagPath(graph)
    theta = torch.from_numpy(rng.standard_normal((2, graph.number_of_edges())))
    paths = list(networkx.all_simple_paths(graph, 0, 8))
    assert oracle.count(theta) == [len(paths)] * 2
    for b in range(2):
        for edge, weight in zip(graph.edges, theta[b].tolist(), strict=True):
            graph.edges[edge]["weight"] = -weight
        expected = networkx.bellman_ford_path(graph, 0, 8)
        assert oracle.nodes(oracle.argmax(theta))[b] == expected


def test_only_what_lies_on_paths_is_kept() -> None:
    graph = path_graph(EDGES, 0, 7)
    assert (graph.nodes, graph.edges, graph.parts) == (4, 7, 8)
    assert graph.offset.dtype == np.int64
    assert graph.part.dtype == graph.tails.dtype == np.int32


@pytest.mark.parametrize("is_dense", [True, False])
@pytest.mark.parametrize("oracle", [DagPath(EDGES, 0, 7), DagPath(EDGES, 0, 0), DagPath(TOWN)])
def test_contains_tells_paths_from_all_other_sets_of_edges(oracle, is_dense, monkeypatch) -> None:
    oracle = dataclasses.replace(oracle)
    if not is_dense:
        monkeypatch.setattr("structinf_oracles.dag_path._MOST_DENSE", 0)
    edges = len(oracle.graph.ends)
    paths = {tuple(y) for y in oracle.enumerate((edges,)).tolist()}
    sets = [*itertools.product([0.0, 1.0], repeat=edges), (0.5,) * edges, (2.0,) * edges, (-1.0,) * edges]
    assert oracle.contains(torch.tensor(sets)).tolist() == [y in paths for y in sets]


def test_contains_takes_autograd_after_inference_mode() -> None:
    oracle, y = DagPath(EDGES, 0, 7), DagPath(EDGES, 0, 7).argmax(torch.zeros(1, 8))
    with torch.inference_mode():
        assert oracle.contains(y).all()
    assert oracle.contains(y.requires_grad_()).all()


def test_source_and_target_may_be_one_node() -> None:
    oracle = DagPath(EDGES, 3, 3)
    y = oracle.argmax(torch.ones(2, 8))
    assert y.tolist() == [[0.0] * 8] * 2
    assert oracle.decode(y).tolist() == [[-1], [-1]]
    assert torch.equal(oracle.encode(oracle.decode(y), y), y)
    assert oracle.nodes(y) == [[3], [3]]
    graph = networkx.DiGraph()
    graph.add_node("here")
    alone = DagPath(graph)
    assert alone.log_partition(torch.zeros(2, 0)).tolist() == [0.0, 0.0]
    assert alone.decode(alone.argmax(torch.zeros(1, 0))).tolist() == [[-1]]


def test_large_graphs() -> None:
    rng = np.random.default_rng(0)
    nodes = 20_000
    edges = np.sort(rng.integers(0, nodes, (100_000, 2)), 1)
    edges = np.vstack([edges[edges[:, 0] < edges[:, 1]], np.stack([np.arange(nodes - 1), np.arange(1, nodes)], 1)])
    begun = time.perf_counter()
    oracle = DagPath(edges)
    y = oracle.argmax(torch.zeros(1, len(edges)))
    assert torch.equal(oracle.encode(oracle.decode(y), y), y)
    assert time.perf_counter() - begun < 20  # a second, usually
    assert oracle.decode(oracle.argmax(torch.ones(1, len(edges)))).shape == (1, nodes - 1)


def test_oracles_of_equal_graphs_are_equal_and_share_the_hypergraph() -> None:
    one, other = DagPath(np.array(EDGES), 0, 7), DagPath(list(EDGES), source=0, target=7)
    assert one == other
    assert hash(one) == hash(other)
    theta = torch.zeros(1, 8)
    assert one.hypergraph(theta) is other.hypergraph(theta)
    assert one != DagPath(EDGES, 0, 5)
    assert one != DagPath([*EDGES[:-1], (5, 9)], 0, 7)
    assert one.graph != EDGES
    assert repr(one) == "DagPath(graph=DAG(6 nodes, 8 edges), source=0, target=7)"
    for twin in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert twin == one
        assert hash(twin) == hash(one)


def test_the_users_array_is_not_kept() -> None:
    edges = np.array(EDGES)
    oracle = DagPath(edges, 0, 7)
    edges[:] = 0
    assert oracle == DagPath(EDGES, 0, 7)


@pytest.mark.parametrize(
    ("graph", "ends", "message"),
    [
        ([(0, 1), (1, 2), (2, 1)], (0, 2), r"graph: the edges (1 -> 2 -> 1|2 -> 1 -> 2) form a cycle"),
        ([("a", "b"), ("b", "b")], ("a", "b"), r"graph: the edges 'b' -> 'b' form a cycle"),
        (
            [(i, (i + 1) % 30) for i in range(30)],
            (0, 1),
            r"graph: the edges \d+( -> \d+){8} -> \.\.\. -> \d+ form a cycle",
        ),
        (networkx.DiGraph([(0, 1), (1, 0)]), (0, 1), r"form a cycle"),
        (EDGES, (9, 7), r"target: no path leads from 9 to 7; the nodes that can be reached are 9$"),
        (EDGES, (7, 0), r"target: no path leads from 7 to 0"),
        (EDGES, (0, 6), r"6 is not a node of the graph; its nodes are 0, 3, 5, 7, 8, 9"),
        (
            EDGES,
            (None, 7),
            r"source must be given: .* only node that no edge leads to, but the graph has 2 such nodes: 0, 8",
        ),
        (
            EDGES,
            (0, None),
            r"target must be given: .* only node that no edge leaves, but the graph has 2 such nodes: 7, 9",
        ),
        (networkx.Graph([(0, 1)]), (0, 1), r"graph must be a directed graph, got a Graph"),
        ([], (None, None), r"graph must have at least one node"),
        (np.zeros((0, 2), int), (None, None), r"graph must have at least one node"),
        (
            np.zeros((2, 3), int),
            (0, 1),
            r"graph: edges are pairs of integers, \(E, 2\), got an array of int64",
        ),
        (np.zeros((2, 2)), (0, 1), r"graph: edges are pairs of integers, \(E, 2\), got an array of float64"),
        ([(0, 1, 2)], (0, 1), r"graph must be an \(E, 2\) integer array, a sequence of pairs .* got a list"),
        ([([], 1)], (0, 1), r"graph must be an \(E, 2\) integer array, .* got a list: .*unhashable"),
        (5, (0, 1), r"graph must be an \(E, 2\) integer array, .* got a int"),
    ],
)
def test_what_is_no_graph_of_paths_is_refused(graph, ends, message: str) -> None:
    for make in (path_graph, DagPath):
        with pytest.raises(InvalidInputError, match=message):
            make(graph, *ends)


@pytest.mark.parametrize("make", [DagPath, path_graph])
@pytest.mark.parametrize("form", [list, np.array, networkx.DiGraph])
@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (
            [(0, 1), (1, 2), (2, 1)],
            r"the edges (1 -> 2 -> 1|2 -> 1 -> 2) form a cycle; paths need an acyclic graph",
        ),
        ([(0, 1), (1, 1)], "the edges 1 -> 1 form a cycle; paths need an acyclic graph"),
    ],
)
def test_cycles_are_named_whatever_the_graphs_form(make, form, edges, message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^graph: {message}$"):
        make(form(edges))


@pytest.mark.parametrize("graph", [[], (), networkx.DiGraph()])
def test_empty_graphs_are_refused(graph) -> None:
    with pytest.raises(InvalidInputError, match=r"^graph must have at least one node, got none$"):
        DagPath(graph)


def test_wrong_labels_of_graphs_are_refused() -> None:
    oracle, like = DagPath(EDGES, 0, 7), torch.zeros(2, 8)
    right = [0, 1, 5]
    for wrong, message in (
        ([8, -1, -1], "edge numbers must lie between 0 and 7 at batch index 1, got"),
        ([-1, 0, 6], "an edge follows the padding at batch index 1"),
        ([0, 5, -1], "the edges do not form a path at batch index 1"),
        ([3, 6, -1], "the edges do not form a path at batch index 1"),
        ([0, 7, -1], "the path must end in 7 at batch index 1"),
        ([-1, -1, -1], "the path must end in 7 at batch index 1"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            oracle.encode(torch.tensor([right, wrong]), like)
    with pytest.raises(InvalidInputError, match="y must have at most 3 nonzero parts, got 8 at batch index 0"):
        oracle.decode(torch.ones(1, 8))


def test_wrong_numbers_of_edges_are_refused() -> None:
    with pytest.raises(
        InvalidInputError,
        match=r"theta: dag_path takes a score for each of the graph's 8 edges, .* got 7 after the batch dimensions",
    ):
        Problem.build(torch.zeros(2, 7), DagPath(EDGES, 0, 7), {})


def test_graphs_without_an_allowed_path() -> None:
    theta = torch.zeros(3, 8)
    theta[1, [5, 6]] = -math.inf
    for query in ("argmax", "log_partition", "marginals"):
        with pytest.raises(InfeasibleError, match="batch index 1"):
            getattr(DagPath(EDGES, 0, 7), query)(theta)


# ----------------------------------------------------------------------------- grids


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (4, 1), (3, 4), (12, 9)])
def test_numbers_of_grid_paths(rows: int, columns: int) -> None:
    zeros = torch.zeros(1, rows, columns, dtype=torch.float64)
    binomial = math.comb(rows + columns - 2, rows - 1)
    assert GridPath().count(zeros) == [binomial]
    assert GridPath().log_partition(zeros).item() == pytest.approx(math.log(binomial))
    n, m = rows - 1, columns - 1
    delannoy = sum(math.comb(n, k) * math.comb(m, k) * 2**k for k in range(min(n, m) + 1))
    assert GridPath(moves="with-diagonal").count(zeros) == [delannoy]


def test_moves_with_diagonal_are_those_of_dtw() -> None:
    from structinf_oracles.dtw import DTW

    theta, lengths = torch.randn(3, 4, 5, dtype=torch.float64), torch.tensor([[4, 5], [2, 5], [1, 1]])
    one, other = GridPath(moves="with-diagonal").bind(lengths=lengths), DTW().bind(lengths=lengths)
    y = one.argmax(theta)
    assert torch.equal(y, other.argmax(theta))
    assert torch.equal(one.decode(y), other.decode(y))
    torch.testing.assert_close(one.marginals(theta), other.marginals(theta))


def test_moves_are_compared_as_pairs() -> None:
    one, other = GridPath(moves=[[1, 0], [np.int64(0), 2]]), GridPath(moves=((1, 0), (0, 2)))
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ("up", r"moves must be 'down-right' or 'with-diagonal', or pairs \(di, dj\), got 'up'"),
        (((1, 0), (0, -1)), r"moves: \(0, -1\) leads back or stays in its cell; di and dj must be at least 0"),
        (((0, 0),), r"moves: \(0, 0\) leads back or stays in its cell"),
        (((1, 0.5),), r"moves must be pairs \(di, dj\) of integers, got \(1, 0.5\)"),
        (((1, True),), r"moves must be pairs \(di, dj\) of integers"),
        ((1, 0), r"moves must be pairs \(di, dj\) of integers, got \(1, 0\)"),
        ((), r"moves must hold at least one pair, and each pair only once, got \(\)"),
        (((1, 0), (1, 0)), r"moves must hold at least one pair, and each pair only once"),
        (5, r"moves must be pairs \(di, dj\) of integers, got 5"),
    ],
)
def test_wrong_moves_are_refused(moves, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        GridPath(moves=moves)


def test_a_last_cell_that_moves_do_not_reach_is_refused() -> None:
    oracle, theta = GridPath(moves=((2, 1), (1, 2))), torch.zeros(2, 4, 4)
    assert oracle.count(theta[:1]) == [2]
    with pytest.raises(InvalidInputError, match=r"do not lead from cell \(0, 0\) to .* \(2, 2\), at batch index 1"):
        Problem.build(theta, oracle, {"lengths": [[4, 4], [3, 3]]})
    with pytest.raises(InvalidInputError, match=r"do not lead from cell \(0, 0\) to .* \(0, 3\), at batch index 0"):
        Problem.build(theta[:, :1], oracle, {})


@pytest.mark.parametrize(
    ("shape", "lengths", "message"),
    [
        ((2, 3, 4), [[0, 1], [1, 1]], r"lengths must lie between 1 and 3 \(n = 3 rows\), got 0 at batch index 0"),
        ((2, 3, 4), [[3, 4], [1, 5]], r"lengths must lie between 1 and 4 \(m = 4 columns\), got 5 at batch index 1"),
        (
            (2, 3, 4),
            [[3], [3]],
            r"lengths of grid_path must have shape \(\.\.\., 2\), the numbers of rows and of columns in use, got",
        ),
        ((2, 0, 4), None, r"theta: grid_path needs a grid of at least one row and one column, got shape \(0, 4\)"),
    ],
)
def test_wrong_grids_are_refused(shape, lengths, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Problem.build(torch.zeros(shape), GridPath(), {"lengths": lengths})


def test_wrong_labels_of_grids_are_refused() -> None:
    oracle, like = GridPath().bind(lengths=torch.tensor([[2, 2], [2, 2]])), torch.zeros(2, 2, 3)
    right, pad = [[0, 0], [0, 1], [1, 1], [-1, -1]], [-1, -1]
    for wrong, message in (
        ([[0, 0], [0, 1], [0, 2], pad], "a cell lies outside the grid in use at batch index 1"),
        ([[0, 0], [0, -1], pad, pad], "a cell lies outside the grid in use at batch index 1"),
        ([[0, 0], pad, [0, 1], [1, 1]], "a cell follows the padding at batch index 1"),
        ([[0, 1], [1, 1], pad, pad], r"the path must start in cell \(0, 0\) at batch index 1"),
        ([pad] * 4, r"the path must start in cell \(0, 0\) at batch index 1"),
        ([[0, 0], [1, 1], pad, pad], "each move of the path must be one of .* at batch index 1"),
        ([[0, 0], [0, 1], pad, pad], "the path must end in the last cell in use at batch index 1"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            oracle.encode(torch.tensor([right, wrong]), like)
    with pytest.raises(InvalidInputError, match="y must have at most 4 nonzero parts, got 6 at batch index 0"):
        oracle.decode(torch.ones(1, 2, 3))


def test_input_is_left_alone_and_may_be_strided() -> None:
    theta = torch.randn(4, 3, 2, dtype=torch.float64).permute(2, 1, 0)
    kept = theta.clone()
    oracle = GridPath()
    assert torch.equal(oracle.marginals(theta), oracle.marginals(theta.contiguous()))
    assert torch.equal(theta, kept)
