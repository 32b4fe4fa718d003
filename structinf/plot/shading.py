"""Cells of a matrix, shaded by their probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from torch import Tensor

from .style import BLUE, as_decimal, draw_frame

__all__ = ["explain_shades", "is_dark", "shade"]

# Only probability 0 is white.
SHADES = LinearSegmentedColormap.from_list("shades", ["#e3edf6", "#bcd6ec", "#5b9bd0", BLUE]).with_extremes(bad="white")
NORM = PowerNorm(
    0.25, vmin=0, vmax=1
)  # the exponent of the probability, below 1, so that small probabilities still differ


def shade(axes: Axes, matrix: Tensor) -> None:
    """Draw the cells of a matrix (n, m) of probabilities. Only probability 0 is white."""
    values = matrix.where(matrix > 0, torch.nan).numpy()
    axes.imshow(values, cmap=SHADES, norm=NORM, aspect="auto", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    draw_frame(axes)


def is_dark(probability: float) -> bool:
    """Return whether text on the shade of a probability should be white."""
    return float(NORM(probability)) > 0.7


def explain_shades(probabilities: Sequence[float] = (0.01, 0.1, 0.5, 1.0)) -> list[tuple[str, str]]:
    """Return the legend of the shades: probabilities as text, and their colours."""
    return [(as_decimal(p), _color(p)) for p in probabilities]


def _color(probability: float) -> str:
    red, green, blue, _ = SHADES(NORM(probability), bytes=True)
    return f"#{red:02x}{green:02x}{blue:02x}"
