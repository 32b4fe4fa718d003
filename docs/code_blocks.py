"""Parse and run the Python blocks of Markdown pages, and find the pictures drawn by the blocks.

The blocks of a page share one namespace and run in order. A comment before a block excludes the block: <!-- not run:
reason -->. A block of >>> examples is a doctest. A block that assigns ``figure`` draws the next picture of the page. A
block of text right after a block shows what the block prints, unless a comment precedes it: <!-- varies: reason -->.
"""

from __future__ import annotations

import doctest
import re
import textwrap
from dataclasses import dataclass
from typing import Any

__all__ = ["Block", "blocks", "run", "shows"]

FENCE = re.compile(
    r"(?:^[ \t]*<!-- not run: (?P<reason>[^\n]*?) -->[ \t]*\n\s*)?"
    r"^(?P<indent>[ \t]*)(?P<fence>```+|~~~+)[ \t]*(?:python|py)\b[^\n]*\n"
    r"(?P<code>.*?)"
    r"^[ \t]*(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
OUTPUT = re.compile(r"\s*^(?P<indent>[ \t]*)```text\n(?P<text>.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[-+]?\d+)?(?![\w])")
PICTURE_LINK = re.compile(r"!\[[^\]]*\]\(pictures/(\w+)\.svg\)")
FIGURE_ASSIGNMENT = re.compile(r"^figure = ", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of Python: code, first line in the page, the name of the drawn picture, and the printed text."""

    code: str
    line: int
    picture: str | None = None
    output: str | None = None


def blocks(text: str) -> list[Block]:
    """Return the runnable blocks of a page."""
    parsed_blocks = []
    for match in FENCE.finditer(text):
        if match["reason"] is None:
            line = text.count("\n", 0, match.start("code")) + 1
            code = textwrap.dedent(match["code"])
            before_next = FENCE.split(text[match.end() :], 1)[0]
            shown = PICTURE_LINK.search(before_next) if FIGURE_ASSIGNMENT.search(code) else None
            printed = OUTPUT.match(text, match.end())
            output = textwrap.dedent(printed["text"]) if printed else None
            parsed_blocks.append(Block(code, line, shown and shown[1], output))
    return parsed_blocks


def run(block: Block, page: str, namespace: dict[str, Any]) -> None:
    """Execute ``block`` in ``namespace``; tracebacks show the lines of the page."""
    if block.code.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(block.code, namespace, page, page, block.line - 1)
        report: list[str] = []
        failures = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
            test, out=report.append, clear_globs=False
        )
        assert not failures.failed, "".join(report)
        namespace.update(test.globs)
    else:
        exec(compile("\n" * (block.line - 1) + block.code, page, "exec", dont_inherit=True), namespace)


def shows(output: str, printed: str) -> bool:
    """Return whether a page shows what a block printed, except for the last digit of fractions and white space."""
    if NUMBER.sub("#", output).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(output), NUMBER.findall(printed), strict=True)
    return all(abs(float(a) - float(b)) <= _unit_in_last_place(a) * 1.01 for a, b in pairs)


def _unit_in_last_place(number: str) -> float:
    digits, _, exponent = number.partition("e")
    fraction = len(digits.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - fraction) if fraction else 0.0
