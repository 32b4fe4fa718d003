"""Every registered oracle keeps every law of the protocol, and lists the structures that its definition says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import examples
from examples import Example
from structinf import Enumerable
from structinf.parts import as_tuple
from structinf.testing import check_oracle


def test_every_oracle_has_an_example():
    assert not examples.MISSING, f"add an entry to TABLE of tests/examples.py for: {', '.join(examples.MISSING)}"


@examples.parametrize()
def test_laws(example: Example) -> None:
    report = check_oracle(example.oracle(), example.event_shape, structure=example.structure)
    assert {"form", "optimal", "batch_independence", "vertex"} <= set(report.held)


@examples.parametrize(lambda example: example.listing is not None)
def test_enumerate_lists_what_the_definition_says(example: Example) -> None:
    oracle = example.oracle()
    if not isinstance(oracle, Enumerable):
        pytest.skip("the oracle cannot list its structures")
    for length in (None, *example.lengths):
        bound = oracle if length is None else oracle.bind(lengths=torch.tensor([length]))
        found = [t.flatten(1).numpy() for t in as_tuple(bound.enumerate(example.event_shape))]
        expected = [np.concatenate([t.ravel() for t in y]) for y in example.listing(length)]
        assert sorted(map(tuple, np.concatenate(found, 1))) == sorted(map(tuple, expected))
