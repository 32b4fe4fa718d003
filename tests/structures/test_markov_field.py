"""Graphical models: known values, elimination orders, readers, and bad options."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
from dataclasses import dataclass
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.testing import CheckError, check_oracle, list_oracle_checks
from structinf.testing.cases import CheckTarget
from structinf.testing.check import run_checks
from structinf_oracles.common.elimination_order import min_fill_order
from structinf_oracles.markov_field import MarkovField


def ising(edges: list[tuple[int, int]], fields: list[float], coupling: float) -> tuple[MarkovField, tuple[Tensor, ...]]:
    """Binary variables with the score ``fields`` of the value 1, and ``coupling`` for equal neighbours."""
    n = len(fields)
    unary = [torch.tensor([0.0, u], dtype=torch.float64) for u in fields]
    pair = coupling * torch.eye(2, dtype=torch.float64)
    return MarkovField((2,) * n, [(v,) for v in range(n)] + edges), (*unary, *[pair] * len(edges))


def grid(rows: int, columns: int) -> list[tuple[int, int]]:
    right = [(columns * i + j, columns * i + j + 1) for i in range(rows) for j in range(columns - 1)]
    return right + [(columns * i + j, columns * (i + 1) + j) for i in range(rows - 1) for j in range(columns)]


# ----------------------------------------------------------------------------- known values


def test_two_by_three_grid() -> None:
    field, theta = ising(grid(2, 3), [0.1, -0.2, 0.3, 0, 0.25, -0.15], 0.5)
    assert field.width == 2
    assert float(si.log_partition(theta, field)) == pytest.approx(6.301286, abs=1e-6)
    marginals = [float(m[1]) for m in si.relax(theta, field, "marginals")[:6]]
    assert marginals == pytest.approx([0.523237, 0.488177, 0.561412, 0.517206, 0.551229, 0.492986], abs=1e-6)
    assert field.decode(tuple(y[None] for y in si.relax(theta, field, "map"))).tolist() == [[1] * 6]
    assert float(si.entropy(theta, field)) == pytest.approx(3.913673, abs=1e-6)
    _, scores, valid = field.topk(tuple(t[None] for t in theta), 3)
    assert scores[:, 0].tolist() == pytest.approx([3.8, 3.5, 2.95])
    assert valid.all()


def test_frustrated_triangle() -> None:
    field, theta = ising([(0, 1), (1, 2), (0, 2)], [0.2, -0.1, 0.05], -1.0)
    assert float(si.log_partition(theta, field)) == pytest.approx(0.918467, abs=1e-6)
    marginals = [float(m[1]) for m in si.relax(theta, field, "marginals")[:3]]
    assert marginals == pytest.approx([0.553239, 0.457892, 0.505654], abs=1e-6)
    y = field.argmax(tuple(t[None] for t in theta))
    assert field.decode(y).tolist() == [[1, 0, 1]]
    assert float(field.score(tuple(t[None] for t in theta), y)) == pytest.approx(-0.75)


def test_sparsemap_that_penalises_the_values_of_variables() -> None:
    field, theta = ising([(0, 1), (1, 2), (0, 2)], [1.2, -0.1, 0.05], -0.4)
    mean = si.relax(theta, field, "sparsemap", penalty="readout", tolerance=0)
    assert [float(m[1]) for m in mean[:3]] == pytest.approx([1, 0.45, 0.525], abs=1e-9)
    mean = si.relax(theta, field, "sparsemap", penalty="readout", temperature=0.25, tolerance=0)
    assert [float(m[1]) for m in mean[:3]] == pytest.approx([1, 0.3, 0.6], abs=1e-9)


# ----------------------------------------------------------------------------- random models


def draw_model(seed: int) -> tuple[list[int], list[tuple[int, ...]]]:
    """Cardinalities and factors of a model of up to five variables; factors may repeat and may join three variables."""
    draw = random.Random(seed)
    n = draw.randint(1, 5)
    cardinalities = [draw.randint(1, 3) for _ in range(n)]
    factors = [tuple(draw.sample(range(n), draw.randint(1, min(3, n)))) for _ in range(draw.randint(0, 6))]
    factors += [(v,) for v in range(n) if not any(v in factor for factor in factors) or draw.random() < 0.3]
    draw.shuffle(factors)
    return cardinalities, factors


@pytest.mark.parametrize("seed", range(12))
def test_any_order_gives_the_sums_over_all_assignments(seed: int) -> None:
    cardinalities, factors = draw_model(seed)
    generator = torch.Generator().manual_seed(seed)
    shapes = [[cardinalities[v] for v in factor] for factor in factors]
    theta = tuple(torch.randn(2, *shape, dtype=torch.float64, generator=generator) for shape in shapes)
    assignments = list(itertools.product(*map(range, cardinalities)))

    def score_of(values: tuple[int, ...]) -> Tensor:
        entries = [t[(slice(None), *(values[v] for v in f))] for t, f in zip(theta, factors, strict=True)]
        return torch.stack(entries).sum(0)

    scores = torch.stack([score_of(values) for values in assignments], 1)
    orders = [
        None,
        range(len(cardinalities)),
        random.Random(seed).sample(range(len(cardinalities)), len(cardinalities)),
    ]
    for order in orders:
        field = MarkovField(cardinalities, factors, order)
        torch.testing.assert_close(field.log_partition(theta), scores.logsumexp(1))
        assert field.count(theta) == [len(assignments)] * 2
        best = field.argmax(theta)
        assert [tuple(labels) for labels in field.decode(best).tolist()] == [assignments[i] for i in scores.argmax(1)]
        for found, expected in zip(field.encode(field.decode(best), theta), best, strict=True):
            assert torch.equal(found, expected)


def test_models_without_a_common_variable_are_independent() -> None:
    field = MarkovField((2, 3, 2), [(0,), (1,), (2,)])
    theta = tuple(torch.randn(4, c, dtype=torch.float64) for c in (2, 3, 2))
    torch.testing.assert_close(field.log_partition(theta), sum(t.logsumexp(1) for t in theta))


def test_one_factor_takes_a_tuple_of_one_table() -> None:
    mean = si.relax((torch.zeros(2, 3),), "markov_field", "marginals", cardinalities=(2, 3), factors=[(0, 1)])
    torch.testing.assert_close(mean[0], torch.full((2, 3), 1 / 6))


def test_a_chain_is_eliminated_from_its_ends() -> None:
    assert min_fill_order(5, [(v, v + 1) for v in range(4)])[0] in (0, 4)
    assert MarkovField((3,) * 50, [(v, v + 1) for v in range(49)]).width == 1
    assert MarkovField((2,) * 128, grid(32, 4)).width == 4
    assert MarkovField((2,) * 6, [(0, v) for v in range(1, 6)]).width == 1


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (((2, 2, 3), ((0,), (0, 1), (2, 1))), r"theta\[2\] has shape .*, factorization expects \(3, 2\)"),
        (((2, 2, 3), ((0,), (0, 1))), "factorization has 2 factors for 3 tables"),
        (((2, 2, 2, 3), ((0,), (1, 2), (2, 3))), "there are 12 structures for 24 assignments"),
        (((2, 2, 3), ((0,), (1, 0), (1, 2))), "gives variable 0 another value in table 1"),
    ],
)
def test_a_wrong_factorization_is_caught(found: Any, message: str) -> None:
    class Wrong(MarkovField):
        def factorization(self) -> Any:
            return found

    field = Wrong((2, 2, 3), [(0,), (0, 1), (1, 2)])
    checks = [check for check in list_oracle_checks() if check.name == "factorization"]
    target = CheckTarget.make(field, ((2,), (2, 2), (2, 3)), None)
    with pytest.raises(CheckError, match=message):
        run_checks(checks, target, raise_on_failure=True, on_result=None)


# ----------------------------------------------------------------------------- readers

UAI = """MARKOV
3
2 2 3
2
2 0 1
2 1 2
4
 1.0 2.0
 0.0 4.0
