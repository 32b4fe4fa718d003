"""What expect() says of estimators that cannot work, and of bad input."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import structinf as si
import toy_oracles
from estimator_enumeration import cost
from structinf.estimators import Exact, WeightedStructures


@pytest.mark.parametrize(
    ("oracle", "estimator", "message"),
    [
        (
            "assignment",
            "score_function",
            "GibbsOracle.*#P-complete.*Supported estimators: exact, perturbed, sparsemap, sp",
        ),
        (toy_oracles.Knapsack(2), "topk_sparsemax", "KBest.*Supported estimators: perturbed, sparsemap"),
        (toy_oracles.Knapsack(2), "sum_and_sample", "GibbsOracle"),
        ("assignment", "sum_and_sample", "GibbsOracle"),
        ("path", "perturbed", "scores of at most 0.*perturbed with default options"),
    ],
)
def test_an_estimator_that_the_oracle_cannot_serve(oracle: Any, estimator: str, message: str):
    options: Any = {"graph": ((0, 1), (1, 2))} if oracle == "path" else {}
    message = message.replace("perturbed with default options", "multiplicative")
    with pytest.raises(si.UnsupportedError, match=message):
        si.expect(cost, torch.zeros(3, 3), oracle, estimator, **options)


@pytest.mark.parametrize(
    ("f", "came"),
    [
        (lambda y: y.sum(), r"got shape \(\) and torch.float32"),
        (lambda y: y, r"got shape \(8, 4\)"),
        (lambda y: y[:, :1], r"got shape \(8, 1\)"),
        (lambda y: y[:, 0].numpy(), "got array"),
        (lambda y: None, "got None"),
        (lambda y: y[:, 0].to(torch.complex64), "got shape .* and torch.complex64"),
    ],
)
def test_f_that_returns_something_else(f: Any, came: str):
    with pytest.raises(si.InvalidInputError, match=r"f gets the 8 structures .* shape \(8,\), .*" + came):
        si.expect(f, torch.zeros(2, 4), "categorical")


@pytest.mark.parametrize("shape", [(), (3,), (2, 4), (4, 3, 1)])
def test_inputs_of_another_batch(shape: tuple[int, ...]):
    with pytest.raises(
        si.InvalidInputError, match=r"inputs\[1\] must have a shape that starts with the batch shape.* \(3, 4\)"
    ):
        si.expect(cost, torch.zeros(3, 4, 5), "categorical", inputs=(torch.zeros(3, 4), torch.zeros(shape)))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("topk_sparsemax", {"k": 0}, "k must be an integer of at least 1, got 0"),
        ("sum_and_sample", {"k": 0}, "k must be an integer of at least 1, got 0"),
        ("sum_and_sample", {"samples": 0}, "samples must be an integer of at least 1, got 0"),
        ("sum_and_sample", {"samples": 5, "draws": 4}, r"draws must be at least samples \(5\), got 4"),
        ("sum_and_sample", {"baseline": "mean"}, 'baseline must be "listed" or "none"'),
        ("perturbed", {"samples": 0}, "samples must be an integer of at least 1, got 0"),
        ("perturbed", {"sigma": 0.0}, "sigma must be a finite number above 0"),
        ("sparsemax", {"temperature": 0.0}, "temperature must be a finite number above 0"),
        ("topk_sparsemax", {"temperature": -1.0}, "temperature must be a finite number above 0"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], message: str):
    with pytest.raises(si.InvalidInputError, match=message):
        si.get_estimator(name, **options)


def test_wrong_types():
    theta = torch.zeros(2, 3)
    with pytest.raises(TypeError, match="f must be a function of structures, got Tensor; pass f first"):
        si.expect(theta, cost, "categorical")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"inputs\[0\] must be a tensor, got int"):
        si.expect(cost, theta, "categorical", inputs=[1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"a torch.Generator or None, got int"):
        si.expect(cost, theta, "categorical", "score_function", generator=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="call it first: Exact"):
        si.expect(cost, theta, "categorical", Exact)  # type: ignore[arg-type]
    with pytest.raises(
        si.UnknownNameError, match="no estimator is called 'score_functions'; did you mean 'score_function'"
    ):
        si.expect(cost, theta, "categorical", "score_functions")
    with pytest.raises(si.UnknownNameError, match="no estimator is called 'REINFORCE'; did you mean 'score_function'"):
        si.expect(cost, theta, "categorical", "REINFORCE")


@pytest.mark.parametrize("estimator", si.list_estimators())
def test_an_instance_without_structures(estimator: str):
    unary = torch.zeros(3, 2, 2)
    unary[1, 0] = -torch.inf
    chain: Any = ((unary, torch.zeros(2, 2)), "chain", {"lengths": [2, 1, 1]})
    theta, oracle, options = (unary[:, 0], "categorical", {}) if estimator in ("rebar", "relax") else chain
    with pytest.raises(si.InfeasibleError) as error:
        si.expect(cost, theta, oracle, estimator, **options)
    assert error.value.batch_index == 1


def test_too_many_structures():
    with pytest.raises(si.InvalidInputError, match="too many to list"):
        si.expect(cost, torch.zeros(1, 30), "bits", "exact")


class Wrong(si.Estimator):
    """Returns what it is made with."""

    def __init__(self, make) -> None:
        super().__init__()
        self.make = make

    def weighted_structures(self, oracle, theta, generator=None):
        return self.make(theta)


def test_estimators_of_ones_own_that_are_wrong():
    theta = torch.zeros(2, 3)
    with pytest.raises(
        si.PluginError,
        match=r"weighted_structures\(\) of Wrong must return structinf.estimators.WeightedStructures, got Tensor",
    ):
        si.expect(cost, theta, "categorical", Wrong(lambda t: t))
    shapes = r"structures and weights must have shapes \(K, B, \*event\) and \(K, B\), got \(2, 3\) and \(2,\)"
    with pytest.raises(si.InvalidInputError, match=shapes):
        si.expect(cost, theta, "categorical", Wrong(lambda t: WeightedStructures.of(t, t.new_ones(2))))


@pytest.mark.parametrize("batch", [(), (2,), (3,)])
@pytest.mark.parametrize("estimator", ["exact", "sparsemax", "score_function"])
def test_a_function_with_rows_of_its_own(estimator: str, batch: tuple[int, ...]):
    theta = torch.zeros(*batch, 4)  # a subset of 2 of 4: up to 6 structures for each instance
    options = {"samples": 64} if estimator == "score_function" else {}
    data = torch.randn(6 * max(batch, default=1), 4)
    expect = functools.partial(si.expect, oracle="subset", k=2, estimator=si.get_estimator(estimator, **options))
    for f in (
        lambda y: (y * data).sum(1),
        functools.partial(lambda rows, y: (y * rows).sum(1), data),
        _Weighted(data),
        _Weighted(data).forward,
    ):
        with pytest.raises(si.InvalidInputError, match=r"f works for exactly \d+ structures.*pass it as inputs="):
            expect(f, theta)


def test_functions_of_the_same_code_are_checked_for_the_data_that_they_read():
    theta, data = torch.zeros(4), torch.randn(6, 4)

    def make(pairs: bool, rows: torch.Tensor) -> Any:
        return lambda y: (y * rows).sum(1) if pairs else (y * rows[:1]).sum(1)

    expect = functools.partial(si.expect, theta=theta, oracle="subset", k=2, estimator="exact")
    expect(make(False, data))
    with pytest.raises(si.InvalidInputError, match="f works for exactly 6 structures"):
        expect(make(True, data))
    expect(make(True, data[:1]))


class _Weighted(torch.nn.Module):
    def __init__(self, rows: torch.Tensor):
        super().__init__()
        self.rows = rows

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return (y * self.rows).sum(1)


def test_rows_of_a_function_are_right_for_one_structure_each():
    theta, data = 100 * torch.eye(3), torch.randn(3, 3)
    found = si.expect(lambda y: (y * data).sum(1), theta, "categorical", "sparsemax")
    torch.testing.assert_close(found, data.diagonal())


def test_the_check_of_a_function_draws_no_random_numbers():
    theta, cost = torch.zeros(2, 3), torch.ones(6, 3)
    values = []
    for _ in range(2):  # the first call of the function is checked
        torch.manual_seed(0)
        values.append(si.expect(lambda y: y @ cost[0] * torch.rand(len(y)), theta, "categorical"))
        values.append(torch.rand(3))
    assert torch.equal(values[0], values[2])
    assert torch.equal(values[1], values[3])
