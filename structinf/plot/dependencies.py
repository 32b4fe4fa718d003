"""Pictures of dependency trees: arcs over words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path
from torch import Tensor

from .mixture import PlotInput, read_solution
from .sentences import MARGIN, Sentence
from .style import BLUE, GREY, ORANGE, PALE, colors_of, make_figure
from .text import names_or_numbers, prepare_text

__all__ = ["trees"]

# Inches: between the heights of two arcs, from the baseline of the words to the ends of arcs, and between two ends.
LEVEL, BOTTOM_MARGIN, ARC_SPACING = 0.3, 0.2, 0.11


def trees(
    solution: PlotInput,
    words: Sequence[str],
    *,
    labels: Sequence[str] | None = None,
    gold: Tensor | None = None,
    title: str = "",
    max_structures: int = 4,
) -> Figure:
    """Draw the dependency trees of the support, one above the other, over the words of a sentence.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one sentence. The mean is (n + 1, n + 1), where node 0 is the root, or (n + 1, n + 1, L) for
        labelled arcs.
    words : sequence of str
        The n words.
    labels : sequence of str, optional
        Names of the labels of arcs. By default, numbers from 1.
    gold : (n,) integer Tensor, optional
        The correct heads, 0 for the root.
    title : str
        The title of the figure. By default, the figure has no title.
    max_structures : int
        The largest number of trees to draw, in order of decreasing weight.

    Returns
    -------
    Figure
        Arcs of all trees are grey, other arcs blue. Arcs that are wrong according to ``gold`` are pale orange if in all
        trees, and orange otherwise.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch, has no support, or has a mean of another shape, or if the number of words or
        labels does not match the mean.

    Examples
    --------
    >>> import torch, structinf as si
    >>> theta = torch.zeros(4, 4)
    >>> theta[0, 2], theta[2, 1], theta[2, 3], theta[1, 3] = 2.0, 2.0, 1.0, 0.6
    >>> figure = trees(
    ...     si.infer(theta, "arborescence", "sparsemap"), ["she", "saw", "him"]
    ... )
    """
    data = read_solution(solution, "n+1 n+1", "n+1 n+1 L", max_structures=max_structures, single_instance=False)
    (mean,), (structures,) = data.mean, data.structures
    sentence = Sentence.of(words, len(mean) - 1)
    names = names_or_numbers("labels", labels, mean.shape[2], "labels") if mean.ndim == 3 else []
    names, font, glyph_note = prepare_text(names, 7)
    drawings = [{(h, m): tuple(label) for h, m, *label in s.nonzero().tolist()} for s in structures]
    shared = set(drawings[0].items()).intersection(*(arcs.items() for arcs in drawings))

    def color_of(arc: Arc, label: tuple[int, ...]) -> str:
        wrong = gold is not None and int(gold[arc[1] - 1]) != arc[0]
        return (PALE if wrong else GREY) if (arc, label) in shared else (ORANGE if wrong else BLUE)

    meanings = {"in all trees": GREY, "in some trees": BLUE, "wrong, in all": PALE, "wrong, in some": ORANGE}
    legend = colors_of(meanings, {color_of(*item) for arcs in drawings for item in arcs.items()})
    levels = [find_levels(list(arcs)) for arcs in drawings]
    heights = [0.9 + LEVEL * max(level.values(), default=0) for level in levels]
    top, width = 0.7 if title else 0.15, MARGIN + sentence.right + 0.2
    figure = make_figure(width, top + sum(heights) + 0.4, title, legend, data.rest, sentence.glyph_note, glyph_note)
    for arcs, level, weight, height in zip(drawings, levels, data.weights.tolist(), heights, strict=True):
        axes = sentence.draw(figure, top, height, weight)
        top += height
        for arc, ends in find_ends(list(arcs), sentence.centres).items():
            color = color_of(arc, arcs[arc])
            y = LEVEL * level.get(arc, max(level.values(), default=0) + 1)
            _draw_arc(axes, ends, y, color)
            for label in arcs[arc]:
                _draw_label(axes, ends, y, names[label], font, color)
    return figure


Arc: TypeAlias = tuple[int, int]  # head and dependent; word m is at centres[m - 1], and the root has no position


def find_levels(arcs: Sequence[Arc]) -> dict[Arc, int]:
    """Return the level of each arc between words: above all shorter arcs with an overlapping span."""
    levels: dict[Arc, int] = {}
    for arc in sorted((a for a in arcs if a[0] != 0), key=lambda a: (abs(a[0] - a[1]), a)):
        low, high = sorted(arc)
        under = [level for other, level in levels.items() if min(other) < high and max(other) > low]
        levels[arc] = 1 + max(under, default=0)
    return levels


def find_ends(arcs: Sequence[Arc], centres: Sequence[float]) -> dict[Arc, tuple[float | None, float]]:
    """Return the start (None for the root) and the end of each arc. The ends at a word are side by side, without
    crossings.

    All ends at a word are nearer to this word than to the next word.
    """
    places: dict[tuple[Arc, int], float] = {}
    rooms = [right - left for left, right in pairwise([-inf, *centres, inf])]
    for word, centre in enumerate(centres, 1):
        here = [a for a in arcs if word in a]
        # From left to right: leftward arcs by increasing length, the arc of the root, rightward arcs by decreasing
        # length.
        here.sort(key=lambda a: 0 if 0 in a else 1 / (a[0] + a[1] - 2 * word))
        step = min(ARC_SPACING, min(rooms[word - 1 : word + 1]) / max(len(here), 1))
        for k, arc in enumerate(here):
            places[arc, word] = centre + step * (k - (len(here) - 1) / 2)
    return {a: (places.get((a, a[0])), places[a, a[1]]) for a in arcs}


def _draw_arc(axes: Axes, ends: tuple[float | None, float], y: float, color: str) -> None:
    """Draw a rounded arc from the head over height ``y`` to the dependent; for the root, an arrow from above."""
    start, end = ends
    if start is None:
        points, codes = [(end, y + BOTTOM_MARGIN), (end, BOTTOM_MARGIN)], [Path.MOVETO, Path.LINETO]
    else:
        bend = min(0.25, abs(end - start) / 2) * (1 if end > start else -1)
        top = y + BOTTOM_MARGIN
        points = [(start, BOTTOM_MARGIN), (start, top - 0.15), (start, top), (start + bend, top)]
        points += [(end - bend, top), (end, top), (end, top - 0.15), (end, BOTTOM_MARGIN)]
        codes = [Path.MOVETO, Path.LINETO, Path.CURVE3, Path.CURVE3, Path.LINETO, Path.CURVE3, Path.CURVE3, Path.LINETO]
    arrow = FancyArrowPatch(path=Path(points, codes), arrowstyle="-|>", mutation_scale=7, shrinkA=0, shrinkB=0)
    arrow.set(color=color, lw=1.2)
    axes.add_patch(arrow)


def _draw_label(
    axes: Axes, ends: tuple[float | None, float], y: float, label: str, font: FontProperties, color: str
) -> None:
    """Write a label above the middle of an arc, or beside the arrow of the root."""
    start, end = ends
    if start is None:
        axes.text(end + 0.05, y + BOTTOM_MARGIN - 0.08, label, fontproperties=font, color=color)
    else:
        axes.text((start + end) / 2, y + BOTTOM_MARGIN + 0.03, label, fontproperties=font, color=color, ha="center")
