"""The glossary has every search term of the built-in classes, and names only what exists."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import structinf as si
from structinf.calls.resolution import ORACLES, RELAXATIONS

PAGE = (Path(__file__).parent.parent.parent / "docs" / "glossary.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]


def words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9+]+", text.lower()))


def built_in_terms():
    for registry in (ORACLES, RELAXATIONS):
        for name in registry.names():
            factory = registry.factory(name)
            if factory.__module__.startswith("structinf"):
                yield from (
                    pytest.param(name, term, id=f"{name}-{term}") for term in getattr(factory, "search_terms", ())
                )


@pytest.mark.parametrize(("name", "term"), list(built_in_terms()))
def test_the_page_has_every_search_term(name, term):
    assert any(words(term) in words(row) for row in ROWS)


def test_the_rows_are_sorted():
    terms = [row.split("|")[1].strip().lower() for row in ROWS]
    assert terms == sorted(terms)


def test_the_page_names_what_exists():
    for name in re.findall(r"\bsi\.([A-Za-z_][\w.]*)", PAGE):
        found = si
        for part in name.rstrip(".").split("."):
            found = getattr(found, part)
    known = {*si.list_oracles(), *si.list_relaxations(), *si.list_estimators()}
    names = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", PAGE))
    assert names - known <= {
        *("theta", "bind", "argmax", "event_ndim", "structinf"),
        *dir(si.Solution),
        *(field.name for field in dataclasses.fields(si.Solution)),
    }
    arguments = set(re.findall(r"`si\.\w+\(\"(\w+)\"", PAGE)) | set(re.findall(r"`si\.\w+\([^`]*?, \"(\w+)\"", PAGE))
    assert arguments
    assert arguments <= known
