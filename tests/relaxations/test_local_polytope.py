"""lp_map and lp_sparsemap: known values, and equality with exact solvers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import structinf as si
from local_polytope_graphs import (
    BITS,
    DOUBLE,
    EXACT,
    bits_in_a_chain,
    cycle_of_three,
    normal,
    random_graph,
    rows_and_columns,
    scores_for,
)
from structinf.testing import check_relaxation

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
