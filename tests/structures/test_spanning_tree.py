"""Spanning trees, against all trees listed in plain Python, Kruskal's algorithm, networkx and scipy."""

from __future__ import annotations

import math

import networkx
import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree

import structinf as si
from enumerators_graphs import all_pairs, spanning_trees
from launch_counter import LaunchCounter, on_device
from structinf.errors import InfeasibleError, InvalidInputError
from structinf_oracles import spanning_tree as spanning_tree_module
from structinf_oracles.kernels.spanning_tree.torch_boruvka import boruvka
from structinf_oracles.spanning_tree import SpanningTree

pytestmark = pytest.mark.slow

NEVER = -math.inf
DTYPES = [torch.float32, torch.float64]
SCALES = [1e-3, 1.0, 100.0, 1000.0]
TRIANGLE = [("a", "b"), ("a", "c"), ("b", "c")]


def wheel(rim):
    return [*((0, i) for i in range(1, rim + 1)), *((i, i % rim + 1) for i in range(1, rim + 1))]


GRAPHS = {
    "complete": (5, all_pairs(5)),
    "wheel": (5, wheel(4)),
    "parallel": (4, [(0, 1), (2, 1), (1, 0), (0, 2), (3, 1), (1, 2), (3, 2), (1, 0)]),
    "twice": (2, [(0, 1), (0, 1), (1, 0)]),
    "path": (4, [(2, 3), (0, 1), (1, 2)]),
}
graphs = pytest.mark.parametrize(("nodes", "edges"), GRAPHS.values(), ids=GRAPHS)


def listed(nodes, edges):
    """All trees, (|Y|, E) in float64."""
    return torch.tensor([[e in tree for e in range(len(edges))] for tree in spanning_trees(nodes, edges)]).double()


def as_matrix(values, nodes):
    """Values (..., E) of all pairs of nodes as (..., n, n), with rubbish where nothing is read."""
    matrix = torch.full((*values.shape[:-1], nodes, nodes), 77.0, dtype=values.dtype)
    low, high = torch.tensor(all_pairs(nodes)).T
    matrix[..., low, high] = values
    return matrix


def as_edges(matrix):
    """What stands above the diagonal; the rest is 0."""
    assert not matrix.tril().any()
    low, high = torch.tensor(all_pairs(matrix.shape[-1])).reshape(-1, 2).T
    return matrix[..., low, high]


def scores(nodes, edges, kind="normal", batch=12, dtype=torch.float64):
    theta = torch.randn(batch, len(edges), dtype=dtype)
    if kind == "forbidden":
        kept = listed(nodes, edges)[torch.randint(len(listed(nodes, edges)), (batch,))].bool()
        theta = theta.masked_fill((torch.rand(theta.shape) < 0.5) & ~kept, NEVER)
    return {"ties": theta.round().clamp(-1, 1), "zeros": theta * 0, "negative": -theta.abs() - 100}.get(kind, theta)


def kruskal(theta, nodes, edges):
    """The best tree of θ (E,), and of equal edges the first."""
    component, tree = list(range(nodes)), torch.zeros(len(edges), dtype=theta.dtype)
    for e in sorted(range(len(edges)), key=lambda e: -theta[e].item()):
        one, other = (component[node] for node in edges[e])
        if one != other:
            tree[e] = 1
            component = [one if c == other else c for c in component]
    return tree


# ----------------------------------------------------------------------------- edges on a GPU


@pytest.mark.parametrize("kind", ["normal", "forbidden", "ties", "zeros", "negative"])
def test_torch_operations_find_the_trees_of_the_compiled_loop(kind):
    """Ties included, which go to the first edge, also between 0.0 and −0.0."""
    generator = torch.Generator().manual_seed(0)
    for nodes, count in ((2, 1), (2, 4), (5, 9), (33, 50), (100, 400)):
        path = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)], 1)
        more = torch.stack([torch.randint(0, nodes - 1, (count - nodes + 1,), generator=generator)] * 2, 1)
        more[:, 1] = torch.minimum(more[:, 0] + 1 + more[:, 0] % 5, torch.tensor(nodes - 1))
        edges = torch.cat([path, more])[torch.randperm(count, generator=generator)]
        theta = torch.randn(4, count, generator=generator)
        if kind == "forbidden":
            theta.masked_fill_(torch.rand(theta.shape, generator=generator) < 0.1, NEVER)
        elif kind != "normal":
            theta = {"ties": theta.round().clamp(-1, 1), "zeros": theta * 0, "negative": -theta.abs()}[kind]
        oracle = SpanningTree(edges.numpy())
        y, feasible = boruvka(theta, edges.unsqueeze(0), nodes, torch.full((4,), nodes))
        for row in range(4):
            if feasible[row]:
                assert torch.equal(y[row], oracle.argmax(theta[row : row + 1])[0])
            else:
                with pytest.raises(InfeasibleError):
                    oracle.argmax(theta[row : row + 1])


