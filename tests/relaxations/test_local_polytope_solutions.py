"""lp_map and lp_sparsemap: gradients, losses, failures, batches, and scales of scores."""

from __future__ import annotations

import math

import pytest
import torch

import structinf as si
from local_polytope_graphs import (
    DOUBLE,
    EXACT,
    bits_in_a_chain,
    disjunctions,
    normal,
    random_graph,
    rows_and_columns,
    scores_for,
)

# ----------------------------------------------------------------------------- gradients and losses


@pytest.mark.parametrize("seed", [101, 102])
def test_gradient_of_lp_sparsemap(seed: int) -> None:
    graph, shapes = random_graph(seed, cyclic=True)
    theta = scores_for(shapes, 1, seed)
    several = isinstance(theta, tuple)
    leaves = [t.requires_grad_() for t in (theta if several else (theta,))]
    assert torch.autograd.gradcheck(lambda *t: si.relax(t if several else t[0], graph, EXACT), leaves)


def test_second_derivative_of_the_mean_is_refused() -> None:
    theta = normal(1, 3, 3).requires_grad_()
    mean = si.relax(theta, rows_and_columns(3), "lp_sparsemap")
    (gradient,) = torch.autograd.grad((mean * normal(3, 3)).sum(), theta, create_graph=True)
    with pytest.raises(si.UnsupportedError, match="first derivatives only"):
        gradient.sum().backward()


@pytest.mark.parametrize("cost", [None, "hamming"])
@pytest.mark.parametrize("relaxation", ["lp_map", "lp_sparsemap"])
def test_losses(relaxation: str, cost: str | None) -> None:
    graph = bits_in_a_chain()
    theta = [normal(3, 4).requires_grad_(), normal(3, 2, 2, seed=1).requires_grad_()]
    gold = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]])
    loss = si.FenchelYoungLoss(graph, si.get_relaxation(relaxation, tolerance=0.0), cost=cost, reduction="none")
    found = loss(tuple(theta), gold)
    exact = "map" if relaxation == "lp_map" else si.get_relaxation("sparsemap", penalty="readout", tolerance=0.0)
    wanted = si.FenchelYoungLoss(graph, exact, cost=cost, reduction="none")(tuple(theta), gold)
    assert bool((found >= wanted - 1e-9).all())
    one = [t[:1].detach().requires_grad_() for t in theta]
    assert torch.autograd.gradcheck(lambda *t: loss(t, gold[:1]), one)
    if relaxation == "lp_sparsemap" and cost is None:
        assert torch.autograd.gradgradcheck(lambda *t: loss(t, gold[:1]), one)


def test_variables_of_no_factor() -> None:
    graph = si.FactorGraph(4)
    graph.add("xor", graph.variables[:2])
    theta = torch.tensor([0.3, 0.1, 0.4, 7.0], dtype=DOUBLE, requires_grad=True)
    mean = si.relax(theta, graph, "lp_sparsemap")
    torch.testing.assert_close(mean, torch.tensor([0.6, 0.4, 0.4, 1.0], dtype=DOUBLE))
    (gradient,) = torch.autograd.grad(mean[2] + mean[3], theta)
    assert gradient.tolist() == [0, 0, 1, 0]
    assert si.relax(theta.detach(), graph, "lp_map").tolist() == [1, 0, 1, 1]


def test_forbidden_variables_are_0() -> None:
    graph = rows_and_columns(3)
    theta = normal(2, 3, 3)
    theta[0, 0, 1] = theta[1, 2, 2] = -math.inf
    leaf = theta.clone().requires_grad_()
    mean = si.relax(leaf, graph, "lp_sparsemap")
    expected = si.relax(theta, "assignment", "sparsemap", tolerance=0.0)
    torch.testing.assert_close(mean, expected, atol=1e-9, rtol=0)
    mean.square().sum().backward()
    assert leaf.grad[0, 0, 1] == 0
    negated = si.FactorGraph(2)
    negated.add("xor", [0, 1], negated=[True, False])
    assert si.relax(torch.tensor([-math.inf, 5.0]), negated, "lp_map").tolist() == [0, 0]


# ----------------------------------------------------------------------------- failures


