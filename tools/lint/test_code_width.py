"""Code that people read in a browser or by ``help`` is narrow: README, the pages and the examples of docstrings."""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WIDTH = 75  # columns that the content of a page holds (docs/css/layout.css)
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>```+|~~~+)[^\n`]*\n(?P<code>.*?)^[ \t]*(?P=fence)[ \t]*$", re.M | re.S
)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted(path for package in ("structinf", "oracles") for path in (ROOT / package).rglob("*.py"))


def code_lines(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and lines of the fenced blocks of a page, without the indentation of the fence."""
    for block in FENCE.finditer(text):
        first = text.count("\n", 0, block.start("code")) + 1
        for number, line in enumerate(block["code"].splitlines(), first):
            yield number, line.removeprefix(block["indent"])


def example_lines(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and lines of the examples in the docstrings of a module: prompts, code and output."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        docstring = ast.get_docstring(node, clean=True)
        if docstring and isinstance(node.body[0], ast.Expr):
            lines = docstring.splitlines()
            for example in doctest.DocTestParser().get_examples(docstring):
                length = example.source.count("\n") + example.want.count("\n")
                for offset in range(example.lineno, example.lineno + length):
                    yield node.body[0].lineno + offset, lines[offset]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_code_of_a_page_is_narrow(path: Path) -> None:
    assert not too_wide(path, code_lines(path.read_text("utf-8")))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_of_docstrings_are_narrow(path: Path) -> None:
    assert not too_wide(path, example_lines(path.read_text("utf-8")))


def too_wide(path: Path, lines: Iterator[tuple[int, str]]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{number}: {len(line)}" for number, line in lines if len(line) > WIDTH]


def test_wide_lines_are_found() -> None:
    """In a block of any language and in the output of an example."""
    wide = "x" * (WIDTH + 1)
    page = f"1. {wide}\n\n   ```text\n   {wide}\n   ```\n"
    assert list(code_lines(page)) == [(4, wide)]
    module = f'def f():\n    """Text.\n\n    >>> 1\n    {wide}\n    """\n'
    assert list(example_lines(module)) == [(4, ">>> 1"), (5, wide)]
