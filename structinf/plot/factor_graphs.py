"""Pictures of graphical models: variables with the probabilities of their values, joined by the tables of factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from torch import Tensor

from ..errors import InvalidInputError
from ..factor_graphs import FactorGraph
from .mixture import PlotInput, read_solution
from .networks import place_nodes
from .oracle_graphs import draw_oracle_graph
from .style import (
    GREY,
    INK,
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
from .text import check_count, names_or_numbers, prepare_text, text_width

__all__ = ["factor_graph"]

# Inches: the height of a line of a variable, and the side of an entry of a table.
LINE, ENTRY = 0.24, 0.13


def factor_graph(
    solution: PlotInput,
    factors: Sequence[Sequence[int]] | FactorGraph,
    *,
    variables: Sequence[str] | None = None,
    values: Sequence[str] | Sequence[Sequence[str]] | None = None,
    positions: Any = None,
    title: str = "",
) -> Figure:
    """Draw the variables of a graphical model with the probabilities of their values, and the tables of its factors.

    Supported structures: ``markov_field``, for a model of up to about 20 variables, and :class:`FactorGraph`, for a
    graph of up to about 30 variables.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance. The mean has a table for each factor.
    factors : FactorGraph, or sequence of sequences of int
        The graph; or the variables of each factor, as in the options of ``markov_field``.
    variables : sequence of str, optional
        Names of the n variables. By default, numbers from 1.
    values : sequence of str, or sequence of them for each variable, optional
        Names of the values of all variables, or of each variable. By default, numbers from 0.
    positions : (n, 2) array, optional
        The position of each variable, x to the right and y upwards, in any unit. By default, the variables are on a
        circle.
    title : str
        The title of the figure. By default, the figure has no title.

    Returns
    -------
    Figure
        A darker value, or a darker entry of a table, is more probable. A table of two variables has the values of its
        first variable down and of its second variable across; a larger table has all other variables across. If the
        relaxation keeps a support, the values of the heaviest structure have an orange frame.

        A :class:`FactorGraph` has its variables in a row, with their means. The factors stand above and below, each
        with the sum of its variables. A dashed line is a negated variable: the factor sees 1 − x.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch, or its tables do not belong to ``factors``, or if the number of names or
        positions does not match the model. A :class:`FactorGraph` takes no ``values`` and no ``positions``.

    Examples
    --------
    >>> import torch, structinf as si
    >>> factors = [(0,), (0, 1)]
    >>> theta = torch.tensor([0.0, 1.0]), torch.eye(2)
    >>> solution = si.infer(
    ...     theta,
    ...     "markov_field",
    ...     "marginals",
    ...     cardinalities=(2, 2),
    ...     factors=factors,
    ... )
    >>> figure = factor_graph(solution, factors, values=["no", "yes"])
    """
    if isinstance(factors, FactorGraph):
        if values is not None or positions is not None:
            raise InvalidInputError("values and positions belong to pictures of a markov_field, not of a FactorGraph")
        return draw_oracle_graph(solution, factors, variables, title)
    data = read_solution(solution, ", ".join(" ".join(map(_letters, factor)) for factor in factors), max_structures=1)
    count = 1 + max(v for factor in factors for v in factor)
    marginals = [_marginal(data.mean, factors, v) for v in range(count)]
    names = names_or_numbers("variables", variables, count, "variables")
    texts = _value_names(values, [len(m) for m in marginals])
    names, font, note = prepare_text(names)
    flat, small, other_note = prepare_text([text for row in texts for text in row], 8)
    remaining = iter(flat)
    texts = [[next(remaining) for _ in row] for row in texts]
    cells = [max([0.42, *(text_width(text, small) + 0.1 for text in row)]) for row in texts]
    widths = [
        max(len(row) * cell, text_width(name, font) + 0.2) for row, cell, name in zip(texts, cells, names, strict=True)
    ]
    places = place_nodes(range(count), positions, [w + 4 * ENTRY for w in widths])
    low, high = places.min(0), places.max(0)
    side, above, below = 0.25 + max(widths) / 2, 1.5 * LINE + (0.65 if title else 0.2), 1.5 * LINE + 0.4
    width, height = high[0] - low[0] + 2 * side, high[1] - low[1] + above + below
    chosen = (
        [_marginal(tuple(t[0] for t in data.structures), factors, v) for v in range(count)]
        if len(data.weights)
        else None
    )
    legend = {f"the heaviest, {as_percent(weight)}": ORANGE for weight in data.weights.tolist()}
    figure = make_figure(width, height, title, colors_of(legend, [ORANGE]), data.rest, note, other_note)
    axes = add_axes(figure, 0, 0, *size_of(figure))
    left, down = low[0] - side, low[1] - below
    axes.set(xlim=(left, left + size_of(figure)[0]), ylim=(down, down + height))  # in inches
    axes.set_axis_off()
    for table, factor in zip(data.mean, factors, strict=True):
        if len(factor) > 1:
            _draw_factor(axes, places[list(factor)], table)
    for v in range(count):
        state = None if chosen is None else int(chosen[v].argmax())
        _draw_variable(axes, places[v], widths[v], names[v], font, texts[v], small, marginals[v], state)
    return figure


def _letters(number: int) -> str:
    """Return a name of the variable ``number`` without digits, which a form of read_solution reads as sums."""
    name = ""
    while number >= 0:
        name = chr(ord("a") + number % 26) + name
        number = number // 26 - 1
    return name


def _marginal(tables: Sequence[Tensor], factors: Sequence[Sequence[int]], v: int) -> Tensor:
    """Return the probabilities of the values of variable ``v``, from the smallest table with the variable."""
    found = [(len(factor), k) for k, factor in enumerate(factors) if v in factor]
    if not found:
        raise InvalidInputError(f"factors: variable {v} belongs to no factor; give it a factor ({v},)")
    _, k = min(found)
    others = [axis for axis, u in enumerate(factors[k]) if u != v]
    return tables[k].sum(others) if others else tables[k]


def _value_names(values: Any, cardinalities: Sequence[int]) -> list[list[str]]:
    """Return a name of each value of each variable."""
    if values is None:
        return [[str(x) for x in range(c)] for c in cardinalities]
    if all(isinstance(value, str) for value in values):
        for v, c in enumerate(cardinalities):
            check_count(f"values of variable {v}", len(values), c, "values")
        return [list(values)] * len(cardinalities)
    check_count("values", len(values), len(cardinalities), "variables")
    return [
        names_or_numbers(f"values[{v}]", row, c, "values")
        for v, (row, c) in enumerate(zip(values, cardinalities, strict=True))
    ]


def _draw_factor(axes: Axes, ends: np.ndarray, table: Tensor) -> None:
    """Draw lines from the variables of a factor to the table between them, with a darker entry for a higher mean."""
    x, y = ends.mean(0)
    for end in ends:
        axes.plot([x, end[0]], [y, end[1]], color=GREY, lw=1.0, zorder=1)
    entries = table.flatten(1)
    rows, columns = entries.shape
    left, top = x - columns * ENTRY / 2, y + rows * ENTRY / 2
    for i in range(rows):
        for j in range(columns):
            corner = left + j * ENTRY, top - (i + 1) * ENTRY
            color = SHADES(float(entries[i, j]))
            axes.add_patch(Rectangle(corner, ENTRY, ENTRY, facecolor=color, edgecolor=GREY, lw=0.5, zorder=2))


def _draw_variable(
    axes: Axes,
    centre: np.ndarray,
    width: float,
    name: str,
    font: FontProperties,
    texts: Sequence[str],
    small: FontProperties,
    marginal: Tensor,
    state: int | None,
) -> None:
    """Draw a box with the name of a variable over the names of its values, and the probabilities below."""
    left, top = centre[0] - width / 2, centre[1] + 1.5 * LINE
    axes.add_patch(
        Rectangle((left, top - 3 * LINE), width, 3 * LINE, facecolor="white", edgecolor=GREY, lw=1, zorder=3)
    )
    axes.text(centre[0], top - LINE / 2, name, ha="center", va="center", color=INK, fontproperties=font, zorder=5)
    cell = width / len(texts)
    for x, (text, share) in enumerate(zip(texts, marginal.tolist(), strict=True)):
        corner = left + x * cell, top - 3 * LINE
        box = Rectangle(corner, cell, 2 * LINE, facecolor=SHADES(float(share)), edgecolor=GREY, lw=0.6, zorder=4)
        if x == state:
            box.set(edgecolor=ORANGE, lw=2.0, zorder=4.5)
        axes.add_patch(box)
        color = "white" if share > READABLE else INK
        for line, word in enumerate((text, as_decimal(share) or "0")):
            place = corner[0] + cell / 2, top - (1.5 + line) * LINE
            axes.text(*place, word, ha="center", va="center", color=color, fontproperties=small, zorder=5)
