"""Every registered relaxation keeps its laws over every registered oracle, or says why it does not work for it."""

from __future__ import annotations

import pytest

import examples
from examples import Example
from structinf import RegularizedRelaxation, UnsupportedError, get_relaxation, list_relaxations
from structinf.testing import check_relaxation


@pytest.mark.parametrize("name", list_relaxations())
@examples.parametrize(lambda example: example.relaxed)
def test_laws(example: Example, name: str) -> None:
    oracle = example.oracle()
    if (missing := get_relaxation(name).missing(oracle)) is not None:
        with pytest.raises(UnsupportedError) as error:
            check_relaxation(name, oracle, example.event_shape)
        assert missing in str(error.value)
        assert "These relaxations do: " in str(error.value)
        return
    report = check_relaxation(name, oracle, example.event_shape, structure=example.structure)
    assert {"form", "hull", "batch_independence"} <= set(report.held)
    if isinstance(get_relaxation(name), RegularizedRelaxation):
        assert {"first_derivative", "second_derivative", "conjugate", "loss_derivatives"} <= set(report.held)


@examples.parametrize(lambda example: example.relaxed)
def test_sparsemap_of_the_readout(example: Example) -> None:
    relaxation = get_relaxation("sparsemap", penalty="readout")
    check_relaxation(relaxation, example.oracle(), example.event_shape, structure=example.structure)


@pytest.mark.parametrize("name", ["marginals", "smoothed", "sparsemap"])
@examples.parametrize(lambda example: example.relaxed)
def test_another_temperature(example: Example, name: str) -> None:
    oracle, relaxation = example.oracle(), get_relaxation(name, temperature=0.4)
    if relaxation.missing(oracle) is None:
        check_relaxation(relaxation, oracle, example.event_shape, structure=example.structure)


@pytest.mark.parametrize("regularizer", ["squared_l2", "tsallis", "none"])
@examples.parametrize(lambda example: example.relaxed)
def test_smoothed_by_another_regularizer(example: Example, regularizer: str) -> None:
    oracle, relaxation = example.oracle(), get_relaxation("smoothed", regularizer=regularizer)
    if relaxation.missing(oracle) is None:
        check_relaxation(relaxation, oracle, example.event_shape, structure=example.structure)
