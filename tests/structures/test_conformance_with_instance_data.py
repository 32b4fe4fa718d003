"""The conformance suite with instance data other than lengths: graphs, windows, supplies and demands."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import structinf as si

pytestmark = pytest.mark.full

GRAPHS = si.GraphBatch.of(
    [
        [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)],
        [(0, 2), (0, 1), (1, 2)],
        [(0, 1), (1, 2)],
    ]
)
TERMINALS = {"graph_index": [0, 1, 2, 0], "terminals": [[0, 3], [0, 2], [0, 2], [1, 3]]}


def _windows(size: int, generator: torch.Generator) -> dict[str, Any]:
    window = torch.rand(size, 3, 4, generator=generator) < 0.7
    # A path along the first row and the last column stays inside.
    window[:, 0] = True
    window[:, :, -1] = True
    return {"window": window}


CASES: dict[str, tuple[Any, Any, Any]] = {
    "dag_path": (si.get_oracle("dag_path", graph=GRAPHS), (5,), {"graph_index": [0, 1, 2, 1]}),
    "path": (si.get_oracle("path", graph=GRAPHS), (5,), TERMINALS),
    "dtw, windows": (si.get_oracle("dtw"), (3, 4), _windows),
    "dtw, bands": (si.get_oracle("dtw"), (3, 4), {"band": [1, 2, 3]}),
    "transportation": (
        si.get_oracle("transportation"),
        (2, 3),
        {"supplies": [[2, 1], [1, 2], [3, 0]], "demands": [[1, 1, 1], [0, 2, 1], [1, 0, 2]]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str, conformance_dtypes: Any) -> None:
    oracle, shape, data = CASES[name]
    report = si.testing.check_oracle(oracle, shape, instance_data=data, dtypes=conformance_dtypes)
    assert "k_best" in report.passed
    assert ("draws_without_replacement" in report.passed) == isinstance(oracle, si.GibbsOracle)
