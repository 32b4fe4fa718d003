"""Structured mean field of factor graphs: against mean field over lists of structures, exact sums and derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.parts import Parts, as_tuple, map_parts
from structinf.testing import check_relaxation

DOUBLE = torch.float64

MF = "mean_field"


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


SHAPES = (14,), (2, 2), (2, 2), (2, 2, 2), (2, 2), (2, 2), (2,)

ORACLES = [("chain", [0, 1, 2, 3, 4, 5]), ("budget", [6, 7, 8]), ("xor", [9, 10, 11])]

TABLES = [([1, 6], [True, False]), ([3, 8, 9], [False, True, True]), ([10, 12], False), ([12, 13], False), ([13], True)]


def three_oracles() -> si.FactorGraph:
    graph = si.FactorGraph(14)
    graph.add("chain", graph.variables[:6].view(3, 2), additional=[(2, 2)])
    graph.add("budget", [6, 7, 8], k=1, negated=torch.tensor([False, True, False]))
    graph.add("xor", [9, 10, 11])
    for variables, negated in TABLES:
        graph.add("table", variables, negated=torch.tensor(negated))
    return graph


def scores(scale: float = 1, batch: int = 4) -> tuple[Tensor, ...]:
    """Return scores of three_oracles(), where the batch shares the transitions and a table."""
    return tuple(scale * draw(k, 1 if k in (1, 4) else batch, *shape) for k, shape in enumerate(SHAPES))


def assert_parts_close(a: Parts, b: Parts, atol: float = 1e-10) -> None:
    for x, y in zip(as_tuple(a), as_tuple(b), strict=True):
        torch.testing.assert_close(x, y, atol=atol, rtol=0)


def listed() -> list[Tensor]:
    """Return the values of the variables in each structure of each oracle, and of each single variable."""
    tags = torch.cartesian_prod(*[torch.arange(2)] * 3)
    bits = torch.cartesian_prod(*[torch.arange(2)] * 3)
    of_parts = bits[bits.sum(1) <= 1]
    of_parts[:, 1] = 1 - of_parts[:, 1]
    chain = torch.nn.functional.one_hot(tags, 2).flatten(1)
    return [chain, of_parts, torch.eye(3, dtype=torch.int64), torch.arange(2)[:, None], torch.arange(2)[:, None]]


def test_equals_mean_field_over_lists_of_structures() -> None:
    theta = scores()
    lists, own = listed(), [*(v for _, v in ORACLES), [12], [13]]
    owner = {v: (k, i) for k, variables in enumerate(own) for i, v in enumerate(variables)}
    factors, tables = [(k,) for k in range(5)], [theta[0][:, v] @ x.double().T for v, x in zip(own, lists, strict=True)]
    tags = lists[0].view(-1, 3, 2)
    steps = torch.einsum("nts,ntu->nsu", tags[:, :-1], tags[:, 1:]).double()
    tables[0] = tables[0] + torch.einsum("bsu,nsu->bn", theta[1].expand(4, 2, 2), steps)
    for (variables, negated), table in zip(TABLES, theta[2:], strict=True):
        blocks = [owner[v] for v in variables]
        factors.append(tuple(k for k, _ in blocks))
        flips = [negated] * len(variables) if isinstance(negated, bool) else negated
        parts = [lists[k][:, i] ^ flip for (k, i), flip in zip(blocks, flips, strict=True)]
        tables.append(table[(slice(None), *torch.meshgrid(*parts, indexing="ij"))])
    field = si.get_oracle("markov_field", cardinalities=[len(x) for x in lists], factors=factors)
    expected = si.infer(tuple(tables), field, MF, tolerance=1e-13)
    found = si.infer(theta, three_oracles(), MF, tolerance=1e-13)
    torch.testing.assert_close(found.value, expected.value, rtol=1e-12, atol=0)
    wanted = torch.cat([q @ x.double() for q, x in zip(expected.mean[:5], lists, strict=True)], 1)
    assert_parts_close(found.mean[0], wanted, 1e-9)
    assert_parts_close(found.mean[1], torch.einsum("bn,nsu->bsu", expected.mean[0], steps), 1e-9)
    assert_parts_close(found.mean[6][:, 1], 1 - found.mean[0][:, 13], 1e-12)


@pytest.mark.parametrize("scale", [0, 1, 10, 1000])
def test_each_sweep_raises_a_lower_bound(scale: float) -> None:
    graph, theta = three_oracles(), scores(scale)
    exact = si.log_partition(theta, graph)
    values = [si.infer(theta, graph, MF, max_iter=k, on_failure="ignore").value for k in (1, 2, 3, 4, 6, 9)]
    found = si.infer(theta, graph, MF, starts=3, on_failure="raise")
    rounding = 1e-14 * (1 + exact.abs())
    for low, high in zip([*values, found.value], [*values[1:], found.value, exact], strict=True):
        assert (low <= high + rounding).all()
    assert found.mean[0].isfinite().all()
    assert (found.mean[0][:, :6].view(4, 3, 2).sum(2) - 1).abs().max() < 1e-12
    for b in range(4):
        alone = si.infer(tuple(t[b % len(t)] for t in theta), graph, MF, starts=3)
        assert_parts_close(tuple(t[b] for t in found.mean), alone.mean, 1e-12)
        torch.testing.assert_close(found.value[b], alone.value)


def test_exact_for_independent_blocks() -> None:
    graph, theta = three_oracles(), scores()
    theta = *theta[:2], *[torch.zeros_like(t) for t in theta[2:]]
    found = si.infer(theta, graph, MF)
    torch.testing.assert_close(found.value, si.log_partition(theta, graph))
    assert_parts_close(found.mean, si.relax(theta, graph, "marginals"))
    tree = si.FactorGraph((4, 4))
    tree.add("arborescence", tree.variables)
    theta = draw(20, 3, 4, 4)
    assert_parts_close(si.relax(theta, tree, MF), si.relax(theta, "arborescence", "marginals"))
    free = si.FactorGraph(3)
    assert_parts_close(si.relax(theta[:, 0, :3], free, MF), theta[:, 0, :3].sigmoid())


@pytest.mark.parametrize("result", ["value", "mean"])
def test_gradients(result: str) -> None:
    leaves = [t.requires_grad_() for t in scores(batch=2)]
    options = {"temperature": 0.8, "tolerance": 1e-13}
    f = lambda *t: getattr(si.infer(t, three_oracles(), MF, **options), result)  # noqa: E731
    assert torch.autograd.gradcheck(f, leaves, fast_mode=True)
    found = si.infer(leaves, three_oracles(), MF)
    gradients = torch.autograd.grad(found.value.sum(), leaves)
    means = [m.sum(0, keepdim=True) if len(t) == 1 else m for t, m in zip(leaves, found.mean, strict=True)]
    assert_parts_close(gradients, tuple(means))


def test_equals_independent_variables_without_oracles() -> None:
    graph = si.FactorGraph(4)
    edges = [(0, 1), (1, 2), (2, 3), (3, 0)]
    for edge in edges:
        graph.add("pair", edge)
    field = si.get_oracle("markov_field", cardinalities=(2,) * 4, factors=[*((v,) for v in range(4)), *edges])
    bits, tables = draw(30, 3, 4), [2 * draw(31 + k, 3, 2, 2) for k in range(4)]
    singles = [torch.stack([torch.zeros(3, dtype=DOUBLE), x], 1) for x in bits.unbind(1)]
    for starts in (1, 3):
        own = si.infer((bits, *tables), graph, MF, starts=starts)
        other = si.infer((*singles, *tables), field, MF, starts=starts)
        torch.testing.assert_close(own.value, other.value)
        assert_parts_close(own.mean[1:], other.mean[4:], 1e-8)


def test_more_starts_find_a_higher_bound() -> None:
    graph = si.FactorGraph(4)
    graph.add("xor", [0, 1])
    graph.add("xor", [2, 3])
    graph.add("pair", [0, 2])
    theta = torch.tensor([0.3, 0, 0.3, 0], dtype=DOUBLE), torch.tensor([[9.0, 0], [0, 8]], dtype=DOUBLE)
    values = torch.stack([si.infer(theta, graph, MF, starts=n).value for n in (1, 2, 3)])
    assert values.diff().min() >= 0
    assert values[-1] > values[0] + 0.1
    assert values[-1] <= si.log_partition(theta, graph)


def test_scores_of_minus_infinity() -> None:
    graph, theta = three_oracles(), [t.expand(4, *t.shape[1:]).clone() for t in scores()]
    theta[0][0, [1, 7, 10, 12]] = -torch.inf  # the part of variable 7 is 1 minus the variable
    theta[1][1, 0, 1] = -torch.inf
    theta[2][2, 0, 0] = -torch.inf
    theta[3][2, :, 0, 1] = -torch.inf
    theta[5][3] = torch.tensor([[-torch.inf, 0], [0, -torch.inf]])  # variables 12 and 13 differ
    theta = tuple(t.requires_grad_() for t in theta)
    found = si.infer(theta, graph, MF, on_failure="raise")
    for t, m in zip(theta, found.mean, strict=True):
        assert not m[t.isneginf()].any()
    assert (found.value <= si.log_partition(theta, graph) + 1e-12).all()
    assert found.mean[0][3, 12:].sum() == 1
    torch.autograd.grad(found.mean[0].square().sum(), theta)
    # Both pairs decide their variables, and all of the bound is the best score.
    tight = si.FactorGraph(4)
    tight.add("xor", [0, 1])
    tight.add("xor", [2, 3])
    tight.add("pair", [0, 2])
    ties = torch.zeros(4, dtype=DOUBLE), torch.tensor([[-torch.inf, 0], [0, -torch.inf]], dtype=DOUBLE)
    found = si.infer(ties, tight, MF)
    assert found.value == 0
    assert found.mean[0].sum() == 2
    with pytest.raises(si.InfeasibleError, match="batch index 1"):
        si.relax(
            (torch.stack([ties[0], torch.tensor([0, 0, -torch.inf, -torch.inf], dtype=DOUBLE)]), ties[1]), tight, MF
        )


def test_lengths_and_losses() -> None:
    graph = si.FactorGraph((2, 4, 2))
    shorter = si.FactorGraph((2, 2, 2))
    for one, data in ((graph, ["lengths"]), (shorter, [])):
        for c in range(2):
            one.add("chain", one.variables[c], additional=[(2, 2)], instance_data=data)
        for t in range(one.shape[1]):
            one.add("pair", one.variables[:, t, 0])
    theta = draw(40, 3, 2, 4, 2), draw(41, 2, 2), draw(42, 3, 2, 2), *[draw(43 + t, 3, 2, 2) for t in range(4)]
    lengths = torch.tensor([4, 2, 1])
    found = si.infer(theta, graph, MF, lengths=lengths)
    assert_parts_close(found.mean[0].sum((1, 2, 3)), 2 * lengths.double())
    part = si.infer((theta[0][1, :, :2], theta[1], *(t[1] for t in theta[2:5])), shorter, MF)
    rest = sum(t[1, 0, 0] for t in theta[5:])
    torch.testing.assert_close(found.value[1], part.value + rest)
    assert_parts_close(found.mean[0][1, :, :2], part.mean[0], 1e-9)
    gold = si.relax(theta, graph, "map", lengths=lengths)
    leaf = theta[0].clone().requires_grad_()
    full = *theta[:1], theta[1].expand(3, 2, 2), *theta[2:]
    scored = graph.score(full, gold)
    losses = si.FenchelYoungLoss(graph, MF, reduction="none")((leaf, *theta[1:]), gold, lengths=lengths)
    torch.testing.assert_close(losses, found.value - scored)
    losses.sum().backward()
    assert_parts_close(leaf.grad, found.mean[0] - gold[0])


def test_inputs() -> None:
    graph, theta = three_oracles(), scores()
    empty = tuple(t[:0].requires_grad_() for t in theta)
    sum(m.sum() for m in si.relax(empty, graph, MF)).backward()
    assert empty[0].grad.shape == (0, 14)
    single = si.relax(map_parts(Tensor.float, theta), graph, MF)
    assert single[0].dtype == torch.float32
    assert_parts_close(map_parts(Tensor.double, single), si.relax(theta, graph, MF), 1e-5)
    with pytest.warns(si.ConvergenceWarning, match="missed the tolerance 1e-10 within 1 iterations"):
        found = si.infer(tuple(t.requires_grad_() for t in theta), graph, MF, max_iter=1)
    with pytest.raises(si.ConvergenceError, match=r"no gradient of the mean at batch index 0.*distributions"):
        found.mean[0].sum().backward()


def test_unsupported_graphs() -> None:
    for factors, reason in [
        ([("xor", [0, 1]), ("budget", [1, 2])], r"factor 0, xor .* and factor 1, budget .*, share variable 1"),
        ([("xor", [0, 1, 2]), ("pair", [0, 2])], r"factor 1, pair .* joins the variables 0 and 2 of factor 0, xor"),
        ([("or", [0, 0])], "factor 0, or .* has variable 0 more than once"),
        ([("pair", [1, 1])], "factor 0, pair .* has variable 1 more than once"),
        ([("matching", [[0, 1], [2, 3]])], r"matching.* has no log_partition; lp_map"),
    ]:
        graph = si.FactorGraph(4)
        for name, variables in factors:
            graph.add(name, variables, **({"k": 1} if name == "budget" else {}))
        with pytest.raises(si.UnsupportedError, match=reason):
            si.Layer(graph, MF)


def random_graph(seed: int) -> tuple[si.FactorGraph, tuple[tuple[int, ...], ...]]:
    """Return disjoint oracles over seven variables, joined by tables, and the event shapes of the scores."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(7, generator=generator)
    flips = torch.rand(7, generator=generator) < 0.3
    graph, shapes = si.FactorGraph(7), [(7,)]
    if seed % 2:
        graph.add("chain", order[:4].view(2, 2), additional=[(2, 2)])
        shapes.append((2, 2))
    else:
        graph.add("arborescence", order[:4].view(2, 2))
    graph.add(["or", "imply", "at_most_one"][seed % 3], order[4:6], negated=flips[4:6])
    for variables in (order[[0, 4]], order[[3, 5, 6]]):
        graph.add("table", variables, negated=flips[: len(variables)])
        shapes.append((2,) * len(variables))
    return graph, tuple(shapes)


RESIDUAL = si.get_relaxation("belief_propagation", schedule="residual")


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("relaxation", [MF, RESIDUAL], ids=["mean_field", "residual"])
def test_random_graphs_conform(relaxation: Any, seed: int, conformance_dtypes: Any) -> None:
    graph, shapes = random_graph(seed)
    check_relaxation(relaxation, graph, shapes, dtypes=conformance_dtypes)
