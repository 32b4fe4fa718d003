"""Shortest paths on a grid with predicted costs: losses of decisions compared, on drawn data.

The data follows Elmachtoub & Grigas 2022, Smart "Predict, then Optimize", §6.1, in the sizes of other libraries'
comparisons: arcs to the right and down on a grid of 5 x 5 nodes, with costs that are noisy polynomials of five
features. The prediction is linear, so the model is misspecified.

All losses also learn from the data of a published comparison: the tutorial "Training and Testing" of PyEPO (Tang &
Khalil 2024, PyEPO: a PyTorch-based end-to-end predict-then-optimize library). Its numbers are for one training each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import structinf as si

from .command import Report, run
from .decision_problems import draw_costs, grid_arcs
from .decisions import Decisions, Loss, Training, losses, regret, surrogates, train
from .training import relax

__all__ = ["main"]

SIDE, FEATURES, DEGREE, NOISE = 5, 5, 4, 0.5
TRAINING = Training(epochs=20, batch=32, rate=1e-2)

WEIGHT = 10.0
"""The weight of the expected regret, the best of 2, 5, 10 and 20 on 1000 more instances of each draw."""

NOISE_FREE = "noise-free costs"

PUBLISHED_SEED = 42
"""The seed of the published data and of its division into data for training and for the test."""

PUBLISHED_HALF = 1000
"""The number of published instances for training, and for the test."""

# Normalised test regret after the last epoch, in the tutorial of PyEPO, for the published data.
PUBLISHED = {
    "SPO+": 7.59,
    "perturbed Fenchel-Young": 7.29,
    "adaptive I-MLE": 7.24,
    "regularised Frank-Wolfe Fenchel-Young": 7.79,
    "negative identity": 8.90,
    "I-MLE": 12.07,
    "blackbox": 15.12,
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    train: int = 1000
    test: int = 1000
    training: Training = TRAINING


def sizes(quick: bool) -> Sizes:
    return Sizes(train=200, test=200, training=Training(epochs=10, batch=32, rate=3e-2)) if quick else Sizes()


def arcs(side: int) -> list[tuple[int, int]]:
    """Return the arcs of a grid from each node to the right and down. Nodes are numbered row by row."""
    right = [(side * i + j, side * i + j + 1) for i in range(side) for j in range(side - 1)]
    down = [(side * i + j, side * (i + 1) + j) for i in range(side - 1) for j in range(side)]
    return sorted(right + down)


PATH = si.get_oracle("dag_path", graph=arcs(SIDE))


def draw(count: int, seed: int) -> tuple[Decisions, Tensor]:
    """Draw values ((B x / √p + 3)^deg + 1) / 3.5^deg times a uniform factor as costs, and the costs without the
    factor.
    """
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.bernoulli(torch.full((len(arcs(SIDE)), FEATURES), 0.5), generator=generator)
    features = torch.randn(count, FEATURES, generator=generator)
    expected = -((features @ mixing.T / FEATURES**0.5 + 3) ** DEGREE + 1) / 3.5**DEGREE
    values = expected * (1 + NOISE * (2 * torch.rand(expected.shape, generator=generator) - 1))
    return Decisions(features, values, relax(values, PATH)), expected


def published_draw() -> tuple[Decisions, Tensor]:
    """Return the published instances, first the ones for training, and their costs without the factor."""
    features, expected, costs = draw_costs(2 * PUBLISHED_HALF, PUBLISHED_SEED)
    column = {arc: i for i, arc in enumerate(grid_arcs(SIDE))}
    columns = [column[arc] for arc in arcs(SIDE)]
    # scikit-learn divides rows with this seed into a test half, then a training half.
    rows = np.roll(np.random.RandomState(PUBLISHED_SEED).permutation(len(costs)), PUBLISHED_HALF)
    x, values, free = (torch.from_numpy(t[rows]).float() for t in (features, -costs[:, columns], -expected[:, columns]))
    return Decisions(x, values, relax(values, PATH)), free


def every_loss() -> dict[str, Loss]:
    """Return all losses and surrogates, for paths of the grid."""
    spo_plus, marginals = si.SPOPlusLoss(PATH), si.Layer(PATH, "marginals")
    gradient, cone = si.PerturbationGradientLoss(PATH, h=1.0), si.ConeLoss(PATH)
    listwise = si.RankingLoss(PATH, "listwise", solve_ratio=1.0)
    perturbed = si.FenchelYoungLoss(PATH, "perturbed", samples=10, sigma=2.0)

    def expected_regret(theta: Tensor, batch: Decisions) -> Tensor:
        """The mean regret of paths drawn with probabilities proportional to exp⟨θ, y⟩."""
        return (batch.values * (batch.best - marginals(theta))).sum(1).mean()

    return {
        **losses(PATH),
        **surrogates(PATH, 2 * (SIDE - 1)),
        "perturbation gradient": lambda theta, batch: gradient(theta, batch.values),
        "ranking, listwise": lambda theta, batch: listwise(theta, batch.values),
        "cone (CaVE)": lambda theta, batch: cone(theta, batch.best),
        "perturbed Fenchel-Young, σ = 2": lambda theta, batch: perturbed(theta, batch.best),
        "expected regret": expected_regret,
        "SPO+ and expected regret": lambda theta, batch: (
            spo_plus(theta, batch.values) + WEIGHT * expected_regret(theta, batch)
        ),
    }


def experiment(size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each loss, on data drawn for each seed and on the published data. Print the regret on test data."""
    report.line(
        f"{size.train} paths drawn for training and {size.test} for the test, {len(seeds)} times; "
        f"and the published data, with {len(seeds)} initial weights\n"
    )
    report.columns({"loss": 37, "regret, %": 12, "regret, published data, %": 0, "published, %": 0, "seconds": 0})
    drawn = [draw(size.train + size.test, seed) for seed in seeds]
    published = published_draw()
    halves = [(data.take(slice(size.train)), data.take(slice(size.train, None))) for data, _ in drawn]
    given, used = published[0], min(size.train, PUBLISHED_HALF)
    same = given.take(slice(used)), given.take(slice(PUBLISHED_HALF, None))

    def results(name: str, data: Sequence[tuple[Decisions, Decisions]]) -> tuple[list[float], float]:
        """Return the regret for each seed, and the seconds of all trainings."""
        found, seconds = [], 0.0
        for seed, (train_data, test) in zip(seeds, data, strict=True):
            model, result = train(
                lambda: nn.Linear(FEATURES, len(arcs(SIDE))),
                every_loss()[name],  # a new loss, without the state from other data
                train_data,
                size.training,
                seed,
                f"{name}, seed {seed}",
            )
            found.append(regret(model(test.features), test, PATH))
            seconds += result.seconds
        return found, seconds

    for name in every_loss():
        own, seconds = results(name, halves)
        again, _ = results(name, [same] * len(seeds))
        report.row(name, own, again, PUBLISHED.get(name, ""), f"{seconds:.0f}")
    known = [regret(values[size.train :], test, PATH) for (_, values), (_, test) in zip(drawn, halves, strict=True)]
    report.row(NOISE_FREE, known, regret(published[1][PUBLISHED_HALF:], same[1], PATH), "", "")


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=5, reads=False)


if __name__ == "__main__":
    sys.exit(main())
