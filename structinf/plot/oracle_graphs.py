"""Pictures of factor graphs of oracles: variables with their means, and factors with their names and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from torch import Tensor

from ..factor_graphs import FactorGraph
from .mixture import PlotInput, read_solution
from .style import (
    GREY,
    INK,
    LIGHT_GREY,
    ORANGE,
    READABLE,
    SHADES,
    add_axes,
    as_decimal,
    as_percent,
    colors_of,
    make_figure,
    size_of,
)
from .text import check_count, prepare_text, text_width

__all__ = ["draw_oracle_graph"]

# Inches: the height of a line of text, the space between boxes, and the space between the rows of boxes.
LINE, SPACE, ROWS = 0.24, 0.15, 0.9


class _Box(NamedTuple):
    """A box with two lines of text, at ``x`` in inches."""

    x: float
    width: float
    lines: tuple[str, str]


def draw_oracle_graph(
    solution: PlotInput, graph: FactorGraph, variables: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Draw the variables of a factor graph in a row, and its factors in rows above and below.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance.
    graph : FactorGraph
        The graph.
    variables : sequence of str, optional
        Names of the variables, in the order of their numbers. By default, their indices from 1.
    title : str
        The title of the figure. By default, the figure has no title.
    """
    shapes = [graph.variables.shape, *(shape for factor in graph._factors for shape in factor.additional)]
    data = read_solution(solution, ", ".join(" ".join(map(str, shape)) for shape in shapes), max_structures=1)
    mean = data.mean[0].flatten()
    names = [",".join(str(i + 1) for i in index) for index in np.ndindex(*graph.variables.shape)]
    if variables is not None:
        check_count("variables", len(variables), len(names), "variables")
        names = list(variables)
    names, font, note = prepare_text(names)
    labels, small, other_note = prepare_text([factor.label for factor in graph._factors], 9)
    row = _in_a_row(names, [as_decimal(float(m)) or "0" for m in mean], font)
    factors = [
        _Box(
            float(np.mean([row[int(v)].x for v in factor.variables.flatten()])),
            max(text_width(label, small) + 0.2, 0.6),
            (label, f"sum {as_decimal(float(_sum(mean, factor.variables, factor.negated))) or '0'}"),
        )
        for factor, label in zip(graph._factors, labels, strict=True)
    ]
    above, below = _two_rows(factors)
    boxes = [*row, *above.values(), *below.values()]
    left = min(box.x - box.width / 2 for box in boxes) - 0.2
    right = max(box.x + box.width / 2 for box in boxes) + 0.2
    levels = {1: above, -1: below}
    high, low = ROWS * bool(above) + LINE, ROWS * bool(below) + LINE
    top, bottom = 0.65 if title else 0.2, 0.45
    legend = {f"the heaviest, {as_percent(weight)}": ORANGE for weight in data.weights.tolist()}
    height = high + low + top + bottom
    figure = make_figure(right - left, height, title, colors_of(legend, [ORANGE]), data.rest, note, other_note)
    axes = add_axes(figure, 0, 0, *size_of(figure))
    axes.set(xlim=(left, left + size_of(figure)[0]), ylim=(-low - bottom, high + top))  # in inches
    axes.set_axis_off()
    for side, placed in levels.items():
        for k, box in placed.items():
            factor = graph._factors[k]
            for v, is_negated in zip(
                factor.variables.flatten().tolist(), factor.negated.flatten().tolist(), strict=True
            ):
                ends = [box.x, row[v].x], [side * (ROWS - LINE), side * LINE]
                axes.plot(*ends, color=GREY, lw=1.0, ls="--" if is_negated else "-", zorder=1)
            _draw_box(axes, box, side * ROWS, small, LIGHT_GREY, False)
    chosen = data.structures[0][0].flatten() if len(data.weights) else None
    for v, box in enumerate(row):
        is_chosen = chosen is not None and float(chosen[v]) > 0.5
        _draw_box(axes, box, 0.0, font, SHADES(float(mean[v])), is_chosen, is_dark=float(mean[v]) > READABLE)
    return figure


def _sum(mean: Tensor, variables: Tensor, negated: Tensor) -> Tensor:
    """Return the sum of the variables as the factor sees them."""
    values = mean[variables]
    return values.where(~negated, 1 - values).sum()


def _in_a_row(names: Sequence[str], means: Sequence[str], font: FontProperties) -> list[_Box]:
    boxes, x = [], 0.0
    for name, mean in zip(names, means, strict=True):
        width = max(0.5, text_width(name, font) + 0.2)
        boxes.append(_Box(x + width / 2, width, (name, mean)))
        x += width + SPACE
    return boxes


def _two_rows(factors: Sequence[_Box]) -> tuple[dict[int, _Box], dict[int, _Box]]:
    """Return the boxes above and below the variables by factor, each near its place, and without overlap."""
    rows: tuple[dict[int, _Box], dict[int, _Box]] = {}, {}
    ends = [-np.inf, -np.inf]
    for k in sorted(range(len(factors)), key=lambda k: factors[k].x):
        box = factors[k]
        start = box.x - box.width / 2
        side = 0 if ends[0] <= start else int(ends[1] < ends[0])
        start = max(start, ends[side])
        rows[side][k] = box._replace(x=float(start + box.width / 2))
        ends[side] = start + box.width + SPACE
    return rows


def _draw_box(
    axes: Axes, box: _Box, y: float, font: FontProperties, color: object, is_chosen: bool, *, is_dark: bool = False
) -> None:
    corner = box.x - box.width / 2, y - LINE
    patch = Rectangle(corner, box.width, 2 * LINE, facecolor=color, edgecolor=GREY, lw=0.8, zorder=3)
    if is_chosen:
        patch.set(edgecolor=ORANGE, lw=2.0)
    axes.add_patch(patch)
    for line, text in zip((0.5, -0.5), box.lines, strict=True):
        ink = "white" if is_dark else INK
        axes.text(box.x, y + line * LINE, text, ha="center", va="center", color=ink, fontproperties=font, zorder=4)
