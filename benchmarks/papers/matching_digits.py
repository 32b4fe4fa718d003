"""Perfect matchings of least cost on grids of digit images: losses compared on a convolutional network.

After Vlastelica, Paulus, Musil, Martius & Rolínek 2020, Differentiation of Blackbox Combinatorial Solvers, §4.3. The
nodes of a k x k grid are images of digits. The edge between two neighbours costs the two-digit number of both digits,
read from left to right or from top to bottom. The network sees images and optimal matchings, never a digit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import structinf as si

from .command import Report, run
from .digits import Digits, read
from .training import Fit, fit, relax

__all__ = ["main"]

PUBLISHED = {4: 98.3}  # test accuracy with the blackbox gradient


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    sides: tuple[int, ...] = (4, 8)
    train: int = 1500  # drawn again for each epoch
    test: int = 500
    epochs: int = 10
    batch: int = 16
    rate: float = 5e-3


def sizes(quick: bool) -> Sizes:
    return Sizes(sides=(4,), train=300, test=100, epochs=3, rate=1e-2) if quick else Sizes()


# ----------------------------------------------------------------------------- data


class Grids(NamedTuple):
    """Numbers of the images on each grid (B, k²), row by row, the costs of edges, and a matching of least cost."""

    images: Tensor
    costs: Tensor
    best: Tensor


def neighbours(side: int) -> Tensor:
    """Return pairs of nodes (E, 2), left or upper node first. Nodes are numbered row by row."""
    node = torch.arange(side**2).view(side, side)
    across, down = (node[:, :-1], node[:, 1:]), (node[:-1], node[1:])
    return torch.cat([torch.stack([a.flatten(), b.flatten()], 1) for a, b in (across, down)])


def matching(side: int) -> si.Oracle:
    """Return the oracle of perfect matchings of the grid, equal to tilings by dominoes."""
    return si.get_oracle("matching", edges=[tuple(pair) for pair in neighbours(side).tolist()])


def draw(digits: Tensor, side: int, count: int, generator: torch.Generator) -> Grids:
    """Draw grids of random images."""
    images = torch.randint(len(digits), (count, side**2), generator=generator)
    first, second = digits[images][:, neighbours(side)].unbind(2)
    costs = (10 * first + second).float()
    return Grids(images, costs, relax(-costs, matching(side)))


# ----------------------------------------------------------------------------- model


class EdgeScorer(nn.Module):
    """A network that returns scores (B, E) of the edges from the images at both ends.

    Grids are given as numbers of images (B, k²).
    """

    ends: Tensor

    def __init__(self, side: int, features: int = 16) -> None:
        super().__init__()
        self.register_buffer("ends", neighbours(side))
        self.image = nn.Sequential(
            nn.Unflatten(1, (1, 8)),
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 16, features),
            nn.ReLU(),
        )
        self.edge = nn.Sequential(nn.Linear(2 * features, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, images: Tensor, grids: Tensor) -> Tensor:
        used, place = grids.unique(return_inverse=True)
        seen = self.image(images[used])[place]
        return self.edge(seen[:, self.ends].flatten(2)).squeeze(2)


class DigitEdgeScorer(EdgeScorer):
    """A network that returns scores (B, E) of the edges from recognized digits, one image at a time, trained on
    digits.
    """

    def __init__(self, side: int, features: int = 16) -> None:
        super().__init__(side, features)
        self.digit = nn.Linear(features, 10)

    def forward(self, images: Tensor, grids: Tensor) -> Tensor:
        read = self.digit(self.image(images)).argmax(1)
        first, second = read[grids][:, self.ends].unbind(2)
        return -(10.0 * first + second)


Loss = Callable[[Tensor, Tensor], Tensor]
"""Of scores and right matchings, (B, E) each."""


def losses(oracle: si.Oracle) -> dict[str, Loss]:
    return {
        "blackbox": wrong_edges(oracle),
        "perceptron": si.FenchelYoungLoss(oracle, "map"),
        "hinge": si.FenchelYoungLoss(oracle, "map", cost="hamming"),
        # In the first steps, with scores near 0, hundreds of matchings have a weight. The remaining gap does no harm.
        "SparseMAP": si.FenchelYoungLoss(oracle, "sparsemap", tolerance=1.5e-3, max_iter=200, on_failure="ignore"),
    }


def wrong_edges(oracle: si.Oracle) -> Loss:
    """Return a loss: the Hamming distance between the best and the right matching, with the blackbox gradient."""
    layer = si.Layer(oracle, "blackbox", lambda_=100.0)
    # The gradient of this form is 1 − 2 y* at right and at wrong edges.
    return lambda theta, right: (right + (1 - 2 * right) * layer(theta)).sum(1).mean()


class Score(NamedTuple):
    """Per cent of grids with a matching of least cost, found pairs of the known best matching, and of excess cost."""

    optimal: float
    pairs: float
    excess: float


@torch.no_grad()
def score(model: EdgeScorer, digits: Digits, grids: Grids, oracle: si.Oracle) -> Score:
    theta = torch.cat([model(digits.images, rows) for rows in grids.images.split(64)])
    chosen = relax(theta, oracle)
    paid, least = ((grids.costs * y).sum(1) for y in (chosen, grids.best))
    found = (chosen * grids.best).sum() / grids.best.sum()
    return Score(*(100 * x.item() for x in ((paid == least).float().mean(), found, (paid - least).sum() / least.sum())))


def train(side: int, loss: Loss, digits: Digits, size: Sizes, seed: int, description: str) -> tuple[EdgeScorer, Fit]:
    """Train a network on grids drawn again for each epoch."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = EdgeScorer(side)

    def batches() -> list[tuple[Tensor, Tensor]]:
        grids = draw(digits.digits, side, size.train, generator)
        return list(zip(*(part.split(size.batch) for part in (grids.images, grids.best)), strict=True))

    result = fit(
        model,
        [lambda batch: loss(model(digits.images, batch[0]), batch[1])] * size.epochs,
        batches,
        rate=size.rate,
        description=description,
    )
    return model.eval(), result


