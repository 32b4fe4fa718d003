"""Nodes of graphs as boxes with their names, and texts over lines."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch

from .style import GREY, INK

__all__ = ["BOX_HEIGHT", "draw_node", "write_over"]

BOX_HEIGHT = 0.3  # inches


def draw_node(axes: Axes, x: float, y: float, width: float, name: str, font: FontProperties) -> FancyBboxPatch:
    """A box around a place, on axes in inches."""
    box = FancyBboxPatch(
        (x - width / 2, y - BOX_HEIGHT / 2), width, BOX_HEIGHT, boxstyle="round,pad=0,rounding_size=0.08"
    )
    box.set(facecolor="white", edgecolor=GREY, lw=1.0, zorder=3)
    axes.add_patch(box)
    axes.text(x, y, name, ha="center", va="center_baseline", color=INK, fontproperties=font, zorder=4)
    return box


def write_over(axes: Axes, place: tuple[float, float], text: str, font: FontProperties, color: str) -> None:
    """Text, if any, over a line, which does not show through."""
    if text:
        written = axes.text(*place, text, ha="center", va="center", fontproperties=font, color=color, zorder=4)
        written.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.0})
