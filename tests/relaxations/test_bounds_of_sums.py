"""lp_sparsemap of bounds of sums by Newton's method, and projections of disjunctions."""

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
from local_polytope_graphs import DOUBLE, EXACT, normal, rows_and_columns
from structinf.errors import InfeasibleError
from structinf.factor_graphs.logic import AtLeastOne, OrWithOutput
from structinf.solvers import local_polytope
from structinf.solvers.active_set import active_set
from structinf.solvers.cardinality_program import solve_cardinalities


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