def train_on_digits(side: int, digits: Digits, seed: int, description: str) -> tuple[EdgeScorer, Fit]:
    """Train a network on the digits."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = DigitEdgeScorer(side)
    result = fit(
        model,
        [lambda rows: cross_entropy(model.digit(model.image(digits.images[rows])), digits.digits[rows])] * 40,
        lambda: torch.randperm(len(digits.digits), generator=generator).split(32),
        rate=3e-3,
        description=description,
    )
    return model.eval(), result


# ----------------------------------------------------------------------------- experiment


def experiment(size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each loss, on grids drawn for each seed, and print the results on grids of other images."""
    digits, others = read()
    report.line(
        f"{size.epochs} epochs of {size.train} grids of {len(digits.digits)} images, "
        f"{size.test} test grids of {len(others.digits)}\n"
    )
    report.columns(
        {
            "loss": 22,
            "k": 1,
            "optimal, %": 13,
            "of training images, %": 0,
            "right pairs, %": 12,
            "excess cost, %": 12,
            "last loss": 0,
            "seconds": 0,
        }
    )
    for side in size.sides:
        oracle = matching(side)
        generator = torch.Generator().manual_seed(len(seeds))
        known, grids = (draw(part.digits, side, size.test, generator) for part in (digits, others))
        for name, loss in {"digits read first": None, **losses(oracle)}.items():
            fits, scores, fitted = [], [], []
            for seed in seeds:
                description = f"k = {side}, {name}, seed {seed}"
                model, result = (
                    train_on_digits(side, digits, seed, description)
                    if loss is None
                    else train(side, loss, digits, size, seed, description)
                )
                fits.append(result)
                scores.append(score(model, others, grids, oracle))
                fitted.append(score(model, digits, known, oracle).optimal)
            first, *mean_scores = ([getattr(s, field) for s in scores] for field in Score._fields)
            last = [f.losses[-1] for f in fits]
            report.row(name, side, first, fitted, *mean_scores, last, f"{sum(f.seconds for f in fits):.0f}")
        if side in PUBLISHED:
            report.row("blackbox, published", side, PUBLISHED[side], "", "", "", "", "")


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=2, reads=False)


if __name__ == "__main__":
    sys.exit(main())
