"""The battery: every public call of every structure with bad and unusual inputs raises a sentence or is right.

`make battery` runs all combinations and prints their number; without --full, each structure runs a sample of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import battery
import oracle_examples
from oracle_examples import Example

pytestmark = pytest.mark.slow

ONE_IN = 60
"""Without --full, one combination of call and input in this number runs."""


@oracle_examples.parametrize(lambda example: example.relaxed)
def test_a_sentence_or_the_right_value(
    example: Example, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    step = 1 if request.config.getoption("--full") else ONE_IN
    instance_data = battery.instance_data_of(example)
    calls, inputs = list(battery.calls_of(example, instance_data)), list(battery.inputs_of(example, instance_data))
    pairs = [(call, case) for call in calls for case in inputs][request.node.callspec.indices["example"] % step :: step]
    failures = [
        f"{call.name}, {case.name}: {reason}" for call, case in pairs if (reason := battery.failure(call, case))
    ]
    record_property("checks", len(pairs))
    assert not failures, f"{len(failures)} of {len(pairs)} checks fail:\n" + "\n".join(failures)
