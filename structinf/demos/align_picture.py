"""The picture of the alignments: dense beside sparse, with the best path over them, and averages of many series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from torch import Tensor

from ..plot import BLUE, INK, ORANGE, SOFT

__all__ = ["Average", "Pair", "draw"]

# Probability 0 is white, and nothing else is.
SHADES = LinearSegmentedColormap.from_list("shades", ["#e3edf6", "#bcd6ec", "#5b9bd0", BLUE]).with_extremes(bad="white")


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
        axes.plot(series.T.numpy(), color=SOFT, lw=0.5, alpha=0.45)
        axes.plot(average.numpy(), color=BLUE, lw=2)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set(xticks=[], yticks=[], ylim=(series.min().item() - 0.2, series.max().item() + 0.2))
        _frame(axes)
    return figure


def _draw_alignment(figure: Figure, panel: SubplotSpec, title: str, matrix: Tensor, pair: Pair) -> None:
    """The matrix with y above it, x to the left, and the best path over it."""
    cells = panel.subgridspec(2, 2, width_ratios=(1, 7), height_ratios=(1, 7), wspace=0.02, hspace=0.02)
    axes = figure.add_subplot(cells[1, 1])
    # By a power of the probability, so that small ones still differ.
    shades = matrix.where(matrix > 0, torch.nan).numpy()
    axes.imshow(shades, cmap=SHADES, norm=PowerNorm(0.25, vmin=0, vmax=1), aspect="auto", interpolation="nearest")
    axes.plot(*pair.path.T.flip(0).numpy(), color=ORANGE, lw=1, label="best alignment")
    axes.legend(loc="upper right", fontsize=8, frameon=False, labelcolor=INK)
    axes.set(xticks=[], yticks=[])
    _frame(axes)
    top, left = figure.add_subplot(cells[0, 1], sharex=axes), figure.add_subplot(cells[1, 0], sharey=axes)
    top.plot(pair.y.numpy(), color=INK, lw=1)
    left.plot((-pair.x).numpy(), range(len(pair.x)), color=INK, lw=1)
    for side in (top, left):
        side.set_axis_off()
    share = (matrix > 0).double().mean().item()
    top.set_title(f"{title}: {share:.0%} of the cells above 0", fontsize=10, color=INK)


def _frame(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_color(SOFT)
        spine.set_linewidth(0.6)
