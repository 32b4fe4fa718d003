"""Pictures of rankings: lines from scores to mean ranks, and from mean ranks to the rankings of the support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ..errors import InvalidInputError
from ..kernels.arrays import as_tensor
from .layered_layout import separate_heights
from .mixture import PlotInput, read_solution
from .style import (
    BLUE,
    GREY,
    INK,
    LIGHT_GREY,
    ORANGE,
    add_axes,
    as_decimal,
    as_percent,
    colors_of,
    make_figure,
    size_of,
)
from .text import check_count, names_or_numbers, prepare_text, text_width

__all__ = ["ranking"]

# Inches between neighbouring ranks, and between neighbouring columns.
ROW, COLUMN = 0.34, 1.0
LETTERS = 0.5  # the height of a line of small text, in ranks


def ranking(
    solution: PlotInput,
    scores: Any = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "",
    max_structures: int = 4,
) -> Figure:
    """Draw the mean ranks of n elements, between the scores and the rankings of the support.

    Parameters
    ----------
    solution : Solution or SparseDistribution
        The solution of one instance of ``ranking``. The mean is (n,).
    scores : (n,) Tensor or sequence of float, optional
        The scores θ, drawn to scale to the left of the ranks.
    names : sequence of str, optional
        Names of the elements. By default, numbers from 1.
    title : str
        The title of the figure. By default, the figure has no title.
    max_structures : int
        The largest number of rankings to draw, in order of decreasing weight.

    Returns
    -------
    Figure
        A line for each element, highest rank on top. Elements with different ranks in different rankings are orange.

    Raises
    ------
    InvalidInputError
        If ``solution`` holds a batch or its mean has another shape, or if the number of names or scores does not match
        the number of elements.

    Examples
    --------
    >>> import torch, structinf as si
    >>> theta = torch.tensor([0.3, 1.9, 1.6])
    >>> figure = ranking(
    ...     si.infer(theta, "ranking", "sparsemap"),
    ...     theta,
    ...     names=["Ada", "Ben", "Cleo"],
    ... )
    """
    data = read_solution(solution, "n", max_structures=max_structures)
    (mean,), (structures,) = data.mean, data.structures
    size = len(mean)
    names, font, glyph_note = prepare_text(names_or_numbers("names", names, size, "elements", padded=True))
    columns = [("mean rank", mean.double().numpy())]
    if scores is not None:
        columns.insert(0, ("scores", _to_scale(scores, size)))
    columns += [
        (as_percent(w), ranks.double().numpy()) for w, ranks in zip(data.weights.tolist(), structures, strict=True)
    ]
    shared = (structures == structures[:1]).all(0)

    widest = max((text_width(name, font) for name in names), default=0.0)
    left, top, bottom = 0.6 + widest, 1.05 if title else 0.65, 0.65
    room = ROW * max(size - 1, 0)
    colors = [BLUE if same else ORANGE for same in shared.tolist()]
    legend = (
        colors_of({"the same in all": BLUE, "not the same": ORANGE}, colors) if len(structures) else [("mean", BLUE)]
    )
    width, height = left + COLUMN * (len(columns) - 1) + 0.75, top + room + bottom
    figure = make_figure(width, height, title, legend, data.rest, glyph_note)
    axes = add_axes(figure, 0, 0, *size_of(figure))
    # x in columns, y in ranks.
    axes.set_xlim(-left / COLUMN, (size_of(figure)[0] - left) / COLUMN)
    axes.set_ylim(1 - bottom / ROW, max(size, 1) + top / ROW)
    axes.set_axis_off()

    first_rank, last = int(scores is not None), len(columns) - 1
    axes.hlines(range(1, size + 1), first_rank, last + 0.12, color=LIGHT_GREY, lw=0.8, zorder=0)
    for rank in range(1, size + 1):
        axes.text(last + 0.2, rank, str(rank), va="center_baseline", fontsize=8, color=GREY)
    for x, (head, _) in enumerate(columns):
        weight = "bold" if head.endswith("%") else "normal"
        axes.text(x, max(size, 1) + 0.28 / ROW, head, ha="center", fontsize=9, color=INK, weight=weight)
    heights = np.array([column for _, column in columns])
    for i, line in enumerate(heights.T):
        axes.plot(range(len(columns)), line, color=colors[i], lw=1.6, marker="o", ms=4, zorder=2 if shared[i] else 3)
    for y, i in enumerate(heights[0].argsort(kind="stable").tolist(), 1):
        axes.plot([-0.3, -0.06], [y, heights[0, i]], color=GREY, lw=0.6)
        axes.text(-0.36, y, names[i], ha="right", va="center_baseline", color=INK, fontproperties=font)
    for rank, y in zip(mean.tolist(), _enforce_min_gap(heights[first_rank], LETTERS), strict=True):
        text = axes.text(
            first_rank + 0.08, y + 0.28, as_decimal(rank), va="center_baseline", fontsize=7, color=INK, zorder=4
        )
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8})
    return figure


def _to_scale(scores: Any, size: int) -> np.ndarray:
    """Shift and scale scores to the range from rank 1 to the highest rank."""
    scores = as_tensor(scores).detach().cpu().double()
    if scores.ndim != 1 or not bool(scores.isfinite().all()):
        raise InvalidInputError(f"scores must be {size} finite numbers, got a tensor of shape {tuple(scores.shape)}")
    check_count("scores", len(scores), size, "elements", padded=True)
    low, high = (scores.min(), scores.max()) if size else (0.0, 0.0)
    middle = torch.full_like(scores, (size + 1) / 2)
    return (1 + (scores - low) * (size - 1) / (high - low) if high > low else middle).numpy()


def _enforce_min_gap(heights: np.ndarray, least: float) -> np.ndarray:
    """Return the heights nearest to ``heights``, in the same order, at a distance of at least ``least``."""
    order = heights.argsort(kind="stable")
    separated = np.empty_like(heights)
    separated[order] = least * separate_heights(heights[order] / least)
    return separated
