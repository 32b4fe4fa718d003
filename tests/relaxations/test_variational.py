"""belief_propagation and mean_field: known values, bounds, models without cycles, derivatives, and unusual inputs."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structinf as si
from structinf import ConvergenceError, ConvergenceWarning, InfeasibleError, InvalidInputError, UnsupportedError
from structinf.relaxations.belief_propagation import BeliefPropagation
from structinf.relaxations.mean_field import MeanField
from structinf_oracles.markov_field import MarkovField

Model = tuple[MarkovField, tuple[Tensor, ...]]

BP, TREES, MF = BeliefPropagation(), BeliefPropagation(weights="spanning_tree"), MeanField()
MAX = BeliefPropagation(kind="max_product")
RESIDUAL = BeliefPropagation(schedule="residual")


def ising(edges: list[tuple[int, int]], fields: list[float], coupling: float) -> Model:
    """Binary variables with the score ``fields`` of the value 1, and ``coupling`` for equal neighbours."""
    n = len(fields)
    unary = [torch.tensor([0.0, u], dtype=torch.float64) for u in fields]
    pair = coupling * torch.eye(2, dtype=torch.float64)
    return MarkovField((2,) * n, [(v,) for v in range(n)] + edges), (*unary, *[pair] * len(edges))


def triangle() -> Model:
    return ising([(0, 1), (1, 2), (0, 2)], [0.2, -0.1, 0.05], -1.0)


def grid(rows: int, columns: int) -> list[tuple[int, int]]:
    right = [(columns * i + j, columns * i + j + 1) for i in range(rows) for j in range(columns - 1)]
    return right + [(columns * i + j, columns * (i + 1) + j) for i in range(rows - 1) for j in range(columns)]


def draw_tree(seed: int) -> MarkovField:
    """A model without cycles, of up to six variables of up to three values, with factors of up to three variables."""
    draw = random.Random(seed)
    n = draw.randint(1, 6)
    factors: list[tuple[int, ...]] = [(v,) for v in range(n) if draw.random() < 0.5]
    joined, rest = [0], list(range(1, n))
    while rest:
        new = [rest.pop() for _ in range(draw.randint(1, min(2, len(rest))))]
        factor = [draw.choice(joined), *new]
        factors.append(tuple(draw.sample(factor, len(factor))))
        joined += new
    factors += [(v,) for v in range(n) if not any(v in factor for factor in factors)]
    draw.shuffle(factors)
    return MarkovField([draw.randint(1, 3) for _ in range(n)], factors)


def draw_graph(seed: int, largest: int = 3) -> MarkovField:
    """A model with cycles, whose factors have up to ``largest`` variables."""
    draw = random.Random(seed)
    n = draw.randint(3, 5)
    factors = [tuple(draw.sample(range(n), draw.randint(1, largest))) for _ in range(n + 2)]
    factors = list(dict.fromkeys(factors)) + [(v,) for v in range(n)]
    return MarkovField([draw.randint(2, 3) for _ in range(n)], factors)


def draw_scores(field: MarkovField, seed: int, holes: bool = False, batch: int = 3) -> tuple[Tensor, ...]:
    """Normal scores of a batch, with shared tables of every third factor; holes leave a structure of finite score."""
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int) -> list[Tensor]:
        shapes = [[field.cardinalities[v] for v in factor] for factor in field.factors]
        return [torch.randn(size, *shape, dtype=torch.float64, generator=generator) for shape in shapes]

    kept = field.argmax(tuple(normal(1)))
    scores = []
    for k, (t, y) in enumerate(zip(normal(batch), kept, strict=True)):
        hit = holes & (torch.rand(t.shape, generator=generator) < 0.25) & (y == 0)
        t = t.masked_fill(hit, -torch.inf)
        scores.append(t[:1] if k % 3 == 2 else t)
    return tuple(scores)


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], atol: float) -> None:
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, atol=atol, rtol=0)


# ----------------------------------------------------------------------------- known values


@pytest.mark.parametrize(
    ("relaxation", "value", "marginals"),
    [
        (BP, 1.021014, [0.543782, 0.465371, 0.504650]),
        (RESIDUAL, 1.021014, [0.543782, 0.465371, 0.504650]),
        (MF, 0.666074, [0.58, 0.432226, 0.506386]),
        (MAX, -0.75, [1, 0, 1]),
    ],
)
def test_frustrated_triangle(relaxation: si.Relaxation, value: float, marginals: list[float]) -> None:
    field, theta = triangle()
    found = si.infer(theta, field, relaxation)
    assert found.value.item() == pytest.approx(value, abs=1e-6)
    assert [m[1].item() for m in found.mean[:3]] == pytest.approx(marginals, abs=1e-6)
    assert found.converged is not None
    assert found.converged.all()


def test_a_temperature_scales_the_entropy() -> None:
    field, theta = triangle()
    for relaxation in (BP, TREES, MF):
        found = si.infer(theta, field, dataclasses.replace(relaxation, temperature=0.5))
        expected = si.infer(tuple(t / 0.5 for t in theta), field, relaxation)
        close(found.mean, expected.mean, 1e-9)
        torch.testing.assert_close(found.value, 0.5 * expected.value)


def test_weights_of_uniform_spanning_trees() -> None:
    field, theta = triangle()
    expected = si.infer(theta, field, "belief_propagation", weights=[1.0] * 3 + [2 / 3] * 3)
    found = si.infer(theta, field, TREES)
    close(found.mean, expected.mean, 1e-9)
    # Two edges between the same variables share a tree, and an edge that is no part of a cycle is in every tree.
    double = MarkovField((2, 2, 2), [(0, 1), (1, 0), (1, 2)])
    theta = draw_scores(double, 0)
    expected = si.infer(theta, double, "belief_propagation", weights=torch.tensor([0.5, 0.5, 1.0]))
    close(si.infer(theta, double, TREES).mean, expected.mean, 1e-6)


# ----------------------------------------------------------------------------- models without cycles


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_belief_propagation_is_exact_without_cycles(seed: int, holes: bool) -> None:
    field = draw_tree(seed)
    theta = draw_scores(field, seed, holes)
    exact, best = si.infer(theta, field, "marginals"), si.infer(theta, field, "map")
    for relaxation in (BP, RESIDUAL):
        found = si.infer(theta, field, relaxation)
        close(found.mean, exact.mean, 1e-9)
        torch.testing.assert_close(found.value, exact.value)
    close(si.relax(theta, field, MAX), best.mean, 0)
    torch.testing.assert_close(si.infer(theta, field, MAX).value, best.value)


@pytest.mark.parametrize("seed", range(4))
def test_max_product_finds_a_best_structure_among_ties(seed: int) -> None:
    field = draw_tree(seed)
    theta = tuple(t.round() for t in draw_scores(field, seed))
    found = si.infer(theta, field, MAX)
    torch.testing.assert_close(found.value, si.infer(theta, field, "map").value)
    close(field.encode(field.decode(found.mean), found.mean), found.mean, 0)


def test_mean_field_is_exact_for_independent_variables() -> None:
    field = MarkovField((2, 1, 3), [(0,), (1,), (2,), (2,)])
    theta = draw_scores(field, 0)
    for relaxation in (BP, MF, TREES):
        found, exact = si.infer(theta, field, relaxation), si.infer(theta, field, "marginals")
        close(found.mean, exact.mean, 1e-12)
        torch.testing.assert_close(found.value, exact.value)


# ----------------------------------------------------------------------------- models with cycles


@pytest.mark.parametrize("seed", range(5))
def test_bounds_of_the_log_partition_function(seed: int) -> None:
    field = draw_graph(seed, largest=2)
    theta = draw_scores(field, seed)
    exact = si.log_partition(theta, field)
    lower, upper = (si.infer(theta, field, relaxation) for relaxation in (MF, TREES))
    assert (lower.value <= exact + 1e-9).all()
    assert (upper.value >= exact - 1e-9).all()
    more = si.infer(theta, field, "mean_field", starts=3)
    assert (lower.value <= more.value + 1e-12).all()
    assert (more.value <= exact + 1e-9).all()
    # The sums of the tables of spanning trees agree on each variable.
    for table, factor in zip(upper.mean, field.factors, strict=True):
        for axis, v in enumerate(factor, 1):
            others = [a for a in range(1, table.ndim) if a != axis]
            unary = upper.mean[field.factors.index((v,))]
            torch.testing.assert_close(table.sum(others) if others else table, unary.expand(3, -1), atol=1e-8, rtol=0)
    gold = si.relax(draw_scores(field, seed + 1), field, "map")
    loss = si.FenchelYoungLoss(field, TREES, reduction="none")(theta, gold)
    assert (loss >= si.FenchelYoungLoss(field, "marginals", reduction="none")(theta, gold) - 1e-9).all()


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_means_of_mean_field_are_products(seed: int, holes: bool) -> None:
    field = draw_graph(seed)
    theta = draw_scores(field, seed, holes)
    found = si.infer(theta, field, MF)
    assert (found.value <= si.log_partition(theta, field) + 1e-9).all()
    q = [found.mean[field.factors.index((v,))] for v in range(len(field.cardinalities))]
    for table, factor in zip(found.mean, field.factors, strict=True):
        product = torch.ones(3, dtype=torch.float64)
        for v in factor:
            product = product.unsqueeze(-1) * q[v].view(3, *[1] * (product.ndim - 1), -1)
        torch.testing.assert_close(table, product)
    entropy = -sum(torch.xlogy(each, each).sum(1) for each in q)
    torch.testing.assert_close(found.value, field.score(theta, found.mean) + entropy)


def test_each_sweep_raises_the_bound_of_mean_field() -> None:
    field = draw_graph(6)
    theta = draw_scores(field, 6)
    bounds = [
        si.infer(theta, field, "mean_field", max_iter=sweeps, on_failure="ignore").value for sweeps in range(1, 8)
    ]
    for before, after in itertools.pairwise(bounds):
        assert (after >= before - 1e-12).all()


def test_more_starts_leave_a_symmetric_stationary_point() -> None:
    field, theta = ising([(0, 1), (1, 2), (0, 2)], [0.0, 0.0, 0.0], 3.0)
    middle, side = si.infer(theta, field, MF), si.infer(theta, field, "mean_field", starts=2)
    assert middle.mean[0].tolist() == [0.5, 0.5]
    assert side.mean[0][0] > 0.9
    assert middle.value < side.value <= si.log_partition(theta, field)


@pytest.mark.parametrize("relaxation", [BP, TREES, RESIDUAL, MF])
def test_a_grid_in_a_batch_is_the_grid_alone(relaxation: si.Relaxation) -> None:
    field = MarkovField((2,) * 12, [*((v,) for v in range(12)), *grid(3, 4)])
    theta = draw_scores(field, 0, batch=5)
    found = si.infer(theta, field, relaxation)
    for b in range(5):
        alone = si.infer(tuple(t[b : b + 1] if len(t) > 1 else t for t in theta), field, relaxation)
        close(tuple(m[b : b + 1] for m in found.mean), alone.mean, 1e-12)
        assert alone.value[0] == pytest.approx(found.value[b].item(), abs=1e-12)


def test_beliefs_of_both_schedules_agree() -> None:
    field = draw_graph(3)
    theta = draw_scores(field, 3, holes=True)
    a, b = si.infer(theta, field, BP), si.infer(theta, field, RESIDUAL)
    close(a.mean, b.mean, 1e-8)
    torch.testing.assert_close(a.value, b.value)


@pytest.mark.parametrize("relaxation", [BP, TREES, MAX, BeliefPropagation(damping=0.3)])
def test_the_compiled_loop_and_torch_operations_agree(
    relaxation: BeliefPropagation, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = draw_graph(4, largest=2 if relaxation is TREES else 3)
    theta = draw_scores(field, 4, holes=True)
    compiled = si.infer(theta, field, relaxation)
    monkeypatch.setattr("structinf.solvers.belief_propagation.is_compiled", lambda model: False)
    found = si.infer(theta, field, relaxation)
    close(found.mean, compiled.mean, 1e-9)
    torch.testing.assert_close(found.value, compiled.value)
    assert compiled.residual is not None
    torch.testing.assert_close(found.residual, compiled.residual, atol=1e-12, rtol=1e-3)


def test_compiled_sweeps_and_torch_operations_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    field = draw_graph(4)
    theta = tuple(t.requires_grad_() for t in draw_scores(field, 4, holes=True))
    weights = draw_scores(field, 5)

    def solve() -> tuple[si.Solution, tuple[Tensor, ...]]:
        found = si.infer(theta, field, "mean_field", starts=2)
        total = torch.stack([(m * w).sum() for m, w in zip(found.mean, weights, strict=True)]).sum()
        return found, torch.autograd.grad(total, theta)

    compiled, slopes = solve()
    monkeypatch.setattr("structinf.solvers.mean_field.is_compiled", lambda model: False)
    found, expected = solve()
    close(found.mean, compiled.mean, 1e-12)
    close(slopes, expected, 1e-8)
    assert compiled.residual is not None
    torch.testing.assert_close(found.residual, compiled.residual, atol=1e-12, rtol=1e-3)


def test_a_wide_model_needs_no_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("structinf_oracles.markov_field.min_fill_order", None)
    n = 41
    pairs = [(i, j) for i in range(n) for j in range(i)]
    field, theta = ising(pairs, [0.1] * n, 0.01)
    assert si.infer(theta, field, MF).value < si.infer(theta, field, TREES).value


# ----------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("relaxation", [BP, TREES, RESIDUAL, MF])
def test_derivatives(relaxation: Any) -> None:
    field = draw_graph(1, largest=2 if relaxation is TREES else 3)
    theta = tuple(t.requires_grad_() for t in draw_scores(field, 1, batch=1))
    gold = si.relax(draw_scores(field, 2, batch=1), field, "map")
    exact = relaxation.exact()
    loss = si.FenchelYoungLoss(field, exact, cost="hamming", reduction="none")
    assert gradcheck(lambda *t: si.relax(t, field, exact), theta, fast_mode=True)
    assert gradcheck(lambda *t: si.infer(t, field, exact).value, theta, fast_mode=True)
    assert gradcheck(lambda *t: loss(t, gold), theta, fast_mode=True)
    assert gradgradcheck(lambda *t: loss(t, gold), theta, fast_mode=True)


@pytest.mark.parametrize("relaxation", [BP, MF])
def test_derivatives_beside_forbidden_entries(relaxation: Any) -> None:
    field = draw_graph(2)
    theta = tuple(t.requires_grad_() for t in draw_scores(field, 4, holes=True, batch=2))
    assert any(t.isneginf().any() for t in theta)
    weights, along = draw_scores(field, 5, batch=2), draw_scores(field, 6, batch=2)

    def total(scores: tuple[Tensor, ...]) -> Tensor:
        mean = si.relax(scores, field, relaxation.exact())
        return torch.stack([(m * w).sum() for m, w in zip(mean, weights, strict=True)]).sum()

    gradients = torch.autograd.grad(total(theta), theta)
    for t, g in zip(theta, gradients, strict=True):
        assert not g[t.isneginf()].any()
    ahead, behind = (total(tuple(t.detach() + e * v for t, v in zip(theta, along, strict=True))) for e in (1e-5, -1e-5))
    slope = torch.stack([(g * v).sum() for g, v in zip(gradients, along, strict=True)]).sum()
    assert slope.item() == pytest.approx((ahead - behind).item() / 2e-5, abs=1e-7)


def test_max_product_has_no_gradient() -> None:
    field = draw_graph(1)
    theta = tuple(t.requires_grad_() for t in draw_scores(field, 1))
    assert MAX.piecewise_constant
    mean = si.relax(theta, field, MAX)
    assert all(not g.any() for g in torch.autograd.grad(torch.stack([m.sum() for m in mean]).sum(), theta))


def test_third_derivatives_are_refused() -> None:
    field, theta = triangle()
    leaves = tuple(t.clone().requires_grad_() for t in theta)
    mean = si.relax(leaves, field, BP)
    (slope,) = torch.autograd.grad(mean[0][1], leaves[0], create_graph=True)
    with pytest.raises(UnsupportedError, match="belief_propagation offers second derivatives of its value only"):
        slope[1].backward()


# ----------------------------------------------------------------------------- instances that do not converge


def test_the_gradient_of_an_instance_that_has_not_converged_is_refused() -> None:
    field, theta = triangle()
    strong = tuple(torch.stack([t, 30 * t]).requires_grad_() for t in theta)
    options = {"damping": 0.0, "max_iter": 60}
    with pytest.warns(ConvergenceWarning, match=r"1 of 2 instances missed .* worst at batch index 1"):
        si.relax(strong, field, "belief_propagation", **options)
    with pytest.raises(ConvergenceError, match="missed the tolerance"):
        si.relax(strong, field, "belief_propagation", on_failure="raise", **options)
    solution = si.infer(strong, field, "belief_propagation", on_failure="ignore", **options)
    assert solution.converged is not None
    assert solution.converged.tolist() == [True, False]
    mean = solution.mean[0][:, 1]
    with pytest.raises(ConvergenceError, match="no gradient of the mean at batch index 1, because the messages"):
        mean.sum().backward(retain_graph=True)
    # An instance left out of the objective is no obstacle.
    mean[solution.converged].sum().backward()
    assert strong[0].grad is not None
    assert strong[0].grad.isfinite().all()


def test_damping_rises_for_instances_that_oscillate() -> None:
    field, theta = triangle()
    strong = tuple(8 * t for t in theta)
    bare = si.infer(strong, field, "belief_propagation", damping=0.0, on_failure="ignore")
    assert bare.converged is not None
    assert not bare.converged
    assert si.infer(strong, field, BP).converged
    damped = si.infer(strong, field, "belief_propagation", damping=0.5)
    assert damped.converged
    other = si.infer(strong, field, "belief_propagation", damping=0.5, schedule="residual", on_failure="raise")
    torch.testing.assert_close(other.value, damped.value)


# ----------------------------------------------------------------------------- unusual inputs


@pytest.mark.parametrize("relaxation", [BP, RESIDUAL, MAX, MF])
def test_an_empty_batch(relaxation: si.Relaxation) -> None:
    field = draw_graph(0)
    theta = tuple(torch.zeros(0, *t.shape[1:], requires_grad=True) for t in draw_scores(field, 0))
    solution = si.infer(theta, field, relaxation)
    assert [m.shape for m in solution.mean] == [t.shape for t in theta]
    assert solution.value.shape == (0,)
    torch.stack([m.sum() for m in solution.mean]).sum().backward()


@pytest.mark.parametrize("relaxation", [BP, RESIDUAL, TREES, MAX, MF])
def test_one_variable_and_one_value(relaxation: si.Relaxation) -> None:
    single = MarkovField((1,), [(0,)])
    solution = si.infer((torch.tensor([2.5]),), single, relaxation)
    assert solution.value.item() == 2.5
    assert solution.mean[0].tolist() == [1.0]
    pair = MarkovField((1, 2), [(0, 1), (1,)])
    solution = si.infer((torch.tensor([[0.0, 1.0]]), torch.tensor([0.5, 0.0])), pair, "belief_propagation")
    assert solution.value.item() == pytest.approx(torch.tensor([0.5, 1.0]).logsumexp(0).item())


@pytest.mark.parametrize("relaxation", [BP, RESIDUAL, MAX, MF])
def test_large_scores_in_float32(relaxation: si.Relaxation) -> None:
    field = draw_tree(3)
    theta = tuple(1000 * t.float() for t in draw_scores(field, 3))
    solution, best = si.infer(theta, field, relaxation), si.infer(theta, field, "map")
    assert all(m.dtype == torch.float32 and m.isfinite().all() for m in solution.mean)
    if relaxation is not MF:
        torch.testing.assert_close(solution.value, best.value)


@pytest.mark.parametrize("relaxation", [BP, MF])
def test_strides_and_shared_tables_change_nothing(relaxation: si.Relaxation) -> None:
    field = draw_graph(4)
    theta = draw_scores(field, 4)
    expected = si.infer(theta, field, relaxation)
    full = tuple(t.expand(3, *t.shape[1:]) for t in theta)
    strided = tuple(t.repeat_interleave(2, -1)[..., ::2] for t in theta)
    for scores in (full, strided):
        found = si.infer(scores, field, relaxation)
        close(found.mean, expected.mean, 1e-12)
        torch.testing.assert_close(found.value, expected.value)
    nested = si.infer(tuple(t.expand(3, *t.shape[1:]).unsqueeze(0) for t in theta), field, relaxation)
    assert nested.value.shape == (1, 3)


@pytest.mark.parametrize("relaxation", [BP, RESIDUAL, MF])
def test_infeasible_instances_are_named(relaxation: si.Relaxation) -> None:
    field = MarkovField((2, 2), [(0, 1), (0,)])
    pair = torch.zeros(3, 2, 2)
    pair[1, 0] = -torch.inf
    unary = torch.tensor([0.0, -torch.inf]).expand(3, 2)
    with pytest.raises(InfeasibleError, match=r"leave no value to variable .* \(batch index 1\)"):
        si.relax((pair, unary), field, relaxation)
    pair[2, 0] = -torch.inf
    with pytest.raises(InfeasibleError) as caught:
        si.relax((pair, unary), field, relaxation)
    assert caught.value.batch_indices == (1, 2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("belief_propagation", {"kind": "sum"}, "kind must be"),
        ("belief_propagation", {"schedule": "random"}, "schedule must be"),
        ("belief_propagation", {"damping": 1.0}, "damping must be a number of at least 0 and below 1"),
        ("belief_propagation", {"weights": [1.0, 0.0]}, r"weights\[1\] must be a finite number above 0"),
        ("belief_propagation", {"weights": 2.0}, "weights must be a weight for each factor"),
        ("belief_propagation", {"weights": "uniform"}, "weights must be"),
        ("mean_field", {"starts": 0}, "starts must be an integer of at least 1"),
        ("mean_field", {"temperature": 0.0}, "temperature must be"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.get_relaxation(name, **options)


def test_weights_that_do_not_fit_the_model() -> None:
    field, theta = triangle()
    with pytest.raises(InvalidInputError, match="one weight for each of the 6 factors, got 2"):
        si.relax(theta, field, "belief_propagation", weights=[1.0, 1.0])
    joint = MarkovField((2, 2, 2), [(0, 1, 2)])
    with pytest.raises(InvalidInputError, match="factor 0 has 3; pass a weight for each factor"):
        si.relax((torch.zeros(2, 2, 2),), joint, TREES)


def test_an_oracle_without_factors_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"chain lacks the ability Factorized, the method factorization\(\)"):
        si.Layer("chain", "mean_field")


def test_max_product_without_a_finite_structure_returns_a_record() -> None:
    edges = [(0, 1), (1, 2), (2, 0)]
    field = si.get_oracle("markov_field", cardinalities=(3, 3, 3), factors=[(0,), *edges])
    # The third value agrees with itself alone, and the others differ on all edges: messages prefer the latter.
    table = torch.tensor([[-torch.inf, 1.0, -torch.inf], [1.0, -torch.inf, -torch.inf], [-torch.inf, -torch.inf, 0.0]])
    theta = torch.zeros(2, 3), *[torch.stack([table, torch.zeros(3, 3)])] * 3
    assert si.infer(theta, field, "map").value.tolist() == [0, 0]
    with (
        pytest.warns(ConvergenceWarning, match="batch index 0"),
        pytest.raises(si.SolverLimitError, match="no structure of finite score") as caught,
    ):
        si.infer(theta, field, MAX)
    assert caught.value.batch_indices == (0,)
    solution = si.infer(theta, field, dataclasses.replace(MAX, on_failure="ignore"))
    assert solution.value.tolist() == [-torch.inf, 0]
    assert solution.converged.tolist() == [False, True]
    assert all(bool((t.flatten(1).sum(1) == 1).all()) for t in solution.mean)
