"""The argmax of a FactorGraph by an integer program and by branch and bound, against the list of structures."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.solvers.branch_and_bound import _Node

DOUBLE = torch.float64
SOLVERS = ("milp", "branch_and_bound")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def pairs(solver: str, variables: int = 6, **options) -> si.FactorGraph:
    """Return variables of which all pairs have scores, whose linear program has fractions."""
    graph = si.FactorGraph(variables, solver=solver, **options)
    for pair in itertools.combinations(range(variables), 2):
        graph.add("pair", pair)
    return graph


def logic(solver: str) -> si.FactorGraph:
    graph = si.FactorGraph(8, solver=solver)
    graph.add("xor", [0, 1, 2], negated=[True, False, False])
    graph.add("or", [2, 3, 4])
    graph.add("or_out", [4, 5, 0], negated=[False, True, False])
    graph.add("and_out", [1, 5, 3])
    graph.add("imply", [0, 3, 4])
    graph.add("budget", [0, 1, 2, 3, 4, 5, 5], k=4)
    graph.add("table", [5, 0, 2], negated=[False, True, False])
    return graph


def tagger(solver: str) -> si.FactorGraph:
    """Return tags of four tokens with a shared transition, and a budget of two tokens with tag 2."""
    graph = si.FactorGraph((4, 3), solver=solver)
    graph.add("chain", graph.variables, additional=[(3, 3)])
    graph.add("budget", graph.variables[:, 2], k=2)
    return graph


def parser(solver: str) -> si.FactorGraph:
    """Return trees of four words with at most two children of each word."""
    graph = si.FactorGraph((5, 5), solver=solver)
    graph.add("arborescence", graph.variables, single_root=True)
    for head in range(1, 5):
        graph.add("budget", graph.variables[head, 1:], k=1)
    return graph


def matching(solver: str) -> si.FactorGraph:
    """Return matchings of three rows with four columns, one of two pairs of cells, and a ranking of no others."""
    graph = si.FactorGraph((3, 4), solver=solver)
    graph.add("assignment", graph.variables)
    graph.add("budget", graph.variables[:, 0], k=0)
    return graph


GRAPHS = {"pairs": pairs, "logic": logic, "tagger": tagger, "parser": parser, "matching": matching}


def scores(graph: si.FactorGraph, batch: int, seed: int = 0):
    drawn = tuple(normal(batch, *shape, seed=seed + k) for k, shape in enumerate(graph.event_shapes()))
    return drawn if len(drawn) > 1 else drawn[0]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name == "logic" else ()) for name in GRAPHS]
)
def test_argmax_is_that_of_the_list(name: str, solver: str) -> None:
    graph, listed = GRAPHS[name](solver), GRAPHS[name]("list")
    theta = scores(graph, 2)
    first = theta[0] if isinstance(theta, tuple) else theta
    first[1].flatten()[3] = -torch.inf
    y, best = graph.argmax(theta), listed.argmax(theta)
    for found, wanted in zip(*(t if isinstance(t, tuple) else (t,) for t in (y, best)), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("solver", ["list", *SOLVERS])
def test_scores_of_minus_infinity_forbid_negated_variables(solver: str) -> None:
    graph = si.FactorGraph(3, solver=solver)
    graph.add("xor", graph.variables, negated=[True, False, False])
    theta = torch.tensor([[-torch.inf, 1.0, 2.0], [3.0, 1.0, 2.0], [1.0, -torch.inf, -torch.inf]])
    expected = [[0, 0, 0], [1, 0, 1], [0, 0, 0]]
    assert graph.argmax(theta).tolist() == expected
    for relaxation in ("lp_map", "sparsemap"):
        assert si.relax(10 * theta, graph, relaxation).tolist() == expected
    marginals = si.relax(theta, graph, "marginals")
    assert marginals[0].tolist() == [0, 0, 0]
    assert marginals[2].tolist() == [0, 0, 0]


@pytest.mark.parametrize("solver", SOLVERS)
def test_ties_give_a_structure(solver: str) -> None:
    graph = GRAPHS["tagger"](solver)
    y = graph.argmax(tuple(torch.zeros(2, *shape) for shape in graph.event_shapes()))
    assert torch.equal(y[1].sum((1, 2)), torch.full((2,), 3.0))
    assert torch.equal(y[0].sum(2), torch.ones(2, 4))
    assert bool((y[0][..., 2].sum(1) <= 2).all())
    assert torch.equal(graph.encode(graph.decode(y), y)[1], y[1])


def test_all_relaxations_of_an_argmax_take_an_integer_program() -> None:
    graph, listed = GRAPHS["tagger"]("milp"), GRAPHS["tagger"]("list")
    theta = tuple(t.requires_grad_() for t in scores(graph, 1))
    for relaxation in ("map", "sparsemap", "perturbed"):
        means = []
        for each in (graph, listed):
            torch.manual_seed(0)
            options = {"map": {}, "sparsemap": {"penalty": "readout"}, "perturbed": {"samples": 3}}[relaxation]
            means.append(si.relax(theta, each, relaxation, **options)[0])
        torch.testing.assert_close(*means, atol=1e-6, rtol=0)
    gold = torch.eye(3, dtype=torch.int64)[torch.tensor([[0, 1, 2, 0]])]
    losses = [si.FenchelYoungLoss(each, "map", cost="hamming")(theta, gold) for each in (graph, listed)]
    torch.testing.assert_close(*losses)
    gradients = [torch.autograd.grad(loss, theta) for loss in losses]
    torch.testing.assert_close(*gradients)


def test_programs_take_graphs_beyond_the_list() -> None:
    theta = normal(3, 12, 12)
    graph = si.FactorGraph((12, 12), solver="milp")
    for line in (*graph.variables, *graph.variables.T):
        graph.add("xor", line)
    assert torch.equal(si.relax(theta, graph, "map"), si.relax(theta, "assignment", "map"))
    with pytest.raises(si.UnsupportedError, match="use belief_propagation, lp_map"):
        si.relax(theta, graph, "marginals")


@pytest.mark.parametrize("solver", SOLVERS)
def test_graphs_without_a_structure(solver: str) -> None:
    graph = si.FactorGraph(3, solver=solver)
    for pair in ([0, 1], [1, 2], [2, 0]):
        graph.add("or", pair)
    theta = torch.ones(3, 3)
    theta[1, :2] = -torch.inf
    with pytest.raises(si.InfeasibleError, match="batch index 1") as caught:
        si.relax(theta, graph, "map")
    assert caught.value.batch_indices == (1,)
    solution = si.infer(theta, graph, "map", on_infeasible="zero")
    assert solution.mean.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    assert graph.argmax(theta[:0]).shape == (0, 3)


def test_limits_of_solvers() -> None:
    graph = pairs("branch_and_bound", 9, node_limit=1)
    theta = scores(graph, 1)
    with pytest.raises(si.SolverLimitError, match=r"stopped after 1 nodes for batch index 0 with.* raise node_limit"):
        graph.argmax(theta)
    with pytest.raises(si.SolverLimitError, match="raise time_limit"):
        pairs("milp", 9, time_limit=1e-6).argmax(theta)


def test_branches_only_on_variables_that_are_not_fixed() -> None:
    fixed = torch.tensor([1.0, -1.0, 0.0], dtype=DOUBLE)
    mean = torch.tensor([1.0, 1e-12, 0.0], dtype=DOUBLE)
    children = _Node(fixed, 2.0, mean).branch(4.0)
    assert [(f.tolist(), r) for f, r in children] == [([1, -1, -1], 4.0), ([1, -1, 1], 4.0)]
    fixed[2] = -1
    ((kept, reward),) = _Node(fixed, 4.0, mean).branch(4.0)
    assert torch.equal(kept, fixed)
    assert reward > 4


@pytest.mark.full
def test_structures_without_a_proof() -> None:
    graph, listed = pairs("branch_and_bound", 7, node_limit=1, on_limit="warn"), pairs("list", 7)
    theta = scores(graph, 1)
    with pytest.warns(si.ConvergenceWarning, match=r"may be below the best by 0\.\d+ at batch index 0"):
        y = si.relax(theta, graph, "map")
    assert bool((y[0] == y[0].round()).all())
    assert graph.score(theta, y) <= listed.score(theta, listed.argmax(theta))
    theta = scores(graph, 1, seed=300)
    with pytest.raises(si.SolverLimitError, match="without any structure; raise node_limit"):
        si.relax(theta, graph, "map")


@pytest.mark.parametrize("options", [{"solver": "ilp"}, {"node_limit": 0}, {"time_limit": 0.0}, {"on_limit": "ignore"}])
def test_wrong_options(options: dict) -> None:
    with pytest.raises(si.InvalidInputError, match=next(iter(options))):
        si.FactorGraph(3, **options)


class ArgmaxOnly(si.Oracle):
    """All vectors of bits."""

    name = "argmax_only"
    event_ndim = 1

    def argmax(self, theta: Tensor) -> Tensor:  # type: ignore[override]
        return (theta > 0).to(theta.dtype)


def test_factors_without_linear_constraints_are_named() -> None:
    graph = si.FactorGraph(12, solver="milp")
    graph.add(ArgmaxOnly(), graph.variables)
    graph.add("budget", graph.variables, k=1)
    with pytest.raises(si.UnsupportedError, match=r"cannot use factor 0, argmax_only .* states no linear constraints"):
        si.relax(torch.zeros(12), graph, "map")


class Fractional(si.Enumerable):
    """Three structures whose additional part is any number."""

    event_ndim = (1, 1)
    structures = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.tensor([[0.5], [-1.5], [0.25]])

    def argmax(self, theta: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        values = sum(t @ y.to(t).T for t, y in zip(theta, self.structures, strict=True))
        best = values.argmax(1)
        return self.structures[0].to(theta[0])[best], self.structures[1].to(theta[1])[best]

    def enumerate(self, event_shape: Any) -> tuple[Tensor, Tensor]:
        return self.structures[0].double(), self.structures[1].double()


@pytest.mark.parametrize("solver", ["list", "milp"])
def test_additional_parts_may_be_any_numbers(solver: Any) -> None:
    graph = si.FactorGraph(2, solver=solver)
    graph.add(Fractional(), [0, 1], additional=[(1,)])
    graph.add("at_most_one", [0, 1])
    theta = torch.tensor([[0.1, 0.3], [0.1, 0.3]]), torch.tensor([[-1.0], [1.0]])
    y, part = si.relax(theta, graph, "map")
    assert y.tolist() == [[0, 1], [1, 0]]
    assert part.tolist() == [[-1.5], [0.5]]


@pytest.mark.parametrize("name", ["matching", "spanning_tree", "tour"])
def test_graph_structures_with_limits(name: str) -> None:
    def make(solver: str) -> si.FactorGraph:
        graph = si.FactorGraph((4, 4), solver=solver)
        graph.add(name, graph.variables)
        graph.add("at_most_one", graph.variables[:2, 2:].flatten())
        return graph

    theta = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    theta = theta.triu(1) if name != "tour" else theta
    best = si.infer(theta, make("list"), "map")
    found = si.infer(theta, make("milp"), "map")
    torch.testing.assert_close(found.value, best.value)
    assert (found.mean[:, :2, 2:].sum((1, 2)) <= 1).all()
