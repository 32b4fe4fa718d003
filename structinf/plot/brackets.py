"""Pictures of binary trees: brackets over words, where a bracket joins the two parts of a span."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from matplotlib.figure import Figure

from .mixture import PlotInput, read_solution
from .sentences import MARGIN, Sentence
from .style import BLUE, GREY, colors_of, make_figure
from .text import names_or_numbers, prepare_text

__all__ = ["constituents"]

LEVEL = 0.36  # inches from a span to its higher part


def constituents(
    solution: PlotInput,
    words: Sequence[str],
    *,
    labels: Sequence[str] | None = None,
    title: str = "",
    max_structures: int = 4,
) -> Figure:
    """Draw the binary trees of the support, one above the other, over the words of a sentence.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one sentence. The mean is (n, n), indexed by the first and the last word of a span, or
        (n, n, L) with labels.
    words : sequence of str
        The n words.
    labels : sequence of str, optional
        Names of the L labels. By default, numbers from 1.
    title : str
        The title of the figure. By default, the figure has no title.
    max_structures : int
        The largest number of trees to draw, in order of decreasing weight.

    Returns
    -------
    Figure
        Spans of all trees are grey, other spans blue.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch, has no support, or has a mean of another shape, or if the number of words or
        labels does not match the mean.

    Examples
    --------
    >>> import torch, structinf as si
    >>> theta = torch.zeros(4, 4)
    >>> theta[0, 1], theta[1, 3] = 1.0, 0.8
    >>> figure = constituents(
    ...     si.infer(theta, "binary_tree", "sparsemap"),
    ...     ["old", "men", "and", "women"],
    ... )
    """
    data = read_solution(solution, "n n", "n n L", max_structures=max_structures, single_instance=False)
    (mean,), (structures,) = data.mean, data.structures
    sentence = Sentence.of(words, len(mean))
    names = names_or_numbers("labels", labels, mean.shape[2], "labels") if mean.ndim == 3 else []
    names, font, glyph_note = prepare_text(names, 8)
    drawings = [{(i, j): tuple(label) for i, j, *label in s.nonzero().tolist()} for s in structures]
    shared = set(drawings[0].items()).intersection(*(spans.items() for spans in drawings))
    colors = [{span: GREY if (span, spans[span]) in shared else BLUE for span in spans} for spans in drawings]
    used = {color for each in colors for color in each.values()}
    legend = colors_of({"in all trees": GREY, "in some trees": BLUE}, used)
    foot = 0.42 if names else 0.2  # inches from the baseline of the words to the lines
    places = [place_spans(spans, sentence.centres, foot) for spans in drawings]
    heights = [max(y for _, y in place.values()) + 0.45 for place in places]
    top, width = 0.65 if title else 0.1, MARGIN + sentence.right + 0.2
    figure = make_figure(width, top + sum(heights) + 0.4, title, legend, data.rest, sentence.glyph_note, glyph_note)
    weights = data.weights.tolist()
    for spans, color_of, place, weight, height in zip(drawings, colors, places, weights, heights, strict=True):
        axes = sentence.draw(figure, top, height, weight)
        top += height
        for span, label in spans.items():
            (x, y), parts = place[span], find_parts(span, spans)
            color = color_of[span]
            if parts:  # a horizontal line at the height of the span, and a line down to each part
                (left, from_left), (right, from_right) = (place[part] for part in parts)
                axes.plot([left, left, right, right], [from_left, y, y, from_right], color=color, lw=1.3)
            for number in label:
                y -= 0 if parts else 0.13
                text = axes.text(x, y, names[number], ha="center", va="center", zorder=3, color=color)
                text.set(fontproperties=font, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0})
    return figure


Span: TypeAlias = tuple[int, int]  # the first and the last word, both included


def find_parts(span: Span, spans: Collection[Span]) -> list[Span]:
    """Return the two parts of a span of several words."""
    first, last = span
    splits = ([(first, k), (k + 1, last)] for k in range(first, last))
    return next((parts for parts in splits if all(part in spans for part in parts)), [])


def place_spans(spans: Collection[Span], centres: Sequence[float], foot: float) -> dict[Span, tuple[float, float]]:
    """Return the centre of each span in inches: words at the bottom, other spans above and between both parts."""
    places: dict[Span, tuple[float, float]] = {}
    for span in sorted(spans, key=lambda s: s[1] - s[0]):
        parts = [places[part] for part in find_parts(span, spans)] or [(centres[span[0]], foot - LEVEL)]
        places[span] = sum(x for x, _ in parts) / len(parts), max(y for _, y in parts) + LEVEL
    return places
