"""Max-product messages in a factor graph: the best structure without cycles, else a structure or an error."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.parts import Parts, as_tuple, map_parts
from structinf.relaxations.belief_propagation import BeliefPropagation

DOUBLE = torch.float64

MAX = BeliefPropagation(kind="max_product", on_failure="raise")


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def constraints() -> tuple[si.FactorGraph, Parts]:
    graph = si.FactorGraph(9)
    graph.add("budget", graph.variables[2:5], k=1, negated=torch.tensor([False, True, False]))
    graph.add("or_out", [5, 6, 7])
    graph.add("imply", graph.variables[4:6])
    graph.add("xor", graph.variables[:3])
    return graph, draw(0, 4, 9)


def structures() -> tuple[si.FactorGraph, Parts]:
    graph = si.FactorGraph(18, solver="milp")
    graph.add("assignment", graph.variables[:9].view(3, 3))
    graph.add("chain", graph.variables[8:14].view(3, 2), additional=[(2, 2)])
    graph.add("table", [13, 14])
    graph.add("arborescence", torch.tensor([[14, 15], [16, 17]]))
    return graph, (draw(1, 4, 18), draw(2, 1, 2, 2), draw(3, 4, 2, 2))


@pytest.mark.parametrize("schedule", ["parallel", "residual"])
@pytest.mark.parametrize("scale", [0, 1, 1000])
@pytest.mark.parametrize("make", [constraints, structures])
def test_best_structures_without_cycles(make, scale, schedule):
    graph, theta = make()
    theta = map_parts(lambda t: t * scale, theta)
    found = si.infer(theta, graph, dataclasses.replace(MAX, schedule=schedule))
    best = si.infer(theta, graph, "map")
    torch.testing.assert_close(found.value, best.value, atol=1e-9, rtol=1e-12)
    torch.testing.assert_close(graph.score(theta, found.mean), found.value)
    if scale:
        for own, other in zip(*map(as_tuple, (found.mean, best.mean)), strict=True):
            assert torch.equal(own, other)
    for b in range(3):
        alone = si.relax(map_parts(lambda t, b=b: t[b % len(t)], theta), graph, MAX)
        assert all(torch.equal(t[b], z) for t, z in zip(as_tuple(found.mean), as_tuple(alone), strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_ties(seed):
    graph, _ = constraints()
    theta = torch.randint(-1, 2, (20, 9), generator=torch.Generator().manual_seed(seed)).to(DOUBLE)
    theta[seed, seed] = -torch.inf
    found = si.infer(theta, graph, MAX)
    torch.testing.assert_close(found.value, si.infer(theta, graph, "map").value)


def test_instance_data_and_options():
    graph = si.FactorGraph((4, 2))
    graph.add("chain", graph.variables, additional=[(2, 2)], instance_data=["lengths"])
    graph.add("budget", graph.variables[2:, 1], instance_data={"k": "limit"})
    theta = (draw(30, 3, 4, 2).requires_grad_(), draw(31, 2, 2).float().double())
    data: dict[str, Any] = {"lengths": torch.tensor([4, 2, 1]), "limit": torch.tensor([1, 0, 2])}
    found = si.infer(theta, graph, MAX, **data)
    assert torch.equal(found.mean[0].sum((1, 2)), data["lengths"].double())
    assert (found.mean[0][:, 2:, 1].sum(1) <= data["limit"]).all()
    found.value.sum().backward()
    assert theta[0].grad is not None
    assert torch.equal(theta[0].grad, found.mean[0])
    single = si.relax(map_parts(lambda t: t.detach().float(), theta), graph, MAX, **data)
    assert single[0].dtype == torch.float32
    assert torch.equal(single[0].double(), found.mean[0])
    assert si.relax((theta[0][:0], theta[1]), graph, MAX, **{name: t[:0] for name, t in data.items()})[0].shape == (
        0,
        4,
        2,
    )


def test_cycles():
    # Each pair of two factors forbids a structure that the other factor wants, and no messages agree.
    graph = si.FactorGraph(3)
    for pair in ([0, 1], [1, 2], [2, 0]):
        graph.add("xor", pair)
    theta = torch.tensor([[0.3, 0.2, 0.1]], dtype=DOUBLE)
    with pytest.raises((si.SolverLimitError, si.ConvergenceError)):
        si.relax(theta, graph, dataclasses.replace(MAX, max_iter=50))
    found = si.infer(theta, graph, dataclasses.replace(MAX, on_failure="ignore", max_iter=50))
    assert found.value.item() == -torch.inf
    assert found.converged is not None
    assert not found.converged.any()
    assert set(as_tuple(found.mean)[0].flatten().tolist()) <= {0.0, 1.0}


def test_variables_without_factors_and_weights():
    graph = si.FactorGraph(4)
    graph.add("at_most_one", [0, 1])
    graph.add("or", [1, 2])
    theta = torch.tensor([1.0, 2.0, -1.0, 3.0])
    assert si.relax(theta, graph, MAX).tolist() == [0, 1, 0, 1]
    assert si.relax(-theta, graph, dataclasses.replace(MAX, weights=[0.5, 0.5])).tolist() == [0, 0, 1, 0]
    assert si.relax(theta[:2], si.FactorGraph(2), MAX).tolist() == [1, 1]
