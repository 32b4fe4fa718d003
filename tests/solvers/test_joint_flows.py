"""The interior-point method over the flows of recursions that share variables, against ADMM and linear programs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.parts import as_tuple
from structinf.solvers import joint_flows, local_polytope
from structinf.solvers.joint_flows import JointFlowSolution, solve_joint_flows
from structinf.solvers.local_polytope_scores import LocalPolytope

DOUBLE = torch.float64
EXACT = si.get_relaxation("lp_sparsemap", tolerance=0.0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def scores(shape: tuple[int, ...], *additional: tuple[int, ...], batch: int = 3, scale: float = 1.0) -> Any:
    theta = [scale * normal(batch, *s, seed=k) for k, s in enumerate((shape, *additional))]
    return tuple(theta) if additional else theta[0]


def two_chains(steps: int = 6, states: int = 3, **options: Any) -> si.FactorGraph:
    graph = si.FactorGraph((steps, states))
    for _ in range(2):
        graph.add("chain", graph.variables, additional=[(steps - 1, states, states)], **options)
    return graph


def chains_in_other_orders() -> tuple[si.FactorGraph, Any]:
    graph = si.FactorGraph((7, 2))  # the last variables have no factor
    graph.add("chain", graph.variables[:6], additional=[(2, 2)])
    graph.add("chain", graph.variables[[4, 0, 2, 5]], additional=[(3, 2, 2)])
    graph.add("chain", graph.variables[[1, 3, 1, 5]], additional=[(3, 2, 2)])  # a variable twice
    return graph, scores((7, 2), (2, 2), (3, 2, 2), (3, 2, 2))


def two_alignments() -> tuple[si.FactorGraph, Any]:
    graph = si.FactorGraph((4, 4))  # a cell has a hyperedge for each move into the cell
    graph.add("dtw", graph.variables)
    graph.add("dtw", graph.variables.T)
    return graph, scores((4, 4))


def two_kinds_of_paths() -> tuple[si.FactorGraph, Any]:
    graph = si.FactorGraph((4, 5))
    graph.add("dtw", graph.variables)
    graph.add("grid_path", graph.variables)
    graph.add("chain", graph.variables[:, 3:].T, additional=[(4, 4)])
    return graph, scores((4, 5), (4, 4))


GRAPHS = {
    "chains": lambda: (two_chains(), scores((6, 3), (5, 3, 3), (5, 3, 3))),
    "orders": chains_in_other_orders,
    "alignments": two_alignments,
    "paths": two_kinds_of_paths,
}


def solve_directly(graph: si.FactorGraph, theta: Any, additional_parts: bool = False) -> JointFlowSolution | None:
    return solve_joint_flows(LocalPolytope(graph.grouped_factors, theta, additional_parts))


def check_against_admm(
    graph: si.FactorGraph,
    theta: Any,
    monkeypatch: pytest.MonkeyPatch,
    relaxation: Any = EXACT,
    same_gradient: bool = True,
    data: dict[str, Any] | None = None,
) -> None:
    results = []
    for solver in (solve_joint_flows, lambda _: None):
        monkeypatch.setattr(local_polytope, "solve_joint_flows", solver)
        leaves = [t.clone().requires_grad_() for t in as_tuple(theta)]
        solution = si.infer(tuple(leaves) if isinstance(theta, tuple) else leaves[0], graph, relaxation, **(data or {}))
        assert (solution.oracle_calls == 0) == (solver is solve_joint_flows)
        assert solution.converged is not None
        assert solution.residual is not None
        assert solution.converged.all()
        assert (solution.residual < 1e-11).all()
        means = as_tuple(solution.mean)
        torch.stack([(m * normal(*m.shape, seed=9)).sum() for m in means]).sum().backward()
        gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]
        results.append((means[0].detach(), solution.value.detach(), *(gradients if same_gradient else ())))
        assert all(g.isfinite().all() for g in gradients)
    for own, other in zip(*results, strict=True):
        torch.testing.assert_close(own, other, atol=1e-8, rtol=1e-9)


# ----------------------------------------------------------------------------- solutions


@pytest.mark.parametrize("scale", [0.03, 1.0, 300.0])
@pytest.mark.parametrize("name", GRAPHS)
def test_flows_have_the_solution_of_admm(name: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, theta = GRAPHS[name]()
    theta = tuple(scale * t for t in theta) if isinstance(theta, tuple) else scale * theta
    check_against_admm(graph, theta, monkeypatch)


@pytest.mark.parametrize("shared", [True, False])
def test_penalised_transitions_and_temperature(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    form = (2, 2) if shared else (4, 2, 2)
    graph = si.FactorGraph((5, 2))
    for _ in range(2):
        graph.add("chain", graph.variables, additional=[form])
    theta = scores((5, 2), form, form)
    for options in ({"penalty": "all"}, {"temperature": 0.2}):
        check_against_admm(graph, theta, monkeypatch, si.get_relaxation("lp_sparsemap", tolerance=0.0, **options))


def test_no_better_mean_exists() -> None:
    theta = scores((12, 4), (11, 4, 4), (11, 4, 4), batch=8)
    solution = si.infer(theta, two_chains(12, 4), EXACT)
    assert solution.oracle_calls == 0
    tags, *transitions = solution.mean
    slope = theta[0] - tags, *theta[1:]
    value = torch.stack([(s * m).flatten(1).sum(1) for s, m in zip(slope, (tags, *transitions), strict=True)]).sum(0)
    torch.testing.assert_close(si.infer(slope, two_chains(12, 4), "lp_map").value, value, atol=1e-9, rtol=0)
    for t in transitions:  # both chains have the same tags
        torch.testing.assert_close(t.sum(3), tags[:, :-1], atol=1e-12, rtol=0)
        torch.testing.assert_close(t.sum(2), tags[:, 1:], atol=1e-12, rtol=0)


def test_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    theta = scores((6, 3), (5, 3, 3), (5, 3, 3), batch=6)
    for tied in (tuple(0 * t for t in theta), tuple(t.round() for t in theta)):
        check_against_admm(two_chains(), tied, monkeypatch, same_gradient=False)


def test_forbidden_parts_and_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    theta = scores((6, 3), (5, 3, 3), (5, 3, 3), batch=6)
    for t in theta:
        t[:, 1::2, 0] = t[2:4, 2, :2] = -math.inf
    check_against_admm(two_chains(), theta, monkeypatch)
    graph = si.FactorGraph((6, 3))
    graph.add("chain", graph.variables, additional=[(5, 3, 3)], instance_data={"lengths": "long"})
    graph.add("chain", graph.variables[:3], additional=[(2, 3, 3)], instance_data={"lengths": "short"})
    lengths = {"long": torch.tensor([6, 4, 3, 2, 1, 5]), "short": torch.tensor([3, 3, 3, 2, 1, 3])}
    check_against_admm(graph, scores((6, 3), (5, 3, 3), (2, 3, 3), batch=6), monkeypatch, data=lengths)


@pytest.mark.parametrize("mask", [-1e5, -1e30])
def test_masks_are_forbidden_parts(mask: float) -> None:
    results = []
    for number in (mask, -math.inf):
        theta = scores((6, 3), (5, 3, 3), (5, 3, 3))
        theta[0][:2, 2, 1] = theta[1][:, 0, 0, 1] = theta[2][1, 2:, 2, 0] = number
        found = solve_directly(two_chains(), theta)
        assert found is not None
        assert found.solved.all()
        results.append((found.mean, found.value, found.gap < 1e-12))
    for own, other in zip(*results, strict=True):
        torch.testing.assert_close(own, other, atol=1e-10, rtol=0)


def test_parts_that_count_as_masks_by_mistake_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    theta = scores((6, 3), (5, 3, 3), (5, 3, 3), batch=40)
    expected = si.relax(theta, two_chains(), EXACT)[0]
    monkeypatch.setattr(joint_flows, "_LARGE_NEGATIVE", -0.9)  # about one score in twenty counts as a mask
    found = solve_directly(two_chains(), theta)
    assert found is not None
    assert 0 < found.solved.sum() < 40
    wrong = (found.mean.view(40, 6, 3) - expected).abs().flatten(1).amax(1) > 1e-9
    assert not (found.solved & wrong).any()
    torch.testing.assert_close(si.relax(theta, two_chains(), EXACT)[0], expected, atol=1e-9, rtol=0)


# ----------------------------------------------------------------------------- gradients and forms


@pytest.mark.parametrize("penalty", ["readout", "all"])
def test_gradients_by_finite_differences(penalty: str) -> None:
    relaxation = si.get_relaxation("lp_sparsemap", tolerance=0.0, penalty=penalty)
    theta = tuple(t.requires_grad_() for t in scores((3, 2), (2, 2, 2), (2, 2, 2), batch=2))
    assert torch.autograd.gradcheck(lambda *t: si.relax(t, two_chains(3, 2), relaxation), theta)


def test_an_instance_has_the_same_bits_alone() -> None:
    lengths, theta = torch.tensor([6, 1, 3, 5, 6] * 4), scores((6, 3), (5, 3, 3), (5, 3, 3), batch=20)
    graph = two_chains(instance_data=["lengths"])
    together = si.relax(theta, graph, EXACT, lengths=lengths)
    for b in (0, 1, 17):
        alone = si.relax(tuple(t[b : b + 1] for t in theta), graph, EXACT, lengths=lengths[b : b + 1])
        assert all(torch.equal(t[b : b + 1], one) for t, one in zip(together, alone, strict=True))


def test_single_precision_and_an_empty_batch() -> None:
    theta = scores((6, 3), (5, 3, 3), (5, 3, 3))
    mean, single = (si.relax(t, two_chains(), EXACT) for t in (theta, tuple(t.float() for t in theta)))
    assert single[0].dtype is torch.float32
    torch.testing.assert_close(single[0].double(), mean[0], atol=1e-6, rtol=0)
    assert si.relax(tuple(t[:0] for t in theta), two_chains(), EXACT)[0].shape == (0, 6, 3)


# ----------------------------------------------------------------------------- other graphs


def test_other_graphs_take_admm(monkeypatch: pytest.MonkeyPatch) -> None:
    chains, theta = two_chains(), scores((6, 3), (5, 3, 3), (5, 3, 3))
    assert solve_directly(chains, theta) is not None
    negated = two_chains(negated=torch.tensor([True, False, False]).expand(6, 3))
    assert solve_directly(negated, theta) is None
    with_budget = two_chains()
    with_budget.add("budget", with_budget.variables[:, 0], k=2)
    assert solve_directly(with_budget, theta) is None
    monkeypatch.setattr(joint_flows, "_MAX_MULTIPLICATIONS", 100)
    assert solve_directly(two_chains(5, 3), scores((5, 3), (4, 3, 3), (4, 3, 3))) is None
    shared = si.FactorGraph((2, 2))  # the transition of all steps has hyperedges with several heads
    shared.add("chain", torch.zeros(3, 1, dtype=torch.int64), additional=[(1, 1)])
    shared.add("pair", [0, 1])
    assert solve_directly(shared, scores((2, 2), (1, 1), (2, 2))) is None


def test_instances_whose_face_is_not_found_take_admm(monkeypatch: pytest.MonkeyPatch) -> None:
    theta = scores((6, 3), (5, 3, 3), (5, 3, 3), batch=12)
    expected = si.relax(theta, two_chains(), EXACT)
    monkeypatch.setattr(joint_flows, "_MOST_STEPS", 2)
    found = solve_directly(two_chains(), theta)
    assert found is not None
    assert 0 < found.solved.sum() < 12
    solution = si.infer(theta, two_chains(), EXACT)
    assert solution.oracle_calls
    for own, wanted in zip(solution.mean, expected, strict=True):
        torch.testing.assert_close(own, wanted, atol=1e-9, rtol=0)


def test_contradicting_recursions_raise() -> None:
    theta = scores((6, 3), (5, 3, 3), (5, 3, 3))
    theta[1][1, 2, 0] = theta[2][1, 2, 1:] = -math.inf
    with pytest.raises(si.InfeasibleError, match=r"contradict each other.*batch index 1"):
        si.relax(theta, two_chains(), EXACT)
