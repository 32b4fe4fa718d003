"""Batches of different graphs: each instance has the answer that it gets alone."""

from __future__ import annotations

import pickle
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import structinf as si
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.testing import check_oracle

INF = torch.inf


def acyclic_graphs(count: int = 6, seed: int = 0) -> list[np.ndarray]:
    """Graphs of different sizes with a path through all nodes, and equal graphs among them."""
    rng = np.random.default_rng(seed)
    graphs = []
    for n in rng.integers(2, 9, size=count):
        pairs = [(i, i + 1) for i in range(n - 1)]
        pairs += [(int(a), int(b)) for a, b in np.sort(rng.integers(0, n, size=(4, 2)), 1) if a < b]
        graphs.append(np.array(pairs))
    return [*graphs, graphs[1]]


GRAPHS = acyclic_graphs()
BATCH = si.GraphBatch.of(GRAPHS)
COUNT = len(GRAPHS)


def scores(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(COUNT, BATCH.most_edges, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("relaxation", ["map", "marginals", "smoothed", "sparsemap"])
def test_acyclic_graphs_one_by_one(relaxation: str, dtype: torch.dtype) -> None:
    theta, options = scores(dtype).requires_grad_(), {"regularizer": "squared_l2"} if relaxation == "smoothed" else {}
    mean = si.relax(theta, "dag_path", relaxation, graph=BATCH, **options)
    weight = torch.arange(BATCH.most_edges, dtype=dtype)
    if mean.requires_grad:
        (mean * weight).sum().backward()
    for b, graph in enumerate(GRAPHS):
        own = theta[b, : len(graph)].detach().clone().requires_grad_()
        # One graph for all instances has another solver of sparsemap.
        single = si.GraphBatch.of([graph]) if relaxation == "sparsemap" else graph
        alone = si.relax(own, "dag_path", relaxation, graph=single, **options)
        assert torch.equal(mean[b, : len(graph)], alone)
        assert not mean[b, len(graph) :].any()
        if mean.requires_grad:
            (alone * weight[: len(graph)]).sum().backward()
            assert torch.equal(theta.grad[b, : len(graph)], own.grad)  # type: ignore[index]
            assert not theta.grad[b, len(graph) :].any()  # type: ignore[index]


def test_queries_and_sparsemap() -> None:
    theta, oracle = scores(), si.get_oracle("dag_path", graph=BATCH)
    mean = si.relax(theta, oracle, si.get_relaxation("sparsemap").exact())
    structures, values, valid = oracle.topk(theta, 3)
    samples = oracle.sample(theta, 4, torch.Generator().manual_seed(0))
    log_z, entropy, counts = oracle.log_partition(theta), si.entropy(theta, oracle), si.count(theta, oracle)
    for b, graph in enumerate(GRAPHS):
        alone, own = si.get_oracle("dag_path", graph=graph), theta[b : b + 1, : len(graph)]
        exact = si.relax(own, alone, si.get_relaxation("sparsemap").exact())
        torch.testing.assert_close(mean[b, : len(graph)], exact[0], atol=1e-9, rtol=0)
        best, value, is_valid = alone.topk(own, 3)
        assert torch.equal(structures[:, b, : len(graph)], best[:, 0])
        assert torch.equal(values[:, b], value[:, 0])
        assert torch.equal(valid[:, b], is_valid[:, 0])
        assert torch.equal(log_z[b], alone.log_partition(own)[0])
        torch.testing.assert_close(entropy[b], si.entropy(own, alone)[0])
        assert counts[b] == si.count(own, alone)[0]
        every = alone.enumerate((len(graph),))
        assert all((every == y[b, : len(graph)]).all(1).any() for y in samples)


@pytest.mark.parametrize("name", [pytest.param("dag_path", marks=pytest.mark.full), "path"])
def test_conformance(name: str) -> None:
    graphs = si.GraphBatch.of([[(0, 1), (1, 2), (0, 2), (2, 3), (1, 3)], [(0, 1), (0, 1), (1, 2)], [(0, 1)]])
    oracle = si.get_oracle(name, graph=graphs, source=[0, 0, 0], target=[3, 2, 1])
    check_oracle(oracle, (5,), instance_data={"graph_index": [0, 1, 2]}, dtypes=[torch.float64])


def test_labels_and_nodes() -> None:
    theta, oracle = scores(), si.get_oracle("dag_path", graph=BATCH)
    y = oracle.argmax(theta)
    labels = oracle.decode(y)
    assert torch.equal(oracle.encode(labels, theta), y)
    for b, graph in enumerate(GRAPHS):
        alone = si.get_oracle("dag_path", graph=graph)
        own = y[b : b + 1, : len(graph)]
        assert labels[b][labels[b] >= 0].tolist() == [edge for edge in alone.decode(own)[0].tolist() if edge >= 0]
        assert oracle.nodes(y)[b] == alone.nodes(own)[0]
    wrong = labels.clone()
    wrong[3, 0] = 1 - min(int(wrong[3, 0]), 1)
    with pytest.raises(InvalidInputError, match="at batch index 3"):
        oracle.encode(wrong, theta)


@pytest.mark.parametrize("oracle", ["dag_path", "path"])
def test_labels_beyond_the_edges_of_a_graph(oracle: str) -> None:
    graphs = si.GraphBatch.of([[(0, 1), (1, 2), (0, 2)], [(0, 1), (0, 2), (1, 2), (0, 2)]])
    labels = torch.tensor([[3, 2], [3, -1]])
    with pytest.raises(InvalidInputError, match="must be numbers of edges of the instance's graph at batch index 0"):
        si.encode(labels, torch.zeros(2, 4), oracle, graph=graphs, source=[0, 0], target=[2, 2])


@pytest.mark.parametrize("relaxation", ["marginals", "sparsemap"])
def test_gradients(relaxation: str) -> None:
    options: dict[str, Any] = {"tolerance": 0.0} if relaxation == "sparsemap" else {}
    theta = scores().requires_grad_()
    assert gradcheck(lambda t: si.relax(t, "dag_path", relaxation, graph=BATCH, **options), theta)
    gold = si.relax(theta.detach(), "dag_path", "map", graph=BATCH)
    assert gradcheck(si.FenchelYoungLoss("dag_path", relaxation, graph=BATCH, **options), (theta, gold))


def test_rows_choose_their_graphs() -> None:
    theta, oracle = scores(), si.get_oracle("dag_path", graph=BATCH)
    whole, index = si.relax(theta, oracle, "marginals"), torch.tensor([[4, 0], [4, 6]])
    some = si.relax(theta[index], oracle, "marginals", graph_index=index)
    assert torch.equal(some, whole[index])
    assert torch.equal(oracle[torch.tensor([5, 2])].marginals(theta[[5, 2]]), whole[[5, 2]])
    assert torch.equal(pickle.loads(pickle.dumps(oracle)).marginals(theta), whole)
    padding = torch.where(torch.arange(BATCH.most_edges) < torch.tensor(BATCH.edge_counts)[:, None], theta, torch.nan)
    with pytest.raises(InvalidInputError, match="NaN"):
        si.relax(theta.masked_fill(theta == theta[0, 0], torch.nan), oracle, "marginals")
    assert torch.equal(si.relax(padding.nan_to_num(7.0), oracle, "marginals"), whole)
    layer = si.Layer("dag_path", "marginals", graph=BATCH)
    assert torch.equal(layer(theta), whole)


def test_packing() -> None:
    first, second = networkx.DiGraph([("a", "b"), ("b", "c"), ("a", "c")]), networkx.DiGraph([("x", "y")])
    graphs = si.GraphBatch.of([first, second])
    assert repr(graphs) == "GraphBatch(2 graphs, 4 edges)"
    assert [g.nodes for g in graphs] == [("a", "b", "c"), ("x", "y")]
    edge_scores = torch.tensor([1.0, 1.0, 3.0, 2.0], requires_grad=True)
    rows = graphs.pad(edge_scores)
    assert rows.tolist() == [[1, 1, 3], [2, 0, 0]]
    assert torch.equal(graphs.unpad(rows), edge_scores)
    y = si.relax(rows, "dag_path", "map", graph=[first, second])
    assert graphs.unpad(y).tolist() == [1, 0, 1, 1]
    graphs.unpad(rows).sum().backward()
    assert edge_scores.grad.tolist() == [1] * 4  # type: ignore[union-attr]
    edge_index = torch.tensor([[0, 0, 1, 3], [1, 2, 2, 4]])
    packed = si.GraphBatch.from_edge_index(edge_index, torch.tensor([0, 0, 0, 1, 1]))
    assert np.array_equal(packed.edges, graphs.edges)
    assert packed.names is None
    assert torch.equal(si.relax(rows, "dag_path", "map", graph=packed), y)
    ends = si.get_oracle("dag_path", graph=graphs, source=["b", "x"], target=["c", "y"])
    assert ends.nodes(ends.argmax(rows.detach())) == [["b", "c"], ["x", "y"]]
    # Arrays keep the names of their nodes, whether or not these are 0, 1, 2, and so on.
    named = si.GraphBatch.of([np.array([[0, 1], [1, 2]], np.uint64), np.array([[7, 3]]), np.array([[0, 2]])])
    assert named.names == ((0, 1, 2), (3, 7), (0, 2))
    assert named.edges.tolist() == [[0, 1], [1, 2], [1, 0], [0, 1]]
    assert hash(graphs) == hash(si.GraphBatch.of([first, second]))
    assert graphs == si.GraphBatch.of([first, second])
    features = torch.randn(4, 3)
    assert torch.equal(graphs.unpad(graphs.pad(features)), features)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: si.GraphBatch.of([]), "at least one graph"),
        (lambda: si.GraphBatch.of([[(0, 1)], [(0, 1, 2)]]), "graph 1 of the batch"),
        (lambda: si.GraphBatch(np.array([[0, 5]]), np.array([1]), np.array([2])), "nodes from 0 to 1"),
        (lambda: si.GraphBatch(np.array([[0, 1]]), np.array([2]), np.array([2])), "add up to the 1 edges"),
        (lambda: si.GraphBatch(np.array([[0.0, 1.9]]), np.array([1]), np.array([2])), "edges must be an array of int"),
        (lambda: si.GraphBatch(np.array([[0, 1, 1]]), np.array([1]), np.array([2])), r"pairs of nodes, \(E, 2\)"),
        (lambda: si.GraphBatch(np.array([[0, 1]]), np.array([1, 0]), np.array([2, -1])), "node_counts must be at lea"),
        (lambda: si.GraphBatch(np.array([[0, 1]]), np.array([1]), np.array([2]), names=[("a",)]), "names must hold"),
        (lambda: si.GraphBatch.of(5), "graphs must be a sequence"),  # type: ignore[arg-type]
        (lambda: si.GraphBatch.from_edge_index(torch.tensor([[0], [2]]), torch.tensor([0, 0, 1])), "same graph"),
        (lambda: si.GraphBatch.from_edge_index(torch.tensor([[0], [1]]), torch.tensor([1, 0])), "ascending order"),
        (lambda: si.GraphBatch.from_edge_index(torch.tensor([0, 1]), torch.tensor([0, 0])), r"shape \(2, E\)"),
        (lambda: BATCH.pad(torch.zeros(3)), "scores must be a tensor of shape"),
        (lambda: BATCH.unpad(torch.zeros(3, 3)), "rows must be a tensor of shape"),
    ],
)
def test_wrong_batches(make: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": [np.array([[0, 1]]), np.array([[0, 1], [1, 0]])]}, "graph 1 of the batch: .* form a cycle"),
        (
            {"graph": [np.array([[0, 1]]), np.array([[0, 1], [2, 1]])]},
            "source must be given: .* graph 1 .* 2 such nodes",
        ),
        ({"graph": [np.array([[0, 1], [0, 2]])], "source": [1], "target": [2]}, "no path leads from 1 to 2 in graph 0"),
        ({"graph": BATCH, "source": [0], "target": [1]}, "source must hold a node for each of the 7 graphs"),
        ({"graph": [networkx.DiGraph([("a", "b")])], "source": ["c"], "target": ["b"]}, "'c' is not a node"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.get_oracle("dag_path", **options)


def test_wrong_data() -> None:
    theta, oracle = scores(), si.get_oracle("dag_path", graph=BATCH)
    with pytest.raises(InvalidInputError, match="graph_index is bound for a batch of 7, but theta has a batch of 3"):
        si.relax(theta[:3], oracle, "map")
    with pytest.raises(InvalidInputError, match=r"graph_index must lie between 0 and 6, got 7 at batch index 1"):
        si.relax(theta[:2], oracle, "map", graph_index=[0, 7])
    with pytest.raises(InvalidInputError, match="a score for each of up to"):
        si.relax(theta[:, :2], oracle, "map")
    with pytest.raises(InvalidInputError, match="graph_index needs a batch of graphs"):
        si.relax(torch.zeros(1), "dag_path", "map", graph=[(0, 1)], graph_index=0)
    theta[2, : len(GRAPHS[2])] = -INF
    for relaxation in ("map", "marginals"):
        with pytest.raises(InfeasibleError) as error:
            si.relax(theta, oracle, relaxation)
        assert error.value.batch_index == 2
        zero = si.relax(theta, oracle, relaxation, on_infeasible="zero")
        rest = [0, 1, 3, 4, 5, 6]
        assert not zero[2].any()
        assert torch.equal(zero[rest], si.relax(theta[rest], oracle, relaxation, graph_index=rest))


# ----------------------------------------------------------------------------- scores of pairs


@pytest.mark.parametrize("oracle", ["spanning_tree", "matching"])
@pytest.mark.parametrize("relaxation", ["map", "marginals"])
def test_undirected_graphs_as_matrices(oracle: str, relaxation: str) -> None:
    if (oracle, relaxation) == ("matching", "marginals"):
        return  # not supported
    rng = np.random.default_rng(0)
    graphs = []
    for n in (3, 6, 4, 6):
        pairs = {(i, i + 1) for i in range(n - 1)} | {tuple(sorted(rng.permutation(n)[:2].tolist())) for _ in range(5)}
        graphs.append(np.array(sorted(pairs)))
    batch = si.GraphBatch.of(graphs, directed=False)
    options: dict[str, Any] = {"perfect": False} if oracle == "matching" else {}
    edge_scores = torch.randn(len(batch.edges), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    edge_scores.requires_grad_()
    theta = batch.to_matrices(edge_scores)
    mean = si.relax(theta, oracle, relaxation, lengths=batch.lengths, **options)
    found = batch.from_matrices(mean)
    if mean.requires_grad:
        (gradient,) = torch.autograd.grad(found.square().sum(), edge_scores)
        assert gradient.isfinite().all()
    for graph, own, y in zip(
        graphs, edge_scores.split(batch.edge_counts.tolist()), found.split(batch.edge_counts.tolist()), strict=True
    ):
        alone = si.relax(own, oracle, relaxation, edges=graph, **options)
        torch.testing.assert_close(y, alone, atol=1e-12, rtol=0)


def test_directed_graphs_as_matrices() -> None:
    batch = si.GraphBatch.of([np.array([[0, 1], [0, 2], [2, 1]]), np.array([[0, 1]])])
    theta = batch.to_matrices(torch.tensor([1.0, 1.0, 2.0, 0.5]))
    assert theta.shape == (2, 3, 3)
    heads = si.decode(si.relax(theta, "arborescence", "map", lengths=batch.lengths - 1), "arborescence", lengths=[2, 1])
    assert heads.tolist() == [[2, 0], [0, -1]]


def test_edges_without_a_matrix() -> None:
    for edges, message in (
        ([[0, 1], [1, 0]], "parallel edges join nodes 0 and 1 of graph 0"),
        ([[1, 1]], "a loop joins"),
    ):
        batch = si.GraphBatch.of([np.array(edges)], directed=False)
        with pytest.raises(InvalidInputError, match=message):
            batch.to_matrices(torch.zeros(len(edges)))
    with pytest.raises(InvalidInputError, match="a number for each edge"):
        BATCH.to_matrices(torch.zeros(len(BATCH.edges), 2))
    with pytest.raises(InvalidInputError, match="matrices must be a tensor of shape"):
        BATCH.from_matrices(torch.zeros(2, 3, 3))


# ----------------------------------------------------------------------------- graphs with cycles


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("as_data", [True, False])
def test_graphs_with_cycles_one_by_one(directed: bool, as_data: bool) -> None:
    rng = np.random.default_rng(0)
    graphs, ends = [], []
    for n in rng.integers(3, 9, size=6):
        ring = [(i, (i + 1) % int(n)) for i in range(int(n))]
        graphs.append(np.array([*ring, *rng.integers(0, n, size=(4, 2)).tolist()]))
        ends.append([0, int(n) - 1])
    batch = si.GraphBatch.of(graphs, directed=directed)
    theta = -torch.rand(6, batch.most_edges, dtype=torch.float64)
    data: dict[str, Any] = {"terminals": torch.tensor(ends)} if as_data else {}
    options: dict[str, Any] = {} if as_data else dict(zip(("source", "target"), np.array(ends).T.tolist(), strict=True))
    oracle = si.get_oracle("path", graph=batch, **options)
    y = si.relax(theta, oracle, "map", **data)
    bound = oracle.bind(**data)
    labels = bound.decode(y)
    assert torch.equal(bound.encode(labels, theta), y)
    sparse = si.relax(theta, oracle, si.get_relaxation("sparsemap").exact(), **data)
    for b, graph in enumerate(graphs):
        alone = si.get_oracle("path", graph=graph, source=ends[b][0], target=ends[b][1], directed=directed)
        own = theta[b, : len(graph)]
        assert torch.equal(y[b, : len(graph)], si.relax(own, alone, "map"))
        assert not y[b, len(graph) :].any()
        assert bound.nodes(y)[b] == alone.nodes(y[b : b + 1, : len(graph)])[0]
        exact = si.relax(own, alone, si.get_relaxation("sparsemap").exact())
        torch.testing.assert_close(sparse[b, : len(graph)], exact, atol=1e-9, rtol=0)


def test_wrong_graphs_with_cycles() -> None:
    ring = np.array([[0, 1], [1, 2], [2, 0]])
    with pytest.raises(InvalidInputError, match='scores must be "edges" with a batch of graphs'):
        si.get_oracle("path", graph=[ring], scores="nodes")
    with pytest.raises(InvalidInputError, match="no path leads from 0 to 2 in graph 1"):
        si.get_oracle("path", graph=[ring, np.array([[0, 1], [2, 1]])], source=[0, 0], target=[2, 2])
    with pytest.raises(InvalidInputError, match="terminals must lie between 0 and 1, got"):
        si.relax(-torch.ones(2, 3), "path", "map", graph=[ring, np.array([[0, 1]])], terminals=[[0, 2], [0, 2]])
    with pytest.raises(InvalidInputError, match="directed=True differs"):
        si.get_oracle("path", graph=si.GraphBatch.of([ring], directed=False), directed=True)


# ----------------------------------------------------------------------------- lists of undirected edges


def undirected_graphs() -> list[np.ndarray]:
    """Connected graphs of different even sizes, with a perfect matching, parallel edges and equal graphs."""
    rng = np.random.default_rng(0)
    graphs = []
    for n in (2, 6, 4, 6, 4):
        ring = [(i + 1, i) for i in range(n - 1)]
        others = [tuple(rng.permutation(n)[:2].tolist()) for _ in range(n)]
        graphs.append(np.array([*ring, *others, ring[0]]))
    return [*graphs, graphs[2]]


ROOMS = undirected_graphs()
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("spanning_tree", {}),
    ("matching", {"perfect": True}),
    ("matching", {"perfect": False}),
]


def room_scores(batch: si.GraphBatch, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(len(batch), batch.most_edges, dtype=dtype, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.float64])
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_lists_of_edges_one_by_one(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    batch = si.GraphBatch.of(ROOMS, directed=False)
    theta, oracle = room_scores(batch, dtype), si.get_oracle(name, edges=batch, **options)
    theta[4] = theta[4].round()  # ties
    y = oracle.argmax(theta)
    assert torch.equal(si.relax(theta, name, "map", edges=ROOMS, **options), y)
    if name == "spanning_tree":
        assert torch.equal(oracle.encode(oracle.decode(y), theta), y)
    best, values, valid = oracle.topk(theta, 4)
    mean = si.relax(theta.double(), oracle, si.get_relaxation("sparsemap").exact())
    for b, graph in enumerate(ROOMS):
        alone, own, size = si.get_oracle(name, edges=graph, **options), theta[b : b + 1, : len(graph)], len(graph)
        assert torch.equal(y[b, :size], alone.argmax(own)[0])
        assert not y[b, size:].any()
        parts, scores_of_parts, exists = alone.topk(own, 4)
        assert torch.equal(best[:, b, :size], parts[:, 0])
        assert torch.equal(values[:, b], scores_of_parts[:, 0])
        assert torch.equal(valid[:, b], exists[:, 0])
        labels, expected = oracle.decode(y)[b], alone.decode(alone.argmax(own))[0]
        assert torch.equal(labels[: len(expected)], expected)
        assert (labels[len(expected) :] == -1).all()
        exact = si.relax(own.double(), alone, si.get_relaxation("sparsemap").exact())
        torch.testing.assert_close(mean[b, :size], exact[0], atol=1e-9, rtol=0)
        every = alone.enumerate((size,))
        assert torch.equal(oracle[b : b + 1].enumerate((batch.most_edges,))[:, :size], every)
        assert (every.double() @ own[0].double()).max() == pytest.approx(values[0, b].item())


def test_sums_over_trees_of_lists_of_edges() -> None:
    simple = [np.unique(np.sort(graph, 1), axis=0) for graph in ROOMS]
    for graphs in (ROOMS, simple, [np.array([[0, 1]]), ROOMS[1]]):
        batch = si.GraphBatch.of(graphs, directed=False)
        oracle, theta = si.get_oracle("spanning_tree", edges=batch), room_scores(batch).requires_grad_()
        assert theta.is_leaf
        mean, log_z = si.relax(theta, oracle, "marginals"), si.log_partition(theta, oracle)
        entropy, counts = si.entropy(theta, oracle), si.count(theta, oracle)
        weight = torch.arange(batch.most_edges, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((mean * weight).sum(), theta)
        samples = si.sample(theta.detach(), oracle, 2000, generator=torch.Generator().manual_seed(0))
        for b, graph in enumerate(graphs):
            alone, size = si.get_oracle("spanning_tree", edges=graph), len(graph)
            own = theta[b, :size].detach().clone().requires_grad_()
            own_mean = si.relax(own, alone, "marginals")
            (own_gradient,) = torch.autograd.grad((own_mean * weight[:size]).sum(), own)
            assert torch.equal(mean[b, :size], own_mean)
            assert not mean[b, size:].any()
            assert torch.equal(log_z[b], si.log_partition(own, alone))
            assert torch.equal(gradient[b, :size], own_gradient)
            assert not gradient[b, size:].any()
            torch.testing.assert_close(entropy[b], si.entropy(own, alone), rtol=1e-12, atol=1e-12)
            assert [counts[b]] == si.count(own, alone)
            torch.testing.assert_close(samples[:, b].mean(0)[:size], own_mean, atol=0.06, rtol=0)
            assert (samples[:, b].sum(1) == graph.max()).all()
        assert gradcheck(lambda t, o=oracle: si.relax(t, o, "marginals"), theta)
    oracle = si.get_oracle("spanning_tree", edges=ROOMS)
    theta = room_scores(oracle.edges).requires_grad_()
    gold = oracle.argmax(-theta.detach())
    loss = si.FenchelYoungLoss(oracle, "marginals", reduction="none")
    assert gradcheck(lambda t: loss(t, gold), theta)
    draws = si.sample(theta.detach(), oracle, 1, replacement=False)
    assert (draws[0].sum(1) == torch.tensor([graph.max() for graph in ROOMS])).all()


@pytest.mark.full
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_conformance_of_lists_of_edges(name: str, options: dict[str, Any]) -> None:
    last = [0, 3] if name == "matching" else [1, 0]  # labels of matchings do not tell parallel edges apart
    graphs = [np.array([[0, 1], [1, 2], [2, 3], [1, 3], last]), np.array([[0, 1], [1, 0]])[: 1 + (last == [1, 0])]]
    oracle = si.get_oracle(name, edges=graphs, **options)
    check_oracle(oracle, (5,), instance_data={"graph_index": [0, 1]}, dtypes=[torch.float64])


def test_rows_and_errors_of_lists_of_edges() -> None:
    batch = si.GraphBatch.of(ROOMS, directed=False)
    theta, oracle = room_scores(batch), si.get_oracle("spanning_tree", edges=batch)
    whole, index = si.relax(theta, oracle, "marginals"), torch.tensor([4, 0, 4])
    assert torch.equal(si.relax(theta[index], oracle, "marginals", graph_index=index), whole[index])
    assert torch.equal(pickle.loads(pickle.dumps(oracle)).marginals(theta), whole)
    names = [networkx.Graph([("a", "b"), ("b", "c")]), networkx.Graph([("x", "y")])]
    assert si.relax(torch.zeros(2, 2), "spanning_tree", "map", edges=names).tolist() == [[1, 1], [1, 0]]
    theta[2, : len(ROOMS[2])] = -INF
    with pytest.raises(InfeasibleError) as error:
        si.relax(theta, oracle, "marginals")
    assert error.value.batch_index == 2
    zero = si.relax(theta, oracle, "marginals", on_infeasible="zero")
    assert not zero[2].any()
    assert torch.equal(zero[[0, 1, 3]], whole[[0, 1, 3]])
    labels = oracle.decode(whole.round() * 0 + oracle.argmax(room_scores(batch)))
    labels[2, 0] = labels[2, 1]
    with pytest.raises(InvalidInputError, match="nodes stay unconnected at batch index 2"):
        oracle.encode(labels, theta)
    with pytest.raises(InvalidInputError, match="out of range at batch index 0"):
        oracle.encode(torch.full_like(labels, 9), theta)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("spanning_tree", {"edges": [np.array([[0, 1]]), np.array([[0, 1], [2, 3]])]}, "graph 1 .* connects 0 and 2"),
        ("spanning_tree", {"edges": [np.array([[0, 1]]), np.array([[1, 1]])]}, "edge 0 of graph 1 .* to itself"),
        ("spanning_tree", {"edges": si.GraphBatch.of([np.array([[0, 1]])])}, "pass directed=False to GraphBatch"),
        ("matching", {"edges": [networkx.DiGraph([(0, 1)])]}, "graph 0 of the batch must be undirected"),
        ("matching", {"edges": [np.array([[0, 1]]), np.array([[0, 1], [1, 2]])]}, "graph 1 .* an even number"),
    ],
)
def test_wrong_lists_of_edges(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.get_oracle(name, **options)


def test_wrong_data_of_lists_of_edges() -> None:
    with pytest.raises(InvalidInputError, match="graph_index needs a batch of graphs; pass edges="):
        si.relax(torch.zeros(1), "matching", "map", edges=[(0, 1)], graph_index=0)
    with pytest.raises(InvalidInputError, match="for different graphs in a batch, pass edges="):
        si.relax(torch.zeros(2), "matching", "map", edges=[(0, 1)])
    with pytest.raises(InvalidInputError, match="lengths must not be given with a list of edges"):
        si.relax(torch.zeros(2, 2), "matching", "map", edges=[np.array([[0, 1], [1, 0]])] * 2, lengths=[2, 2])