6
 1 1 2
 0.5 0.5 3
"""


def test_uai_format() -> None:
    field, theta = MarkovField.from_uai(UAI)
    assert field == MarkovField((2, 2, 3), ((0, 1), (1, 2)))
    total = np.einsum("ab,bc->", [[1, 2], [0, 4]], [[1, 1, 2], [0.5, 0.5, 3]])
    assert float(si.log_partition(theta, field)) == pytest.approx(np.log(total))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GRAPH", "must begin with MARKOV or BAYES"),
        ("MARKOV\n2\n2", "the cardinality of variable 1"),
        ("MARKOV\n1\n2\n1\n1 4\n2\n1 1", "there are 1"),
        (UAI.replace("6\n", "5\n"), "table 1 must have 6 entries, got 5"),
        (UAI.replace("0.5 3", ""), "table 1 must have 6 numbers"),
    ],
)
def test_wrong_uai_text(text: str, message: str) -> None:
    with pytest.raises(si.InvalidInputError, match=message):
        MarkovField.from_uai(text)


@dataclass
class PgmpyFactor:
    """The attributes of a factor or conditional table of pgmpy that the reader uses."""

    variables: list[str]
    values: Any


@dataclass
class PgmpyNetwork:
    factors: list[PgmpyFactor]

    def get_factors(self) -> list[PgmpyFactor]:
        return self.factors


def test_pgmpy_model() -> None:
    rain = PgmpyFactor(["rain"], np.array([0.8, 0.2]))
    wet = PgmpyFactor(["wet", "rain"], np.array([[0.9, 0.1], [0.1, 0.9]]))
    field, theta, names = MarkovField.from_pgmpy(PgmpyNetwork([rain, wet]))
    assert names == ["rain", "wet"]
    assert field.factors == ((0,), (1, 0))
    wet_given_rain = si.relax(theta, field, "marginals")[1].sum(1)
    assert wet_given_rain.tolist() == pytest.approx([0.74, 0.26])


def test_networkx_graph() -> None:
    field = MarkovField.from_networkx(networkx.grid_2d_graph(2, 3))
    assert field.cardinalities == (2,) * 6
    assert len(field.factors) == 6 + 7
    graph = networkx.Graph([("a", "b")])
    graph.nodes["a"]["size"], graph.nodes["b"]["size"] = 2, 3
    assert MarkovField.from_networkx(graph, "size").cardinalities == (2, 3)
    with pytest.raises(si.InvalidInputError, match="no attribute 'states' at node 'a'"):
        MarkovField.from_networkx(graph, "states")
    with pytest.raises(si.InvalidInputError, match="undirected"):
        MarkovField.from_networkx(networkx.DiGraph(graph))


# ----------------------------------------------------------------------------- bad options and scores


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cardinalities": (2, 0), "factors": [(0, 1)]}, "cardinalities must be .* at least 1, got 0"),
        ({"cardinalities": 3, "factors": [(0,)]}, "cardinalities must be a sequence"),
        ({"cardinalities": (), "factors": []}, "at least one, got none"),
        ({"cardinalities": (2, 2), "factors": [(0, 2)]}, "factor 0 has variable 2, but cardinalities has 2 variables"),
        ({"cardinalities": (2,), "factors": [(1,)]}, "factor 0 has variable 1, but cardinalities has 1 variables"),
        ({"cardinalities": (2, 2), "factors": [(0, 0), (1,)]}, "different variables"),
        ({"cardinalities": (2, 2), "factors": [()]}, "at least one, got none"),
        ({"cardinalities": (2, 2), "factors": "01"}, "factors must be a sequence of tuples"),
        ({"cardinalities": (2, 2), "factors": [(0,)]}, "variable 1 of the 2 in cardinalities belongs to no factor"),
        ({"cardinalities": (2, 2), "factors": [(0, 1)], "order": (0, 0)}, "each of the 2 variables once"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(si.InvalidInputError, match=message):
        MarkovField(**options)


def test_models_that_are_too_wide() -> None:
    field = MarkovField((2,) * 41, list(itertools.combinations(range(41), 2)))
    theta = tuple(torch.zeros(3, 2, 2) for _ in field.factors)
    loaded = pickle.loads(pickle.dumps(field))
    assert loaded == field
    for model in (field, field[:2], copy.deepcopy(field), loaded):
        model.validate(theta)
        with pytest.raises(si.UnsupportedError, match=r"a width of 40.*belief_propagation or mean_field.*FactorGraph"):
            model.log_partition(theta)
    with pytest.raises(si.UnsupportedError, match="a width of 40"):
        si.relax(theta, field, "map")
    with pytest.raises(CheckError, match="a width of 40"):
        check_oracle(field, [t.shape[1:] for t in theta])


def test_a_model_is_made_without_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("structinf_oracles.markov_field.min_fill_order", None)
    field = MarkovField((2,) * 41, list(itertools.combinations(range(41), 2)))
    assert field.event_ndim == (2,) * 820


def test_tables_of_another_shape() -> None:
    with pytest.raises(si.InvalidInputError, match=r"theta\[1\]: .* shape \(2, 3\) for the variables \(0, 1\)"):
        si.relax(
            (torch.zeros(2), torch.zeros(3, 2)), "markov_field", "map", cardinalities=(2, 3), factors=[(0,), (0, 1)]
        )


def test_an_infeasible_model() -> None:
    with pytest.raises(si.InfeasibleError, match="batch index 1"):
        si.relax(
            (torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]]),),
            "markov_field", "marginals", cardinalities=(2,), factors=[(0,)],
        )  # fmt: skip
