"""Pictures of segmentations: labelled bars over the steps, one row per segmentation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from .mixture import PlotInput, read_solution
from .side_labels import Items, SideLabels, draw_series
from .style import GREY, INK, LABELS, add_axes, make_figure, write_weight
from .text import names_or_numbers, prepare_text, text_width

__all__ = ["segments"]

# Inches: the height of the mean, the gap below the mean, the distance between rows, and the height of bars.
MEAN, GAP, ROW, BAR = 0.9, 0.15, 0.38, 0.28


def segments(
    solution: PlotInput,
    *,
    x: Items | None = None,
    labels: Sequence[str] | None = None,
    title: str = "",
    max_structures: int = 4,
) -> Figure:
    """Draw the mean of a semi-Markov model: the labels of each step, and below the segmentations of the support.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance, in any form of ``semi_markov``: segments (T, D, S), with or without transitions,
        pairwise (T, D, S, S), or steps (T, S) with boundaries and durations.
    x : sequence of str, (T,) or (T, d) numbers, optional
        The items of the T steps: words, or a series of d features.
    labels : sequence of str, optional
        Names of the S labels. By default, numbers from 1.
    title : str
        The title of the figure. By default, the figure has no title.
    max_structures : int
        The largest number of segmentations to draw, in order of decreasing weight.

    Returns
    -------
    Figure
        Each label has a colour. In the mean, the height of a bar is the probability of the label.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch or its mean has another shape, or if the number of items or labels does not match
        the mean.

    Examples
    --------
    >>> import torch, structinf as si
    >>> theta = torch.zeros(3, 2, 2)
    >>> theta[2, 1, 0], theta[1, 1, 1] = 1.0, 0.8
    >>> solution = si.infer(theta, "semi_markov", "sparsemap")
    >>> figure = segments(
    ...     solution, x=["to", "New", "York"], labels=["place", "other"]
    ... )
    """
    forms = "T D S", "T D S, S S", "T D S S", "T S, T 2 S, D S", "T S, T 2 S, D S, S S"
    data = read_solution(solution, *forms, max_structures=max_structures)
    shares = data.mean[0] if data.mean[0].ndim == 2 else _labels_of_steps(data.mean[0])
    steps, kinds = shares.shape
    labels = names_or_numbers("labels", labels, kinds, "labels")
    names, font, _ = prepare_text(labels, 8)
    side = SideLabels.of("x", x, steps, "steps")
    step = max(min(0.6, 6.0 / steps), side.widest + 0.12)
    left, top = 0.75, 0.7 if title else 0.2
    width = steps * step
    above, below = 0.7 if side.series is not None else 0.0, 0.3 if side.names else 0.0
    room = MEAN + GAP + ROW * len(data.weights)
    legend = [(name, _color(label)) for label, name in enumerate(labels)]
    height = top + above + room + below + 0.5
    figure = make_figure(left + width + 0.25, height, title, legend, data.rest, side.glyph_note)
    if side.series is not None:
        draw_series(add_axes(figure, left, top, width, above - 0.1), side.series)

    axes = add_axes(figure, left, top + above, width, room + below)
    # x in steps, y in inches from the top.
    axes.set(xlim=(-0.5, steps - 0.5), ylim=(room + below, 0))
    axes.set_axis_off()
    edges, below_it = np.arange(steps + 1) - 0.5, np.full(steps, MEAN)
    for label, share in enumerate(shares.T.numpy()):
        above_it = below_it - MEAN * share
        axes.stairs(above_it, edges, baseline=below_it, fill=True, color=_color(label), lw=0, zorder=1)
        below_it = above_it
    axes.hlines([0, MEAN], -0.5, steps - 0.5, color=GREY, lw=0.6, clip_on=False)
    for place, text in ((0, "1"), (MEAN, "0")):
        axes.text(-0.5 - 0.08 / step, place, text, fontsize=8, color=GREY, ha="right", va="center")
    for k, weight in enumerate(data.weights.tolist()):
        y = MEAN + GAP + ROW * k
        write_weight(axes, -0.5 - 0.55 / step, y + BAR - 0.06, weight)
        for first, count, label in _segments_of([t[k] for t in data.structures]):
            bar = Rectangle((first - 0.5, y), count, BAR, facecolor=_color(label), edgecolor="white", lw=1.5)
            axes.add_patch(bar)
            if text_width(names[label], font) + 0.1 < count * step:
                middle = first + (count - 1) / 2
                text = axes.text(middle, y + BAR / 2, names[label], ha="center", va="center_baseline")
                text.set(color="white", fontproperties=font)
    for t, word in enumerate(side.names):
        axes.text(t, room + 0.15, word, ha="center", color=INK, fontproperties=side.font)
    return figure


def _segments_of(structure: Sequence[Tensor]) -> list[tuple[int, int, int]]:
    """Return the first step, the number of steps and the label of each segment of a structure in any form."""
    if structure[0].ndim == 2:
        starts, ends = (structure[1][:, side].nonzero().tolist() for side in (0, 1))
        return [(first, end - first + 1, label) for (first, label), (end, _) in zip(starts, ends, strict=True)]
    segments = structure[0] if structure[0].ndim == 3 else structure[0].sum(2)
    return [(end - longer, longer + 1, label) for end, longer, label in segments.nonzero().tolist()]


def _labels_of_steps(mean: Tensor) -> Tensor:
    """Return the probability of each label at each step, (T, S), from the probability of segments."""
    if mean.ndim == 4:  # the picture ignores the preceding labels
        mean = mean.sum(2)
    steps, durations, _ = mean.shape
    total = mean.sum(1)
    for later in range(1, min(steps, durations)):
        # Segments that cover the step: they end at the right distance and are long enough.
        total[:-later] += mean[later:, later:].sum(1)
    return total


def _color(label: int) -> str:
    return LABELS[label % len(LABELS)]
