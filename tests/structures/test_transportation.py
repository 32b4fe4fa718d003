"""Transport plans: values against scipy, margins, and the pairs that assignments can make."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import enumerators
import enumerators_flows
import structinf
from structinf import InfeasibleError, InvalidInputError, Oracle, PluginError, TransportPolytope
from structinf.testing import check_oracle

SOLVERS = pytest.mark.parametrize("solver", ["simplex", "ortools"])


def transportation(supplies, demands, **options) -> Oracle:
    return structinf.get_oracle("transportation", supplies=supplies, demands=demands, **options)


def best_value(scores: np.ndarray, supplies: np.ndarray, demands: np.ndarray) -> float:
    """That of the linear program in which the side with the larger sum has bounds."""
    n, m = scores.shape
    rows, columns = np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))
    sides = [(rows, supplies), (columns, demands)]
    larger = int(demands.sum() > supplies.sum())
    equal = sides if demands.sum() == supplies.sum() else [sides[1 - larger]]
    bounds = [(0, 0 if s == -np.inf else None) for s in scores.ravel()]
    result = linprog(
        -np.where(scores == -np.inf, 0, scores).ravel(),
        A_ub=sides[larger][0],
        b_ub=sides[larger][1],
        A_eq=np.concatenate([matrix for matrix, _ in equal]),
        b_eq=np.concatenate([sums for _, sums in equal]),
        bounds=bounds,
        method="highs",
    )
    return -result.fun if result.success else -math.inf


def draw(kind: str, *shape: int) -> Tensor:
    theta = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if kind == "forbidden":
        return theta.masked_fill(theta < -1, -math.inf)
    return theta.round() if kind == "ties" else theta


@SOLVERS
@pytest.mark.parametrize("kind", ["normal", "ties", "forbidden"])
@pytest.mark.parametrize(("n", "m", "more"), [(1, 1, 0), (2, 5, 3), (6, 4, -2), (8, 8, 0), (20, 30, 15)])
def test_best_plans_are_those_of_linear_programs(n: int, m: int, more: int, kind: str, solver: str) -> None:
    rng = np.random.default_rng(n)
    supplies = rng.multinomial(4 * n, np.full(n, 1 / n))
    demands = rng.multinomial(4 * n + more, np.full(m, 1 / m))
    theta = draw(kind, 5, n, m)
    best = [best_value(scores, supplies, demands) for scores in theta.numpy()]
    oracle = transportation(supplies, demands, solver=solver)
    if -math.inf in best:
        with pytest.raises(InfeasibleError, match=f"batch index {best.index(-math.inf)}"):
            oracle.argmax(theta)
        return
    y = oracle.argmax(theta)
    for sums, given, larger in ((y.sum(2), supplies, more < 0), (y.sum(1), demands, more > 0)):
        given = torch.from_numpy(given)
        assert (sums <= given).all() if larger else (sums == given).all()
    assert ((y >= 0) & (y == y.round())).all()
    np.testing.assert_allclose(oracle.score(theta, y), best, rtol=1e-9, atol=1e-9)


def test_sums_of_1_are_assignments() -> None:
    theta = torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(1))
    assert transportation([1] * 4, [1] * 6).argmax(theta).equal(structinf.relax(theta, "assignment", "map"))


def test_zeros_and_empty_sides() -> None:
    assert transportation([0, 2], [1, 0, 1]).argmax(torch.ones(1, 2, 3)).tolist() == [[[0, 0, 0], [1, 0, 1]]]
    assert transportation([0], [0]).argmax(torch.ones(2, 1, 1)).tolist() == [[[0]]] * 2
    assert transportation([], [1, 2]).argmax(torch.ones(2, 0, 2)).shape == (2, 0, 2)
    assert transportation([], []).enumerate((0, 0)).shape == (1, 0, 0)
    assert transportation([2], [1, 2]).argmax(torch.zeros(0, 1, 2)).shape == (0, 1, 2)


def test_margins() -> None:
    rows, columns, total = transportation([3, 1], [2, 1, 1]).margins(torch.zeros(5, 2, 3))
    assert rows.tolist() == [[3, 1]]
    assert columns.tolist() == [[2, 1, 1]]
    assert total is None
    assert rows.dtype == columns.dtype == torch.float64


def test_one_unit_of_a_million_is_no_rounding() -> None:
    """Not even in float32: the demands are met, and a unit stays behind."""
    oracle = transportation([500_001, 500_000], [400_000, 300_000, 300_000])
    plan = structinf.relax(torch.zeros(2, 3), oracle, "sinkhorn")
    assert plan.dtype == torch.float32
    torch.testing.assert_close(plan.sum(0), torch.tensor([4e5, 3e5, 3e5]), atol=0.1, rtol=0)


def test_sparsemap_mixes_few_plans_with_units_above_1() -> None:
    theta = torch.tensor([[[2.0, 0.5, 1.0], [0.3, 1.0, 0.7]]], dtype=torch.float64)
    oracle = transportation([5, 4], [3, 3, 3])
    solution = structinf.infer(theta, oracle, "sparsemap", tolerance=0)
    (expected,) = enumerators.projection((theta[0].numpy(),), list(enumerators_flows.plans([5, 4], [3, 3, 3])))
    np.testing.assert_allclose(solution.mean[0], expected, atol=1e-6)
    assert solution.converged.all()
    assert solution.support.max() > 1


@pytest.mark.parametrize(
    ("supplies", "demands", "message"),
    [
        ([1, -1], [0], "supplies must be integers of at least 0.*got -1 at index 1"),
        ([1], [0.5, 0.5], "demands must be integers of at least 0.*got 0.5 at index 0"),
        (np.array([1.0]), [1], "supplies must be integers"),
    ],
)
def test_margins_that_are_refused(supplies, demands, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        transportation(supplies, demands)


def test_scores_of_another_size_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"must have shape \(2, 3\) .*, got \(3, 2\)"):
        structinf.relax(torch.zeros(3, 2), transportation([1, 1], [1, 1, 1]), "map")


def test_labels() -> None:
    oracle, like = transportation([3, 1], [2, 3]), torch.zeros(1, 2, 2, dtype=torch.float64)
    labels = torch.tensor([[[2, 1], [0, 1]]])
    assert oracle.encode(labels, like).equal(labels.double())
    assert oracle.decode(labels.double()).equal(labels)
    for wrong, message in (
        ([[3, 0], [0, 1]], "between 0 and the capacities"),
        ([[1, 1], [0, 1]], r"the row sums must be \(3, 1\) at batch index 0"),
        ([[2, 1], [1, 0]], r"the column sums must be at most \(2, 3\)"),
        ([[2, 1]], r"\(..., 2, 2\)"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            oracle.encode(torch.tensor([wrong]), like)


# ----------------------------------------------------------------------------- assignments as transport


def test_margins_of_assignments() -> None:
    oracle = structinf.get_oracle("assignment")
    rows, columns, total = oracle.margins(torch.zeros(4, 2, 3))
    assert rows.tolist() == [[1, 1]]
    assert columns.tolist() == [[1, 1, 1]]
    assert total is None
    rows, columns, total = oracle.bind(lengths=torch.tensor([[2, 3], [1, 2], [0, 1]])).margins(torch.zeros(3, 2, 3))
    assert rows.tolist() == [[1, 1], [1, 0], [0, 0]]
    assert columns.tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert total is None


def test_the_total_of_assignments_is_the_number_of_pairs_that_can_be_made() -> None:
    oracle = structinf.get_oracle("assignment", allow_unmatched=True)
    theta = torch.zeros(3, 2, 3, dtype=torch.float64)
    assert oracle.margins(theta)[2] is None
    theta[0, :, 1:] = -math.inf
    theta[2] = -math.inf
    total = oracle.margins(theta)[2]
    assert total is not None
    assert total.tolist() == [1, 2, 0]
    assert total.dtype == torch.float64


def test_a_plugin_whose_structures_leave_its_margins_fails_a_check() -> None:
    class Loose(type(structinf.get_oracle("assignment"))):
        def margins(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            rows, columns, total = super().margins(theta)
            return rows, 2 * columns, total

    with pytest.raises(structinf.testing.CheckError, match="The sums of structures equal the margins"):
        check_oracle(Loose(), (2, 2))


@pytest.mark.parametrize(
    ("margins", "message"),
    [
        ((torch.ones(1, 2), torch.ones(1, 3), None), r"columns must be a tensor of shape \(2 or 1, 4\) .* got"),
        ((torch.ones(1, 2), torch.ones(4), None), r"got shape \(4,\)"),
        ((torch.ones(3, 2), torch.ones(1, 4), None), r"sums of the rows .* got shape \(3, 2\)"),
        (((1.0, 1.0), torch.ones(1, 4), None), "got a tuple"),
        ((torch.ones(1, 2), torch.tensor([[1.0, -1, 1, 1]]), None), "at least 0, got -1 at batch index 0, position 1"),
        ((torch.ones(1, 2), torch.ones(1, 4), torch.ones(1)), r"the total must have shape \(2,\)"),
    ],
)
def test_margins_of_a_plugin_are_checked(margins, message: str) -> None:
    class Wrong(TransportPolytope):
        event_ndim = 2

        def argmax(self, theta: Tensor) -> Tensor:
            raise AssertionError

        def margins(self, theta: Tensor) -> Any:
            return margins

    with pytest.raises(PluginError, match=message):
        structinf.relax(torch.zeros(2, 2, 4), Wrong(), "sinkhorn")


def test_best_plans_for_the_supplies_and_demands_of_each_instance():
    theta = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    supplies, demands = [[1, 2], [3, 1], [2, 2], [1, 2]], [[1, 1, 1], [2, 1, 0], [1, 1, 1], [1, 1, 1]]
    found = structinf.topk(theta, "transportation", 5, supplies=supplies, demands=demands)
    for b, (supply, demand) in enumerate(zip(supplies, demands, strict=True)):
        alone = structinf.topk(theta[b], structinf.get_oracle("transportation", supplies=supply, demands=demand), 5)
        assert all(torch.equal(a[:, b], c) for a, c in zip(found, alone, strict=True))
    assert structinf.topk(
        theta[:0], "transportation", 2, supplies=[1, 1], demands=torch.zeros(0, 3).long()
    ).valid.shape == (2, 0)
