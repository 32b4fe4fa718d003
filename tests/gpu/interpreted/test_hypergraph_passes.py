"""The passes over hypergraphs by Triton kernels, compared with torch operations, compiled loops and plain Python."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from hypergraph_examples import FewOnes, batch
from hypergraph_reference import TWICE, random_hyperedges
from oracle_examples_dynamic_programs import PROGRAMS
from regularizers_by_alpha import FAMILY
from structinf.dp import Hypergraph, program, torch_backend
from structinf.dp.device_tables import DeviceTables, Tile, device_tables
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.kernels.hypergraph import triton_inside, triton_passes
from structinf.parts import as_tuple, map_parts

INF = math.inf
CPU = torch.device("cpu")


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


@contextlib.contextmanager
def compiled_loops() -> Iterator[None]:
    """Let public calls take the compiled loops of the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (si.smoothing, program):
            for name in ("interprets_kernels", "uses_triton"):
                patch.setattr(module, name, lambda *_: False)
        yield


# ----------------------------------------------------------------------------- one graph


def tables_in_steps(graph: Hypergraph) -> DeviceTables:
    """Return tables with small tiles, so that levels and nodes take several steps."""
    tables, tile = device_tables(graph, CPU), Tile(2, 2, False, 1)
    return tables._replace(
        by_head=tables.by_head._replace(tile=tile),
        by_tail=tables.by_tail._replace(tile=tile),
        by_part=tables.by_part._replace(tile=tile),
    )


@pytest.mark.parametrize(
    ("alpha", "lists", "scale", "in_steps"),
    [
        (1, random_hyperedges(2), 1e3, True),
        (1.5, TWICE, 1e3, False),
        (2, random_hyperedges(1), 1.0, True),
        pytest.param(2, TWICE, 1.0, True, marks=pytest.mark.full),
    ],
)
def test_smoothed_passes(alpha: float, lists: Any, scale: float, in_steps: bool) -> None:
    given = batch(lists, 1 if in_steps else 2, scale)
    graph, theta, goal = given.oracle._graph_parts_goals(given.theta)
    tables = tables_in_steps(graph) if in_steps else device_tables(graph, CPU)
    direction, weight, omega = torch.randn_like(theta), torch.tensor([-2.0, 0.5])[: len(theta)], FAMILY[alpha]
    value, mean = torch_backend.value_and_mean(graph, theta, goal, omega)
    _, product = torch_backend.hessian_product(graph, theta, direction, goal, omega)
    close(triton_passes.value(tables, theta, goal, alpha), value)
    found, weighted = triton_passes.value_and_mean(tables, theta, goal, alpha, weight)
    close(found, value)
    close(weighted, mean * weight[:, None], 1e-12 * scale)
    found, curved = triton_passes.hessian_product(tables, theta, direction, goal, alpha)
    close(found, value)
    close(curved, product, 1e-12 * scale)


@pytest.mark.parametrize("in_steps", [False, True])
def test_ties_go_to_the_hyperedge_added_first(in_steps: bool) -> None:
    given = batch(random_hyperedges(4), 3, kind="ties")
    graph, theta, goal = given.oracle._graph_parts_goals(given.theta)
    tables = tables_in_steps(graph) if in_steps else device_tables(graph, CPU)
    value, mean = triton_passes.value_and_mean(tables, theta.float(), goal, INF)
    expected = given.each(INF)
    assert value.tolist() == [at.v[goal] for at, goal in expected]
    assert mean.tolist() == [at.mean(goal) for at, goal in expected]


def test_wide_levels_take_launches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given = batch(random_hyperedges(1), 2)
    graph, theta, goal = given.oracle._graph_parts_goals(given.theta)
    tables = tables_in_steps(graph)
    whole = triton_passes.value_and_mean(tables, theta, goal, 1)
    monkeypatch.setattr(triton_inside, "_WIDE", 3)
    runs = list(triton_inside.runs(tables, 2, 2))
    assert max(blocks for _, _, blocks in runs) > 1
    assert [i for first, last, _ in runs for i in range(first, last)] == list(range(len(tables.widths)))
    split = triton_passes.value_and_mean(tables, theta, goal, 1)
    assert all(torch.equal(a, b) for a, b in zip(split, whole, strict=True))


