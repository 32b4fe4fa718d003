"""Arguments other than scores, of a wrong kind: every call raises an error with a message of the library.

The calls take structures, labels and costs, numbers, indices and instance data; see also :mod:`test_bad_inputs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import battery
import oracle_examples
import structinf as si
from oracle_example import Example
from structinf.parts import as_tuple, map_parts

pytestmark = pytest.mark.slow

ONE_IN = 20
"""Without --full, one combination of call and value in this number runs."""

KINDS = {
    "a string": "a",
    "None": None,
    "nan": math.nan,
    "a fraction": 2.5,
    "a list": [1, 2],
    "a dictionary": {},
    "an object": object(),
    "numbers": torch.zeros(2),
    "complex": 2j,
    "numpy": np.int64(2),
    "huge": 10**30,
    "inf": math.inf,
    "negative": -1,
}


def structures(y: Any) -> dict[str, Any]:
    """Return values that are no structures in the form of ``y``."""
    return {
        "sparse": map_parts(lambda t: t.to_sparse(), y),
        "nested": torch.nested.nested_tensor(list(as_tuple(y)[0]), layout=torch.jagged),
        "complex": map_parts(lambda t: t.to(torch.complex64), y),
        "meta": map_parts(lambda t: t.to("meta"), y),
        "uint16": map_parts(lambda t: t.int().to(torch.uint16), y),
        "booleans": map_parts(lambda t: t.bool(), y),
        "numbers of each instance": torch.zeros(battery.BATCH, dtype=torch.int64),
        "another dtype": map_parts(lambda t: t.half(), y),
        "too many dimensions": map_parts(lambda t: t[..., None], y),
        "a batch of 2": map_parts(lambda t: t[:2], y),
        "a scalar": torch.tensor(1.0),
        "nan": map_parts(lambda t: t * math.nan, y),
        "negative integers": map_parts(lambda t: torch.full_like(t, -1).long(), y),
        "huge integers": map_parts(lambda t: torch.full_like(t, 2**62, dtype=torch.int64), y),
        **KINDS,
    }


def calls(example: Example) -> Iterator[tuple[str, Callable[[], Any]]]:
    oracle, data = example.oracle(), battery.instance_data_of(example)
    theta = battery.draw(example)
    bound, gold = oracle.bind(**data), si.relax(theta, oracle, "map", **data)
    for kind, y in structures(gold).items():
        yield f"score of {kind}", lambda y=y: oracle.score(theta, y)
        yield f"encode {kind}", lambda y=y: bound.encode(y, theta)
        yield f"loss of {kind}", lambda y=y: si.FenchelYoungLoss(oracle, "sparsemap")(theta, y, **data)
        yield (
            f"cost {kind}",
            lambda y=y: si.FenchelYoungLoss(oracle, "sparsemap", cost=lambda _: y)(theta, gold, **data),
        )
        yield f"SPO+ of {kind}", lambda y=y: si.SPOPlusLoss(oracle)(theta, y, **data)
        yield f"Gibbs.log_prob of {kind}", lambda y=y: si.Gibbs(theta, oracle, **data).log_prob(y)
    for kind, value in KINDS.items():
        for name in oracle.instance_ndim:
            yield f"bind {name} of {kind}", lambda name=name, value=value: oracle.bind(**{name: value})
        yield f"index {kind}", lambda value=value: bound[value]
        yield f"repeat {kind}", lambda value=value: bound.repeat(value)
        yield f"topk k={kind}", lambda value=value: si.topk(theta, oracle, value, **data)
        yield f"sample n={kind}", lambda value=value: si.sample(theta, oracle, value, **data)
        yield f"temperature {kind}", lambda value=value: si.entropy(theta, oracle, temperature=value, **data)
        yield (
            f"sparsemap, temperature {kind}",
            lambda value=value: si.SparseDistribution.of(theta, oracle, temperature=value, **data).mean,
        )
        yield f"Gibbs, temperature {kind}", lambda value=value: si.Gibbs(theta, oracle, temperature=value, **data).mean
        yield f"expect of inputs {kind}", lambda value=value: si.expect(_first, theta, oracle, inputs=value, **data)


def _first(y: Any, *inputs: Any) -> torch.Tensor:
    return as_tuple(y)[0].flatten(1)[:, 0]


@oracle_examples.parametrize(lambda example: example.relaxed)
def test_a_sentence_or_a_value(example: Example, request: pytest.FixtureRequest) -> None:
    step = 1 if request.config.getoption("--full") else ONE_IN
    chosen = list(calls(example))[request.node.callspec.indices["example"] % step :: step]
    failures = [f"{name}: {reason}" for name, call in chosen if (reason := battery.error_failure(call))]
    assert not failures, f"{len(failures)} of {len(chosen)} checks fail:\n" + "\n".join(failures)
