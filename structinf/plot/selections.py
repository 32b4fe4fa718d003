"""Pictures of selections: bars for the probabilities of elements, and a row of cells for each selection."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from ..errors import InvalidInputError
from .mixture import PlotInput, read_solution
from .style import BLUE, GREY, INK, LIGHT_GREY, ORANGE, add_axes, as_decimal, colors_of, make_figure, write_weight
from .text import names_or_numbers, prepare_text, text_width

__all__ = ["selection"]

# Inches: a bar of probability 1, the gap below the bars, the distance between rows, and the height of cells.
BARS, GAP, ROW, CELL = 1.1, 0.15, 0.36, 0.26
ROUNDING = 1e-4


def selection(
    solution: PlotInput, *, names: Sequence[str] | None = None, title: str = "", max_structures: int = 6
) -> Figure:
    """Draw the mean of a selection as bars, and below the bars the selections of the support.

    Supported structures: ``categorical``, ``bits``, ``subset``, ``correlated_subset``, ``knapsack``, ``milp`` with 0/1
    variables, and ``path`` with scores of nodes.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance. The mean is (d,), or a tuple of (d,) and (d − 1,) for pairs of neighbours.
    names : sequence of str, optional
        Names of the elements. By default, numbers from 1.
    title : str
        The title of the figure. By default, the figure has no title.
    max_structures : int
        The largest number of selections to draw, in order of decreasing weight.

    Returns
    -------
    Figure
        Orange elements are not in all selections. Pairs have narrow bars. A line joins neighbours that are both
        selected.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch or values outside [0, 1], or its mean has another shape, or if the number of names
        does not match the number of elements.

    Examples
    --------
    >>> import torch, structinf as si
    >>> solution = si.infer(
    ...     torch.tensor([1.0, 0.8, 0.5, -1.0]), "subset", "sparsemap", k=2
    ... )
    >>> figure = selection(solution, names=["tea", "coffee", "water", "rain"])
    """
    data = read_solution(solution, "d", "d, d-1", max_structures=max_structures)
    mean, weights = data.mean[0], data.weights
    size = len(mean)
    if bool((mean < -ROUNDING).any() | (mean > 1 + ROUNDING).any()):
        raise InvalidInputError(f"solution must have means between 0 and 1, got {mean.tolist()}")
    names, font, glyph_note = prepare_text(names_or_numbers("names", names, size, "elements"))
    widest = max((text_width(name, font) for name in names), default=0.0)
    turned = widest > 0.95
    step = 0.5 if turned else max(0.5, widest + 0.12)  # inches
    left = max(0.85, 0.7 * widest if turned else 0.0)  # rotated names extend to the left
    top, below = 0.8 if title else 0.35, 0.2 + (0.8 * widest if turned else 0.15)
    room = BARS + GAP + ROW * len(weights)
    shared = (data.structures[0] > 0).all(0) if len(weights) else mean > 0
    colors = [BLUE if alike else ORANGE for alike in shared.tolist()]
    used = {color for color, p in zip(colors, mean.tolist(), strict=True) if p > 0}
    legend = colors_of({"in all": BLUE, "in some": ORANGE}, used) if len(weights) else [("mean", BLUE)]
    if len(data.mean) == 2:
        legend.append(("both neighbours", GREY))
    height = top + room + below + 0.45
    figure = make_figure(left + size * step + 0.25, height, title, legend, data.rest, glyph_note)
    axes = add_axes(figure, left, top, size * step, room + below)
    axes.set(xlim=(-0.5, size - 0.5), ylim=(room + below, 0))  # x in elements, y in inches from the top
    axes.set_axis_off()

    axes.hlines(BARS, -0.5, size - 0.5, color=GREY, lw=0.6)
    for i, p in enumerate(mean.tolist()):
        _draw_bar(axes, i, 0.7, p, colors[i])
        axes.text(i, BARS * (1 - p) - 0.05, as_decimal(p), fontsize=9, color=INK, ha="center")
    for pairs in data.mean[1:]:
        for i, p in enumerate(pairs.tolist()):
            _draw_bar(axes, i + 0.5, 0.1, p, GREY)
    for k, weight in enumerate(weights.tolist()):
        y = BARS + GAP + ROW * k
        write_weight(axes, -0.5 - 0.62 / step, y + CELL - 0.05, weight)
        elements, *pairs = (t[k] > 0 for t in data.structures)
        _draw_row(axes, elements, pairs, colors, y)
    for i, name in enumerate(names):
        text = axes.text(i, room + 0.15, name, color=INK, fontproperties=font, ha="right" if turned else "center")
        text.set(rotation=40 if turned else 0, rotation_mode="anchor")
    return figure


def _draw_bar(axes: Axes, x: float, width: float, height: float, color: str) -> None:
    if height > 0:
        axes.add_patch(Rectangle((x - width / 2, BARS * (1 - height)), width, BARS * height, color=color, lw=0))


def _draw_row(axes: Axes, elements: Tensor, pairs: Sequence[Tensor], colors: Sequence[str], y: float) -> None:
    """Draw the cells of a selection: filled for selected elements, empty for other elements."""
    for i, taken in enumerate(elements.tolist()):
        color = colors[i] if taken else LIGHT_GREY
        axes.add_patch(Rectangle((i - 0.35, y), 0.7, CELL, facecolor=color if taken else "white", edgecolor=color))
    for pair in pairs:
        for i in pair.nonzero()[:, 0].tolist():
            axes.add_patch(Rectangle((i + 0.35, y + CELL / 2 - 0.03), 0.3, 0.06, color=GREY, lw=0))
