"""The picture of the alignments: dense beside sparse, with the best path over them, and averages of many series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from torch import Tensor

from ..plot.shading import shade
from ..plot.side_labels import draw_series
from ..plot.style import BLUE, GREY, INK, ORANGE, draw_frame

__all__ = ["Average", "Pair", "draw"]


class Pair(NamedTuple):
    """Two series (n,) and (m,), titled alignment matrices (n, m), and the best path's cells (steps, 2)."""

    x: Tensor
    y: Tensor
    matrices: Mapping[str, Tensor]
    path: Tensor


class Average(NamedTuple):
    """A series (n,), and what made it."""

    title: str
    series: Tensor


def draw(pair: Pair, series: Tensor, averages: Sequence[Average]) -> Figure:
    """The alignments of a pair, above the averages of ``series`` (N, n)."""
    figure = Figure(figsize=(10, 8.3), dpi=150, facecolor="white")
    for text, height in (("Two recordings, aligned", 0.967), ("All recordings of the class, averaged", 0.318)):
        figure.text(0.04, height, text, fontsize=13, color=INK, weight="bold", va="center")
    panels = figure.add_gridspec(1, len(pair.matrices), left=0.04, right=0.97, top=0.905, bottom=0.37, wspace=0.1)
    for k, (title, matrix) in enumerate(pair.matrices.items()):
        _draw_alignment(figure, panels[k], title, matrix, pair)
    panels = figure.add_gridspec(1, len(averages), left=0.04, right=0.97, top=0.255, bottom=0.03, wspace=0.06)
    for k, (title, average) in enumerate(averages):
        axes = figure.add_subplot(panels[k])
        axes.plot(series.T.numpy(), color=GREY, lw=0.5, alpha=0.45)
        axes.plot(average.numpy(), color=BLUE, lw=2)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set(xticks=[], yticks=[], ylim=(series.min().item() - 0.2, series.max().item() + 0.2))
        draw_frame(axes)
    return figure


def _draw_alignment(figure: Figure, panel: SubplotSpec, title: str, matrix: Tensor, pair: Pair) -> None:
    """The matrix with y above it, x to the left, and the best path over it."""
    cells = panel.subgridspec(2, 2, width_ratios=(1, 7), height_ratios=(1, 7), wspace=0.02, hspace=0.02)
    axes = figure.add_subplot(cells[1, 1])
    shade(axes, matrix)
    axes.plot(*pair.path.T.flip(0).numpy(), color=ORANGE, lw=1, label="best alignment")
    axes.legend(loc="upper right", fontsize=8, frameon=False, labelcolor=INK)
    top, left = figure.add_subplot(cells[0, 1], sharex=axes), figure.add_subplot(cells[1, 0], sharey=axes)
    draw_series(top, pair.y)
    draw_series(left, pair.x, down=True)
    share = (matrix > 0).double().mean().item()
    precision = str(matrix.dtype).removeprefix("torch.")
    top.set_title(f"{title}: {share:.0%} of the cells above 0 in {precision}", fontsize=10, color=INK)
