"""All pictures by name, and how they are saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import matplotlib
from matplotlib.figure import Figure

__all__ = ["HERE", "PICTURES", "picture", "save"]

HERE = Path(__file__).parent
PICTURES: dict[str, Callable[[], Figure]] = {}


def picture(draw: Callable[[], Figure]) -> Callable[[], Figure]:
    """Of the structure that the function is named after, or of what one can do with structures."""
    PICTURES[draw.__name__] = draw
    return draw


def save(figure: Figure, name: str, file: Path | BinaryIO) -> None:
    """As SVG: text as text, and nothing in the file that differs from run to run."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
