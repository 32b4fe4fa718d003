"""lp_map with a node limit: the best structure of a factor graph by branch and bound."""

from __future__ import annotations

import itertools

import pytest
import torch

import structinf as si
from local_polytope_graphs import DOUBLE, cycle_of_three, normal


def frustrated(n: int, batch: int) -> tuple[si.FactorGraph, tuple[torch.Tensor, ...]]:
    graph = si.FactorGraph(n)
    tables = []
    for pair in itertools.combinations(range(n), 2):
        graph.add("pair", pair)
        tables.append(normal(batch, 2, 2, seed=len(tables)))
    return graph, (0.3 * normal(batch, n, seed=99), *tables)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_branch_and_bound_finds_the_best_structure(scale: float) -> None:
    graph, theta = frustrated(6, 3)
    theta = tuple(scale * t for t in theta)
    relaxed = si.infer(theta, graph, "lp_map")
    assert not bool(relaxed.integral.all())
    solution, best = si.infer(theta, graph, "lp_map", node_limit=100), si.infer(theta, graph, "map")
    assert bool(solution.integral.all())
    assert bool(solution.converged.all())
    torch.testing.assert_close(solution.value / scale, best.value / scale, rtol=0, atol=1e-9)
    assert torch.equal(solution.mean[0], best.mean[0])
    assert bool((solution.gap <= 1e-6 * scale).all())
    alone = si.infer(tuple(t[1:2] for t in theta), graph, "lp_map", node_limit=100, tolerance=0.0)
    assert bool(alone.converged)
    assert not alone.residual.any()
    assert torch.equal(alone.mean[0][0], solution.mean[0][1])


def test_branch_and_bound_with_forbidden_and_free_variables() -> None:
    _, theta = frustrated(6, 3)
    wider = si.FactorGraph(8)
    for pair in itertools.combinations(range(6), 2):
        wider.add("pair", pair)
    scores = torch.cat([theta[0], torch.tensor([[1.0, -1.0]], dtype=DOUBLE).expand(3, 2)], 1)
    scores[1, 2] = scores[2, 6] = -torch.inf
    solution = si.infer((scores, *theta[1:]), wider, "lp_map", node_limit=100)
    best = si.infer((scores, *theta[1:]), wider, "map")
    assert bool(solution.converged.all())
    torch.testing.assert_close(solution.value, best.value)
    assert torch.equal(solution.mean[0], best.mean[0])


def test_branch_and_bound_stops_at_its_limit() -> None:
    graph, theta = frustrated(8, 2)
    with pytest.warns(si.ConvergenceWarning, match=r"stopped after 1 nodes at batch index 0: .* raise node_limit"):
        solution = si.infer(theta, graph, "lp_map", node_limit=1)
    best = si.infer(theta, graph, "map").value
    assert not bool(solution.converged.all())
    assert bool((solution.value + solution.gap >= best - 1e-9).all())
    with pytest.raises(si.InvalidInputError, match="node_limit"):
        si.get_relaxation("lp_map", node_limit=-1)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_branch_and_bound_proves_that_there_is_no_structure(scale: float) -> None:
    graph = si.FactorGraph(3)
    for pair in ([0, 1], [1, 2], [2, 0]):
        graph.add("xor", pair)
    theta = scale * normal(2, 3)
    torch.testing.assert_close(si.relax(theta, graph, "lp_map"), torch.full((2, 3), 0.5, dtype=DOUBLE))
    with pytest.raises(si.InfeasibleError, match="no values of the variables satisfy all factors") as caught:
        si.infer(theta, graph, "lp_map", node_limit=20)
    assert caught.value.batch_indices == (0, 1)
    loss = si.FenchelYoungLoss(cycle_of_three(), si.get_relaxation("lp_map", node_limit=20))
    scores = torch.tensor([0.2, -0.1, 0.05], dtype=DOUBLE)
    equal = -torch.eye(2, dtype=DOUBLE)
    gold = torch.tensor([1, 0, 1])
    assert loss((scores, equal, equal, equal), gold).item() == pytest.approx(0.0, abs=1e-9)
