"""Choose half-hours of a day under a budget, with predicted prices: losses of decisions compared.

The task and the data are from Mandi, Kotary, Berden, Mulamba, Bucarey, Guns & Fioretto 2024, Decision-Focused
Learning: Foundations, State of the Art, Benchmark and Future Opportunities. Each half-hour has a weight, a knapsack
takes the half-hours of the highest total price within its capacity, and a linear model predicts the prices from eight
features.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import structinf as si

from .command import Report, run
from .decisions import Decisions, Training, losses, regret, train
from .text import bytes_of
from .training import relax

__all__ = ["main"]

ITEMS = 48
TRAINING = Training(epochs=20, batch=32, rate=1e-1)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    capacities: tuple[int, ...] = (60, 120, 180)  # the total weight is 240
    days: int | None = None  # None: all
    training: Training = TRAINING


def sizes(quick: bool) -> Sizes:
    return Sizes(capacities=(60,), days=100, training=replace(TRAINING, epochs=3)) if quick else Sizes()


class Days(NamedTuple):
    """Features (days, 48, 8) and prices (days, 48) for training and test, and the weights of the items."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    weights: tuple[int, ...]


def read(folder: Path, most: int | None = None) -> Days:
    """Read energy_knapsack.npz: features standardised on the training days, and prices divided by their mean."""
    with np.load(io.BytesIO(bytes_of(folder, "energy_knapsack.npz"))) as file:
        # The first feature is the number of the day.
        features, tests = (torch.from_numpy(file[f"X_{part}"])[:, 1:] for part in ("train", "test"))
        prices, test_prices = (torch.from_numpy(file[f"y_{part}"]) for part in ("train", "test"))
        weights = tuple(file["weights"].tolist())
    mean, spread, price = features.mean(0), features.std(0), prices.mean()

    def days(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return ((x - mean) / spread).unflatten(0, (-1, ITEMS))[:most], (y / price).unflatten(0, (-1, ITEMS))[:most]

    return Days(days(features, prices), days(tests, test_prices), weights)


def linear() -> nn.Module:
    """Return one linear model shared by all half-hours."""
    return nn.Sequential(nn.Linear(8, 1), nn.Flatten())


def experiment(folder: Path, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each loss, for each capacity, and print the regret on the test days."""
    days = read(folder, size.days)
    count = len(days.train[0])
    report.line(
        f"{folder.name}: {count} days, of which a fifth, drawn for each seed, chooses the epoch; "
        f"{len(days.test[0])} test days\n"
    )
    report.columns({"loss": 13, **{f"regret, %, capacity {c}": 12 for c in size.capacities}, "seconds": 0})
    rows: dict[str, list[object]] = {}
    spent: dict[str, float] = {}
    for capacity in size.capacities:
        oracle = si.get_oracle("knapsack", weights=days.weights, capacity=capacity)
        data, test = (Decisions(x, y, relax(y, oracle)) for x, y in (days.train, days.test))
        for name, loss in losses(oracle).items():
            found = []
            for seed in seeds:
                order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
                dev = data.take(order[: count // 5])
                model, result = train(
                    linear,
                    loss,
                    data.take(order[count // 5 :]),
                    size.training,
                    seed,
                    f"{name}, capacity {capacity}, seed {seed}",
                    lambda model, dev=dev, oracle=oracle: -regret(model(dev.features), dev, oracle),
                )
                found.append(regret(model(test.features), test, oracle))
                spent[name] = spent.get(name, 0.0) + result.seconds
            rows.setdefault(name, []).append(found)
    for name, found in rows.items():
        report.row(name, *found, f"{spent[name]:.0f}")


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=5)


if __name__ == "__main__":
    sys.exit(main())
