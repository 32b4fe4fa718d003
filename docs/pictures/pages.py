"""Pictures drawn by the code blocks of pages."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..code_blocks import blocks, run
from .gallery import HERE, PICTURES

__all__ = ["PAGES"]

PAGES = {
    block.picture: path
    for path in sorted(HERE.parent.glob("*.md"))
    for block in blocks(path.read_text("utf-8"))
    if block.picture
}


def draw(name: str) -> Figure:
    """Run the blocks of the page in an empty folder, without output, up to the block that draws the picture."""
    page = PAGES[name]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with in_empty_folder(), contextlib.redirect_stdout(io.StringIO()):
        for block in blocks(page.read_text("utf-8")):
            run(block, str(page), namespace)
            if block.picture == name:
                break
    return namespace["figure"]


@contextlib.contextmanager
def in_empty_folder() -> Iterator[None]:
    """Change to an empty folder, since pages may save files."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


PICTURES.update({name: partial(draw, name) for name in PAGES})