@pytest.mark.parametrize("relaxation", ["lp_map", "lp_sparsemap"])
def test_contradicting_factors_are_named(relaxation: str) -> None:
    graph = si.FactorGraph(3)
    graph.add("or", graph.variables)
    graph.add("budget", graph.variables, k=0)
    with pytest.raises(si.InfeasibleError, match=r"contradict each other.*factor 0, or.*factor 1, budget.*index 0"):
        si.relax(normal(2, 3), graph, relaxation)


@pytest.mark.parametrize("relaxation", ["lp_map", "lp_sparsemap"])
def test_factor_without_a_finite_structure_is_named(relaxation: str) -> None:
    theta = normal(3, 4, 4)
    theta[1, :, 2] = -math.inf
    with pytest.raises(si.InfeasibleError, match=r"factor 6, xor.*no structure of finite score.*batch index 1"):
        si.relax(theta, rows_and_columns(4), relaxation)
    scores = torch.zeros(3, 8, 8, dtype=DOUBLE)
    scores[2] = normal(8, 8)
    with pytest.warns(
        si.ConvergenceWarning, match="the worst at batch index 2"
    ):  # the error renumbers no later warning
        si.relax(scores, disjunctions(8), relaxation, max_iter=1)


def test_other_oracles_are_refused() -> None:
    with pytest.raises(si.UnsupportedError, match="assignment is no FactorGraph; use sparsemap"):
        si.relax(normal(3, 3), "assignment", "lp_sparsemap")
    with pytest.raises(si.UnsupportedError, match="assignment is no FactorGraph; use map"):
        si.relax(normal(3, 3), "assignment", "lp_map")


def test_unconverged_instances_are_reported() -> None:
    with pytest.warns(si.ConvergenceWarning, match="lp_sparsemap of factor_graph: 1 of 1 instances"):
        si.relax(normal(8, 8), disjunctions(8), "lp_sparsemap", max_iter=1)


def test_instances_do_not_depend_on_the_batch() -> None:
    theta = normal(5, 4, 4)
    together = si.relax(theta, rows_and_columns(4), "lp_sparsemap")
    alone = torch.stack([si.relax(t, rows_and_columns(4), "lp_sparsemap") for t in theta])
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)
    assert si.relax(theta[:0], rows_and_columns(4), "lp_sparsemap").shape == (0, 4, 4)


def test_single_precision_and_shared_scores() -> None:
    graph, theta = bits_in_a_chain(), (normal(3, 4), normal(2, 2, seed=1))
    mean = si.relax(theta, graph, "lp_sparsemap")
    single = si.relax(tuple(t.float() for t in theta), graph, "lp_sparsemap")
    assert single[0].dtype is torch.float32
    torch.testing.assert_close(single[0].double(), mean[0], atol=1e-5, rtol=0)
    repeated = si.relax((theta[0], theta[1].expand(3, 2, 2)), graph, "lp_sparsemap")
    torch.testing.assert_close(mean[1], repeated[1])


@pytest.mark.parametrize("tolerance", [1e-6, 0.0])
def test_lp_map_does_not_depend_on_the_scale_of_scores(tolerance: float) -> None:
    graph = si.FactorGraph(6)
    graph.add("table", [0, 1, 2])
    graph.add("pair", [2, 3])
    graph.add("at_most_one", [3, 4, 0])
    theta = 3 * normal(20, 6), normal(20, 2, 2, 2, seed=1), 0.3 * normal(20, 2, 2, seed=2)
    best = si.infer(theta, graph, "map").value
    for scale in (1e-6, 1e-20):
        solution = si.infer(tuple(scale * t for t in theta), graph, "lp_map", tolerance=tolerance)
        torch.testing.assert_close(solution.value / scale, best, rtol=1e-4, atol=0)
        assert (solution.gap / scale < 1e-3).all()


def test_counts_of_transitions_are_penalised():
    graph = si.FactorGraph((4, 2))
    graph.add("chain", graph.variables, additional=[(2, 2)])
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, 4, 2, generator=generator, dtype=torch.float64)
    for scale in (0.1, 1, 10):
        theta = unary * scale, torch.tensor([[3.0, -1.0], [-1.0, 2.0]], dtype=torch.float64) * scale
        found = si.infer(theta, graph, "lp_sparsemap", penalty="all")
        expected = si.infer(theta, "chain", "sparsemap", penalty="all", tolerance=0.0)
        torch.testing.assert_close(found.value, expected.value)
        for a, b in zip(found.mean, expected.mean, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
