"""Elements of all pictures: colours, formatted numbers, the figure with title and legend, axes placed in inches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias, cast

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.gridspec import GridSpec

from .text import prepare_text, text_width

__all__ = [
    "BLUE",
    "GREY",
    "INK",
    "LABELS",
    "LIGHT_GREY",
    "ORANGE",
    "PALE",
    "READABLE",
    "SHADES",
    "add_axes",
    "add_part",
    "as_decimal",
    "as_percent",
    "colors_of",
    "draw_cell_lines",
    "draw_frame",
    "draw_into_parts",
    "make_figure",
    "size_of",
    "write_weight",
]

INK, GREY, LIGHT_GREY = "#1f2933", "#8795a1", "#e4e9ee"
BLUE, ORANGE, PALE = "#2368a2", "#d1621b", "#e9b48f"
SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#bcd6ec", "#5b9bd0", BLUE])
READABLE = 0.6  # text is dark up to this shade, and white above
LABELS = [BLUE, ORANGE, "#3d8b57", "#8a5fb0", "#b08b1e", "#2f8f8f", "#b3476d", "#6b7785"]
"""Colours of segment labels, repeated if there are more than 8 labels."""

Place: TypeAlias = Callable[[float, float], Figure | SubFigure]

_place: ContextVar[tuple[Place, bool] | None] = ContextVar("place", default=None)


@contextmanager
def draw_into_parts(place: Place, *, legends: bool) -> Iterator[None]:
    """In this context, ``make_figure`` returns parts of another figure, made by ``place(width, height)``."""
    token = _place.set((place, legends))
    try:
        yield
    finally:
        _place.reset(token)


def make_figure(width: float, height: float, title: str, legend: Sequence[tuple[str, str]], *notes: str) -> Figure:
    """Return a white figure of this size in inches, or wider if its texts are wider.

    The title is at the upper left, the legend of colours at the lower left, and the notes at the lower right.
    """
    place, legends = _place.get() or (None, True)
    bold = FontProperties(size=12, weight="bold")
    if not legends:
        legend, notes = (), ()
    texts, small, glyph_note = prepare_text([text for text, _ in legend], 8)
    note = "; ".join(dict.fromkeys(filter(None, [*notes, glyph_note])))
    rooms = [0.35 + text_width(text, small) for text in texts]
    width = max(
        width, 0.4 + text_width(title, bold), 0.4 + sum(rooms) + (0.2 + text_width(note, small) if note else 0.0)
    )
    # A subfigure has all methods of a figure that pictures use, but is of another class.
    figure = cast(Figure, place(width, height)) if place else Figure((width, height), dpi=150, facecolor="white")
    figure.text(0.2 / width, 1 - 0.35 / height, title, fontproperties=bold, color=INK, va="center")
    left = 0.2
    for text, (_, color), room in zip(texts, legend, rooms, strict=True):
        figure.text(left / width, 0.15 / height, "■", fontproperties=small, color=color)
        figure.text((left + 0.13) / width, 0.15 / height, text, fontproperties=small, color=INK)
        left += room
    figure.text(1 - 0.2 / width, 0.15 / height, note, fontproperties=small, color=GREY, ha="right")
    return figure


def colors_of(legend: Mapping[str, str], used: Collection[str]) -> list[tuple[str, str]]:
    """Return the entries of a legend whose colours the picture uses."""
    return [(text, color) for text, color in legend.items() if color in used]


def size_of(figure: Figure | SubFigure) -> tuple[float, float]:
    """Return width and height in inches of a figure or of a part of a figure."""
    if isinstance(figure, Figure):
        return figure.get_figwidth(), figure.get_figheight()
    return float(figure.bbox.width) / figure.dpi, float(figure.bbox.height) / figure.dpi


def add_axes(figure: Figure, left: float, down: float, width: float, height: float) -> Axes:
    """Add axes placed in inches from the upper left corner of the figure."""
    w, h = size_of(figure)
    return figure.add_axes((left / w, 1 - (down + height) / h, width / w, height / h))


def add_part(figure: Figure, left: float, down: float, width: float, height: float) -> SubFigure:
    """Add a part of a figure, placed in inches from the upper left corner."""
    w, h = size_of(figure)
    grid = GridSpec(
        *(3, 3),
        figure=figure,
        width_ratios=[left, width, w - left - width],
        height_ratios=[down, height, h - down - height],
    )
    return figure.add_subfigure(grid[1, 1])


def write_weight(axes: Axes, x: float, y: float, weight: float) -> None:
    """Write the weight of a structure, in bold percent."""
    axes.text(x, y, as_percent(weight), fontsize=11, color=INK, weight="bold")


def draw_frame(axes: Axes) -> None:
    """Draw a thin line around the axes."""
    for spine in axes.spines.values():
        spine.set_color(GREY)
        spine.set_linewidth(0.6)


def draw_cell_lines(axes: Axes, n: int, m: int) -> None:
    """Draw thin lines between and around n by m cells."""
    axes.set_xticks([j - 0.5 for j in range(m + 1)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(n + 1)], minor=True)
    axes.grid(which="minor", color=LIGHT_GREY, lw=0.6)
    axes.tick_params(which="both", length=0, labelsize=9, labelcolor=INK)
    draw_frame(axes)


def as_decimal(value: float) -> str:
    """Format a probability as ``.25`` or ``1``, and a larger amount as ``2.5``. A number that rounds to 0 gives ""."""
    if value <= 0.005:
        return ""
    text = f"{value:.2f}"
    return text.removeprefix("0") if value <= 0.995 else text.rstrip("0").removesuffix(".")


def as_percent(weight: float) -> str:
    """Format a weight in whole percent; ``<1%`` for a positive weight that rounds to 0."""
    return "<1%" if 0 < weight < 0.005 else f"{weight:.0%}"
