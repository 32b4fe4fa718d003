"""Every registered relaxation passes the conformance suite over every registered oracle, or says why it cannot work."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import oracle_examples
from oracle_examples import Example
from structinf import (
    Oracle,
    Projectable,
    RegularizedRelaxation,
    Relaxation,
    UnsupportedError,
    get_relaxation,
    list_relaxations,
)
from structinf.testing import check_relaxation, list_relaxation_checks
from structinf.testing.cases import CheckTarget
from structinf.testing.check import run_checks
from structinf.testing.report import CheckReport

pytestmark = pytest.mark.slow


# Integer solvers take milliseconds for each instance; their own tests cover them without --full.
SLOW = ("ConstraintModel", "MILP", "Tour")

RELAXED = [example for example in oracle_examples.EXAMPLES if example.relaxed]
NAMES = list_relaxations()

CENTRAL = {"form", "hull", "conjugate", "first_derivative", "loss_derivatives"}
"""The mean in conv(Y), the value, and the derivatives against finite differences."""

CENTRAL_FAMILIES = ("normal", "forbidden")

SAMPLE = 24
"""Without --full, all checks run for one pair of structure and relaxation in this number, and CENTRAL for each pair."""

COMBINATIONS = [
    pytest.param(
        example,
        name,
        # As in a Latin square: all checks run for each structure and for each relaxation.
        (i + j) % SAMPLE == 0,
        id=f"{example}-{name}",
        marks=pytest.mark.full if type(example.oracle()).__name__ in SLOW and name != "map" else (),
    )
    for i, example in enumerate(RELAXED)
    for j, name in enumerate(NAMES)
]


def run_central_checks(relaxation: Relaxation, example: Example, dtypes: tuple[torch.dtype, ...]) -> CheckReport:
    """Run CENTRAL with a family of scores, in turn for the pairs of structure and relaxation."""
    oracle, data = example.oracle(), example.instance_data
    turn = zlib.crc32(f"{example} {relaxation!r}".encode()) % len(CENTRAL_FAMILIES)
    target = CheckTarget.make(oracle, example.event_shape, data, relaxation=relaxation, dtypes=dtypes)
    central = [
        dataclasses.replace(check, families=[CENTRAL_FAMILIES[turn]])
        for check in list_relaxation_checks()
        if check.name in CENTRAL and CENTRAL_FAMILIES[turn] in check.families
    ]
    return run_checks(central, target, raise_on_failure=True, on_result=None)


@pytest.mark.parametrize(("example", "name", "is_sampled"), COMBINATIONS)
def test_conformance(
    example: Example,
    name: str,
    is_sampled: bool,
    conformance_dtypes: tuple[torch.dtype, ...],
    request: pytest.FixtureRequest,
) -> None:
    oracle = example.oracle()
    if (missing := get_relaxation(name).unsupported_reason(oracle)) is not None:
        with pytest.raises(UnsupportedError) as error:
            check_relaxation(name, oracle, example.event_shape)
        assert missing in str(error.value)
        assert "Supported relaxations: " in str(error.value)
        return
    data = example.instance_data
    is_stochastic = get_relaxation(name).is_stochastic
    if not is_sampled and not request.config.getoption("--full"):
        relaxation = get_relaxation(name).exact()
        report = run_central_checks(relaxation, example, conformance_dtypes)
        assert {"form", "hull"} <= set(report.passed)
        if isinstance(relaxation, RegularizedRelaxation):
            assert {"conjugate", "loss_derivatives"} <= set(report.passed)
            assert is_stochastic or "first_derivative" in report.passed
        return
    report = check_relaxation(name, oracle, example.event_shape, instance_data=data, dtypes=conformance_dtypes)
    assert {"form", "hull", "own_generator" if is_stochastic else "batch_independence"} <= set(report.passed)
    if isinstance(get_relaxation(name), RegularizedRelaxation):
        assert {"conjugate", "loss_minimum", "loss_derivatives"} <= set(report.passed)
        assert is_stochastic or {"first_derivative", "second_derivative"} <= set(
            report.passed
        )  # of draws it is an estimate


# ----------------------------------------------------------------------------- options of relaxations
#
# Where an option does its work, whatever the oracle, one oracle of each kind that makes a difference is enough.


def _can_relax(relaxation: Relaxation, example: Example) -> bool:
    return example.relaxed and relaxation.unsupported_reason(example.oracle()) is None


def pairs(options: Mapping[str, Relaxation], kind: Callable[[Oracle], Any]) -> Callable[[Any], Any]:
    """Run a test for each of the relaxations, with one oracle of each ``kind`` that they work for."""
    found = [
        pytest.param(relaxation, example, id=f"{example}-{name}")
        for name, relaxation in options.items()
        for example in oracle_examples.one_for_each(kind, functools.partial(_can_relax, relaxation))
    ]
    return pytest.mark.parametrize(("relaxation", "example"), found)


def check_option(
    relaxation: Relaxation, example: Example, dtypes: tuple[torch.dtype, ...], request: pytest.FixtureRequest
) -> None:
    """Run all checks with --full, and CENTRAL otherwise."""
    if request.config.getoption("--full"):
        oracle, data = example.oracle(), example.instance_data
        check_relaxation(relaxation, oracle, example.event_shape, instance_data=data, dtypes=dtypes)
    else:
        assert {"form", "hull"} <= set(run_central_checks(relaxation.exact(), example, dtypes).passed)


@pairs({"readout": get_relaxation("sparsemap", penalty="readout")}, lambda oracle: type(oracle).readout)
def test_sparsemap_of_the_readout(
    relaxation: Relaxation,
    example: Example,
    conformance_dtypes: tuple[torch.dtype, ...],
    request: pytest.FixtureRequest,
) -> None:
    check_option(relaxation, example, conformance_dtypes, request)


@pairs(
    {name: get_relaxation(name, temperature=0.4) for name in ("marginals", "smoothed", "sparsemap")},
    lambda oracle: (isinstance(oracle.event_ndim, tuple), isinstance(oracle, Projectable)),
)
def test_another_temperature(
    relaxation: Relaxation,
    example: Example,
    conformance_dtypes: tuple[torch.dtype, ...],
    request: pytest.FixtureRequest,
) -> None:
    check_option(relaxation, example, conformance_dtypes, request)


@pairs(
    {name: get_relaxation("smoothed", regularizer=name) for name in ("squared_l2", "tsallis", "none")},
    lambda oracle: getattr(type(oracle), "smoothed_value_and_mean", None),
)
def test_smoothed_by_another_regularizer(
    relaxation: Relaxation,
    example: Example,
    conformance_dtypes: tuple[torch.dtype, ...],
    request: pytest.FixtureRequest,
) -> None:
    check_option(relaxation, example, conformance_dtypes, request)