@pytest.mark.parametrize("is_batch", [False, True])
def test_long_lists_of_edges_stay_on_the_device(is_batch, monkeypatch):
    graphs = [wheel(5), TRIANGLE]
    oracle = SpanningTree([networkx.Graph(g) for g in graphs] if is_batch else graphs[0])
    theta = torch.randn(2, 10)
    expected = si.relax(theta, oracle, "map")
    monkeypatch.setattr(spanning_tree_module, "FEWEST_EDGES_ON_GPU", 1)
    scores_on_device = on_device(theta)
    data = {"graph_index": on_device(torch.arange(2))} if is_batch else {}
    with LaunchCounter():
        si.relax(scores_on_device, oracle, "map", **data)  # copies the edges
    with LaunchCounter() as count:
        found = si.relax(scores_on_device, oracle, "map", **data)
    assert torch.equal(found.cpu(), expected)
    if not is_batch:
        assert (count.synchronisations, count.copies) == (1, 0), count.report()


# ----------------------------------------------------------------------------- golden values and counts


def test_triangle():
    triangle, theta = SpanningTree(TRIANGLE), torch.tensor([[1.0, 2.0, 3.0]]).log()
    torch.testing.assert_close(triangle.log_partition(theta), torch.tensor([11.0]).log())
    torch.testing.assert_close(triangle.marginals(theta), torch.tensor([[5.0, 8.0, 9.0]]) / 11)
    mu = si.relax(theta, triangle, "sparsemap", tolerance=0)
    torch.testing.assert_close(mu, torch.tensor([[0.153426, 0.846574, 1.0]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("edges", "count"),
    [
        *((all_pairs(n), n ** (n - 2)) for n in range(2, 8)),  # Cayley
        *(
            ([(i, -1 - j) for i in range(a) for j in range(b)], a ** (b - 1) * b ** (a - 1))
            for a, b in [(2, 3), (3, 4)]
        ),
        *((wheel(rim), count) for rim, count in [(3, 16), (4, 45), (5, 121), (8, 2205)]),  # L(2n) − 2, Lucas
        ([(i, (i + 1) % 40) for i in range(40)], 40),
    ],
)
def test_counts(edges, count):
    oracle = SpanningTree(edges)
    assert oracle.log_partition(torch.zeros(1, len(edges), dtype=torch.float64)).exp().item() == pytest.approx(count)
    trees = oracle.enumerate((len(edges),))
    assert len(trees) == len(trees.unique(dim=0)) == count
    assert (trees.sum(1) == len({node for edge in edges for node in edge}) - 1).all()


def test_counts_of_many_nodes():
    for n in (50, 300):
        value = SpanningTree().log_partition(torch.zeros(1, n, n, dtype=torch.float64)).item()
        assert value == pytest.approx((n - 2) * math.log(n), rel=1e-13)
    with pytest.raises(InvalidInputError, match="there are 4782969 spanning trees of 9 nodes, too many"):
        SpanningTree().enumerate((9, 9))
    with pytest.raises(InvalidInputError, match=r"about 10\^738 spanning trees"):
        SpanningTree().enumerate((300, 300))


@graphs
def test_enumeration(nodes, edges):
    assert torch.equal(SpanningTree(edges).enumerate((len(edges),)), listed(nodes, edges))


# ----------------------------------------------------------------------------- against enumeration


@graphs
@pytest.mark.parametrize("kind", ["normal", "forbidden"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(nodes, edges, kind, scale, dtype):
    theta = scores(nodes, edges, kind, dtype=dtype) * scale
    v = torch.randn_like(theta)
    trees = listed(nodes, edges)
    totals = torch.where(trees == 0, 0.0, theta.double()[:, None] * trees).sum(2)
    p = totals.softmax(1)
    means = p @ trees
    along = v.double() @ trees.T
    product = (p * (along - (p * along).sum(1, keepdim=True))) @ trees
    near = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-13}
    near_p = {"rtol": 0, "atol": 4e-7 if dtype == torch.float32 else 2e-14 * (1 + scale)}

    def check(oracle, theta, v, read):
        value, together = oracle.log_partition_and_marginals(theta)
        torch.testing.assert_close(value, totals.logsumexp(1).to(dtype), **near)
        torch.testing.assert_close(oracle.log_partition(theta), value, **near)
        torch.testing.assert_close(read(together), means.to(dtype), **near_p)
        assert torch.equal(oracle.marginals(theta), together)
        torch.testing.assert_close(read(oracle.covariance_product(theta, v)), product.to(dtype), **near_p)
        leaf = theta.clone().requires_grad_()  # the same through autograd
        assert not oracle.marginals(leaf).requires_grad
        assert not oracle.covariance_product(leaf, leaf).requires_grad
        recorded = oracle.log_partition(leaf)
        torch.testing.assert_close(recorded.detach(), totals.logsumexp(1).to(dtype), **near)
        (gradient,) = torch.autograd.grad(recorded.sum(), leaf, create_graph=True)
        torch.testing.assert_close(read(gradient.detach()), means.to(dtype), rtol=0, atol=10 * near_p["atol"])
        (hessian,) = torch.autograd.grad(gradient, leaf, v)
        torch.testing.assert_close(read(hessian), product.to(dtype), rtol=0, atol=50 * near_p["atol"])

    check(SpanningTree(edges), theta, v, lambda t: t)
    if edges == all_pairs(nodes):
        check(SpanningTree(), as_matrix(theta, nodes), as_matrix(v, nodes), as_edges)


@graphs
@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "negative", "forbidden"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax(nodes, edges, kind, dtype):
    theta = scores(nodes, edges, kind, 40, dtype)
    trees = listed(nodes, edges)
    y = SpanningTree(edges).argmax(theta)
    best = torch.where(trees == 0, 0.0, theta.double()[:, None] * trees).sum(2).amax(1)
    torch.testing.assert_close(SpanningTree(edges).score(theta, y).double(), best, rtol=1e-6, atol=1e-6)
    assert torch.equal(y, torch.stack([kruskal(t, nodes, edges) for t in theta]))
    if edges == all_pairs(nodes):
        assert torch.equal(as_edges(SpanningTree().argmax(as_matrix(theta, nodes))), y)


def test_samples():
    nodes, edges = GRAPHS["parallel"]
    theta = scores(nodes, edges, "normal", 3)
    theta[1, 0] = theta[2, 3] = NEVER
    oracle = SpanningTree(edges)
    y = oracle.sample(theta, 20_000, torch.Generator().manual_seed(0))
    trees = listed(nodes, edges)
    p = torch.where(trees == 0, 0.0, theta[:, None] * trees).sum(2).softmax(1)
    drawn = (y[:, :, None] == trees).all(3)
    assert drawn.any(2).all()
    assert ((drawn.double().mean(0) - p).abs() <= 5 * (p * (1 - p) / 20_000).sqrt()).all()
    assert torch.equal(y[:50], oracle.sample(theta, 20_000, torch.Generator().manual_seed(0))[:50])
    matrix = SpanningTree().bind(lengths=[3, 1, 2]).sample(torch.zeros(3, 3, 3), 5)
    assert matrix.sum((2, 3)).tolist() == [[2, 0, 1]] * 5


# ----------------------------------------------------------------------------- against other libraries


@pytest.mark.parametrize("nodes", [20, 80])
@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_argmax_of_many_nodes(nodes, kind):
    edges = all_pairs(nodes)
    theta = scores(nodes, edges, kind, 3, torch.float32)
    y = SpanningTree().argmax(as_matrix(theta, nodes))
    assert torch.equal(as_edges(y), SpanningTree(edges).argmax(theta))
    best = SpanningTree(edges).score(theta.double(), as_edges(y).double())
    for t, value in zip(theta.double().tolist(), best.tolist(), strict=True):
        graph = networkx.Graph()
        graph.add_weighted_edges_from((*edge, weight) for edge, weight in zip(edges, t, strict=True))
        assert networkx.maximum_spanning_tree(graph).size("weight") == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("rim", [3, 10, 200])
def test_wheels(rim):
    edges = wheel(rim)
    theta = torch.randn(4, len(edges), dtype=torch.float64)
    y = SpanningTree(edges).argmax(theta)
    for t, tree in zip(theta, y, strict=True):
        costs = coo_array(((10 - t).numpy(), np.transpose(edges)), shape=(rim + 1, rim + 1))
        assert minimum_spanning_tree(costs).sum() == pytest.approx((10 * tree.sum() - t @ tree).item(), rel=1e-12)


# ----------------------------------------------------------------------------- graphs


def test_forms_of_edges():
    pairs = [(0, 3), (0, 1), (3, 1), (1, 2)]
    same = [pairs, tuple(pairs), np.array(pairs), torch.tensor(pairs), networkx.Graph(pairs), SpanningTree(pairs).edges]
    assert all(SpanningTree(edges) == SpanningTree(pairs) for edges in same)
    assert len({SpanningTree(edges) for edges in same}) == 1
    assert SpanningTree(pairs) != SpanningTree(pairs[:0:-1])
    assert SpanningTree(networkx.MultiGraph([("x", "y"), ("y", "x")])).enumerate((2,)).tolist() == [[1, 0], [0, 1]]
    assert repr(SpanningTree(pairs)) == "SpanningTree(edges=UndirectedGraph(4 nodes, 4 edges))"
    assert SpanningTree(pairs).edges.nodes == (0, 1, 2, 3)
    assert SpanningTree(TRIANGLE).edges.nodes == ("a", "b", "c")


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([("a", "b"), ("c", "c")], "edges: edge 1 joins 'c' to itself"),
        ([("a", "b"), ("c", "d")], "must form a connected graph, but no path connects 'a' and 'c'"),
        ([], "a graph with at least one node"),
        (networkx.DiGraph([(0, 1)]), "edges must be an undirected graph, got a DiGraph"),
        (np.zeros((2, 3), np.int64), r"got an array of int64 of shape \(2, 3\)"),
        (np.zeros((2, 2)), "got an array of float64"),
        ([(0, 1, 2)], "a sequence of pairs of hashable nodes"),
        ([([0], 1)], "a sequence of pairs of hashable nodes"),
        ([(torch.zeros(2), 1)], "a sequence of pairs of hashable nodes"),
        (7, "got a int"),
    ],
)
def test_bad_edges(edges, message):
    with pytest.raises(InvalidInputError, match=message):
        SpanningTree(edges)


def test_a_single_node():
    graph = networkx.Graph()
    graph.add_node("alone")
    for oracle, shape in [(SpanningTree(), (1, 1)), (SpanningTree(graph), (0,))]:
        theta = torch.full((2, *shape), 5.0)
        nothing = torch.zeros(2, *shape)
        assert oracle.log_partition(theta).tolist() == [0, 0]
        for answer in (oracle.argmax(theta), oracle.marginals(theta), oracle.covariance_product(theta, theta)):
            assert torch.equal(answer, nothing)
        assert torch.equal(oracle.sample(theta, 3), nothing.expand(3, *nothing.shape))
        assert torch.equal(oracle.enumerate(shape), nothing[:1].double())
        labels = oracle.decode(nothing)
        assert labels.shape == (2, 0, *[2] * (len(shape) - 1))
        assert torch.equal(oracle.encode(labels, theta), nothing)
        leaf = theta.clone().requires_grad_()
        assert torch.equal(torch.autograd.grad(oracle.log_partition(leaf).sum(), leaf)[0], nothing)


def test_bad_shapes_and_lengths():
    for shape in [(2, 3, 4), (2, 0, 0)]:
        with pytest.raises(InvalidInputError, match="n >= 1 nodes"):
            si.relax(torch.zeros(shape), "spanning_tree", "map")
    for lengths in ([1, 0], [4, 1]):
        with pytest.raises(InvalidInputError, match=r"between [01] and 3"):
            SpanningTree().bind(lengths=lengths).argmax(torch.zeros(2, 3, 3))
    with pytest.raises(InvalidInputError, match="between 0 and 3"):
        si.relax(torch.zeros(2, 3, 3), "spanning_tree", "map", lengths=[4, 1])
    triangle = SpanningTree(TRIANGLE)
    with pytest.raises(InvalidInputError, match="the graph's 3 edges"):
        si.relax(torch.zeros(2, 4), triangle, "map")
    with pytest.raises(InvalidInputError, match="all nodes are in use"):
        si.relax(torch.zeros(2, 3), triangle, "map", lengths=[2, 2])


@pytest.mark.parametrize("edges", [None, all_pairs(4)])
def test_disconnected(edges):
    theta = torch.zeros(3, 6)
    theta[1, [1, 2, 3, 4]] = NEVER
    theta = theta if edges else as_matrix(theta, 4)
    oracle = SpanningTree(edges)
    leaf = theta.clone().requires_grad_()
    calls = [
        lambda: oracle.argmax(theta),
        lambda: oracle.log_partition(theta),
        lambda: oracle.log_partition(leaf),
        lambda: oracle.marginals(theta),
        lambda: oracle.covariance_product(theta, torch.ones_like(theta)),
        lambda: oracle.sample(theta, 2),
    ]
    for call in calls:
        with pytest.raises(
            InfeasibleError, match="no spanning tree of finite score exists for batch index 1"
        ) as caught:
            call()
        assert caught.value.batch_index == 1


# ----------------------------------------------------------------------------- labels and form


def test_labels():
    matrix, like = SpanningTree().bind(lengths=[3, 1]), torch.zeros(2, 4, 4)
    labels = torch.tensor([[[0, 2], [1, 2], [-1, -1]], [[-1, -1]] * 3])
    y = matrix.encode(labels, like)
    assert y.nonzero().tolist() == [[0, 0, 2], [0, 1, 2]]
    assert torch.equal(matrix.decode(y), labels)
    assert torch.equal(matrix.encode(labels.flip(2), like), y)
    assert SpanningTree(TRIANGLE).encode(torch.tensor([[2, 0]]), torch.zeros(1, 3)).tolist() == [[1, 0, 1]]


@pytest.mark.parametrize(
    ("edges", "labels", "message"),
    [
        (None, [[[0, 1], [0, 1]]], "do not form a tree"),
        (None, [[[0, 1], [2, 2]]], "do not form a tree"),
        (None, [[[0, 1], [1, 3]]], "out of range"),
        (None, [[[0, 1], [-1, -1]]], "out of range"),
        (None, [[0, 1]], r"must be pairs of nodes, shape \(..., 2, 2\), .*got \(1, 2\)"),
        (TRIANGLE, [[0, 0]], "do not form a tree"),
        (TRIANGLE, [[0, 3]], "out of range"),
        (TRIANGLE, [[0, 1, 2]], r"must be numbers of edges, shape \(..., 2\), .*got \(1, 3\)"),
    ],
)
def test_labels_that_are_no_trees(edges, labels, message):
    like = torch.zeros(1, 3) if edges else torch.zeros(1, 3, 3)
    with pytest.raises(InvalidInputError, match=message):
        SpanningTree(edges).encode(torch.tensor(labels), like)
    with pytest.raises(InvalidInputError, match="more edges than in a tree"):
        SpanningTree().bind(lengths=[2]).encode(torch.tensor([[[0, 1], [0, 1]]]), torch.zeros(1, 3, 3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_form(dtype):
    oracle, wide = SpanningTree(), torch.randn(7, 7, 8, dtype=dtype)
    theta, before, v = wide.permute(2, 1, 0)[::2], wide.clone(), torch.randn(1, 7, 7, dtype=dtype)
    for method in (oracle.argmax, oracle.log_partition, oracle.marginals, lambda t: oracle.covariance_product(t, v)):
        result = method(theta)
        assert result.dtype == dtype
        assert torch.equal(result, method(theta.contiguous()))
        assert torch.equal(result[2:3], method(theta[2:3].clone()))
        assert len(method(theta[:0])) == 0
    assert oracle.sample(theta[:0], 3).shape == (3, 0, 7, 7)
    assert oracle.sample(theta, 0).shape == (0, 4, 7, 7)
    assert oracle.sample(theta, 3).dtype == dtype
    assert torch.equal(wide, before)
    assert not wide.requires_grad
    with pytest.raises(si.errors.UnsupportedError, match="greedily"):
        si.Layer("spanning_tree", "smoothed")


@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_k_best_trees_of_larger_graphs(kind):
    """By exchanges of edges, and by restrictions of the argmax."""
    theta = torch.randn(2, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theta = theta.round() if kind == "ties" else theta
    theta[1, 3, 5:] = -torch.inf
    oracle = si.get_oracle("spanning_tree").bind(lengths=torch.tensor([12, 10]))
    structures, scores, valid = oracle.topk(theta, 25)
    torch.testing.assert_close(scores, si.Restrictable.topk(oracle, theta, 25)[1])
    assert valid.all()
    assert (structures.flatten(2).sum(2) == torch.tensor([11, 9])).all()
    assert all(len(structures[:, b].unique(dim=0)) == 25 for b in range(2))
    assert oracle.encode(oracle.decode(structures.flatten(0, 1)[:2]), theta).equal(structures[0])
