"""The Python blocks of README.md, CONTRIBUTING.md and docs/ run, page by page, with warnings as errors.

They run in an empty folder. What they draw is what the page shows.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from docs.code_blocks import Block, blocks, run, shows
from structinf.calls import resolution
from structinf.estimators.base import ESTIMATORS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent

PAGES = [
    path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path.exists() and blocks(path.read_text("utf-8"))
]


@pytest.fixture
def registries(monkeypatch):
    """Registries of its own for a page, so that what it registers is forgotten after it."""
    for registry in (resolution.ORACLES, resolution.RELAXATIONS, ESTIMATORS):
        monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text("utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run(block, str(page), namespace)
        if block.output is not None:
            found = printed.getvalue()
            assert shows(block.output, found), f"line {block.line}: the block prints\n{found}\nnot\n{block.output}"
        if block.picture:
            check_picture(block.picture, namespace["figure"])


def check_picture(name: str, figure: Any) -> None:
    """The file that the page shows has the words of the ``figure``."""
    from docs.pictures.gallery import HERE, save
    from figure_contents import words_of_svg

    drawn = io.BytesIO()
    save(figure, name, drawn)
    shown = (HERE / f"{name}.svg").read_bytes()
    assert words_of_svg(drawn.getvalue()) == words_of_svg(shown), f"run `make pictures NAMES={name}`"


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
    figure = y
    ```

![What it shows.](pictures/numbers.svg)

```python
>>> x + y
3
```
"""


def test_blocks_share_a_namespace_in_order():
    found = blocks(SAMPLE)
    assert [(block.line, block.picture) for block in found] == [(2, None), (19, "numbers"), (26, None)]
    namespace: dict[str, Any] = {}
    for block in found:
        run(block, "sample.md", namespace)
    assert namespace["y"] == 2


def test_text_after_a_block_is_its_output():
    page = "```python\nprint(0.25)\n```\n\n```text\n0.24\n```\n\n```python\nx = 1\n```\n\nText:\n\n```text\n1\n```\n"
    page += "\n```python\nx = 2\n```\n<!-- varies: time -->\n```text\n1 s\n```\n"
    assert [block.output for block in blocks(page)] == ["0.24\n", None, None]
    for output, printed, same in (
        ("0.24", "0.25", True),
        ("0.24", "0.26", False),
        ("tensor([1., 2.])  [3]", "tensor([1.,  2.]) [3]", True),
        ("3 trees", "4 trees", False),
        ("True 1e-05", "True 2e-05", False),
        ("1.5e-05", "1.6e-05", True),
        ("True", "False", False),
    ):
        assert shows(output, printed) == same


def test_an_error_names_the_line_of_the_page():
    with pytest.raises(ZeroDivisionError) as error:
        run(Block("x = 1\n1 / 0\n", 40), "sample.md", {})
    assert error.traceback[-1].lineno + 1 == 41


def test_a_wrong_example_fails():
    with pytest.raises(AssertionError, match="Expected"):
        run(Block(">>> 1 + 1\n3\n", 1), "sample.md", {})
