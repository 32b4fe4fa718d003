"""What all pictures share: colours, numbers, the figure with its title and legend, axes placed in inches."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from .words import typeset, width_of

__all__ = [
    "BLUE",
    "FAINT",
    "INK",
    "LABELS",
    "ORANGE",
    "PALE",
    "READABLE",
    "SHADES",
    "SOFT",
    "add_axes",
    "as_decimal",
    "draw_frame",
    "make_figure",
    "rule_cells",
    "write_weight",
]

INK, SOFT, FAINT = "#1f2933", "#8795a1", "#e4e9ee"
BLUE, ORANGE, PALE = "#2368a2", "#d1621b", "#e9b48f"
SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#bcd6ec", "#5b9bd0", BLUE])
READABLE = 0.6  # up to this shade text is dark, and white above
LABELS = [BLUE, ORANGE, "#3d8b57", "#8a5fb0", "#b08b1e", "#2f8f8f", "#b3476d", "#6b7785"]
"""Of the labels of segments, over again where there are more."""


def make_figure(width: float, height: float, title: str, legend: Sequence[tuple[str, str]], *notes: str) -> Figure:
    """A white figure of so many inches, wider if its texts need it.

    The title stands upper left, what the colours mean lower left, and the notes lower right.
    """
    bold = FontProperties(size=12, weight="bold")
    texts, small, unknown = typeset([text for text, _ in legend], 8)
    note = "; ".join(dict.fromkeys(filter(None, [*notes, unknown])))
    rooms = [0.35 + width_of(text, small) for text in texts]
    width = max(width, 0.4 + width_of(title, bold), 0.4 + sum(rooms) + width_of(note, small))
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    figure.text(0.2 / width, 1 - 0.35 / height, title, fontproperties=bold, color=INK, va="center")
    left = 0.2
    for text, (_, color), room in zip(texts, legend, rooms, strict=True):
        figure.text(left / width, 0.15 / height, "■", fontproperties=small, color=color)
        figure.text((left + 0.13) / width, 0.15 / height, text, fontproperties=small, color=INK)
        left += room
    figure.text(1 - 0.2 / width, 0.15 / height, note, fontproperties=small, color=SOFT, ha="right")
    return figure


def add_axes(figure: Figure, left: float, down: float, width: float, height: float) -> Axes:
    """Axes placed in inches from the figure's upper left corner."""
    w, h = figure.get_size_inches()
    return figure.add_axes((left / w, 1 - (down + height) / h, width / w, height / h))


def write_weight(axes: Axes, x: float, y: float, weight: float) -> None:
    """The weight of a structure, to the left of it."""
    axes.text(x, y, f"{weight:.0%}", fontsize=11, color=INK, weight="bold")


def draw_frame(axes: Axes) -> None:
    """A thin line around the axes."""
    for spine in axes.spines.values():
        spine.set_color(SOFT)
        spine.set_linewidth(0.6)


def rule_cells(axes: Axes, n: int, m: int) -> None:
    """Thin lines between n by m cells, and around them."""
    axes.set_xticks([j - 0.5 for j in range(m + 1)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(n + 1)], minor=True)
    axes.grid(which="minor", color=FAINT, lw=0.6)
    axes.tick_params(which="both", length=0, labelsize=9, labelcolor=INK)
    draw_frame(axes)


def as_decimal(value: float) -> str:
    """A probability as ``.25`` or ``1``, a larger amount as ``2.5``; nothing if it rounds to 0."""
    if value <= 0.005:
        return ""
    text = f"{value:.2f}"
    return text.removeprefix("0") if value <= 0.995 else text.rstrip("0").removesuffix(".")
