"""Every registered oracle passes the conformance suite, and lists the structures that its definition says."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oracle_examples
from oracle_examples import Example
from structinf import Enumerable, relax
from structinf.kernels import parallel_rows
from structinf.parts import as_tuple
from structinf.testing import list_oracle_checks
from structinf.testing.cases import CheckTarget
from structinf.testing.check import run_checks
from structinf.testing.methods import call_method, methods_of
from structinf.testing.theta_families import FAMILIES

pytestmark = pytest.mark.slow


def test_every_oracle_has_an_example():
    assert not oracle_examples.ORACLES_WITHOUT_EXAMPLE, (
        "add an entry to a table of tests/helpers/oracle_examples_*.py for: "
        + ", ".join(oracle_examples.ORACLES_WITHOUT_EXAMPLE)
    )


FIRST_EXAMPLES = {str(example) for example in oracle_examples.one_for_each(type, lambda _: True)}

OF_METHODS = {
    *("no_nan", "input_untouched", "new_memory", "repeatable", "strides", "copies"),
    *("leading_dims", "half_precision", "frequencies", "smoothed_derivatives", "k_best"),
}
"""Checks of methods that the examples of a structure share. Without --full, they run for its first example."""

CENTRAL_FAMILIES = ("normal", "ties", "forbidden")
"""The families of scores that all examples have without --full. The first example of a structure has one more."""

OTHER_FAMILIES = sorted(set(FAMILIES) - set(CENTRAL_FAMILIES))


@oracle_examples.parametrize()
def test_conformance(
    example: Example, conformance_dtypes: tuple[torch.dtype, ...], request: pytest.FixtureRequest
) -> None:
    oracle, data = example.oracle(), example.instance_data
    is_complete = str(example) in FIRST_EXAMPLES or request.config.getoption("--full")
    checks, families = list_oracle_checks(), {*CENTRAL_FAMILIES}
    if is_complete:
        families.add(OTHER_FAMILIES[zlib.crc32(str(example).encode()) % len(OTHER_FAMILIES)])
    else:
        checks = [check for check in checks if check.name not in OF_METHODS]
    if not request.config.getoption("--full"):
        checks = [
            dataclasses.replace(check, families=kept)
            for check in checks
            if (kept := [name for name in check.families if name in families])
        ]
    target = CheckTarget.make(oracle, example.event_shape, data, dtypes=conformance_dtypes)
    report = run_checks(checks, target, raise_on_failure=True, on_result=None)
    assert {"form", "optimal", "batch_independence", "vertex"} <= set(report.passed)


@oracle_examples.parametrize(lambda example: example.listing is not None)
def test_enumerate_lists_what_the_definition_says(example: Example) -> None:
    oracle = example.oracle()
    if not isinstance(oracle, Enumerable):
        pytest.skip("the oracle cannot list its structures")
    for length in (None, *example.lengths):
        bound = oracle if length is None else oracle.bind(lengths=torch.tensor([length]))
        found = [t.flatten(1).numpy() for t in as_tuple(bound.enumerate(example.event_shape))]
        expected = [np.concatenate([t.ravel() for t in y]) for y in example.listing(length)]
        assert sorted(map(tuple, np.concatenate(found, 1))) == sorted(map(tuple, expected))


@oracle_examples.parametrize(lambda example: example.relaxed)
def test_compiled_loops_over_ranges_of_a_batch(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    """As threads run them; so small a batch is one thread's work otherwise."""
    oracle = example.oracle()
    drawn = [-torch.rand(5, *shape) for shape in example.shapes]
    theta = tuple(drawn) if example.is_tuple else drawn[0]

    def answers() -> list[torch.Tensor]:
        found = [output.value for method in methods_of(oracle) for output in call_method(method, oracle, theta)]
        leaves = [t.clone().requires_grad_() for t in drawn]
        mean = as_tuple(relax(tuple(leaves) if example.is_tuple else leaves[0], oracle, "sparsemap"))
        return [*found, *mean, *torch.autograd.grad([m.square().sum() for m in mean], leaves)]

    def in_ranges(kernel: Callable[..., Any], rows: int, *args: Any, work: float = 0) -> None:
        for start, stop in itertools.pairwise(sorted({0, rows // 3, rows // 2, rows})):
            kernel(start, stop, *args)

    expected = answers()
    for module in list(sys.modules.values()):
        if getattr(module, "parallel_rows", None) is parallel_rows:
            monkeypatch.setattr(module, "parallel_rows", in_ranges)
    for a, e in zip(answers(), expected, strict=True):
        assert torch.equal(a, e)
