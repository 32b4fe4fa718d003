"""lp_map and lp_sparsemap: known values, equality with exact solvers, gradients, losses, and infeasible graphs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import structinf as si
from structinf.errors import InfeasibleError
from structinf.factor_graphs.logic import AtLeastOne, OrWithOutput
from structinf.solvers import local_polytope
from structinf.solvers.active_set import active_set
from structinf.solvers.cardinality_program import solve_cardinalities
from structinf.testing import check_relaxation

DOUBLE = torch.float64
EXACT = si.get_relaxation("lp_sparsemap", tolerance=0.0)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def cycle_of_three() -> si.FactorGraph:
    graph = si.FactorGraph(3)
    for pair in ([0, 1], [1, 2], [0, 2]):
        graph.add("pair", pair)
    return graph


def bits_in_a_chain() -> si.FactorGraph:
    graph = si.FactorGraph(4)
    both = torch.stack([graph.variables, graph.variables], 1)
    graph.add("chain", both, negated=torch.tensor([True, False]), additional=[(2, 2)])
    graph.add("budget", graph.variables, k=2)
    graph.add("budget", graph.variables, k=2, negated=True)
    return graph


BITS = torch.tensor([0.6, 0.1, -0.2, 0.3], dtype=DOUBLE), torch.tensor([[0.0, 0.0], [0.0, 0.8]], dtype=DOUBLE)


def rows_and_columns(n: int) -> si.FactorGraph:
    graph = si.FactorGraph((n, n))
    for line in (*graph.variables, *graph.variables.T):
        graph.add("xor", line)
    return graph


def disjunctions(n: int) -> si.FactorGraph:
    graph = si.FactorGraph((n, n))
    for line in (*graph.variables, *graph.variables.T):
        graph.add("or_out", line)  # no bound of a sum, so that the solver is ADMM
    return graph


# ----------------------------------------------------------------------------- known values


@pytest.mark.parametrize(
    ("temperature", "mean", "value"), [(1.0, [0.7, 0.45, 0.525], -0.131875), (0.25, [1.0, 0.3, 0.6], 0.5375)]
)
def test_cycle_of_three_with_both_values_penalised(temperature: float, mean: list[float], value: float) -> None:
    # ½ (μ² + (1 − μ)²) = μ² − μ + ½: twice the penalty, a score of 1, and a constant.
    scores = torch.tensor([1.2, -0.1, 0.05], dtype=DOUBLE) + temperature
    equal = -0.4 * torch.eye(2, dtype=DOUBLE)
    solution = si.infer((scores, equal, equal, equal), cycle_of_three(), "lp_sparsemap", temperature=2 * temperature)
    torch.testing.assert_close(solution.mean[0], torch.tensor(mean, dtype=DOUBLE))
    assert solution.value.item() - 1.5 * temperature == pytest.approx(value)
    assert bool(solution.converged)


def test_exact_sparsemap_of_the_cycle_of_three() -> None:
    scores = torch.tensor([1.2, -0.1, 0.05], dtype=DOUBLE) + 1
    equal = -0.4 * torch.eye(2, dtype=DOUBLE)
    theta = scores, equal, equal, equal
    solution = si.infer(theta, cycle_of_three(), "sparsemap", penalty="readout", temperature=2.0, tolerance=0.0)
    torch.testing.assert_close(solution.mean[0], torch.tensor([1.0, 0.45, 0.525], dtype=DOUBLE))
    assert solution.value.item() - 1.5 == pytest.approx(-0.221875)


def test_linear_program_of_the_cycle_of_three() -> None:
    equal = -torch.eye(2, dtype=DOUBLE)
    theta = torch.tensor([0.2, -0.1, 0.05], dtype=DOUBLE), equal, equal, equal
    solution = si.infer(theta, cycle_of_three(), "lp_map")
    torch.testing.assert_close(solution.mean[0], torch.full((3,), 0.5, dtype=DOUBLE))
    assert solution.value.item() == pytest.approx(0.075)
    assert not bool(solution.integral)
    best = si.infer(theta, cycle_of_three(), "map")
    assert best.mean[0].tolist() == [1, 0, 1]
    assert best.value.item() == pytest.approx(-0.75)


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


def test_chain_with_a_budget() -> None:
    solution = si.infer(BITS, bits_in_a_chain(), "lp_sparsemap")
    torch.testing.assert_close(solution.mean[0], torch.full((4,), 0.5, dtype=DOUBLE))
    assert solution.value.item() == pytest.approx(1.1)
    bound = si.infer(BITS, bits_in_a_chain(), "lp_map")
    assert bound.value.item() == pytest.approx(1.6)


# ----------------------------------------------------------------------------- exact solvers


def test_rows_and_columns_equal_assignment() -> None:
    theta, v = normal(4, 5, 5).requires_grad_(), normal(4, 5, 5, seed=1)
    mean = si.relax(theta, rows_and_columns(5), "lp_sparsemap")
    expected = si.relax(theta, "assignment", "sparsemap", tolerance=0.0)
    torch.testing.assert_close(mean, expected, atol=1e-9, rtol=0)
    gradients = [torch.autograd.grad((m * v).sum(), theta)[0] for m in (mean, expected)]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)
    best = si.infer(theta.detach(), rows_and_columns(5), "lp_map")
    assert torch.equal(best.mean, si.relax(theta.detach(), "assignment", "map"))
    assert bool(best.integral.all())


@pytest.mark.parametrize("penalty", ["readout", "all"])
def test_one_factor_equals_its_sparsemap(penalty: str) -> None:
    graph = si.FactorGraph((4, 3))
    graph.add("chain", graph.variables, additional=[(3, 3, 3)])
    theta = normal(3, 4, 3).requires_grad_(), normal(3, 3, 3, 3, seed=1).requires_grad_()
    mean = si.relax(theta, graph, "lp_sparsemap", penalty=penalty)
    expected = si.relax(theta, "chain", "sparsemap", penalty=penalty, tolerance=0.0)
    v = normal(3, 4, 3, seed=2), normal(3, 3, 3, 3, seed=3)
    gradients = [torch.autograd.grad((m[0] * v[0]).sum() + (m[1] * v[1]).sum(), theta) for m in (mean, expected)]
    for found, wanted in zip((*mean, *gradients[0]), (*expected, *gradients[1]), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)


def test_graph_without_cycles_equals_markov_field() -> None:
    edges = [(0, 1), (1, 2), (1, 3), (3, 4)]
    graph = si.FactorGraph(5)
    for edge in edges:
        graph.add("pair", list(edge))
    scores, tables = normal(3, 5), [normal(3, 2, 2, seed=k) for k in range(1, 5)]
    field = si.get_oracle("markov_field", cardinalities=(2,) * 5, factors=[*((v,) for v in range(5)), *edges])
    singles = [torch.stack([torch.zeros(3, dtype=DOUBLE), scores[:, v]], 1) for v in range(5)]
    best = si.infer((scores, *tables), graph, "lp_map")
    exact = si.infer((*singles, *tables), field, "map")
    torch.testing.assert_close(best.value, exact.value)
    assert torch.equal(best.mean[0], torch.stack([t[:, 1] for t in exact.mean[:5]], 1))
    # The field penalises both values of a variable.
    mean = si.relax((2 * scores + 2, *(2 * t for t in tables)), graph, EXACT_OF_BOTH)[0]
    wanted = si.relax((*(2 * t for t in singles), *(2 * t for t in tables)), field, "sparsemap", penalty="readout",
                      temperature=2.0, tolerance=0.0)  # fmt: skip
    torch.testing.assert_close(mean, torch.stack([t[:, 1] for t in wanted[:5]], 1), atol=1e-9, rtol=0)


EXACT_OF_BOTH = si.get_relaxation("lp_sparsemap", temperature=4.0, tolerance=0.0)


def random_graph(seed: int, *, cyclic: bool) -> tuple[si.FactorGraph, tuple]:
    """Return a graph of logic factors and tables over six variables, and the event shapes of its scores."""
    generator = torch.Generator().manual_seed(seed)
    graph, shapes, seen = si.FactorGraph(6), [(6,)], [int(torch.randint(6, (), generator=generator))]
    names = ["xor", "or", "at_most_one", "imply", "or_out", "and_out", "pair", "table"]
    for _ in range(3):
        name = names[int(torch.randint(len(names), (), generator=generator))]
        new = [v for v in torch.randperm(6, generator=generator).tolist() if cyclic or v not in seen]
        chosen = [seen[int(torch.randint(len(seen), (), generator=generator))], *new]
        index = list(dict.fromkeys(chosen))[: 2 if name == "pair" else 3]
        if len(index) < 2:
            break
        graph.add(name, index, negated=torch.rand(len(index), generator=generator) < 0.3)
        if name in ("pair", "table"):
            shapes.append((2,) * len(index))
        seen = list(dict.fromkeys([*seen, *index]))
    return graph, tuple(shapes) if len(shapes) > 1 else shapes[0]


def scores_for(shapes: tuple, batch: int, seed: int) -> object:
    several = isinstance(shapes[0], tuple)
    drawn = [normal(batch, *shape, seed=seed + k) for k, shape in enumerate(shapes if several else [shapes])]
    return tuple(drawn) if several else drawn[0]


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_conform(seed: int, conformance_dtypes: Any) -> None:
    graph, shapes = random_graph(seed, cyclic=seed >= 2)
    check_relaxation("lp_sparsemap", graph, shapes, dtypes=conformance_dtypes)


@pytest.mark.full
@pytest.mark.parametrize("relaxation", ["lp_map", "lp_sparsemap"])
def test_graph_of_two_factors_conforms(relaxation: str, conformance_dtypes: Any) -> None:
    graph = si.FactorGraph(3)
    graph.add("xor", [0, 1])
    graph.add("pair", [1, 2])
    check_relaxation(relaxation, graph, ((3,), (2, 2)), dtypes=conformance_dtypes)


@pytest.mark.parametrize("seed", range(5))
def test_random_graphs_bound_the_exact_solutions(seed: int) -> None:
    graph, shapes = random_graph(100 + seed, cyclic=True)
    theta = scores_for(shapes, 4, seed)
    try:
        best = si.infer(theta, graph, "map")
    except si.InfeasibleError:
        pytest.skip("the factors contradict each other")
    bound = si.infer(theta, graph, "lp_map")
    assert bool((bound.value + bound.gap >= best.value - 1e-9).all())
    integral = bound.integral
    torch.testing.assert_close(bound.value[integral], best.value[integral])
    smooth = si.infer(theta, graph, EXACT)
    exact = si.infer(theta, graph, "sparsemap", penalty="readout", tolerance=0.0)
    assert bool((smooth.value + smooth.gap >= exact.value - 1e-9).all())
    assert bool(smooth.converged.all())
    assert bool((smooth.residual < 1e-9).all())


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


@pytest.mark.parametrize("oracle", [AtLeastOne(), OrWithOutput()], ids=["or", "or_out"])
def test_projections_of_disjunctions(oracle: AtLeastOne | OrWithOutput) -> None:
    generator = torch.Generator().manual_seed(0)
    for d, scale in itertools.product((2, 3, 6), (0.3, 1.0, 1000.0)):
        theta = scale * torch.randn(80, d, dtype=torch.float64, generator=generator)
        theta += scale * torch.randn(80, 1, dtype=torch.float64, generator=generator)
        theta[::7, 0] = -torch.inf
        theta[2::9] = theta[2::9].round()
        if isinstance(oracle, OrWithOutput):
            theta[3::11, -1] = -torch.inf
            theta[5::20, :-1] = -torch.inf
        exact = active_set(oracle, theta, readout=False, max_iter=1000)
        torch.testing.assert_close(oracle.project(theta), exact.mean, atol=1e-9 * max(scale, 1), rtol=0)
        torch.testing.assert_close(oracle.project(theta.float()).double(), exact.mean, atol=2e-4, rtol=0)
    theta = torch.randn(12, 5, dtype=torch.float64, generator=generator).requires_grad_()
    assert gradcheck(oracle.project, theta)
    forbidden = theta.detach().masked_fill(torch.eye(12, 5, dtype=torch.bool), -torch.inf).requires_grad_()
    (gradient,) = torch.autograd.grad(oracle.project(forbidden).square().sum(), forbidden)
    assert gradient.isfinite().all()
    assert (gradient[forbidden.isneginf()] == 0).all()
    assert oracle.project(theta[:0]).shape == (0, 5)
    with pytest.raises(InfeasibleError, match="structure of or"):
        AtLeastOne().project(torch.tensor([[0.0, 1.0], [-torch.inf, -torch.inf]]))


# ----------------------------------------------------------------------------- bounds of sums


def bounds_of_sums(seed: int) -> si.FactorGraph:
    """A graph whose factors bound sums of variables, some of them negated or repeated."""
    rng = random.Random(seed)
    graph = si.FactorGraph(7)
    for kind in ("or", "subset", "at_most_one", "imply", "budget")[: 2 + seed % 4]:
        chosen = rng.sample(range(7), 4)
        if kind == "budget":
            chosen[0] = chosen[1]
        options: dict[str, Any] = {"k": 2} if kind in ("subset", "budget") else {}
        if kind not in ("imply", "subset"):
            options["negated"] = [rng.random() < 0.4 for _ in chosen]
        graph.add(kind, chosen, **options)
    return graph


def solutions_of_both_solvers(
    graph: si.FactorGraph, theta: Tensor, monkeypatch: pytest.MonkeyPatch, *others: Tensor, **options: Any
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the means, values and gradients of Newton's method and of ADMM."""
    solved, results = [], []
    relaxation = si.get_relaxation("lp_sparsemap", tolerance=0.0, **options)

    def newton(*arguments: Any) -> Any:
        found = solve_cardinalities(*arguments)
        assert found is not None
        solved.append(found.solved)
        return found

    for solver in (newton, lambda *_: None):
        monkeypatch.setattr(local_polytope, "solve_cardinalities", solver)
        scores = theta.clone().requires_grad_()
        solution = si.infer((scores, *others) if others else scores, graph, relaxation)
        mean = solution.mean[0] if others else solution.mean
        mean.backward(normal(*mean.shape, seed=9))
        assert solution.converged is not None
        assert solution.converged.all()
        results.append((mean.detach(), solution.value.detach(), scores.grad))
    assert solved[0].double().mean() > 0.5
    yield from zip(*results, strict=True)


