"""Pictures of measurements, from JSON files in this folder."""

from __future__ import annotations

import json

from matplotlib.figure import Figure

from structinf.plot.style import BLUE, GREY, INK, LIGHT_GREY, ORANGE, add_axes, make_figure

from .gallery import HERE, picture

__all__ = ["scaling"]

WIDTH, LEFT, TOP, ROW = 9.2, 5.4, 0.55, 0.2  # inches


@picture
def scaling() -> Figure:
    """Draw measured exponents beside the exponents of the algorithms, for calls with a polynomial bound.

    `python -m benchmarks.speed --scaling --out docs/pictures/scaling.json` measures them.
    """
    records = json.loads((HERE / "scaling.json").read_text("utf-8"))["records"]
    rows = [record for record in records if record["exponents"]["time_expected"] is not None]
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
        measured, expected = row["exponents"]["time"], row["exponents"]["time_expected"]
        sizes = [f"{point['size']:,}" for point in row["points"]]
        axes.plot([measured, expected], [i, i], color=GREY, linewidth=1)
        axes.plot(expected, i, "o", markersize=5.5, markerfacecolor="white", markeredgecolor=ORANGE)
        axes.plot(measured, i, "o", markersize=4.5, color=BLUE)
        y = 1 - (TOP + ROW * (i + 0.5)) / height
        figure.text(0.2 / WIDTH, y, row["call"], fontsize=8, color=INK, va="center")
        figure.text(
            (LEFT - 0.1) / WIDTH,
            y,
            f"{row['axis']} = {sizes[0]} to {sizes[-1]}",
            fontsize=8,
            color=GREY,
            va="center",
            ha="right",
        )
    return figure
