"""The k best structures and samples of a FactorGraph, against all assignments of the variables."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si

DOUBLE = torch.float64
SOLVERS = ("list", "milp", "branch_and_bound")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def logic(solver: Any) -> si.FactorGraph:
    graph = si.FactorGraph(7, solver=solver)
    graph.add("or", [0, 1, 2], negated=[True, False, False])
    graph.add("xor", [2, 3, 4], negated=[False, True, False])
    graph.add("budget", [0, 3, 3, 5], k=2)
    return graph


def allows_logic(x: list[int]) -> list[list[float]] | None:
    some = 1 - x[0] + x[1] + x[2] >= 1
    one = x[2] + 1 - x[3] + x[4] == 1
    return [] if some and one and x[0] + 2 * x[3] + x[5] <= 2 else None


def tables(solver: Any) -> si.FactorGraph:
    graph = si.FactorGraph(5, solver=solver)
    graph.add("table", [3, 0, 1], negated=[False, True, False])
    graph.add("pair", [1, 2])
    graph.add("at_most_one", [2, 3])
    return graph


def allows_tables(x: list[int]) -> list[list[float]] | None:
    table, pair = torch.zeros(2, 2, 2), torch.zeros(2, 2)
    table[x[3], 1 - x[0], x[1]] = 1
    pair[x[1], x[2]] = 1
    return [table.flatten().tolist(), pair.flatten().tolist()] if x[2] + x[3] <= 1 else None


def tagger(solver: Any) -> si.FactorGraph:
    """Return tags of three tokens, with transitions that they share, and a budget of tag 1."""
    graph = si.FactorGraph((3, 2), solver=solver)
    graph.add("chain", graph.variables, additional=[(2, 2)])
    graph.add("budget", graph.variables[:, 1], k=2)
    return graph


def allows_tagger(x: list[int]) -> list[list[float]] | None:
    if any(x[2 * t] + x[2 * t + 1] != 1 for t in range(3)) or x[1] + x[3] + x[5] > 2:
        return None
    counts = torch.zeros(2, 2)
    for t in range(2):
        counts[x[2 * t + 1], x[2 * t + 3]] += 1
    return [counts.flatten().tolist()]


def parts(solver: Any) -> si.FactorGraph:
    """Return a chain of two tokens without other factors, a matching with negated cells, and free variables."""
    graph = si.FactorGraph(10, solver=solver)
    graph.add("chain", [[1, 0], [2, 3]], additional=[(2, 2)])
    graph.add("assignment", [[4, 5], [7, 6]], negated=[[True, False], [False, False]])
    return graph


def allows_parts(x: list[int]) -> list[list[float]] | None:
    cells = [1 - x[4], x[5], x[7], x[6]]
    if x[0] + x[1] != 1 or x[2] + x[3] != 1 or cells not in ([1, 0, 0, 1], [0, 1, 1, 0]):
        return None
    counts = torch.zeros(2, 2)
    counts[x[0], x[3]] = 1
    return [counts.flatten().tolist()]


GRAPHS = {
    "logic": (logic, allows_logic),
    "tables": (tables, allows_tables),
    "tagger": (tagger, allows_tagger),
    "parts": (parts, allows_parts),
}


def structures(name: str) -> Tensor:
    """Return all structures as vectors, (N, D), from all values of the variables."""
    make, allows = GRAPHS[name]
    found = []
    for x in itertools.product((0, 1), repeat=make("list").variables.numel()):
        additional = allows(list(x))
        if additional is not None:
            found.append([*x, *itertools.chain(*additional)])
    return torch.tensor(found, dtype=DOUBLE)


def vectors(y: Any) -> Tensor:
    """Return structures (k, B, *event) as (k, B, D)."""
    return torch.cat([t.flatten(2) for t in (y if isinstance(y, tuple) else (y,))], 2)


def scores(graph: si.FactorGraph, batch: int, kind: str, seed: int = 0) -> Any:
    drawn = [normal(batch, *shape, seed=seed + i) for i, shape in enumerate(graph.event_shapes())]
    if kind == "ties":
        drawn = [t.round() for t in drawn]
    if kind == "forbidden":
        drawn[0][0].view(-1)[1] = drawn[0][-1].view(-1)[4] = -torch.inf
    return tuple(drawn) if len(drawn) > 1 else drawn[0]


def check_ranks(name: str, solver: str, kind: str, k: int) -> None:
    graph, listed = GRAPHS[name][0](solver), structures(name)
    theta = scores(graph, 2, kind)
    found: Any = si.topk(theta, graph, k)
    flat = torch.cat([t.flatten(1) for t in (theta if isinstance(theta, tuple) else (theta,))], 1)
    for b in range(2):
        value = torch.where(listed != 0, listed * flat[b], 0.0).sum(1).sort(descending=True).values
        value = value[~value.isneginf()][:k]
        count = len(value)
        assert int(found.valid[:, b].sum()) == count
        torch.testing.assert_close(found.scores[:count, b], value, rtol=0, atol=1e-9)
        own = vectors(found.structures)[:, b]
        assert len(own[:count].unique(dim=0)) == count
        assert bool((own[:count, None] == listed).all(2).any(1).all())
        assert not bool(own[count:].any())
        # Alone or with other instances, and for every k, the structures have the same order.
        for fewer in (1, count):
            alone: Any = si.topk(tuple(t[b] for t in theta) if isinstance(theta, tuple) else theta[b], graph, fewer)
            assert torch.equal(torch.cat([t.flatten(1) for t in _tuple(alone.structures)], 1), own[:fewer])


def _tuple(y: Any) -> tuple[Tensor, ...]:
    return y if isinstance(y, tuple) else (y,)


CASES = [
    pytest.param(name, solver, kind, marks=() if solver == "list" or (name, kind) in quick else pytest.mark.full)
    for name in GRAPHS
    for solver, quick in (
        ("list", ()),
        ("milp", (("logic", "forbidden"), ("tables", "ties"), ("tagger", "ties"), ("parts", "normal"))),
        ("branch_and_bound", (("parts", "ties"), ("tagger", "forbidden"))),
    )
    for kind in ("normal", "ties", "forbidden")
]


@pytest.mark.parametrize(("name", "solver", "kind"), CASES)
def test_all_structures_in_order(name: str, solver: str, kind: str) -> None:
    check_ranks(name, solver, kind, {"list": 300, "milp": 8, "branch_and_bound": 3}[solver])


@pytest.mark.parametrize("solver", SOLVERS)
def test_bounds_of_parts(solver: str) -> None:
    graph, listed = GRAPHS["tagger"][0](solver), structures("tagger")
    theta = scores(graph, 12, "normal")
    low, high = graph.part_bounds(theta)
    low, high = (torch.cat([t.expand(12, *t.shape[1:]).flatten(1) for t in end], 1).clone() for end in (low, high))
    generator = torch.Generator().manual_seed(1)
    bits = torch.rand(12, 6, generator=generator)
    low[:, :6], high[:, :6] = (bits < 0.15).to(DOUBLE), (bits < 0.8).to(DOUBLE)
    if solver != "branch_and_bound":
        low[4:8, 6:8], high[8:, 8:] = 0.5, 1.0
    shapes = [t.shape[1:] for t in theta]
    flat = torch.cat([t.flatten(1) for t in theta], 1)
    ends = [tuple(p.view(-1, *s) for p, s in zip(end.split([6, 4], 1), shapes, strict=True)) for end in (low, high)]
    y, found = graph.restricted_argmax(theta, *ends)
    assert 0 < int(found.sum()) < 12
    for b in range(12):
        allowed = ((listed >= low[b]) & (listed <= high[b])).all(1)
        assert bool(found[b]) == bool(allowed.any())
        if found[b]:
            own = torch.cat([t[b].flatten() for t in y])
            assert bool((listed[allowed] == own).all(1).any())
            torch.testing.assert_close(own @ flat[b], (listed[allowed] @ flat[b]).max())


def test_bounds_of_a_factor_alone_and_of_free_variables() -> None:
    graph = si.FactorGraph(6, solver="milp")
    graph.add("spanning_tree", [4, 2, 0], edges=((0, 1), (1, 2), (0, 2)), negated=[False, True, False])
    theta = torch.tensor([[1.0, 1.0, -1.0, -1.0, 0.5, -torch.inf]] * 4)
    low, high = torch.zeros(4, 6), torch.ones(4, 6)
    low[1, 2], high[1, 1], low[1, 3], low[2, 5] = 1, 0, 1, 1
    low[3, [0, 2, 4]] = 1
    y: Any
    y, found = graph.restricted_argmax(theta, low, high)
    assert found.tolist() == [True, True, False, True]
    assert y[[0, 1, 3]].tolist() == [[1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 1, 0], [1, 1, 1, 0, 1, 0]]


def test_refuses_bounds_of_additional_parts() -> None:
    graph = tagger("branch_and_bound")
    theta = scores(graph, 1, "normal")
    low, high = graph.part_bounds(theta)
    with pytest.raises(si.UnsupportedError, match="bounds of variables only"):
        graph.restricted_argmax(theta, low, (high[0], torch.zeros(1, 2, 2, dtype=DOUBLE)))


class Hidden(si.Enumerable):
    """Two bits that are not both 1, and a hidden bit with a score of its own."""

    event_ndim = (1, 1)
    step = 1.0

    def enumerate(self, event_shape: Any) -> tuple[Tensor, Tensor]:
        rows = torch.tensor([[x, y, h] for x in (0, 1) for y in (0, 1) for h in (0, 1) if x + y < 2], dtype=DOUBLE)
        return rows[:, :2], rows[:, 2:] * self.step

    def argmax(self, theta: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        bits, hidden = (t.to(theta[0]) for t in self.enumerate(((2,), (1,))))
        best = (theta[0] @ bits.T + theta[1] @ hidden.T).argmax(1)
        return bits[best], hidden[best]


def test_branch_and_bound_with_forbidden_additional_parts() -> None:
    theta = scores(tagger("list"), 2, "normal")
    theta[1][0, 0, 1] = -torch.inf
    found, listed = (si.topk(theta, tagger(solver), 2) for solver in ("branch_and_bound", "list"))
    torch.testing.assert_close(found.scores, listed.scores)
    torch.testing.assert_close(found.structures, listed.structures)


@pytest.mark.parametrize("solver", SOLVERS)
def test_structures_that_differ_in_additional_parts(solver: Any) -> None:
    graph = si.FactorGraph(3, solver=solver)
    graph.add(Hidden(), [0, 1], additional=[(1,)])
    graph.add("or", [1, 2])
    theta = torch.tensor([[0.5, 0.25, -0.375]]), torch.tensor([[-0.125]])
    if solver == "branch_and_bound":
        with pytest.raises(si.UnsupportedError, match=r'several structures .* with solver="list" or'):
            si.topk(theta, graph, 3)
        return
    found = si.topk(theta, graph, 12)
    assert found.scores[:, 0].tolist() == [0.25, 0.125, 0.125, 0, -0.125, -0.25, -0.375, -0.5] + [-torch.inf] * 4
    assert len(vectors(found.structures)[:8, 0].unique(dim=0)) == 8


class HalfHidden(Hidden):
    step = 0.5


def test_additional_parts_must_be_integers() -> None:
    graph = si.FactorGraph(3, solver="milp")
    graph.add(HalfHidden(), [0, 1], additional=[(1,)])
    graph.add("or", [1, 2])
    with pytest.raises(si.UnsupportedError, match="need additional parts that are integers"):
        si.topk((torch.zeros(1, 3), torch.zeros(1, 1)), graph, 5)


def test_large_factors_without_shared_variables() -> None:
    graph = si.FactorGraph((30, 4))
    graph.add("chain", graph.variables[:20], additional=[(4, 4)])
    theta = normal(2, 30, 4), normal(4, 4, seed=1)
    found = si.topk(theta, graph, 5)
    chain = si.topk((theta[0][:, :20], theta[1]), "chain", 5)
    bits = si.topk(theta[0][:, 20:].flatten(1), si.get_oracle("bits"), 5)
    sums = (chain.scores[:, None] + bits.scores).flatten(0, 1).sort(0, descending=True).values
    torch.testing.assert_close(found.scores, sums[:5])
    drawn = si.sample(theta, graph, 7, replacement=False, generator=torch.Generator().manual_seed(0))
    assert len(vectors(drawn)[:, 0].unique(dim=0)) == 7
    large = si.FactorGraph((30, 4))
    large.add("chain", graph.variables, additional=[(4, 4)])
    large.add("budget", graph.variables[:, 1], k=2)
    for call in (si.topk, si.sample):
        with pytest.raises(si.UnsupportedError, match="lists the joint structures of 2 factors"):
            call(theta, large, 3)


def test_lengths_and_infeasible_instances() -> None:
    for solver in ("list", "milp"):
        graph = si.FactorGraph((4, 2), solver=solver)
        graph.add("chain", graph.variables, additional=[(2, 2)], instance_data=["lengths"])
        graph.add("budget", graph.variables[:, 1], k=1)
        theta = normal(3, 4, 2), normal(2, 2, seed=1)
        found = si.topk(theta, graph, 6, lengths=[4, 1, 2])
        assert found.valid.sum(0).tolist() == [5, 2, 3]
        assert not bool(found.structures[0][:, 1, 1:].any())
        theta[0][1, 0] = -torch.inf
        with pytest.raises(si.InfeasibleError, match="batch index 1"):
            si.topk(theta, graph, 2, lengths=[4, 1, 2])
        found = si.topk(theta, graph, 6, lengths=[4, 1, 2], on_infeasible="zero")
        assert found.valid.sum(0).tolist() == [5, 0, 3]


def test_unusual_batches() -> None:
    graph = tables("milp")
    theta = scores(graph, 2, "normal")
    found: Any = si.topk(theta, graph, 3)
    empty: Any = si.topk(tuple(t[:0] for t in theta), graph, 3)
    assert [tuple(t.shape) for t in empty.structures] == [(3, 0, 5), (3, 0, 2, 2, 2), (3, 0, 2, 2)]
    assert si.sample(tuple(t[:0] for t in theta), graph, 2)[0].shape == (2, 0, 5)
    strided = tuple(t.repeat_interleave(2, 0)[::2].requires_grad_() for t in theta)
    assert torch.equal(vectors(si.topk(strided, graph, 3).structures), vectors(found.structures))
    scaled: Any = si.topk(tuple((1000 * t).float() for t in theta), graph, 3)
    assert torch.equal(vectors(scaled.structures).double(), vectors(found.structures))
    assert si.topk(tuple(t.half() for t in theta), graph, 2).scores.dtype == torch.float16
    for k in (0, 1.5, True):
        with pytest.raises((si.InvalidInputError, TypeError), match="k"):
            si.topk(theta, graph, k)  # type: ignore[arg-type]
    single = si.FactorGraph(1)
    assert si.topk(torch.tensor([-2.0]), single, 3).scores.tolist() == [0, -2, -torch.inf]


@pytest.mark.parametrize("name", ["logic", "parts"])
def test_frequencies_of_samples(name: str) -> None:
    graph, listed = GRAPHS[name][0]("list"), structures(name)
    theta = scores(graph, 2, "forbidden")
    count, flat = 4000, torch.cat([t.flatten(1) for t in _tuple(theta)], 1)
    drawn = vectors(si.sample(theta, graph, count, generator=torch.Generator().manual_seed(0)))
    for b in range(2):
        value = torch.where(listed != 0, listed * flat[b], 0.0).sum(1)
        p = value.softmax(0)
        frequency = (drawn[:, b, None] == listed).all(2).double().mean(0)
        assert bool(((frequency - p).abs() <= 6 * (p * (1 - p) / count).sqrt()).all())
        torch.testing.assert_close(frequency.sum(), torch.ones((), dtype=DOUBLE))


def test_draws_without_replacement_of_a_peaked_distribution() -> None:
    graph, listed = parts("list"), structures("parts")
    theta = scores(graph, 2, "normal")
    theta = tuple(40 * t for t in theta)
    theta[0][1, 9] = -torch.inf
    drawn = vectors(si.sample(theta, graph, 40, replacement=False, generator=torch.Generator().manual_seed(0)))
    for b, count in ((0, 32), (1, 16)):
        own = drawn[:count, b]
        assert len(own.unique(dim=0)) == count
        assert bool((own[:, None] == listed).all(2).any(1).all())
        assert not bool(drawn[count:, b].any())


def test_frequencies_without_replacement() -> None:
    # Three of four structures of (0, 1, 2) with at most one of the first two, by restriction.
    graph = si.FactorGraph(2)
    graph.add("at_most_one", [0, 1])
    count = 4000
    theta = torch.tensor([[3.0, 9.0]], dtype=DOUBLE).expand(count, 2)
    drawn: Any = si.sample(theta, graph, 2, replacement=False, generator=torch.Generator().manual_seed(0))
    p = torch.tensor([0.0, 3.0, 9.0], dtype=DOUBLE).softmax(0)
    for i, j in ((0, 2), (1, 2), (2, 0), (2, 1), (1, 0)):
        wanted = p[i] * p[j] / (1 - p[i])
        rows = torch.tensor([[0.0, 0.0], [1, 0], [0, 1]], dtype=DOUBLE)
        frequency = ((drawn == rows[[i, j]][:, None]).all(2).all(0)).double().mean()
        assert abs(frequency - wanted) <= 6 * (wanted * (1 - wanted) / count).sqrt()


@pytest.mark.full
@pytest.mark.parametrize("solver", ["list", "milp"])
def test_conformance(solver: str) -> None:
    si.testing.check_oracle(tagger(solver), ((3, 2), (2, 2)))
