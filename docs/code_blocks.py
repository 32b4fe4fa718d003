"""The Python blocks of Markdown pages, and the pictures that they draw.

The blocks of a page share one namespace and run in order. A block that cannot run says why in a comment before it:
<!-- not run: reason -->. A block of >>> examples is a doctest. One that makes a ``figure`` draws the picture that the
page shows next.
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
    """A fenced block of Python: its text, the line of the page on which it starts, and the picture that it draws."""

    code: str
    line: int
    picture: str | None = None


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are to be run."""
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
    """Execute ``block`` in ``namespace``; tracebacks show the page's own lines."""
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
