"""docs/methods.md names every relaxation and every estimator."""

from __future__ import annotations

from pathlib import Path

import pytest

import structinf as si

PAGE = (Path(__file__).parent.parent / "docs" / "methods.md").read_text("utf-8")


@pytest.mark.parametrize("name", [*si.list_relaxations(), *si.list_estimators()])
def test_every_method_has_a_row(name: str) -> None:
    assert any(line.startswith(f"| `{name}`") for line in PAGE.splitlines())
