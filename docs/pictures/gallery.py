"""The registry of all pictures, and a function to save pictures."""

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
    """Register a function that draws the picture of its name: a structure, or a use of structures."""
    PICTURES[draw.__name__] = draw
    return draw


def save(figure: Figure, name: str, file: Path | BinaryIO) -> None:
    """Save a figure as SVG, with text as text and with identical bytes in each run."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
