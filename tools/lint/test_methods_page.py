"""Check that docs/methods.md has a row for every relaxation and for every estimator, each in its section."""

from __future__ import annotations

from pathlib import Path

import pytest

import structinf as si

PAGE = (Path(__file__).parent.parent.parent / "docs" / "methods.md").read_text("utf-8")
LAYERS, _, EXPECTATIONS = PAGE.partition("## Expectations")


@pytest.mark.parametrize(
    ("section", "name"),
    [
        *(pytest.param(LAYERS, name, id=f"relaxation-{name}") for name in si.list_relaxations()),
        *(pytest.param(EXPECTATIONS, name, id=f"estimator-{name}") for name in si.list_estimators()),
    ],
)
def test_every_method_has_a_row(section: str, name: str) -> None:
    assert any(line.startswith(f"| `{name}`") for line in section.splitlines())
