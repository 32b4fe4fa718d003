"""Parse and run the Python blocks of Markdown pages, and find the pictures drawn by the blocks.

The blocks of a page share one namespace and run in order. A comment before a block excludes the block: <!-- not run:
reason -->. A block of >>> examples is a doctest. A block that assigns ``figure`` draws the next picture of the page.
"""

from __future__ import annotations

import doctest
import re
import textwrap
from dataclasses import dataclass
from typing import Any

__all__ = ["Block", "blocks", "run"]

FENCE = re.compile(
    r"(?:^[ \t]*<!-- not run: (?P<reason>[^\n]*?) -->[ \t]*\n\s*)?"
    r"^(?P<indent>[ \t]*)(?P<fence>```+|~~~+)[ \t]*(?:python|py)\b[^\n]*\n"
    r"(?P<code>.*?)"
    r"^[ \t]*(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
PICTURE_LINK = re.compile(r"!\[[^\]]*\]\(pictures/(\w+)\.svg\)")
FIGURE_ASSIGNMENT = re.compile(r"^figure = ", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of Python: code, first line in the page, and the name of the drawn picture."""

    code: str
    line: int
    picture: str | None = None


def blocks(text: str) -> list[Block]:
    """Return the runnable blocks of a page."""
    parsed_blocks = []
    for match in FENCE.finditer(text):
        if match["reason"] is None:
            line = text.count("\n", 0, match.start("code")) + 1
            code = textwrap.dedent(match["code"])
            before_next = FENCE.split(text[match.end() :], 1)[0]
            shown = PICTURE_LINK.search(before_next) if FIGURE_ASSIGNMENT.search(code) else None
            parsed_blocks.append(Block(code, line, shown and shown[1]))
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
