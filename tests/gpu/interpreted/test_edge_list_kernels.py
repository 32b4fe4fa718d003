"""Sums over spanning trees of lists of edges by Triton kernels, against lists of all trees in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import structinf as si
from structinf_oracles.kernels.spanning_tree import triton_prim, triton_sums
from structinf_oracles.kernels.spanning_tree.argmax import boruvka

INF = math.inf
SQUARE = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)]
PARALLEL = [*SQUARE, (1, 0), (2, 1), (0, 1)]
EXACT = {"rtol": 0, "atol": 1e-12}


def draw(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def enumerated(theta: Tensor, v: Tensor, trees: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log Z, the marginals and Cov[Y] v of one instance (E,), by all ``trees`` (N, E)."""
    scores = torch.where(trees > 0, theta, 0.0).sum(1)
    p = scores.softmax(0)
    means, along = p @ trees, trees @ v
    return scores.logsumexp(0), means, (p * (along - p @ along)) @ trees


def check(oracle: Any, theta: Tensor, v: Tensor, graphs: list[Any]) -> None:
    """Check the sums of ``oracle`` against the trees of the graph of each instance."""
    _, scores, lists = oracle._sums(theta)
    value, means = triton_sums.log_partition_and_marginals(scores, lists)
    again, product = triton_sums.covariance_product(scores, v, lists)
    assert torch.equal(value, again)
    assert torch.equal(value, triton_sums.log_partition(scores, lists))
    for b, edges in enumerate(graphs):
        size = len(edges)
        trees = si.get_oracle("spanning_tree", edges=edges).enumerate((size,)) if size else torch.zeros(1, 0).double()
        expected = enumerated(theta[b, :size], v.expand_as(theta)[b, :size], trees)
        for found, other in zip((value[b], means[b, :size], product[b, :size]), expected, strict=True):
            torch.testing.assert_close(found, other, **EXACT)
        assert not means[b, size:].any()
        assert not product[b, size:].any()


@pytest.mark.parametrize(
    "edges",
    [PARALLEL, [(1, 0)], *(pytest.param(edges, marks=pytest.mark.full) for edges in (SQUARE, SQUARE[::-1]))],
    ids=len,
)
def test_one_graph(edges: list[tuple[int, int]]) -> None:
    theta = draw(3, len(edges))
    theta[0] *= 1000 / theta.abs().max()
    theta[1:, 5:7] = -INF
    check(si.get_oracle("spanning_tree", edges=edges), theta, draw(1, len(edges)), [edges] * 3)


def test_a_graph_of_each_instance() -> None:
    import networkx

    single = networkx.Graph()
    single.add_node(0)
    graphs = [networkx.Graph(SQUARE), single, networkx.MultiGraph([(0, 1), (0, 1), (1, 2)])]
    lists = [list(graph.edges) if i != 2 else [(0, 1), (0, 1), (1, 2)] for i, graph in enumerate(graphs)]
    batch = si.GraphBatch.of(graphs)
    oracle = si.get_oracle("spanning_tree", edges=batch).bind(graph_index=torch.tensor([2, 2, 0, 1]))
    check(oracle, draw(4, 5), draw(4, 5), [lists[i] for i in (2, 2, 0, 1)])
    alone = si.get_oracle("spanning_tree", edges=single)
    assert alone.argmax(torch.zeros(2, 0)).shape == (2, 0)
    check(alone, draw(2, 0), draw(1, 0), [[], []])


@pytest.mark.parametrize(
    "kind", ["ties", "forbidden", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("normal", "thousands"))]
)
def test_best_trees(kind: str) -> None:
    theta = draw(6, 8)
    if kind != "normal":
        theta = theta.round()
    if kind in ("forbidden", "thousands"):
        theta = theta.masked_fill(draw(6, 8).roll(1, 1) < -0.5, -INF) * (1000 if kind == "thousands" else 1)
    if kind == "forbidden":
        theta[3, [2, 3]] = -INF  # no other edge reaches node 3
    batch = si.GraphBatch.of([PARALLEL, SQUARE[::-1], [(0, 1), (0, 1)]], directed=False)
    of_graphs = si.get_oracle("spanning_tree", edges=batch).bind(graph_index=torch.tensor([0, 2, 1, 0, 0, 2]))
    for oracle in (si.get_oracle("spanning_tree", edges=PARALLEL), of_graphs):
        _, scores, lists = oracle._sums(theta)
        y, feasible = triton_prim.argmax_of_edges(scores, lists)
        expected, found = np.zeros(theta.shape), np.empty(6, np.bool_)
        padded = oracle.without_padding(theta).numpy()
        boruvka(0, 6, padded, oracle.ends_of(theta), oracle.nodes_in_use(theta).numpy(), expected, found)
        assert feasible.tolist() == found.tolist()
        assert torch.equal(y[feasible], torch.from_numpy(expected)[feasible])
    assert kind != "forbidden" or not feasible[3]


def test_calls_and_their_derivatives() -> None:
    oracle, theta, v = si.get_oracle("spanning_tree", edges=PARALLEL), draw(2, 8).requires_grad_(), draw(2, 8)
    trees = oracle.enumerate((8,))
    scores = theta @ trees.T
    expected = scores.softmax(1) @ trees
    mean = si.relax(theta, oracle, "marginals")
    torch.testing.assert_close(mean, expected, **EXACT)
    torch.testing.assert_close(si.log_partition(theta, oracle), scores.logsumexp(1), **EXACT)
    for found, other in zip(torch.autograd.grad(mean, theta, v), torch.autograd.grad(expected, theta, v), strict=True):
        torch.testing.assert_close(found, other, **EXACT)
    assert si.relax(theta.detach().float(), oracle, "marginals").dtype == torch.float32
    best = trees[scores.argmax(1)]
    assert torch.equal(si.relax(theta.detach(), oracle, "map"), best)
    assert si.relax(theta.detach()[:0], oracle, "map").shape == (0, 8)
    assert si.relax(theta.detach()[:0], oracle, "marginals").shape == (0, 8)
    forbidden = theta.detach().clone()
    forbidden[1, [2, 3]] = -INF  # no other edge reaches node 3
    with pytest.raises(si.InfeasibleError, match="batch index 1"):
        si.relax(forbidden, oracle, "marginals")


@pytest.mark.full
def test_results_do_not_depend_on_the_batch() -> None:
    oracle, theta = si.get_oracle("spanning_tree", edges=PARALLEL), draw(5, 8)
    whole = si.relax(theta, oracle, "marginals")
    assert torch.equal(si.relax(theta[3:], oracle, "marginals"), whole[3:])
