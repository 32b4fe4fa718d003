"""Docstrings in the reference: Markdown alone, links, and each parameter with the type of its own."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("griffe")
pytest.importorskip("mkdocs")

import griffe

from docs import docstrings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
RESTRUCTURED = re.compile(r":[a-z]+:[`~.\w]|={4,}")


@pytest.mark.slow
def test_pages_show_no_restructured_text(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")}
    articles = {name: page[page.find("<article") :] for name, page in pages.items()}
    # The source of an object, which a reader unfolds, shows its docstring as it is written.
    sources = re.compile(r'<details class="mkdocstrings-source".*?</details>', re.DOTALL)
    articles = {name: sources.sub("", article) for name, article in articles.items()}
    shown = {name: html.unescape(re.sub(r"<[^>]+>", "", article)) for name, article in articles.items()}
    assert not {name: found for name, text in shown.items() if (found := RESTRUCTURED.findall(text))}
    queries = pages["reference/queries/index.html"]
    assert re.search(r'href="\.\./functions/#structinf\.relax"[^>]*><code>structinf\.relax</code></a>', queries)


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
