"""Belief propagation between the oracles of a factor graph, against exact marginals and graphical models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.parts import Parts, as_tuple, map_parts
from structinf.solvers.local_polytope_scores import LocalPolytope

DOUBLE = torch.float64


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def constraints() -> tuple[si.FactorGraph, Parts]:
    graph = si.FactorGraph(8)
    graph.add("xor", graph.variables[:3])
    graph.add("budget", graph.variables[2:5], k=1, negated=torch.tensor([False, True, False]))
    graph.add("imply", graph.variables[4:6])
    graph.add("or_out", [5, 6, 7])
    return graph, draw(0, 4, 8)


def chain_and_tables() -> tuple[si.FactorGraph, Parts]:
    graph = si.FactorGraph(8)
    graph.add("chain", graph.variables[:6].view(3, 2), additional=[(2, 2, 2)])
    graph.add("pair", [5, 6])
    graph.add("table", [6, 7])
    return graph, (draw(1, 4, 8), draw(2, 4, 2, 2, 2), draw(3, 1, 2, 2), draw(4, 4, 2, 2))


def loop() -> tuple[si.FactorGraph, Parts]:
    graph = si.FactorGraph((3, 3))
    graph.add("arborescence", graph.variables)
    graph.add("budget", graph.variables[1], k=1, negated=torch.tensor([False, True, False]))
    graph.add("pair", graph.variables[2, :2])
    return graph, (draw(5, 3, 3, 3), draw(6, 3, 2, 2))


def assert_parts_close(a: Parts, b: Parts, atol: float = 1e-10) -> None:
    for x, y in zip(as_tuple(a), as_tuple(b), strict=True):
        torch.testing.assert_close(x, y, atol=atol, rtol=0)


@pytest.mark.parametrize("schedule", ["parallel", "residual"])
@pytest.mark.parametrize("scale", [1, 30, 1000])
@pytest.mark.parametrize("make", [constraints, chain_and_tables])
def test_exact_without_cycles(make, scale, schedule):
    graph, theta = make()
    theta = map_parts(lambda t: t * scale, theta)
    found = si.infer(theta, graph, "belief_propagation", on_failure="raise", schedule=schedule)
    assert_parts_close(found.mean, si.relax(theta, graph, "marginals"))
    torch.testing.assert_close(found.value, si.log_partition(theta, graph), rtol=1e-12, atol=1e-10)
    for b in range(3):
        alone = si.relax(map_parts(lambda t, b=b: t[b % len(t)], theta), graph, "belief_propagation", schedule=schedule)
        assert_parts_close(map_parts(lambda t, b=b: t[b], found.mean), alone, 1e-12)


def test_forbidden_and_forced_variables():
    graph, theta = constraints()
    for b, forbidden in enumerate(([2], [0, 1], [4], [5, 7])):
        theta[b, forbidden] = -torch.inf
    found = si.infer(theta, graph, "belief_propagation", on_failure="raise")
    assert_parts_close(found.mean, si.relax(theta, graph, "marginals"))
    torch.testing.assert_close(found.value, si.log_partition(theta, graph))
    forced = si.FactorGraph(3)
    for variables in ([0], [0, 1]):
        forced.add("xor", variables)
    forced.add("or", [1, 2])
    assert si.relax(draw(7, 3), forced, "belief_propagation").tolist() == pytest.approx([1, 0, 1], abs=1e-15)


def rows_and_columns() -> si.FactorGraph:
    graph = si.FactorGraph((5, 5))
    for i in range(5):
        graph.add("xor", graph.variables[i])
        graph.add("xor", graph.variables[:, i])
    graph.add("budget", graph.variables.diagonal(), k=1)
    return graph


def test_residual_schedule_converges_where_parallel_messages_oscillate():
    graph, theta = rows_and_columns(), draw(60, 3, 5, 5) / 2
    options = {"on_failure": "ignore", "max_iter": 300}
    bare = si.infer(theta, graph, "belief_propagation", damping=0.0, **options)
    damped = si.infer(theta, graph, "belief_propagation", damping=0.5, **options)
    assert not bare.converged.any()
    assert damped.converged.all()
    for damping in (None, 0.3):
        found = si.infer(theta, graph, "belief_propagation", schedule="residual", damping=damping, **options)
        assert found.converged.all()
        assert found.residual.max() <= 1e-10
        assert_parts_close(found.mean, damped.mean, 1e-8)
        torch.testing.assert_close(found.value, damped.value)
    # Without a rise of the damping, the messages of one of these trees form a cycle.
    wide = si.FactorGraph((6, 6))
    wide.add("arborescence", wide.variables)
    for w in range(1, 6):
        wide.add("budget", wide.variables[w, 1:], k=1)
    sharp = 1000 * draw(61, 8, 6, 6)[4:7]
    assert si.infer(sharp, wide, "belief_propagation", schedule="residual", **options).converged.all()


@pytest.mark.parametrize("damping", [None, 0.5])
@pytest.mark.parametrize("schedule", ["parallel", "residual"])
def test_messages_that_change_no_probability_alone_are_sent(schedule, damping):
    graph = si.FactorGraph(2)
    graph.add("table", [0])
    graph.add("table", [0])
    graph.add("pair", [0, 1])
    table, pair = torch.tensor([0, 1000], dtype=DOUBLE), torch.tensor([[0, 0], [0, 10]], dtype=DOUBLE)
    theta = torch.tensor([-1500, 0], dtype=DOUBLE), table, table, pair
    found = si.infer(theta, graph, "belief_propagation", schedule=schedule, damping=damping, on_failure="raise")
    torch.testing.assert_close(found.value, si.log_partition(theta, graph))
    assert_parts_close(found.mean, si.relax(theta, graph, "marginals"))


def test_residual_schedule_reports_what_is_left():
    graph, theta = rows_and_columns(), draw(60, 2, 5, 5).requires_grad_()
    with pytest.warns(si.ConvergenceWarning, match="2 of 2 instances missed the tolerance 1e-10 within 1 iterations"):
        found = si.infer(theta, graph, "belief_propagation", schedule="residual", max_iter=1)
    assert not found.converged.any()
    assert (found.residual > 1e-10).all()
    with pytest.raises(si.ConvergenceError, match="no gradient of the mean at batch index 0"):
        found.mean.sum().backward()


def test_a_selected_factor_has_its_name_in_errors():
    problem = LocalPolytope(rows_and_columns().grouped_factors, draw(62, 3, 5, 5), False)
    one = problem.groups[0].select(torch.tensor([2, 1]), torch.tensor([3, 0]))
    reason = r"factor 3, .*no structure of finite score \(batch index 2\)$"
    with pytest.raises(si.InfeasibleError, match=reason), one.named(torch.arange(2)):
        raise si.InfeasibleError("nothing fits", 0)


@pytest.mark.parametrize("schedule", ["parallel", "residual"])
@pytest.mark.parametrize("weights", [None, [0.5, 0.7, 1.0]])
def test_equals_messages_between_tables(weights, schedule):
    graph = si.FactorGraph(3)
    edges = [(0, 1), (1, 2), (2, 0)]
    for edge in edges:
        graph.add("pair", edge)
    field = si.get_oracle("markov_field", cardinalities=(2, 2, 2), factors=[(0,), (1,), (2,), *edges])
    bits, tables = draw(8, 3, 3).requires_grad_(), [draw(9 + k, 3, 2, 2).requires_grad_() for k in range(3)]
    unary = [torch.stack([torch.zeros(3, dtype=DOUBLE), x], 1) for x in bits.unbind(1)]
    options = {} if weights is None else {"weights": [1, 1, 1, *weights]}
    other = si.infer((*unary, *tables), field, "belief_propagation", **options)
    own = si.infer((bits, *tables), graph, "belief_propagation", weights=weights, schedule=schedule)
    assert_parts_close(own.mean[1:], other.mean[3:], 1e-8)
    assert_parts_close(own.mean[0], torch.stack([m[:, 1] for m in other.mean[:3]], 1), 1e-8)
    torch.testing.assert_close(own.value, other.value)
    if weights is None:
        v = [draw(20 + k, *m.shape) for k, m in enumerate(own.mean)]
        a = torch.autograd.grad(sum((m * w).sum() for m, w in zip(own.mean, v, strict=True)), [bits, *tables])
        other_v = [*[torch.stack([torch.zeros(3, dtype=DOUBLE), w], 1) for w in v[0].unbind(1)], *v[1:]]
        b = torch.autograd.grad(sum((m * w).sum() for m, w in zip(other.mean, other_v, strict=True)), [bits, *tables])
        assert_parts_close(a, b, 1e-7)


def test_golden_triangle():
    graph = si.FactorGraph(3)
    for edge in ((0, 1), (1, 2), (2, 0)):
        graph.add("pair", edge)
    theta = torch.tensor([0.2, -0.1, 0.05], dtype=DOUBLE), *[-torch.eye(2, dtype=DOUBLE)] * 3
    found = si.infer(theta, graph, "belief_propagation")
    assert found.mean[0].tolist() == pytest.approx([0.543782, 0.465371, 0.504650], abs=1e-6)
    assert found.value.item() == pytest.approx(1.021014, abs=1e-6)


@pytest.mark.parametrize("make", [constraints, chain_and_tables, loop])
def test_gradients(make):
    graph, theta = make()
    leaves = [t[:2].clone().requires_grad_() for t in as_tuple(theta)]
    form = (lambda t: t) if isinstance(theta, tuple) else (lambda t: t[0])
    for result in ("mean", "value"):
        f = lambda *t, result=result: getattr(  # noqa: E731
            si.infer(form(t), graph, "belief_propagation", temperature=0.7, tolerance=1e-12), result
        )
        assert torch.autograd.gradcheck(f, leaves, fast_mode=True)


@pytest.mark.parametrize("shift", [30, 400, 5000])
@pytest.mark.parametrize("relaxation", ["belief_propagation", "marginals"])
def test_disjunction_of_unlikely_variables(relaxation, shift):
    # At such scores, vectors of two ones add nothing, so that the means are a softmax.
    graph = si.FactorGraph(3)
    graph.add("or", graph.variables)
    theta = draw(40, 3) - shift
    jacobian = torch.autograd.functional.jacobian(lambda t: si.relax(t, graph, relaxation), theta)
    mean = theta.softmax(0)
    torch.testing.assert_close(jacobian, mean.diag() - mean.outer(mean), rtol=1e-9, atol=1e-12)


def test_loss_and_instance_data():
    graph = si.FactorGraph((4, 2))
    graph.add("chain", graph.variables, additional=[(2, 2)], instance_data=["lengths"])
    graph.add("budget", graph.variables[:, 1], instance_data={"k": "limit"})
    theta = draw(30, 3, 4, 2), draw(31, 2, 2)
    data = {"lengths": torch.tensor([4, 2, 1]), "limit": torch.tensor([2, 1, 0])}
    found = si.infer(theta, graph, "belief_propagation", **data)
    assert found.converged.all()
    assert_parts_close(found.mean[0].sum((1, 2)), data["lengths"].double())
    assert not found.mean[0][1, 2:].any()
    alone = si.relax((theta[0][1, :2], theta[1]), _shorter(), "belief_propagation")
    assert_parts_close(found.mean[0][1, :2], alone[0], 1e-9)
    gold = si.relax(theta, graph, "map", **data)
    leaf = theta[0].clone().requires_grad_()
    losses = si.FenchelYoungLoss(graph, "belief_propagation", reduction="none")((leaf, theta[1]), gold, **data)
    torch.testing.assert_close(losses, found.value - graph.score((theta[0], theta[1].expand(3, 2, 2)), gold))
    losses.sum().backward()
    assert_parts_close(leaf.grad, found.mean[0] - gold[0])


def _shorter() -> si.FactorGraph:
    graph = si.FactorGraph((2, 2))
    graph.add("chain", graph.variables, additional=[(2, 2)])
    graph.add("budget", graph.variables[:, 1], k=1)
    return graph


def test_inputs():
    graph, theta = constraints()
    empty = theta[:0].clone().requires_grad_()
    for schedule in ("parallel", "residual"):
        si.relax(empty, graph, "belief_propagation", schedule=schedule).sum().backward()
    assert empty.grad.shape == (0, 8)
    single = si.relax(theta.float(), graph, "belief_propagation")
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, si.relax(theta, graph, "belief_propagation").float())
    free = si.FactorGraph(2)
    assert_parts_close(si.relax(theta[:, :2], free, "belief_propagation"), theta[:, :2].sigmoid())
    contradiction = si.FactorGraph(2)
    contradiction.add("xor", [0, 1])
    with pytest.raises(si.InfeasibleError, match=r"factor 0.*batch index 1"):
        si.relax(torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]]), contradiction, "belief_propagation")
    matching = si.FactorGraph((2, 2))
    matching.add("assignment", matching.variables)
    for options, message in (
        ({"weights": [1.0]}, "each of the 4 factors"),
        ({"weights": "spanning_tree"}, "pass a weight per factor"),
    ):
        with pytest.raises((si.UnsupportedError, si.InvalidInputError), match=message):
            si.relax(theta, graph, "belief_propagation", **options)
    with pytest.raises(si.UnsupportedError, match=r"assignment.* has no log_partition; lp_map"):
        si.relax(torch.zeros(2, 2), matching, "belief_propagation")
    with pytest.raises(si.UnsupportedError, match="use belief_propagation"):
        si.relax(theta, graph, "mean_field")