def test_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    for module in (triton_inside, triton_passes):
        monkeypatch.setattr(module, "launch", lambda kernel, *_, **__: launched.append(kernel))
    graph, theta, goal = batch(TWICE, 2).oracle._graph_parts_goals(torch.zeros(2, TWICE.parts))
    tables, counts = device_tables(graph, CPU), []
    for compute in (
        lambda: triton_passes.value(tables, theta, goal, 1),
        lambda: triton_passes.value_and_mean(tables, theta, goal, INF),
        lambda: triton_passes.hessian_product(tables, theta, theta, goal, 2),
        lambda: triton_passes.used_parts(tables, goal),
    ):
        compute()
        counts.append(len(launched))
        launched.clear()
    assert counts == [1, 3, 3, 2]


def test_no_goal_and_no_instances() -> None:
    given = batch(TWICE, 2)
    graph, theta, goal = given.oracle._graph_parts_goals(given.theta)
    tables = device_tables(graph, CPU)
    goal[0] = -1
    value, mean = triton_passes.value_and_mean(tables, theta, goal, 1)
    assert value[0] == -INF
    assert value[1] > -INF
    assert not mean[0].any()
    assert mean[1].any()
    assert torch_backend.value(graph, theta, goal, FAMILY[1])[0] == -INF
    _, none = triton_passes.hessian_product(tables, theta[:0], theta[:0], goal[:0], 1)
    assert none.shape == (0, graph.parts)


# ----------------------------------------------------------------------------- built-in structures

STRUCTURES = (
    "semi_markov", "needleman_wunsch", "monotonic_alignment", "binary_tree", "projective_tree", "subset", "knapsack",
    "correlated_subset", "dag_path", "grid_path",
)  # fmt: skip
SAMPLE = {"semi_markov", "subset"}
"""Without --full, one in float32 and one in float64."""


@pytest.mark.parametrize(
    ("place", "name"),
    [pytest.param(i, name, marks=() if name in SAMPLE else pytest.mark.full) for i, name in enumerate(STRUCTURES)],
)
def test_structures(place: int, name: str) -> None:
    """Values, gradients and Hessian products of relaxations, with lengths and a forbidden part."""
    example = min((e for e in PROGRAMS if e.name == name and e.parts > 1), key=lambda e: e.parts)
    oracle, dtype = example.oracle(), torch.float32 if place % 3 == 2 else torch.float64
    theta = tuple(torch.randn(2, *shape, dtype=dtype) for shape in example.shapes)
    as_form: Any = (lambda t: t) if example.is_tuple else (lambda t: t[0])
    if len(set(example.lengths)) > 1:
        oracle = oracle.bind(lengths=torch.tensor(list(example.lengths)[:2]))
    alpha = (1, 1.5, 2)[place % 3]
    theta[0].view(-1)[-1] = 1e3 if dtype is torch.float64 else 10

    def compute() -> list[Tensor]:
        value, mean = oracle.smoothed_value_and_mean(as_form(theta), FAMILY[alpha])
        flat = [value, *as_tuple(mean), *as_tuple(oracle.argmax(as_form(theta)))]
        if place % 4 == 1:
            flat += as_tuple(oracle.smoothed_hessian_product(as_form(theta), as_form(theta), FAMILY[alpha]))
        return flat

    with compiled_loops():
        expected = compute()
    for found, cpu in zip(compute(), expected, strict=True):
        assert found.dtype is dtype
        close(found, cpu, 1e-10 if dtype is torch.float64 else 3e-5)


# ----------------------------------------------------------------------------- a program of a user


@pytest.mark.parametrize(
    ("relaxation", "options"),
    [
        pytest.param("marginals", {}, marks=pytest.mark.full),
        pytest.param("map", {}, marks=pytest.mark.full),
        pytest.param("smoothed", {"regularizer": "tsallis"}, marks=pytest.mark.full),
        ("smoothed", {"regularizer": "squared_l2", "temperature": 0.5}),
    ],
)
def test_relaxations(relaxation: str, options: dict[str, Any]) -> None:
    theta = torch.randn(4, 2, dtype=torch.float64).T  # not contiguous
    with compiled_loops():
        expected = si.relax(theta, FewOnes(2), relaxation, lengths=[4, 2], **options)
    close(si.relax(theta, FewOnes(2), relaxation, lengths=[4, 2], **options), expected)


