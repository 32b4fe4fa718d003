"""The Python blocks of README.md, CONTRIBUTING.md and docs/ run, page by page, with warnings as errors.

The blocks of a page share one namespace and run in order, in an empty folder. A block that
cannot run says why in a comment before it: <!-- not run: reason -->. A block of >>> examples
is a doctest.
"""

from __future__ import annotations

import doctest
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from structinf import resolution

ROOT = Path(__file__).parent.parent

FENCE = re.compile(
    r"(?:^[ \t]*<!-- not run: (?P<reason>[^\n]*?) -->[ \t]*\n\s*)?"
    r"^(?P<indent>[ \t]*)(?P<fence>```+|~~~+)[ \t]*(?:python|py)\b[^\n]*\n"
    r"(?P<code>.*?)"
    r"^[ \t]*(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of Python: its text and the line of the page on which it starts."""

    code: str
    line: int


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are to be run."""
    found = []
    for match in FENCE.finditer(text):
        if match["reason"] is None:
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(textwrap.dedent(match["code"]), line))
    return found


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


PAGES = [
    path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path.exists() and blocks(path.read_text("utf-8"))
]


@pytest.fixture
def registries(monkeypatch):
    """Registries of its own for a page, so that what it registers is forgotten after it."""
    for registry in (resolution.ORACLES, resolution.RELAXATIONS):
        monkeypatch.setattr(registry, "_local", dict(registry._local))


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text("utf-8")):
        run(block, str(page), namespace)


# ----------------------------------------------------------------------------- the collector itself

SAMPLE = """\
```python
x = 1
```

Not Python, and not run:

```bash
exit 1
```

<!-- not run: needs a GPU -->
```python
raise SystemExit
```

- in a list:

    ```python title="more.py"
    y = x + 1
    ```

```python
>>> x + y
3
```
"""


def test_blocks_share_a_namespace_in_order():
    found = blocks(SAMPLE)
    assert [block.line for block in found] == [2, 19, 23]
    namespace: dict[str, Any] = {}
    for block in found:
        run(block, "sample.md", namespace)
    assert namespace["y"] == 2


def test_an_error_names_the_line_of_the_page():
    with pytest.raises(ZeroDivisionError) as error:
        run(Block("x = 1\n1 / 0\n", 40), "sample.md", {})
    assert error.traceback[-1].lineno + 1 == 41


def test_a_wrong_example_fails():
    with pytest.raises(AssertionError, match="Expected"):
        run(Block(">>> 1 + 1\n3\n", 1), "sample.md", {})
