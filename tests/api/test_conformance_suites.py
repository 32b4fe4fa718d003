"""The conformance suites: right plugins pass, reports say what was checked, and sums by enumeration are exact."""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import structinf
from structinf import InfeasibleError, InvalidInputError, Oracle, Parts, UnsupportedError
from structinf.testing import (
    CheckError,
    CheckResult,
    Enumeration,
    check_oracle,
    check_relaxation,
    list_oracle_checks,
    list_relaxation_checks,
    nearest_point,
    progress,
)
from structinf.testing.cases import CheckTarget
from structinf.testing.comparisons import CheckFailed
from structinf.testing.finite_differences import expect_derivative
from structinf.testing.progress import Progress
from toy_oracles import SHAPES, Cube, Explicit, Knapsack, Listing, Walk

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- right plugins


@pytest.mark.sampled(2)
@pytest.mark.parametrize("oracle", [Knapsack(6), Cube(), Explicit(), Walk()], ids=lambda o: o.name)
def test_right_oracles_pass(oracle, conformance_dtypes):
    report = check_oracle(oracle, SHAPES[type(oracle)], dtypes=conformance_dtypes)
    assert not report.failed
    assert {"form", "optimal", "vertex", "refusals", "half_precision"} <= set(report.passed)
    if isinstance(oracle, Listing):
        assert {"log_partition", "derivatives", "frequencies", "k_best", "infeasible"} <= set(report.passed)
    if isinstance(oracle, Cube):
        assert "projection" in report.passed
    if isinstance(oracle, Walk):
        assert {"lengths", "padding", "labels", "rows_and_repeat"} <= set(report.passed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("relaxation", ["map", "marginals", "sparsemap"])
def test_right_relaxations_pass(relaxation, conformance_dtypes):
    report = check_relaxation(relaxation, Walk(), SHAPES[Walk], dtypes=conformance_dtypes)
    wanted = {"hull", "temperature", "first_derivative", "conjugate", "loss_minimum", "loss_derivatives", "padding"}
    assert wanted <= set(report.passed)


@dataclass(frozen=True)
class Masked(Oracle):
    """One of the parts that a mask, which each instance must have, leaves."""

    event_ndim = 1
    instance_ndim: ClassVar = {"mask": 1}

    def validate(self, theta: Parts) -> None:
        if "mask" not in self.bound:
            raise InvalidInputError("pass mask=..., (..., K) booleans")

    def argmax(self, theta: Tensor) -> Tensor:
        best = theta.masked_fill(~self.bound["mask"], -torch.inf)
        if len(theta) and (lost := best.isneginf().all(1)).any():
            raise InfeasibleError(f"batch index {int(lost.nonzero()[0])}", int(lost.nonzero()[0]))
        return torch.nn.functional.one_hot(best.argmax(1), theta.shape[1]).to(theta)


MASKS = {"mask": [[True, False, True], [True, True, False], [True, True, True], [False, True, True]]}


def test_an_oracle_that_needs_instance_data():
    report = check_oracle(Masked(), (3,), instance_data=MASKS)
    assert {"optimal", "rows_and_repeat", "instance_data"} <= set(report.passed)
    for relaxation in ("map", "sparsemap"):  # every oracle call of every relaxation and loss gets the mask
        assert not check_relaxation(relaxation, Masked(), (3,), instance_data=MASKS).failed


def test_instance_data_from_a_function():
    def draw(size: int, generator: torch.Generator) -> dict[str, Tensor]:
        mask = torch.rand(size, 3, generator=generator) < 0.5
        mask[:, 1] = True
        return {"mask": mask}

    assert not check_oracle(Masked(), (3,), instance_data=draw).failed


# ----------------------------------------------------------------------------- wrong use


def test_event_shapes_that_the_oracle_does_not_have_are_refused():
    with pytest.raises(InvalidInputError, match=r"must be one shape of 1 dimension for toy_knapsack, got \(4, 4\);"):
        check_oracle(Knapsack(6), (4, 4))
    with pytest.raises(InvalidInputError, match=r"instance data \['lengths'\] is bound; pass instance_data="):
        check_oracle(Walk().bind(lengths=torch.tensor([1])), SHAPES[Walk])
    with pytest.raises(InvalidInputError, match=r"toy_walk takes a tuple of 2 tensors, got one tensor"):
        check_oracle(Walk(), (3, 2))


def test_a_relaxation_that_does_not_work_is_refused():
    with pytest.raises(UnsupportedError, match="marginals does not work for toy_knapsack"):
        check_relaxation("marginals", Knapsack(6), (4,))


# ----------------------------------------------------------------------------- reports and errors


def test_progress_and_report():
    seen: list[CheckResult] = []
    report = check_oracle(Knapsack(6), (4,), on_result=seen.append)
    assert report.results == tuple(seen)
    assert [r.check for r in seen] == [check.name for check in list_oracle_checks()]
    assert (
        report.not_applicable["log_partition"]
        == "toy_knapsack lacks the ability GibbsOracle, the method log_partition(theta)"
    )
    assert report.not_applicable["lengths"] == "no lengths are bound"
    assert not set(report.passed) & set(report.not_applicable)
    assert f"{len(report.passed)} of {len(seen)} checks passed" in str(report)
    assert "optimal" in str(report)
    report.raise_if_failed()
    assert len(str(report).splitlines()) == 2 + len(report.passed)
    names = ", ".join(report.not_applicable)
    assert str(report).splitlines()[-1] == f"{len(report.not_applicable)} checks do not apply: {names}"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_a_suite_of_more_than_two_seconds_shows_its_progress(monkeypatch, make):
    stream, clock = make(), itertools.count(0, 0.4)
    monkeypatch.setattr(progress.sys, "stderr", stream)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    bar = Progress("Mine()", 40)
    for _ in range(4):
        bar.show(0, "form", 3)
    assert not stream.getvalue()
    for i in range(30):
        bar.show(i, "optimal", 5)
    bar.close()
    lines = re.findall(
        r"Mine\(\): (\d+) of 40 checks done after (\d+) s, running optimal, 5 inputs passed", stream.getvalue()
    )
    if make is Terminal:
        assert len(lines) == 30
        assert stream.getvalue().endswith("\r\033[K")
    else:
        assert lines == [("0", "2"), ("25", "12")]
        assert stream.getvalue().count("\n") == 2


def test_a_long_suite_writes_to_the_standard_error(monkeypatch, capfd):
    check_oracle(Knapsack(6), (4,))
    # Kernels that compile for long are named.
    assert all(line.startswith("structinf compiles") for line in capfd.readouterr().err.splitlines())
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    check_oracle(Knapsack(6), (4,))
    out, err = capfd.readouterr()
    number = len(list_oracle_checks())
    assert f"Knapsack(capacity=6): 0 of {number} checks done after 0 s, running form, 0 inputs passed\n" in err
    assert not out
    check_oracle(Knapsack(6), (4,), on_result=lambda result: None)
    assert capfd.readouterr().err == ""


def test_progress_and_report_of_a_relaxation():
    seen: list[CheckResult] = []
    report = check_relaxation("map", Explicit(), (4,), on_result=seen.append)
    assert report.results == tuple(seen)
    assert [result.check for result in seen] == [check.name for check in list_relaxation_checks()]


def test_an_error_is_an_assertion_and_of_the_family():
    error = CheckError("what happened", "optimal")
    assert isinstance(error, AssertionError)
    assert isinstance(error, structinf.StructinfError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.check) == ("what happened", "optimal")


@pytest.mark.parametrize("checks", [list_oracle_checks(), list_relaxation_checks()])
def test_checks_have_names_and_requirements(checks):
    assert len({check.name for check in checks}) == len({check.requirement for check in checks}) == len(checks)
    assert all(re.fullmatch(r"(\w+_\w+ |[^a-zα-ω]).{20,}\.", check.requirement) for check in checks)


def test_the_same_seed_draws_the_same_inputs():
    first, second = (check_oracle(Knapsack(6), (4,), seed=3).results for _ in range(2))
    assert [(r.check, r.num_inputs, r.status) for r in first] == [(r.check, r.num_inputs, r.status) for r in second]


def test_a_named_oracle_and_single_dtype():
    assert "optimal" in check_oracle("categorical", (3,), dtypes=[torch.float32]).passed


class Choice(Oracle):
    """The best part; some potentials make it stumble, in a helper of its own."""

    event_ndim = 1

    def argmax(self, theta: Tensor) -> Tensor:
        self.stumble(theta)
        return torch.nn.functional.one_hot(theta.argmax(1), theta.shape[1]).to(theta)

    def stumble(self, theta: Tensor) -> None:
        """Nothing at all; for subclasses."""


class StumblesOverNothing(Choice):
    def stumble(self, theta: Tensor) -> None:
        if theta.isneginf().all(1).any():
            raise KeyError("nothing left")


class StumblesOverNobody(Choice):
    def stumble(self, theta: Tensor) -> None:
        torch.zeros(()).expand(len(theta) or -7)


class StumblesAlways(Choice):
    def stumble(self, theta: Tensor) -> None:
        raise KeyError(f"a batch of {len(theta)}")


@pytest.mark.parametrize(
    ("oracle", "check", "shown"),
    [
        (StumblesOverNothing(), "infeasible", "theta = torch.tensor([[-inf, -inf, -inf]], dtype=torch.float64)"),
        (StumblesOverNobody(), "empty_batch", "theta = torch.zeros((0, 3), dtype=torch.float64)"),
    ],
)
@pytest.mark.parametrize("suite", [check_oracle, functools.partial(check_relaxation, "map")], ids=["oracle", "map"])
def test_the_input_is_shown_as_the_check_had_changed_it(suite, oracle, check, shown):
    (error,) = (result.error for result in suite(oracle, (3,), raise_on_failure=False).results if result.check == check)
    assert shown in str(error)
    assert (
        f"was raised in stumble, line {type(oracle).stumble.__code__.co_firstlineno + (2 if 'inf' in shown else 1)} of"
        in str(error)
    )


def test_one_reason_of_several_failures_has_one_summary():
    report = check_oracle(StumblesAlways(), (3,), raise_on_failure=False)
    errors = [result.error for result in report.results if result.error]
    assert len(errors) > 10
    assert len({error.failure_summary for error in errors}) == 1
    assert len({str(error) for error in errors}) > 10


def test_a_number_is_a_shape_of_one_dimension():
    passed = [check_oracle("categorical", shape).passed for shape in (3, (3,))]
    assert passed[0] == passed[1]
    assert check_relaxation("map", Explicit(), 4).passed


@pytest.mark.parametrize(
    ("name", "shape", "rows"),
    [
        ("dtw", (2, 3), {(2, 3), (2, 2), (2, 1), (1, 3), (1, 2), (1, 1)}),
        ("assignment", (1, 4), {(1, 4), (1, 3), (1, 1)}),
        ("needleman_wunsch", ((2, 2), (2,)), {(2, 2), (2, 1), (1, 2), (1, 1)}),
    ],
)
def test_lengths_of_several_dimensions_are_found(name, shape, rows):
    target = CheckTarget.make(structinf.get_oracle(name), shape, None)
    assert set(map(tuple, target.instance_data["lengths"])) == rows


def test_lengths_that_mean_something_else_are_no_error():
    class Other(Explicit):
        instance_ndim: ClassVar = {"lengths": 1}

        def validate(self, theta: Parts) -> None:
            if "lengths" in self.bound:
                self.bound["lengths"][:, 5]

    assert check_oracle(Other(), (4,)).not_applicable["lengths"] == "no lengths are bound"


# ----------------------------------------------------------------------------- enumeration


def test_sums_over_a_list():
    listed = Enumeration(Explicit().enumerate((4,)))
    theta = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]])
    assert len(listed) == 5
    assert listed.scores(theta).tolist() == [-torch.inf, 3, 1, -torch.inf, -torch.inf]
    assert listed.allowed(theta).tolist() == [False, True, True, False, False]
    assert listed.max_score(theta) == 3
    assert listed.log_partition(theta).item() == pytest.approx(3.126928)
    assert listed.marginals(theta)[0].tolist() == pytest.approx([0.119203, 1, 0.880797, 0], abs=1e-6)
    v = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert listed.covariance_product(theta, v)[0].tolist() == pytest.approx([0.104994, 0, -0.104994, 0], abs=1e-6)
    assert listed.position(torch.tensor([[1.0, 1, 0, 0]])) == 2
    assert listed.position(torch.tensor([[1.0, 1, 1, 0]])) is None
    assert listed.magnitude(theta) == 3