@pytest.mark.full
def test_derivatives_of_a_loss() -> None:
    theta = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1.0, 0], [0, 1]], dtype=torch.float64)

    def differentiate() -> tuple[Tensor, ...]:
        value = si.FenchelYoungLoss(FewOnes(2), "marginals", reduction="sum")(theta, y)
        (gradient,) = torch.autograd.grad(value, theta, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), theta, create_graph=True)
        (third,) = torch.autograd.grad(second.square().sum(), theta)  # by torch operations
        return value, gradient, second, third

    found = differentiate()
    with compiled_loops():
        expected = differentiate()
    for a, b in zip(found, expected, strict=True):
        close(a, b)


@pytest.mark.parametrize("alpha", [1, pytest.param(1.5, marks=pytest.mark.full), INF])
def test_samples_are_those_of_the_compiled_loops(alpha: float) -> None:
    oracle = si.get_oracle("projective_tree").bind(lengths=torch.tensor([2, 3]))
    theta = torch.randn(2, 4, 4, dtype=torch.float64)
    samples = []
    for context in (contextlib.nullcontext(), compiled_loops()):
        with context:
            samples.append(oracle.smoothed_sample(theta, 9, FAMILY[alpha], torch.Generator().manual_seed(5)))
    assert torch.equal(*samples)


def test_lengths() -> None:
    oracle, theta = FewOnes(1), torch.randn(2, 3, dtype=torch.float64)
    for wrong in (-1, 4, 1 << 40):
        with pytest.raises(InvalidInputError, match=f"FewOnes has no structure of lengths {wrong} at batch index 1"):
            si.relax(theta, oracle, "marginals", lengths=[2, wrong])
    with pytest.raises(InfeasibleError, match="batch index 1"):
        si.relax(torch.tensor([[0.0, 0], [0, -INF]]), si.get_oracle("subset", k=2), "map")
    mask = oracle.bind(lengths=torch.tensor([0, 2])).valid_parts(theta)
    assert torch.equal(mask, torch.arange(3) < torch.tensor([[0], [2]]))
    assert map_parts(lambda t: t.shape, oracle.bind(lengths=torch.zeros(0).long()).argmax(theta[:0])) == (0, 3)


@pytest.mark.parametrize("name", ["chain", "projective_tree", pytest.param("dtw", marks=pytest.mark.full)])
def test_log_probabilities(name: str) -> None:
    example = min((e for e in PROGRAMS if e.name == name and e.parts > 1), key=lambda e: e.parts)
    oracle, theta = example.oracle(), map_parts(lambda t: t.double(), example.draw(2, torch.float64))
    structures = si.sample(theta, oracle, 3, generator=torch.Generator().manual_seed(0))
    leaves = map_parts(lambda t: t.clone().requires_grad_(), theta)

    def compute() -> list[Tensor]:
        value = si.log_prob(leaves, structures, oracle, temperature=0.5)
        return [value, *torch.autograd.grad(value.square().sum(), as_tuple(leaves))]

    found = [*compute(), si.log_prob(theta, structures, oracle, temperature=0.5)]
    with compiled_loops():
        expected = [*compute(), si.log_prob(theta, structures, oracle, temperature=0.5)]
    for a, b in zip(found, expected, strict=True):
        close(a, b, 1e-10)
    none = map_parts(torch.zeros_like, theta)
    with pytest.raises(InvalidInputError, match="y is not a structure of"):
        si.log_prob(theta, none, oracle)
    forbidden = map_parts(lambda t, y: torch.where(y[0] > 0, -INF, t), theta, structures)
    forbidden = map_parts(lambda t, s: torch.cat([t[:1], s[1:]]), theta, forbidden)
    with contextlib.suppress(InfeasibleError):
        assert si.log_prob(forbidden, map_parts(lambda y: y[0], structures), oracle)[1] == -INF
