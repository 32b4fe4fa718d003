"""Docstrings in the reference: Markdown alone, links, and each parameter with the type of its own."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("griffe")
pytest.importorskip("mkdocs")

import griffe

from docs import docstrings
from docs.site_checks import restructured_text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent


def test_the_check_of_a_build_finds_restructured_text():
    """docs/site_checks.py reads all pages in each build."""
    source = '<details class="mkdocstrings-source">As :meth:`value`.</details>'
    assert restructured_text(f"<p>:func:`a`</p><article>{source}As <code>value</code>.</article>") == []
    assert restructured_text("<article>As :meth:<code>value</code>, or :class:`~a`.</article>") == [
        ":meth:v",
        ":class:`",
    ]
    assert restructured_text("<article>===== &#61;==== ====</article>") == ["=====", "=====", "===="]


def test_roles_name_what_there_is(monkeypatch):
    named: dict[str, str | None] = {}
    resolve_name = docstrings.resolve_name

    def noted(name: str, scope: Any) -> str | None:
        named[f"{name} in {scope.path}"] = path = resolve_name(name, scope)
        return path

    monkeypatch.setattr(docstrings, "resolve_name", noted)
    extensions = griffe.load_extensions(docstrings.Docstrings())
    loader = griffe.GriffeLoader(extensions=extensions, search_paths=[ROOT, ROOT / "oracles"])
    for package in ("structinf", "structinf_oracles"):
        loader.load(package)
    loader.resolve_aliases()
    ours = {role: path for role, path in named.items() if not (path or "").startswith(("math.", "matplotlib."))}
    assert len(ours) > 100
    assert not [role for role, path in ours.items() if not is_there(path, loader.modules_collection)]


# ----------------------------------------------------------------------------------- what the reference shows

ENTRY = re.compile(r"^::: (\S+)\n(?:    options:\n((?:      .*\n)+))?", re.MULTILINE)
MEMBERS = re.compile(r"^ +members: \[(.*)\]$", re.MULTILINE)


@pytest.fixture(scope="module")
def packages():
    extensions = griffe.load_extensions(docstrings.Docstrings())
    loader = griffe.GriffeLoader(extensions=extensions, search_paths=[ROOT, ROOT / "oracles"])
    for package in ("structinf", "structinf_oracles"):
        loader.load(package)
    loader.resolve_aliases()
    return loader.modules_collection


def shown_objects(packages: griffe.ModulesCollection) -> Iterator[griffe.Class | griffe.Function]:
    """Yield the functions, classes and methods on the pages of the reference."""
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for name, options in ENTRY.findall(page.read_text("utf-8")):
            members = MEMBERS.search(options)
            yield from below(packages[name], members and members[1].split(", "))


def below(found: Any, members: list[str] | None = None) -> Iterator[griffe.Class | griffe.Function]:
    found = found.final_target if found.is_alias else found
    if found.is_function or found.is_class:
        yield found
    if found.is_module:
        for name in members or found.exports or [name for name in found.members if not name.startswith("_")]:
            yield from below(found[str(name)])
    elif found.is_class:
        methods = (m for name, m in found.members.items() if m.is_function and not name.startswith("_"))
        yield from (method for method in methods if method.docstring)


def test_every_parameter_has_a_description(packages):
    shown = {found.path: found for found in shown_objects(packages)}
    assert len(shown) > 300
    names = {path: {p.name for p in found.parameters} - {"self", "cls"} for path, found in shown.items()}
    missing = {path: names[path] - docstrings.described_parameters(found).keys() for path, found in shown.items()}
    missing = {path: found for path, found in missing.items() if found}
    assert not missing


def test_every_described_parameter_exists(packages):
    functions = {found.path: found for found in shown_objects(packages) if found.is_function}
    parameters = {path: {p.name for p in found.parameters} for path, found in functions.items()}
    stale = {
        path: docstrings.described_parameters(found).keys() - parameters[path] for path, found in functions.items()
    }
    assert not {path: found for path, found in stale.items() if found}


def test_every_exported_function_and_class_is_on_a_page(packages):
    shown = {found.path for found in shown_objects(packages)}
    exported = [packages["structinf"][str(name)] for name in packages["structinf"].exports]
    objects = [found.final_target if found.is_alias else found for found in exported]
    assert not {found.path for found in objects if found.is_function or found.is_class} - shown


def test_members_named_by_pages_exist(packages):
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for name, options in ENTRY.findall(page.read_text("utf-8")):
            members = MEMBERS.search(options)
            assert not set(members[1].split(", ") if members else ()) - packages[name].members.keys(), page.name


def test_every_option_has_a_row(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    options = importlib.import_module("options")
    page = SimpleNamespace(file=SimpleNamespace(src_uri=options.PAGE))
    text = options.on_page_markdown((ROOT / "docs" / options.PAGE).read_text("utf-8"), page)
    assert "<!-- options of" not in text
    for registry in options.REGISTRIES.values():
        for name in options.built_in_names(registry):
            rows = list(options.options(registry.factory(name)))
            assert {row.name for row in rows} == set(registry.options(name))
            assert all(row.type and row.description for row in rows), name


def is_there(path: str | None, collection: griffe.ModulesCollection) -> bool:
    try:
        return path is not None and bool(collection[path])
    except KeyError:
        return False


# ----------------------------------------------------------------------------------- rewriting

SAMPLE = '''\
class Base:
    def value(self): ...

class Mine(Base):
    def mean(self):
        """As :meth:`value` and :attr:`.part.Base`, not :func:`~math.exp` or :func:`none`: :class:`that <Mine>`."""

def table():
    """With cells of two lines:

    ======  =====
    θ       a | b
    ======  =====
    first   one
            two
    second
    ======  =====

    And without a head:

    ==  ===
    1   one
    ==  ===
    """

class Overridden:
    def solve(self, theta, weight, other):
        """Solve.

        Parameters
        ----------
        weight
            The weight.
        """

class Override(Overridden):
    def solve(self, theta, weight, other):
        """Solve fast.

        Notes
        -----
        None.
        """

def group(x: int, y: str = "a", *args: float, **options: bytes):
    """Of four.

    Parameters
    ----------
    x, y, **options
        Said once,

        in two paragraphs.
    *args : number

    Notes
    -----
    x, y
    """
'''


@pytest.fixture
def sample():
    extensions = griffe.load_extensions(docstrings.Docstrings())
    with griffe.temporary_visited_package("sample", {"part.py": SAMPLE}, extensions=extensions) as package:
        yield package["part"]


def link(path: str, title: str) -> str:
    return f'<autoref identifier="sample.part.{path}" optional><code>{title}</code></autoref>'


def test_roles(sample):
    said = (
        f"As {link('Base.value', 'value')} and {link('Base', 'part.Base')}, not <code>exp</code> or <code>none</code>: "
    )
    assert sample["Mine.mean"].docstring.value == f"{said}{link('Mine', 'that')}."


def test_tables(sample):
    first = "| θ | a \\| b |\n| --- | --- |\n| first | one two |\n| second |  |"
    second = "|  |  |\n| --- | --- |\n| 1 | one |"
    assert sample["table"].docstring.value == f"With cells of two lines:\n\n{first}\n\nAnd without a head:\n\n{second}"


def test_groups(sample):
    _, parameters, notes = sample["group"].docstring.parse("numpy")
    found = [(p.name, str(p.annotation), p.default, p.description) for p in parameters.value]
    said = "Said once,\n\nin two paragraphs."
    assert found == [
        ("x", "int", None, said),
        ("y", "str", "'a'", said),
        ("**options", "bytes", None, said),
        ("*args", "number", None, ""),
    ]
    assert notes.value.contents == "x, y"


def test_parameters_of_methods_come_from_the_overridden_method_or_the_conventions(sample):
    sections = sample["Override.solve"].docstring.parse("numpy")
    assert [section.kind.value for section in sections] == ["text", "parameters", "admonition"]
    found = {parameter.name: parameter.description for parameter in sections[1].value}
    assert found == {"theta": docstrings.CONVENTIONS["theta"], "weight": "The weight."}