@pytest.mark.parametrize("seed", range(5))
def test_nearest_point_of_a_simplex(seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(6, generator=generator, dtype=torch.float64)
    rows = torch.eye(6, dtype=torch.float64)
    point = nearest_point(lambda d: rows[(rows @ d).argmax()], target)
    # Held, Wolfe & Crowder 1974: the positive part of target − t, which sums to 1.
    ordered = target.sort(descending=True).values
    k = torch.arange(1, 7)
    t = ((ordered.cumsum(0) - 1) / k)[(ordered * k > ordered.cumsum(0) - 1).nonzero().max()]
    assert point.tolist() == pytest.approx((target - t).clamp(min=0).tolist(), abs=1e-10)


def test_nearest_point_of_degenerate_polytopes():
    rows = torch.tensor([[0.0, 0], [1, 0], [1, 0], [0.5, 0], [0, 1], [1, 1]], dtype=torch.float64)

    def nearest(*target: float) -> list[float]:
        return nearest_point(lambda d: rows[(rows @ d).argmax()], torch.tensor(target, dtype=torch.float64)).tolist()

    assert nearest(0.3, 0.6) == pytest.approx([0.3, 0.6])
    assert nearest(2, 0.5) == pytest.approx([1, 0.5])
    assert nearest(0.5, -1) == pytest.approx([0.5, 0])
    assert nearest(7, 7) == pytest.approx([1, 1])


# ----------------------------------------------------------------------------- finite differences


@pytest.mark.parametrize("seed", range(5))
def test_kinks_on_both_sides_are_told_from_a_wrong_derivative(seed):
    theta, draw = torch.zeros(1, 2, dtype=torch.float64), torch.Generator().manual_seed

    def kinked(x):
        return (x - 3e-6).abs() - (x + 3e-6).abs()

    expect_derivative(kinked, theta, draw(seed), "kinked")
    with pytest.raises(CheckFailed, match="the derivative of order 1 of kinked is "):
        expect_derivative(lambda x: kinked(x) - x.detach(), theta, draw(seed), "kinked")
