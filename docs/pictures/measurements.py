"""Pictures of measurements, which `benchmarks` writes to JSON files in this folder."""

from __future__ import annotations

import json

from matplotlib.figure import Figure

from structinf.plot.style import BLUE, GREY, INK, LIGHT_GREY, ORANGE, add_axes, make_figure

from .gallery import HERE, picture

__all__ = ["scaling"]

WIDTH, LEFT, TOP, ROW = 9.2, 5.4, 0.55, 0.2  # inches


@picture
def scaling() -> Figure:
    """Draw the exponents that `python -m benchmarks.speed --scaling` measured, beside those of the algorithms."""
    rows = json.loads((HERE / "scaling.json").read_text("utf-8"))["rows"]
    height = 2 * TOP + ROW * len(rows)
    legend = [("measured exponent", BLUE), ("exponent of the algorithm", ORANGE)]
    figure = make_figure(WIDTH, height, "Time grows with the size to the power of …", legend)
    axes = add_axes(figure, LEFT, TOP, WIDTH - LEFT - 0.3, height - 2 * TOP)
    axes.set(xlim=(-0.4, 4.2), ylim=(len(rows) - 0.5, -0.5), xticks=range(5), yticks=[])
    axes.tick_params(length=0, labelsize=8, labelcolor=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.grid(axis="x", color=LIGHT_GREY, linewidth=0.8)
    axes.set_axisbelow(True)
    for i, row in enumerate(rows):
        axes.plot([row["measured"], row["expected"]], [i, i], color=GREY, linewidth=1)
        axes.plot(row["expected"], i, "o", markersize=5.5, markerfacecolor="white", markeredgecolor=ORANGE)
        axes.plot(row["measured"], i, "o", markersize=4.5, color=BLUE)
        y = 1 - (TOP + ROW * (i + 0.5)) / height
        figure.text(0.2 / WIDTH, y, row["what"], fontsize=8, color=INK, va="center")
        figure.text((LEFT - 0.1) / WIDTH, y, row["sizes"], fontsize=8, color=GREY, va="center", ha="right")
    return figure