@pytest.mark.parametrize("seed", range(8))
def test_newton_finds_the_solution_of_admm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, theta = bounds_of_sums(seed), normal(6, 7, seed=seed) * (0.1, 1.0, 30.0, 1000.0)[seed % 4]
    theta[5, seed % 7] = -math.inf
    for own, other in solutions_of_both_solvers(graph, theta, monkeypatch):
        torch.testing.assert_close(own, other, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("scale", [0.3, 30.0])
@pytest.mark.parametrize("kind", ["tree", "negated tree", "or_out", "chain"])
def test_newton_with_one_other_factor(kind: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = si.FactorGraph((5, 5))
    others: tuple[Tensor, ...] = ()
    if kind == "tree":
        graph.add("arborescence", graph.variables)
        for head in range(1, 5):
            graph.add("budget", graph.variables[head, [m for m in range(1, 5) if m != head]], k=1)
    elif kind == "negated tree":
        arcs = graph.variables[:4, :4]
        graph.add("arborescence", arcs, negated=torch.eye(4, dtype=torch.bool).roll(1, 1), single_root=True)
        graph.add("budget", graph.variables[1:3].flatten(), k=3)
        graph.add("imply", graph.variables[4, :2])  # variables of no other factor
    elif kind == "or_out":
        graph.add("or_out", graph.variables[:2].flatten())
        graph.add("subset", graph.variables[:, 0], k=3)
        graph.add("imply", graph.variables[3])  # variables of no other factor
    else:
        graph.add("chain", graph.variables, additional=[(4, 5, 5)])
        graph.add("budget", graph.variables[:, 0], k=1, negated=torch.tensor([False, True, False, False, True]))
        others = (normal(6, 4, 5, 5, seed=3),)
    options = {"penalty": "all"} if others else {}
    theta = scale * normal(6, 5, 5, seed=1)
    theta[5, 0, 2] = theta[4, 1, 2] = -math.inf
    for own, other in solutions_of_both_solvers(graph, theta, monkeypatch, *others, **options):
        torch.testing.assert_close(own, other, atol=1e-8, rtol=1e-8)


def test_newton_on_ties_and_gradients() -> None:
    graph = rows_and_columns(4)
    assert si.infer(normal(3, 4, 4), graph, EXACT).oracle_calls == 0  # no iteration of ADMM
    ties = torch.zeros(2, 4, 4, dtype=DOUBLE)
    ties[1, 0, 0] = 1e-12
    torch.testing.assert_close(si.relax(ties, graph, EXACT), torch.full_like(ties, 0.25), atol=1e-10, rtol=0)
    rounded = normal(4, 4, 4).round().requires_grad_()
    mean = si.relax(rounded, graph, EXACT)
    torch.testing.assert_close(mean.sum(1), torch.ones(4, 4, dtype=DOUBLE))
    mean.square().sum().backward()
    assert rounded.grad is not None
    assert rounded.grad.isfinite().all()
    for seed in (1, 3):
        scores = normal(2, 7, seed=seed).requires_grad_()
        assert gradcheck(lambda t, seed=seed: si.relax(t, bounds_of_sums(seed), EXACT), scores)
    single = si.relax(normal(3, 4, 4).float(), graph, EXACT)
    assert single.dtype is torch.float32
    torch.testing.assert_close(single.double(), si.relax(normal(3, 4, 4), graph, EXACT), atol=1e-6, rtol=0)


def test_newton_returns_exact_zeros_and_ones() -> None:
    graph = si.FactorGraph(6)
    for i in (0, 3):
        graph.add("at_most_one", graph.variables[i : i + 3])
    graph.add("or", graph.variables[::2])
    mean = si.relax(3 * normal(100, 6), graph, EXACT)
    assert bool(((mean == 0) | (mean == 1) | ((mean > 1e-6) & (mean < 1 - 1e-6))).all())


@pytest.mark.parametrize("data", [True, False])
def test_subsets_with_instance_data_take_iterations(data: bool) -> None:
    graph, theta = si.FactorGraph(4), normal(2, 4)
    options: dict[str, Any] = {"instance_data": ["k"]} if data else {"k": 2}
    graph.add("subset", graph.variables, **options)
    graph.add("or", graph.variables[:2])
    found = si.infer(theta, graph, EXACT, **({"k": [2, 2]} if data else {}))
    fixed = si.FactorGraph(4)
    fixed.add("subset", fixed.variables, k=2)
    fixed.add("or", fixed.variables[:2])
    torch.testing.assert_close(found.mean, si.relax(theta, fixed, EXACT), atol=1e-10, rtol=0)
